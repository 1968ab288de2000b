"""What a log holds beside the log-probabilities of its tokens, held to the hypotheses that remain: log-probabilities of
other tokens there (top-k), and the hidden states that the head read.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import Tensor

from moeparity.bisection.observers import reports
from moeparity.doctor.bench import Bench, Key
from moeparity.doctor.case import LEGAL, Case, Tried
from moeparity.doctor.hypotheses import AS_CONFIGURED, Hypothesis, runnable
from moeparity.doctor.judge import ALL, Difference, legal_sizes
from moeparity.doctor.readings import Cut, Rows, Shift
from moeparity.doctor.report import BEYOND, PARTIES, Clue, Party
from moeparity.doctor.scores import Run, scores, together
from moeparity.doctor.standing import standing
from moeparity.doctor.tokens import rewritten
from moeparity.engine.view import NodeView
from moeparity.errors import counted
from moeparity.inputs.model import Model
from moeparity.metrics.tokens import CHUNK, log_probs
from moeparity.output.words import percent
from moeparity.plan.bound import Plan

TOP_K, STATES = "top-k log-probabilities", "hidden states"
_MOST = 2**17
"""Of so many values what each hypothesis makes is kept: a megabyte."""
_SHOWN = 3
"""So many of the hypotheses that are ruled out are named."""


@dataclass(frozen=True, slots=True)
class Column:
    """Values that a party recorded at places of the tokens.

    name: what they are. node: where they are computed. recorded: fp64 [M]. sequence, position: int64 [M], of the row
    that computes each; index: int64 [M], the token or the channel.
    """

    name: str
    party: Party
    node: str
    recorded: Tensor
    sequence: Tensor
    position: Tensor
    index: Tensor


def columns(further: Mapping[str, Tensor], loss_mask: Tensor, model: Model) -> Iterator[Column]:
    """The columns of blocks of `logs.tokens.LoggedTokens`, at the tokens of bool [B, T], or at some of these where they
    are too many; those that are all unknown, or not of this model's width, are left out.
    """
    # What is computed at a position is about the next token.
    scored = loss_mask.cpu()
    predicts = scored.roll(-1, 1)
    predicts[:, -1] = False
    for party, side in zip(PARTIES, ("", "trainer_"), strict=True):
        logprobs, ids = further.get(f"{side}top_logprobs"), further.get(f"{side}top_ids")
        if logprobs is not None and ids is not None:
            sequence, token = _places(scored, logprobs.shape[-1])
            listed_ids, values = ids[sequence, token], logprobs[sequence, token]
            is_known = values.isfinite() & (listed_ids >= 0) & (listed_ids < model.vocab_size)
            row, _ = is_known.nonzero(as_tuple=True)
            at = (sequence[row], token[row] - 1, listed_ids[is_known])
            yield from _column(TOP_K, party, model.graph.scores, values[is_known], at)
        states = further.get(f"{side}hidden_states")
        if states is not None and states.shape[-1] == model.graph.sizes["hidden"]:
            sequence, position = _places(predicts, states.shape[-1])
            values = states[sequence, position]
            row, channel = values.isfinite().nonzero(as_tuple=True)
            at = (sequence[row], position[row], channel)
            yield from _column(STATES, party, _before_head(model), values[row, channel], at)


def _places(mask: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The sequences and positions of bool [B, T], or evenly drawn ones, so that `width` values of each are not too
    many.
    """
    places, most = mask.nonzero(), max(1, _MOST // width)
    if len(places) > most:
        places = places[torch.linspace(0, len(places) - 1, most, dtype=torch.float64).round().long()]
    return places[:, 0], places[:, 1]


def _column(name: str, party: Party, node: str, recorded: Tensor, at: tuple[Tensor, ...]) -> Iterator[Column]:
    if recorded.numel():
        sequence, position, index = at
        yield Column(name, party, node, recorded.double(), sequence, position, index)


def _before_head(model: Model) -> str:
    """The node that makes what the head reads."""
    (head,) = (node for node in model.graph.nodes if node.op.role.family == "head" and node.op.role.gemm)
    return model.graph.makers[head.inputs[0]].name


def held_to_further(case: Case, tried: Sequence[Tried]) -> Case:
    """The case with what such columns decide, and with a clue for each one.

    The best hypothesis fits if it explains nearly all and leaves no more than noise; whatever leaves more is ruled out
    then, however few the sequences are, since a column has many values of each token. So is a hypothesis that surely
    explains less than the best one; but not that nothing is wrong, since the best of hundreds follows noise here as it
    does in the sampled tokens.
    """
    for column in columns(case.of_log.further, case.bench.tokens.loss_mask, case.bench.model):
        held_to = _HeldTo(column)
        # What is ruled out may have stood for others, with another number or the same bits.
        while remaining := _remaining(case, tried, held_to):
            if not held_to.run(case, remaining):
                break
            case = replace(case, ruled_out=case.ruled_out | held_to.ruled_out)
        if held_to.effects:
            fitting = case.fitting | ({held_to.best} if held_to.fits else set())
            case = replace(case, fitting=fitting, clues=(*case.clues, _clue(column, held_to)))
    return case


def _remaining(case: Case, tried: Sequence[Tried], held_to: _HeldTo) -> list[Tried]:
    """The hypotheses that are not held to a column yet, among those that the data leave."""
    stand = standing(case, tried)
    of_all = (stand.first, *stand.rivals, *stand.alike)
    return [each for each in of_all if each.party is not None and _name(each) not in held_to.effects]


_Key = TypeVar("_Key", bound=Hashable)
_Name = tuple[str, Party | None]
"""A hypothesis and its party."""


def _name(of: Tried) -> _Name:
    return of.hypothesis.name, of.party


@dataclass(slots=True)
class _HeldTo:
    """Hypotheses beside a column.

    right: what is computed there with nothing wrong, fp64 [M]. effects: what each hypothesis makes of it, fp64 [M]:
    nothing if it is about the other party. legal: mean |difference| of the two engines without a mistake that lie
    furthest apart.
    """

    column: Column
    right: Tensor = field(default_factory=lambda: torch.empty(0))
    effects: dict[_Name, Tensor] = field(default_factory=dict)
    legal: float = 0.0

    def run(self, case: Case, hypotheses: Sequence[Tried]) -> bool:
        """Simulate hypotheses; false if nothing can run."""
        bench = case.bench
        base = bench.exact[case.profile_in_fp32(self.column.party)]
        if not self.effects:
            legal = {name: Run(bench.bases[name]) for name in LEGAL if name in bench.bases}
            values = _computed(bench, self.column, {AS_CONFIGURED.name: Run(base, bench.together), **legal})
            if AS_CONFIGURED.name not in values:
                return False
            self.right = values.pop(AS_CONFIGURED.name)
            self.legal = legal_sizes(values)[0]
            self.effects[AS_CONFIGURED.name, None] = torch.zeros_like(self.right)
        about = [each.hypothesis for each in hypotheses if each.party == self.column.party]
        of_name = self._effects(case, about, base)
        unknown, nothing = torch.full_like(self.right, torch.nan), torch.zeros_like(self.right)
        for each in hypotheses:
            is_about = each.party == self.column.party
            self.effects[_name(each)] = of_name.get(each.hypothesis.name, unknown) if is_about else nothing
        return True

    def _effects(self, case: Case, about: Sequence[Hypothesis], base: Plan) -> dict[str, Tensor]:
        """What each hypothesis makes of the column, by name; those that an op refuses have none."""
        bench, prompts = case.bench, case.bench.prompts
        plans = runnable([each for each in about if not isinstance(each.reading, Rows | Shift | Cut)], base)
        runs = {each.name: bench.run_of(each, plans[each.name], prompts) for each in about if each.name in plans}
        effects = {name: x - self.right for name, x in _computed(bench, self.column, runs).items()}
        for each in about:
            if isinstance(each.reading, Rows):
                effects[each.name] = self._of_rows(bench, each.reading, base)
            elif isinstance(each.reading, Shift | Cut) and self.column.name == STATES:
                effects[each.name] = torch.zeros_like(self.right)
            elif isinstance(each.reading, Shift):
                effects[each.name] = self._of_shift(bench, each.reading.by, base)
            elif isinstance(each.reading, Cut):
                effects[each.name] = self._of_cut(case, each)
        return effects

    def _of_rows(self, bench: Bench, reading: Rows, base: Plan) -> Tensor:
        """What other tokens make of the column."""
        spans, prompts = bench.prompts.grid.spans, bench.prompts.grid.prompts
        sources = [reading.sources(end - first, prompt) for (first, end), prompt in zip(spans, prompts, strict=True)]
        places = torch.full(bench.tokens.input_ids.shape, -1)
        for row, (of_row, (first, _)) in enumerate(zip(sources, spans, strict=True)):
            # Behind a token that stands there twice the next one comes at its last place.
            places[row, [first + place for place in of_row]] = torch.arange(len(of_row))
        tokens = rewritten(bench.tokens, sources, bench.prompts).tokens
        moved = places[self.column.sequence, self.column.position]
        return self._from_places(replace(bench, tokens=tokens), base, moved, moved >= 0)

    def _of_shift(self, bench: Bench, by: int, base: Plan) -> Tensor:
        """What values recorded beside the token `by` places before their own make of the column."""
        scored = torch.nn.functional.pad(bench.tokens.loss_mask.cpu(), (0, 1))
        moved = self.column.position + by
        token = (moved + 1).clamp(0, scored.shape[1] - 1)
        return self._from_places(bench, base, moved, scored[self.column.sequence, token])

    def _from_places(self, bench: Bench, base: Plan, moved: Tensor, is_there: Tensor) -> Tensor:
        """The effect of values computed at other positions, int64 [M], where they are there, bool [M]; else nothing."""
        column = self.column
        cells = column.sequence[is_there], moved[is_there], column.index[is_there]
        few = Column(column.name, column.party, column.node, column.recorded[is_there], *cells)
        (values,) = _computed(bench, few, {"": Run(base, together(bench.model, bench.tokens))}).values()
        effect = torch.zeros_like(self.right)
        effect[is_there] = values - self.right[is_there]
        return effect

    def _of_cut(self, case: Case, of: Hypothesis) -> Tensor:
        """What a cut makes of the tokens that it keeps, which is the same of all at a place."""
        bench = case.bench
        profile = case.profile_in_fp32(self.column.party)
        cut, whole = (bench.scored[Key(profile, name)] for name in (of.name, AS_CONFIGURED.name))
        scored = bench.tokens.loss_mask.cpu()
        numbers = torch.zeros(scored.shape, dtype=torch.int64)
        numbers[scored] = torch.arange(int(scored.sum()))
        return (cut - whole)[numbers[self.column.sequence, self.column.position + 1]]

    @property
    def difference(self) -> Difference:
        """What was recorded less what is computed with nothing wrong."""
        return Difference(d=self.column.recorded - self.right, sequence=self.column.sequence)

    @property
    def best(self) -> _Name:
        """The hypothesis that leaves least."""
        of_all = self._finite
        return min(of_all, key=lambda name: self.difference.remains(of_all[name]))

    @property
    def fits(self) -> bool:
        """Whether the best one explains nearly all, and leaves no more than noise."""
        x = self.effects[self.best]
        return self.difference.share(x).estimate > ALL and not self._leaves_more(x)

    @property
    def ruled_out(self) -> set[_Name]:
        """The hypotheses that this column rules out."""
        difference, x, of_all = self.difference, self.effects[self.best], self._finite
        out = {name for name, y in of_all.items() if name[1] is not None and difference.prefers(x, y)}
        if self.fits:
            out |= {name for name, y in of_all.items() if self._leaves_more(y)}
        return out

    @property
    def _finite(self) -> dict[_Name, Tensor]:
        return {name: x for name, x in self.effects.items() if bool(x.isfinite().all())}

    def _leaves_more(self, x: Tensor) -> bool:
        return float((self.difference.d - x).abs().mean()) > BEYOND * self.legal


@dataclass(slots=True)
class _Gathering:
    """Collects what walkers compute at the places of a column while a pass runs: fp64 [n] by walker and first sequence
    of a wave, since a pass may be begun again.
    """

    column: Column
    walkers: Sequence[Hashable]
    parts: dict[Hashable, dict[int, Tensor]] = field(default_factory=dict)

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        if view.node.name != self.column.node:
            return
        first, last = view.wave
        column = self.column
        in_wave = (column.sequence >= first) & (column.sequence < last)
        sequence, position, index = (x[in_wave] for x in (column.sequence - first, column.position, column.index))
        places, of_place = torch.unique(torch.stack([sequence, position]), dim=1, return_inverse=True)
        for walker in filter(view.ran, self.walkers):
            value = view.tensor(walker)
            of_wave = torch.empty(len(index), dtype=torch.float64)
            size = max(1, CHUNK // value.shape[-1])
            for start in range(0, places.shape[1], size):
                # The values of one place share its row, which is as wide as the vocabulary.
                rows = value[tuple(places[:, start : start + size])]
                rows = log_probs(rows, reports(view, walker)) if column.name == TOP_K else rows
                in_chunk = (of_place >= start) & (of_place < start + size)
                of_wave[in_chunk] = rows.cpu()[of_place[in_chunk] - start, index[in_chunk]].double()
            self.parts.setdefault(walker, {})[first] = of_wave


def _computed(bench: Bench, column: Column, runs: Mapping[_Key, Run]) -> dict[_Key, Tensor]:
    """What runs compute at the places of a column, fp64 [M] each; those that an op refuses have none."""
    gathering = _Gathering(column, tuple(runs))
    ran = scores(bench.model, bench.tokens, runs, bench.progress, observers=(gathering,))[0]
    return {key: torch.cat([*gathering.parts[key].values()]) for key in ran}


def _clue(column: Column, of: _HeldTo) -> Clue:
    """What a column says of the hypotheses."""
    d, explains = of.difference.d, of.effects[of.best]
    size = float(d.abs().mean())
    says = (
        f"{column.name} of the {column.party}, {counted(d.numel(), 'value')}: {size:.2g} off what is computed with "
        f"nothing wrong, where engines without a mistake differ by {of.legal:.2g}"
    )
    if bool(explains.any()):
        says += f"; {_called(of.best)} explains {percent(of.difference.share(explains).estimate)} of it"
    if of.ruled_out:
        names = [_called(name) for name in sorted(of.ruled_out, key=lambda name: (name[1] is not None, str(name)))]
        further = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        says += f"; it rules out {', '.join(names[:_SHOWN])}{further}"
    return Clue(says=says)


def _called(name: _Name) -> str:
    return f"{name[0]} ({name[1]})" if name[1] else "that nothing is wrong"
