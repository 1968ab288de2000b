"""Schedules of a gated delta net against transformers' own functions, and against a loop over tokens, by bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.qwen3_next import modeling_qwen3_next as qwen3_next

from moeparity.engine.walker import Walker
from moeparity.inputs.model import Model
from moeparity.inputs.tokens.grid import grid_of
from moeparity.numerics.bits import same_bits
from moeparity.plan.schedule.make import schedule
from moeparity.plan.schedule.settings import settings
from moeparity.plan.schedule.steps import Schedule, Span, Step
from moeparity.plan.spec import reader
from tests.engine.test_schedules import HERE, planned, walked
from tests.gated.model import KEY_DIM, KEY_HEADS, TAPS, VALUE_DIM, VALUE_HEADS, opened_gated, written

LENGTH = 150
# As transformers chooses for one token behind others.
RECURRENT = {
    f"**.delta:{name}@{phase}": value
    for name, value in (("form", "tokens"), ("scale", "over"))
    for phase in ("decode", "chunk[queries :2]")
}
DECODING = {"from": "prompt"}
CASES: dict[str, tuple[dict[str, Any], list[int], list[int]]] = {
    # Settings of a schedule, the numbers of tokens, the numbers of these that are prompt.
    "one sequence": ({}, [150], [150]),
    "one token": ({}, [1], [1]),
    "one token each": ({"rule": "vllm-v1"}, [1, 1, 1], [1, 1, 1]),
    "equal lengths": ({}, [70, 70, 70], [70, 70, 70]),
    "mixed lengths": ({"rule": "vllm-v1"}, [150, 1, 64, 65, 3], [150, 1, 64, 65, 3]),
    "packs": ({"pack": {"length": 230}}, [150, 70, 9, 64, 128], [150, 70, 9, 64, 128]),
    "prefill, then decode": ({"decode": {"from": 66}}, [80, 80], [80, 80]),
    "chunks of 50": ({"prefill": {"chunk": 50}}, [150, 150], [150, 150]),
    "chunks of a server": (
        {"rule": "vllm-v1", "prefill": {"chunk": 50}, "decode": DECODING},
        [140, 90, 12],
        [120, 71, 2],
    ),
    "join and leave": (
        {
            "rule": "sglang",
            "sequences": 2,
            "prefill": {"chunk": 40},
            "buckets": [4],
            "decode": {**DECODING, "arrivals": [0, 2, 3, 30]},
        },
        [75, 40, 130, 22],
        [70, 30, 127, 10],
    ),
    "a prefix": (
        {
            "rule": "vllm-v1",
            "prefix": {"block": 32},
            "prefill": {"chunk": 64},
            "decode": {**DECODING, "arrivals": [0, 5, 7]},
        },
        [100, 120, 90],
        [90, 110, 80],
    ),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    return {
        dtype: opened_gated(written(tmp_path_factory.mktemp(dtype), name))
        for dtype, name in (("bf16", "bfloat16"), ("fp32", "float32"))
    }


def case_of(name: str) -> tuple[Tensor, Tensor, Schedule]:
    """Tokens, their mask, and the schedule; all sequences begin with the same 64 tokens."""
    stated, lengths, prompts = CASES[name]
    ids = torch.randint(0, 320, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(len(name)))
    ids[:, :64] = ids[0, :64].clone()
    real = torch.arange(ids.shape[1]) < torch.tensor(lengths)[:, None]
    grid = grid_of(real, torch.tensor(prompts), tuple(map(tuple, ids.tolist())))
    return ids, real, schedule(settings(reader.read_scheduling(stated, HERE), None, len(ids), HERE), grid, HERE)


@dataclass
class Transformers:
    """The two ops of one layer, as Qwen3-Next calls them, on values that the engine's nodes before them made."""

    values: Mapping[str, Tensor]
    weights: Mapping[str, Mapping[str, Tensor]]
    layer: str
    conv_states: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    states: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def run(self, of: Schedule) -> Iterator[tuple[Span, str, Tensor]]:
        """For each span of the steps that an engine computes: what the convolution and the rule give."""
        for step in of.steps:
            for copy in step.copies:
                for states in (self.conv_states, self.states):
                    source = (copy.source, copy.last + copy.shift)
                    if source in states:
                        states[copy.sequence, copy.last] = states[source]
            for spans in (step.spans,) if step.shape == "dense" else ((span,) for span in step.spans):
                if not step.filler:
                    yield from self._called(spans)

    def _rows(self, name: str, spans: tuple[Span, ...]) -> Tensor:
        value = self.values[f"{self.layer}.{name}"]
        return torch.stack([value[span.sequence, span.first : span.last] for span in spans])

    def _called(self, spans: tuple[Span, ...]) -> Iterator[tuple[Span, str, Tensor]]:
        conv, delta = self._convolved(spans), self._remembered(spans)
        for row, span in enumerate(spans):
            yield span, f"{self.layer}.conv", conv[row]
            yield span, f"{self.layer}.delta", delta[row]

    def _convolved(self, spans: tuple[Span, ...]) -> Tensor:
        x, tokens = self._rows("qkv", spans).transpose(1, 2), spans[0].tokens
        weight = self.weights[f"{self.layer}.conv"]["weight"].squeeze(1)
        before = [self.conv_states.get((span.sequence, span.first)) for span in spans]
        state = None if before[0] is None else torch.stack([b for b in before if b is not None])
        if state is not None and tokens == 1:
            result = qwen3_next.causal_conv1d_update(x, state, weight, None, "silu")
        else:
            # Its cache would put zeros before fewer tokens than taps, which moves where torch's fp32 silu ends.
            full = x if state is None else torch.cat((state, x), -1)
            state = F.pad(full, (max(TAPS - tokens, 0), 0))[..., -TAPS:]
            result = qwen3_next.causal_conv1d_fn(full, weight, None, activation="silu")[..., -tokens:]
        self.conv_states |= {(span.sequence, span.last): row for span, row in zip(spans, state, strict=True)}
        return result.transpose(1, 2)

    def _remembered(self, spans: tuple[Span, ...]) -> Tensor:
        weights = self.weights[f"{self.layer}.delta"]
        q, k, v, a, b = (self._rows(name, spans) for name in ("split.q", "split.k", "split.v", "a", "b"))
        q, k = (x.unflatten(-1, (KEY_HEADS, KEY_DIM)) for x in (q, k))
        before = [self.states.get((span.sequence, span.first)) for span in spans]
        state = None if before[0] is None else torch.stack([row for row in before if row is not None])
        is_step = state is not None and spans[0].tokens == 1
        rule: Callable[..., tuple[Tensor, Tensor]] = (
            qwen3_next.torch_recurrent_gated_delta_rule if is_step else qwen3_next.torch_chunk_gated_delta_rule
        )
        result, state = rule(
            q,
            k,
            v.unflatten(-1, (VALUE_HEADS, VALUE_DIM)),
            g=-weights["a_log"].float().exp() * F.softplus(a.float() + weights["dt_bias"]),
            beta=b.sigmoid(),
            initial_state=state,
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )
        self.states |= {(span.sequence, span.last): row for span, row in zip(spans, state, strict=True)}
        return result.flatten(2)


def weights_of(model: Model, dtype: str) -> Mapping[str, Mapping[str, Tensor]]:
    """Those of the nodes that have a state."""
    return {
        node.name: model.weights.node(node, dtype) for node in model.graph.nodes if node.op.tokens.state is not None
    }


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("name", CASES)
def test_as_transformers_functions(models: dict[str, Model], name: str, dtype: str) -> None:
    model, (ids, mask, of) = models[dtype], case_of(name)
    chosen = {key: value for key, value in RECURRENT.items() if key.partition("@")[2].partition("[")[0] in of.phases}
    plan = planned(model, of, "hf-eager", dtype, **chosen)
    ours = walked(model, [Walker(name="one", plan=plan, schedule=of)], ids, mask).of("one")
    weights = weights_of(model, dtype)
    compared = 0
    for layer in ("layers[0].mixer", "layers[1].mixer"):
        for span, value, rows in Transformers(ours, weights, layer).run(of):
            mine = ours[value][span.sequence, span.first : span.last]
            assert same_bits(mine.contiguous(), rows.contiguous()), (value, span)
            compared += 1
    assert compared


def test_the_schedules_are_those_they_are_called() -> None:
    steps: dict[str, tuple[Step, ...]] = {name: case_of(name)[2].steps for name in CASES}
    assert [copy[:4] for step in steps["a prefix"] for copy in step.copies] == [(1, 0, 64, 0), (2, 0, 64, 0)]
    borders = {span.first for step in steps["chunks of a server"] for span in step.spans if span.tokens > 1}
    assert {column % 64 for column in borders} > {0}
    assert any(step.shape == "packed" and len(step.spans) > 1 for step in steps["packs"])
    together = {tuple(span.sequence for span in step.spans) for step in steps["join and leave"] if not step.filler}
    assert len(together) > 3
    assert any(step.padding for step in steps["join and leave"])


@dataclass
class Loop:
    """The rule, one token after the other, in bf16 from fp32, by its definition. The rows of a dense step go side by
    side, since torch's exponentials give some numbers another last bit by where they lie.
    """

    values: Mapping[str, Tensor]
    w: Mapping[str, Tensor]
    layer: str
    states: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def run(self, of: Schedule) -> Iterator[tuple[Span, Tensor]]:
        """For each span, what the rule gives."""
        for step in of.steps:
            for sequence, _, last, source, shift in step.copies:
                self.states[sequence, last] = self.states[source, last + shift]
            for spans in (step.spans,) if step.shape == "dense" else ((span,) for span in step.spans):
                yield from zip(spans, self._rows(spans), strict=True)

    def _rows(self, spans: tuple[Span, ...]) -> Tensor:
        q, k, v, a, b = (
            torch.stack([self.values[f"{self.layer}.{name}"][s, first:last] for s, first, last in spans]).float()
            for name in ("split.q", "split.k", "split.v", "a", "b")
        )
        beta = (1 / (1 + (-b).exp())).to(torch.bfloat16).float()
        decay = -self.w["a_log"].float().exp() * F.softplus(a + self.w["dt_bias"])
        zeros = torch.zeros(VALUE_HEADS, KEY_DIM, VALUE_DIM)
        state = torch.stack([self.states.get((span.sequence, span.first), zeros) for span in spans])
        rows = []
        for token in range(spans[0].tokens):
            query, key = (x[:, token].reshape(len(spans), KEY_HEADS, KEY_DIM) for x in (q, k))
            query, key = (x.repeat_interleave(VALUE_HEADS // KEY_HEADS, 1) for x in (query, key))
            query, key = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (query, key))
            state = state * decay[:, token].exp()[..., None, None]
            remembered = (state * key[..., None]).sum(2)
            change = (v[:, token].reshape(remembered.shape) - remembered) * beta[:, token, :, None]
            state = state + key[..., None] * change[:, :, None]
            rows.append((state * (query / KEY_DIM**0.5)[..., None]).sum(2).to(torch.bfloat16).flatten(1))
            self.states |= {(s, first + token + 1): row for (s, first, _), row in zip(spans, state, strict=True)}
        return torch.stack(rows, 1)


def convolved(values: Mapping[str, Tensor], w: Mapping[str, Tensor], layer: str, sequence: int) -> Iterator[Tensor]:
    """What the convolution gives at one token after the other of a sequence: tap by tap, the oldest first."""
    inputs = F.pad(values[f"{layer}.qkv"][sequence], (0, 0, TAPS - 1, 0)).float()
    for token in range(len(inputs) - TAPS + 1):
        total = torch.zeros(inputs.shape[1])
        for tap in range(TAPS):
            total = total + inputs[token + tap] * w["weight"][:, 0, tap].float()
        x = total.to(torch.bfloat16).float()
        yield (x / (1 + (-x).exp())).to(torch.bfloat16)


@pytest.mark.parametrize("name", CASES)
def test_as_a_loop_over_tokens(models: dict[str, Model], name: str) -> None:
    """However steps cut a sequence."""
    model, (ids, mask, of) = models["bf16"], case_of(name)
    chosen = {"form": "tokens", "scale": "over", "logistic": "exp"}
    by_token = {f"**.delta:{attribute}": value for attribute, value in chosen.items()}
    plan = planned(model, of, "hf-eager", "bf16", **by_token, **{"**.conv:form": "taps", "**.conv:logistic": "exp"})
    ours = walked(model, [Walker(name="one", plan=plan, schedule=of)], ids, mask).of("one")
    weights, layer = weights_of(model, "bf16"), "layers[1].mixer"
    conv, delta = f"{layer}.conv", f"{layer}.delta"
    for sequence in range(len(ids)):
        rows = torch.stack(list(convolved(ours, weights[conv], layer, sequence)))
        assert same_bits(ours[conv][sequence], rows), sequence
    for span, rows in Loop(ours, weights[delta], layer).run(of):
        assert same_bits(ours[delta][span.sequence, span.first : span.last], rows), span
