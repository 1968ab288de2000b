"""A whole model, one step of a schedule after the other, by op kernels alone: what the engine must give, cell by cell.

Shares no code with `moeparity.engine`: every step goes through the whole graph before the next one, as an engine would
run it, keys and values are kept by token, and each op is called with the tensors of this step as the ops before it
left them. `by_token` makes every token a step of its own, with the same keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from moeparity.inputs.model import Model
from moeparity.numerics.dtypes import UNROUNDED, torch_dtype
from moeparity.plan.bound import Plan
from moeparity.plan.graph import Node
from moeparity.plan.schedule.steps import Phase, Schedule, Span, Step

Function = Callable[..., Any]
Places = list[tuple[int, int]]
"""Tokens as (sequence, column)."""


class Call(NamedTuple):
    """Tokens that go through an op in one tensor [b, t], those that attention shows them, and what of these each of
    them may see (None: by their order alone). `padding`: rows of zeros behind them. `before`: of each row, the
    token whose state it goes on from, if that was computed before (None: it begins anew).
    """

    tokens: Places
    size: tuple[int, int]
    keys: Places
    key_size: tuple[int, int]
    visible: Tensor | None = None
    padding: int = 0
    before: Sequence[tuple[int, int] | None] = ()


class Made(NamedTuple):
    """A call of an op with a state: its tokens, what it read of them, the state before them, and the kernel."""

    call: Call
    operands: list[Tensor | None]
    state: Tensor | None
    kernel: Callable[..., tuple[Tensor, ...]]


@dataclass
class Stepwise:
    """Runs a schedule on tokens [B, T] with a plan; `values` and `handed` then hold one row for each token.

    functions: what stands in place of a node's kernel.
    """

    model: Model
    plan: Plan
    ids: Tensor
    mask: Tensor
    by_token: bool = False
    functions: Mapping[str, Function] = field(default_factory=dict)

    def run(self, schedule: Schedule) -> dict[str, Tensor]:
        """By value, and `value->reader` where a reader is handed another rounding: [B, T, ...]."""
        self.rows: dict[str, dict[tuple[int, int], Tensor]] = {}
        self.schedule = schedule
        # By node: every call so far of an op with a state, and the token that a copied one is.
        self.calls_made: dict[str, list[Made]] = {}
        self.copied: dict[tuple[int, int], tuple[int, int]] = {}
        flat = [step for step in schedule.steps if step.shape == "flat" and not step.filler]
        there = [part for step in flat for part in step.parts]
        # Where the keys of a sequence begin that a server was given without its padding.
        self.starts = {span.sequence: min(p.first for p in there if p.sequence == span.sequence) for span in there}
        everywhere = [(s, t) for s in range(self.ids.shape[0]) for t in range(self.ids.shape[1])]
        for name, source in (("tokens", self.ids), ("mask", self.mask), ("positions", self._positions())):
            self.rows[name] = {place: source[place] for place in everywhere}
        self.loaded = [self.model.weights.load(s, self.plan.dtypes) for s in self.model.graph.segments]
        # What fills the grid goes along with the phase whose first step is the last.
        real = [*dict.fromkeys(step.phase for step in schedule.steps if not step.filler)]
        with torch.inference_mode():
            for step in schedule.steps:
                phase = real[-1] if step.filler and real else step.phase
                self._step(step, phase)
        shape = self.ids.shape
        return {
            value: torch.stack([rows[place] for place in everywhere]).unflatten(0, shape)
            for value, rows in self.rows.items()
            if value not in {"tokens", "mask", "positions"}
        }

    def _positions(self) -> Tensor:
        sequences, length = self.ids.shape
        positions = torch.arange(length).repeat(sequences, 1)
        if self.schedule.positions == "tokens":
            for s in range(sequences):
                real_before = 0
                for t in range(length):
                    real_before += int(self.mask[s, t])
                    positions[s, t] = real_before - 1 if self.mask[s, t] else 1
        if self.schedule.positions == "running":
            for step in self.schedule.steps:
                for place, (s, t) in enumerate(_places(step.spans)):
                    positions[s, t] = place
        return positions

    def _step(self, step: Step, phase: Phase) -> None:
        # The tensors of this step, as ops left them, by value and tokens.
        self.tensors: dict[tuple[str, tuple[tuple[int, int], ...]], Tensor] = {}
        for segment, loaded in zip(self.model.graph.segments, self.loaded, strict=True):
            for node in segment.nodes:
                plan = self._plan(phase, step.rows, step.tokens, step.tokens, step.tokens)
                varlen = node.op.tokens.varlen({**plan.told_to(node), **plan.active(node)})
                calls = list(self._calls(node, step, varlen=varlen))
                longest = max((call.key_size[1] for call in calls), default=0)
                longest = sum(call.size[1] for call in calls) if _is_pack(step) else longest
                for call in calls:
                    rows = (
                        step.rows if node.op.tokens.history or node.op.tokens.state else len(call.tokens) + call.padding
                    )
                    plan = self._plan(phase, rows, longest, call.key_size[1], call.size[1])
                    self._call(plan, node, call, loaded[node.name, plan.dtype_of(node.name)])
                for copy in step.copies:
                    self.copied |= {
                        (copy.sequence, t): (copy.source, t + copy.shift) for t in range(copy.first, copy.last)
                    }
                    for value in (*node.values, *(f"{node.values[0]}->{r}" for r in plan.edges(node))):
                        for t in range(copy.first, copy.last):
                            self.rows[value][copy.sequence, t] = self.rows[value][copy.source, t + copy.shift]

    def _plan(self, phase: Phase, rows: int, longest: int, keys: int, queries: int) -> Plan:
        """The plan of the one case that these numbers are of."""
        numbers = {"rows": rows, "longest": longest, "keys": keys, "queries": queries}
        (case,) = [
            case
            for case in self.plan.phases
            if case.partition("[")[0] == phase
            and all(
                int(first or 0) <= numbers[name] < int(last or 10**9)
                for name, first, last in re.findall(r"([a-z]+) (\d*):(\d*)", case)
            )
        ]
        return self.plan.at_phase(case)

    def _calls(self, node: Node, step: Step, *, varlen: bool) -> Iterator[Call]:
        if not step.spans:
            return
        if self.by_token:
            for place in _places(step.spans):
                keys = _before(step, place, self.starts)
                visible = torch.tensor([[_sees(step, place, key) for key in keys]]) if _is_pack(step) else None
                tokens = _places(step.spans)
                runs_on = _is_pack(step) and not step.isolated and tokens.index(place)
                before = tokens[tokens.index(place) - 1] if runs_on else (place[0], place[1] - 1)
                yield Call([place], (1, 1), keys, (1, len(keys)), visible, before=[before])
        elif node.op.role.family == "head":
            for spans in _head_parts(step):
                alike = len({(span.first, span.last) for span in spans}) == 1
                yield _together(spans, step.shape if alike else "flat", 0)
            if step.scored is None:
                yield _together(step.spans, step.shape, step.padding)
        elif not (node.op.tokens.history or node.op.tokens.state):
            yield _together(step.spans, step.shape, step.padding)
        else:
            alone = varlen or node.op.tokens.state is not None
            yield from _attending(step, self.starts if step.shape == "flat" else {}, varlen=alone)

    def _call(self, plan: Plan, node: Node, call: Call, w: Mapping[str, Tensor]) -> None:
        kernel, edges = self.functions.get(node.name) or node.op.load(), plan.edges(node)
        names = [
            value if value is None or f"{value}->{node.name}" not in self.rows else f"{value}->{node.name}"
            for value in plan.read_inputs(node)
        ]
        operands = [
            None if name is None else self._input(plan, node, port, name, call)
            for port, name in zip(node.ports, names, strict=False)
        ]
        settings = {**plan.told_to(node), **plan.active(node)}
        handed: dict[str | None, dict[str, Any]] = {None: {}, **{r: dict([site]) for r, site in edges.items()}}
        for reader, changed in handed.items():
            at = _kernel_settings(node, {**settings, **changed})
            carried = {} if node.op.tokens.state is None else {"state": self._state_before(node, call, at)}
            out = kernel(*operands, w=w, p=node.params, at=at, **carried)
            if node.op.tokens.state is not None:
                of_node = partial(kernel, w=w, p=node.params, at=at)
                self.calls_made.setdefault(node.name, []).append(Made(call, operands, carried["state"], of_node))
            for value, tensor in zip(node.values, out if isinstance(out, tuple) else (out,), strict=False):
                partials = plan.partials[node.values[0]] > 1
                axis = node.op.tokens.axis + partials
                name = value if reader is None else f"{value}->{reader}"
                rows = tensor.narrow(axis, 0, tensor.shape[axis] - call.padding) if call.padding else tensor
                # In memory of its own: torch would choose the GEMM of one row by the strides of all of them.
                rows = rows.clone(memory_format=torch.contiguous_format) if call.padding else rows
                self.tensors[name, tuple(call.tokens)] = rows
                by_token = rows.movedim(axis, 1).flatten(0, 1)
                self.rows.setdefault(name, {}).update(zip(call.tokens, by_token.unbind(), strict=True))

    def _state_before(self, node: Node, call: Call, at: Mapping[str, Any]) -> Tensor | None:
        """What a call begins with: of each sequence the state behind the token before it, stored in between."""
        rows = [self._state_behind(node, place, at) for place in call.before]
        some_state = next((row for row in rows if row is not None), None)
        return (
            None
            if some_state is None
            else torch.stack([torch.zeros_like(some_state) if r is None else r for r in rows])
        )

    def _state_behind(self, node: Node, place: tuple[int, int] | None, at: Mapping[str, Any]) -> Tensor | None:
        """The state of a sequence behind a token, as the call that computed it leaves it."""
        source = place
        while source in self.copied:
            source = self.copied[source]
        for call_made in self.calls_made.get(node.name, ()):
            if source in call_made.call.tokens:
                row, column = divmod(call_made.call.tokens.index(source), call_made.call.size[1])
                state = call_made.kernel(*call_made.operands, state=call_made.state, ends=(column + 1,))[
                    len(node.values)
                ][row]
                for site in ("step_state", *(["block_state"] if source != place else [])):
                    state = state if at[site] == UNROUNDED else state.to(at[site]).to(state.dtype)
                return state
        return None

    def _input(self, plan: Plan, node: Node, port: str, name: str, call: Call) -> Tensor:
        """One input of a call: the step's own tensor, or rows put together as the op that made them lays them out."""
        earlier = port in node.op.tokens.history
        tokens, size = (call.keys, call.key_size) if earlier else (call.tokens, call.size)
        if name == "mask" and call.visible is not None:
            return torch.stack([self.rows[name][place] for place in tokens]).view(1, 1, -1) & call.visible
        own_rows = self.tensors.get((name, tuple(tokens)))
        base = name.partition("->")[0]
        maker = next((n for n in self.model.graph.nodes if base in n.values), None)
        partials = maker is not None and plan.partials[base] > 1
        axis = (1 if maker is None else maker.op.tokens.axis) + partials
        if own_rows is None:
            rows = torch.stack([self.rows[name][place] for place in tokens]).unflatten(0, size)
            own_rows = rows.movedim(1, axis)
            template = next((x for (value, _), x in self.tensors.items() if value == name), own_rows)
            own_rows = _laid_out_as(own_rows, template)
        if call.padding:
            zeros = own_rows.new_zeros([*own_rows.shape[:axis], call.padding, *own_rows.shape[axis + 1 :]])
            own_rows = torch.cat([own_rows, zeros], axis)
        return own_rows


def _laid_out_as(x: Tensor, template: Tensor) -> Tensor:
    """In memory of its own, with the axes behind the first in the order in which the template has them."""
    order = [0, *sorted(range(1, x.dim()), key=lambda axis: -template.stride()[axis])]
    moved = x.permute(order).clone(memory_format=torch.contiguous_format)
    return moved.permute([order.index(axis) for axis in range(x.dim())])


def _kernel_settings(node: Node, values: Mapping[str, Any]) -> dict[str, Any]:
    sites = {attribute.name for attribute in node.op.attributes if attribute.kind == "rounding"}
    return {n: torch_dtype(str(v)) if n in sites and v != UNROUNDED else v for n, v in values.items()}


def _places(spans: Sequence[Span]) -> Places:
    return [(span.sequence, t) for span in spans for t in range(span.first, span.last)]


def _is_pack(step: Step) -> bool:
    return step.shape == "packed" and len(step.spans) > 1


def _before(step: Step, place: tuple[int, int], starts: Mapping[int, int]) -> Places:
    """The keys of one token, itself last: of a pack all that lie before it there."""
    if not _is_pack(step):
        start = min(starts.get(place[0], 0), place[1]) if step.shape == "flat" else 0
        return [(place[0], t) for t in range(start, place[1] + 1)]
    tokens = _places(step.spans)
    return tokens[: tokens.index(place) + 1]


def _sees(step: Step, a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[0] == b[0] or not step.isolated


def _together(spans: Sequence[Span], shape: str, padding: int) -> Call:
    tokens = _places(spans)
    size = (len(spans), spans[0].tokens) if shape == "dense" else (1, len(tokens))
    return Call(tokens, size, tokens, size, None, padding)


def _head_parts(step: Step) -> list[list[Span]]:
    """The rows that reach the head, and the others: none where all do."""
    if step.scored is None:
        return []
    scored, rest = [], []
    for place, span in enumerate(step.spans):
        count = span.tokens if place in step.verified else int(place in step.scored)
        scored.append(span._replace(first=span.last - count))
        rest.append(span._replace(last=span.last - count))
    parts = ([span for span in spans if span.tokens] for spans in (scored, rest))
    return [spans for spans in parts if spans]


def _attending(step: Step, starts: Mapping[int, int], *, varlen: bool) -> Iterator[Call]:
    if _is_pack(step) and not (varlen and step.isolated):
        tokens = _places(step.spans)
        visible = torch.tensor([[_sees(step, a, b) for b in tokens] for a in tokens])
        yield Call(tokens, (1, len(tokens)), tokens, (1, len(tokens)), visible, before=[None])
        return
    together = [step.spans] if step.shape == "dense" else [(span,) for span in step.spans]
    for spans in together:
        first = min(starts.get(spans[0].sequence, 0), spans[0].first)
        keys = [(span.sequence, t) for span in spans for t in range(first, span.last)]
        before = [(span.sequence, span.first - 1) for span in spans]
        size, key_size = (len(spans), spans[0].tokens), (len(spans), spans[0].last - first)
        yield Call(_places(spans), size, keys, key_size, before=before)
