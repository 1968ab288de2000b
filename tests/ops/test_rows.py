"""Whether an op's rows are seen: what it declares (`sees_rows`), held to bits at several row counts and compositions.

An op's result for some sequences is held, token by token, to that for fewer of them, for the same in another order,
for a step that decodes one token, and for a chunk. Where an op says that it does not see its rows every bit must be the
same, in every value of every attribute; where it says that it does, some shape that is tried here must show it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor

from moeparity.numerics.bits import same_bits
from moeparity.numerics.dtypes import MODEL, OF_INPUT, UNROUNDED, torch_dtype
from moeparity.numerics.gemm import FormError
from moeparity.numerics.orders import OrderError
from moeparity.ops.attention import refuses_orders
from moeparity.ops.attribute import ABOVE_1, OTHER_THAN_0, OTHER_THAN_1, Attribute, RefusedError, Value, holds
from moeparity.ops.declaration import Op
from moeparity.ops.norm.launches import Launch
from moeparity.ops.norm.reductions import RULES
from moeparity.ops.registry import OPS
from tests.planted.values import values_of

Inputs = dict[str, Tensor]
SEQUENCES, TOKENS = 3, 13
FLOATS = ("bf16", "fp32")


@dataclass(frozen=True)
class Case:
    """An op with its operands of some dtype, weights, parameters, and values beside the defaults.

    `axes`: where the tokens of an input stand, if not behind the batch. `keys`: inputs of which a step reads all tokens
    up to its last one. `ranks`: whether its input lies in partial sums.
    """

    op: str
    inputs: Callable[[torch.dtype], Inputs]
    w: Callable[[torch.dtype], Mapping[str, Tensor]] = lambda _: {}
    p: Mapping[str, Any] = field(default_factory=dict)
    set: Mapping[str, Any] = field(default_factory=dict)
    axes: Mapping[str, int] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    ranks: bool = False
    label: str = ""

    def __str__(self) -> str:
        return self.label or self.op


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Numbers of many exponents, whose sums show their order."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    exponents = torch.randint(-5, 6, shape, generator=generator)
    return (torch.randn(shape, generator=generator) * torch.exp2(exponents)).to(dtype)


def rows(*widths: int) -> Callable[[torch.dtype], Inputs]:
    """x, then further inputs, [B, T, width]."""
    return lambda dtype: {
        f"x{i}": drawn(SEQUENCES, TOKENS, width, dtype=dtype, seed=i) for i, width in enumerate(widths)
    }


def weight(name: str, *shape: int) -> Callable[[torch.dtype], Mapping[str, Tensor]]:
    return lambda dtype: {name: drawn(*shape, dtype=dtype, seed=9)}


def _masked(dtype: torch.dtype) -> Inputs:
    return {"x": drawn(SEQUENCES, TOKENS, 37, dtype=dtype), "mask": torch.arange(TOKENS).expand(SEQUENCES, -1) > 2}


def _experts(dtype: torch.dtype) -> Inputs:
    x, weights = drawn(SEQUENCES, TOKENS, 64, dtype=dtype), drawn(SEQUENCES, TOKENS, 2).abs()
    ids = torch.rand(SEQUENCES, TOKENS, 4, generator=torch.Generator().manual_seed(3)).argsort(-1)[..., :2]
    return {"x": x, "ids": ids, "weights": weights}


def _stacks(dtype: torch.dtype) -> Mapping[str, Tensor]:
    return {"gate_up": drawn(4, 2 * 64, 64, dtype=dtype, seed=5) / 8, "down": drawn(4, 64, 64, dtype=dtype, seed=6) / 8}


def _combine(dtype: torch.dtype) -> Inputs:
    ids = torch.rand(SEQUENCES, TOKENS, 8, generator=torch.Generator().manual_seed(3)).argsort(-1)[..., :6]
    return {
        "rows": drawn(SEQUENCES, TOKENS, 6, 37, dtype=dtype),
        "ids": ids,
        "weights": drawn(SEQUENCES, TOKENS, 6).abs(),
    }


def _attention(dtype: torch.dtype) -> Inputs:
    q, k = drawn(SEQUENCES, 4, TOKENS, 24, dtype=dtype) / 8, drawn(SEQUENCES, 2, TOKENS, 24, dtype=dtype, seed=1) / 8
    v = drawn(SEQUENCES, TOKENS, 2, 24, dtype=dtype, seed=2)
    return {"q": q, "k": k, "v": v.transpose(1, 2), "mask": torch.ones(SEQUENCES, TOKENS, dtype=torch.bool)}


def _mla(dtype: torch.dtype) -> Inputs:
    return {
        "q_nope": drawn(SEQUENCES, TOKENS, 4, 16, dtype=dtype) / 8,
        "q_rope": drawn(SEQUENCES, 4, TOKENS, 8, dtype=dtype) / 8,
        "latent": drawn(SEQUENCES, 1, TOKENS, 40, dtype=dtype, seed=1) / 8,
        "k_rope": drawn(SEQUENCES, 1, TOKENS, 8, dtype=dtype, seed=2) / 8,
        "mask": torch.ones(SEQUENCES, TOKENS, dtype=torch.bool),
        "expanded": drawn(SEQUENCES, TOKENS, 4, 16 + 16, dtype=dtype, seed=3) / 8,
    }


def _indexed(dtype: torch.dtype) -> Inputs:
    """Of one head many scores are 0, and which of equals torch.topk chooses goes by the length of a row."""
    return {
        "q": drawn(SEQUENCES, 1, TOKENS, 24, dtype=dtype) / 8,
        "k": drawn(SEQUENCES, 1, TOKENS, 24, dtype=dtype, seed=1) / 8,
        "weights": drawn(SEQUENCES, TOKENS, 1, dtype=dtype, seed=2),
        "mask": torch.ones(SEQUENCES, TOKENS, dtype=torch.bool),
    }


def _latent(dtype: torch.dtype) -> Inputs:
    return {"latent": _mla(dtype)["latent"]}


def _cache_scales(_: torch.dtype) -> dict[str, Tensor]:
    return {"k_scale": torch.tensor(0.5), "v_scale": torch.tensor(2.0)}


def _keys_and_values(dtype: torch.dtype) -> Inputs:
    _, k, v, _ = _attention(dtype).values()
    return {"k": k, "v": v.transpose(1, 2)}


def _rope(dtype: torch.dtype) -> Inputs:
    q, k = drawn(SEQUENCES, TOKENS, 4, 24, dtype=dtype), drawn(SEQUENCES, TOKENS, 2, 24, dtype=dtype, seed=1)
    angles = drawn(SEQUENCES, TOKENS, 24, seed=2)
    return {"q": q, "k": k, "cos": angles.cos().to(dtype), "sin": angles.sin().to(dtype)}


def _unturned(dtype: torch.dtype) -> Inputs:
    return {name: x for name, x in _rope(dtype).items() if name in {"q", "k"}}


def _turned(dtype: torch.dtype) -> Inputs:
    return {name: x.transpose(1, 2) for name, x in _unturned(dtype).items()}


def _partial_sums(dtype: torch.dtype) -> Inputs:
    return {"x": drawn(SEQUENCES, 4, TOKENS, 64, dtype=dtype)}


def _positions(dtype: torch.dtype) -> Inputs:
    return {"positions": torch.arange(TOKENS).expand(SEQUENCES, -1).clone()}


def _grid_positions(dtype: torch.dtype) -> Inputs:
    places = torch.arange(SEQUENCES * TOKENS * 3) * 7 % 11
    return {"positions": places.view(SEQUENCES, TOKENS, 3)}


def _with_images(dtype: torch.dtype) -> Inputs:
    x, images = drawn(SEQUENCES, TOKENS, 37, dtype=dtype), drawn(SEQUENCES, TOKENS, 3 * 37, dtype=dtype, seed=1)
    return {"x": x, "image_mask": torch.arange(TOKENS).expand(SEQUENCES, -1) % 3 > 0, "images": images}


_ROUTER = {"top_k": 4, "renormalize": True, "experts": 12, "scale": 2.5, "shared": True}
_SOFTMAX = {**_ROUTER, "score": "softmax", "groups": 1, "top_groups": 1}
_SIGMOID = {**_ROUTER, "score": "sigmoid", "groups": 3, "top_groups": 2}
_COMBINED = {"experts": 8, "top_k": 6, "scale": 1.0}
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_LATENT = {"heads": 4, "value_dim": 16, "rope": _ROPE}
_ATTENDS = {"implementation": "flash", "kv_block": 5, "rows": 4}
_WEIGHT = weight("weight", 24, 67)
_ADAPTER: dict[str, Any] = {"alpha": 3.0, "rslora": False, "times": 1, "in_weight": False}


def _adapted(dtype: torch.dtype) -> Mapping[str, Tensor]:
    return {"weight": drawn(24, 67, dtype=dtype, seed=9), "weight_a": drawn(2, 67), "weight_b": drawn(24, 2)}


CASES = [
    Case(
        "embedding",
        lambda _: {"tokens": torch.arange(SEQUENCES * TOKENS).view(SEQUENCES, -1)},
        w=weight("weight", 99, 37),
    ),
    Case("rotary", _positions, p={"dim": 24, "rope": _ROPE, "max_positions": 64}),
    Case(
        "rotary",
        _grid_positions,
        p={"dim": 24, "rope": _ROPE, "max_positions": 64, "sections": [4, 4, 4]},
        label="rotary on three axes",
    ),
    Case("place_images", _with_images, p={"part": 1}),
    Case("add_images", _with_images, p={"part": 1}),
    Case("rope", _rope, p={"interleaved": True, "partial": False}, axes={"cos": 1, "sin": 1}),
    Case("by_head", _unturned),
    Case("by_token", _turned, axes={"q": 2, "k": 2}),
    Case(
        "position_scale",
        lambda dtype: {"x": _rope(dtype)["q"], **_positions(dtype), "mask": torch.ones(SEQUENCES, TOKENS) > 0},
        p={"share": 0.3, "every": 4},
        keys=("mask",),
    ),
    Case("unweighted_norm", rows(1001), p={"eps": 1e-6}),
    Case("rms_norm", rows(1024), w=weight("weight", 1024), p={"eps": 1e-6, "heads": None}),
    Case(
        "layer_norm", rows(1001), lambda dtype: {n: drawn(1001, dtype=dtype) for n in ("weight", "bias")}, {"eps": 1e-5}
    ),
    Case("add", rows(37, 37)),
    Case("shared_add", rows(37, 37), p={"scale": 1.5}, set={"scaling": "shared_fma", "shared": "add"}),
    Case("clamp", rows(37), p={"limit": 0.7}),
    Case("scale", rows(37), p={"factor": 0.22, "divisor": 1.0}),
    Case("split", rows(37), p={"parts": {"a": 30, "b": 7}}),
    Case("join", rows(30, 7)),
    Case("mask_padding", _masked),
    Case("gated_norm", rows(111, 111), weight("weight", 37), {"eps": 1e-6}, {"logistic": "exp"}),
    Case(
        "gated_norm",
        rows(111, 111),
        weight("weight", 37),
        {"eps": 1e-6, "function": "sigmoid"},
        {"logistic": "exp"},
        label="gated_norm by a sigmoid",
    ),
    Case(
        "gated_norm",
        rows(111, 111),
        weight("weight", 111),
        {"eps": 1e-6, "gated": "before", "groups": 3},
        {"logistic": "exp", "normalized": "input"},
        label="gated_norm of groups",
    ),
    Case("swiglu", rows(37, 37), set={"logistic": "exp"}),
    Case("swiglu", rows(37, 37), p={"halves": True}, set={"logistic": "exp"}, label="swiglu of halves"),
    Case("silu", rows(37), set={"logistic": "exp"}),
    Case("relu2", rows(37)),
    Case("sigmoid_gate", rows(1, 37), set={"logistic": "exp"}),
    Case("linear", rows(67), w=_WEIGHT, p={"heads": None, "parallel": "column"}, set={"rows": 8}),
    Case("gate", rows(67), w=_WEIGHT, set={"rows": 8}),
    Case("lm_head", rows(67), w=_WEIGHT, set={"rows": 8}),
    *(
        Case(
            op, rows(128), w=weight("weight", 24, 128), p=p, set={"order": "tensor_core(h100)"}, label=f"{op} of a GPU"
        )
        for op, p in (("linear", {"heads": None, "parallel": "column"}), ("gate", {}), ("lm_head", {}))
    ),
    Case("router", rows(12), p=_SOFTMAX, label="router by softmax"),
    Case("router", rows(12), lambda _: {"bias": drawn(12)}, _SIGMOID, {"sigmoid": "exp"}, label="router by sigmoid"),
    Case("experts", _experts, _stacks, {"glu": "swiglu"}, {"rows": 4, "logistic": "exp"}),
    Case(
        "experts",
        _experts,
        _stacks,
        {"glu": "swiglu"},
        {"rows": 4, "logistic": "exp", "implementation": "grouped"},
        label="experts grouped",
    ),
    Case(
        "experts",
        _experts,
        lambda dtype: {**_stacks(dtype), "gate_up": _stacks(dtype)["gate_up"][:, :64]},
        {"glu": "relu2"},
        {"rows": 4},
        label="experts without a gate",
    ),
    Case(
        "combine",
        _combine,
        p={"experts": 8, "top_k": 6, "scale": 1.0},
        set={"scaling": "weights", "score_site": "combine"},
    ),
    Case("kv_cache", _keys_and_values, w=_cache_scales),
    Case(
        "kv_cache",
        _keys_and_values,
        w=_cache_scales,
        set={"stored": "fp8_e4m3"},
        label="kv_cache in 8 bits",
    ),
    Case("attention", _attention, p={"window": None}, set=_ATTENDS, keys=("k", "v", "mask")),
    Case(
        "mla",
        _mla,
        weight("kv_b", 4 * (16 + 16), 40),
        _LATENT,
        {**_ATTENDS, "projection": "context"},
        keys=("latent", "k_rope", "mask", "expanded"),
    ),
    Case("mla_expand", _latent, weight("kv_b", 4 * (16 + 16), 40), {"heads": 4}, {"rows": 8}),
    Case(
        "all_reduce",
        _partial_sums,
        set={"bias": "after"},
        axes={"x": 2},
        ranks=True,
    ),
    Case("log_probs", rows(300), set={"form": "shifted", "order": "lanes(8) | fold_hi"}),
]


FLASH = ("attention", "mla")
"""Ops of which some choices are refused for each other's sake."""


def taking_effect(op: Op, attribute: Attribute, value: Value, case: Case) -> dict[str, Value]:
    """The case's values with one planted, and with what that one's conditions ask for."""
    values = {a.name: a.default for a in op.attributes} | dict(case.set)
    pending = [attribute]
    while pending:
        for name, allowed in pending.pop().when.items():
            if not holds({name: allowed}, values):
                first_allowed = next(v for v in allowed if v is not None)
                met: dict[Value | None, Value] = {ABOVE_1: 4, OTHER_THAN_1: 0.7, OTHER_THAN_0: 1}
                values[name] = met.get(first_allowed, first_allowed)
                pending += [a for a in op.attributes if a.name == name]
    return {**values, attribute.name: value}


def in_effect(op: Op, values: Mapping[str, Value], case: Case, dtype: str) -> dict[str, Value]:
    """As `Plan.active`: what conditions, parameters, weights and ranks leave, roundings by name."""
    params, weights = parameters(op, case), drawn_once(case.w, torch.float32)

    def exists(a: Attribute) -> bool:
        there = a.parameter is None or bool(params[a.parameter])
        return there and holds(a.when_parameters, params) and (a.weight is None or a.weight in weights) and not a.input

    there = [a for a in op.attributes if exists(a)]
    told_choices = {name: values[name] for name in op.choices_elsewhere}
    resolved = {**told_choices, **{a.name: dtype if values[a.name] == MODEL else values[a.name] for a in there}}
    partials = [4 if case.ranks else 1]
    pieces = op.cut.pieces(resolved)
    result = op.cut.partials(pieces, resolved, params, partials)
    met = {
        "always": True,
        "pieces": pieces > 1,
        "partials": max(result, *partials) > 1,
        "no partials": result == 1,
    }
    return {**told_choices, **{a.name: resolved[a.name] for a in there if met[a.needs] and holds(a.when, resolved)}}


def parameters(op: Op, case: Case) -> dict[str, Any]:
    return {parameter.name: parameter.default for parameter in op.parameters} | dict(case.p)


@lru_cache(maxsize=4)
def drawn_once(draw: Callable[[torch.dtype], Any], dtype: torch.dtype) -> Any:
    """What a case draws, for all values that are planted in it."""
    return draw(dtype)


def computed(case: Case, active: Mapping[str, Value], dtype: torch.dtype, inputs: Inputs) -> tuple[Tensor, ...]:
    """The op's outputs, with the batch in front and tokens behind it."""
    op = OPS[case.op]
    sites = {a.name for a in op.attributes if a.kind == "rounding"}
    at = {n: torch_dtype(str(v)) if n in sites and v not in (UNROUNDED, OF_INPUT) else v for n, v in active.items()}
    out = op.load()(*inputs.values(), w=drawn_once(case.w, dtype), p=parameters(op, case), at=at)
    # In partial sums the ranks stand before the tokens.
    axis = 2 if active.get("reduce") == "later" or "partial" in active else op.tokens.axis
    return tuple(part.movedim(axis, 1) for part in (out if isinstance(out, tuple) else (out,)))


def step(case: Case, inputs: Inputs, sequences: Sequence[int], first: int, end: int) -> Inputs:
    """What a step reads that computes tokens `first` to `end` of some sequences; in memory of its own."""
    axes = {**dict.fromkeys(inputs, 1), **OPS[case.op].tokens.input_axes, **case.axes}
    cut = {}
    for name, x in inputs.items():
        start = 0 if name in case.keys else first
        cut[name] = x[list(sequences)].narrow(axes[name], start, end - start).clone()
    return cut


STEPS = [((0,), 0, TOKENS), ((2, 0), 0, TOKENS), ((1,), TOKENS - 1, TOKENS), ((0,), 3, 11)]
"""Sequences, first token and last + 1: one alone, two in another order, a decode, a chunk."""


def varying(case: Case, active: Mapping[str, Value], dtype: torch.dtype) -> bool:
    """Whether any step gives a token other bits than all sequences at once."""
    inputs = drawn_once(case.inputs, dtype)
    whole = computed(case, active, dtype, step(case, inputs, range(SEQUENCES), 0, TOKENS))
    for sequences, first, end in STEPS:
        parts = computed(case, active, dtype, step(case, inputs, sequences, first, end))
        expected = (x[list(sequences), first:end].contiguous() for x in whole)
        if not all(same_bits(x.contiguous(), y) for x, y in zip(parts, expected, strict=True)):
            return True
    return False


def planted(case: Case) -> Iterator[tuple[str, dict[str, Value]]]:
    """Every value of every attribute that can take effect here, of roundings fp32."""
    op = OPS[case.op]
    yield "as it is", {a.name: a.default for a in op.attributes} | dict(case.set)
    for attribute in op.attributes:
        for value in values_of(op, attribute):
            if attribute.kind != "rounding" or value == "fp32":
                yield f"{attribute.name}={value}", taking_effect(op, attribute, value, case)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_bit_goes_by_rows_that_an_op_says_it_does_not_see(case: Case, dtype: str) -> None:
    op, cases_met = OPS[case.op], 0
    for label, values in planted(case):
        active = in_effect(op, values, case, dtype)
        if op.tokens.sees_rows(active, parameters(op, case)) or (case.op in FLASH and refuses_orders(values)):
            continue
        try:
            assert not varying(case, active, torch_dtype(dtype)), f"{case.op}:{label}"
        except (RefusedError, OrderError, FormError):
            continue
        cases_met += 1
    assert cases_met


_KEYS: dict[str, Any] = {"keys": ("k", "v", "mask")}
_GROUPED = {"logistic": "exp", "implementation": "grouped"}
_MANY = {**_SIGMOID, "experts": 1023, "top_k": 1000, "groups": 1, "top_groups": 1}
_DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}


def _small(*widths: int) -> Callable[[torch.dtype], Inputs]:
    """As `rows`, of numbers whose sigmoid is not near 0 or 1."""
    return lambda dtype: {name: (x / 16).to(dtype) for name, x in rows(*widths)(dtype).items()}


SEEN = [
    Case("linear", rows(67), w=_WEIGHT, p={"heads": None, "parallel": "column"}),
    Case(
        "linear",
        rows(67),
        w=_adapted,
        p={"heads": None, "parallel": "column", "adapter": _ADAPTER},
        set={"order": "lanes(4) | fold_lo"},
        label="linear beside an adapter",
    ),
    Case("gate", rows(67), w=_WEIGHT),
    Case("lm_head", rows(67), w=_WEIGHT),
    Case("experts", _experts, _stacks, {"glu": "swiglu"}, {"logistic": "exp"}),
    Case(
        "experts", _experts, _stacks, {"glu": "swiglu"}, {"logistic": "exp", "implementation": "grouped"}, label="group"
    ),
    Case("swiglu", _small(1001, 1001)),
    Case("sigmoid_gate", _small(1001, 1001)),
    Case("gated_norm", _small(1001, 1001), weight("weight", 1001), {"eps": 1e-6}),
    Case("router", _small(1023), lambda _: {"bias": drawn(1023)}, _MANY),
    Case(
        "attention",
        _attention,
        p={"window": None},
        set={"implementation": "flash", "kv_block": 5},
        **_KEYS,
        label="flash",
    ),
    Case("attention", _attention, p={"window": None}, set={"implementation": "eager"}, **_KEYS, label="eager"),
    Case("attention", _attention, p={"window": None}, set={"implementation": "sdpa"}, **_KEYS, label="sdpa"),
    *(
        Case("kv_cache", _keys_and_values, set={"stored": "fp8_e4m3", "scale": scale}, label=f"kv_cache by {scale}")
        for scale in ("tensor", "head")
    ),
    Case(
        "mla",
        _mla,
        weight("kv_b", 128, 40),
        _LATENT,
        {"projection": "context"},
        keys=("latent", "k_rope", "mask", "expanded"),
    ),
    Case("mla_expand", _latent, weight("kv_b", 128, 40), {"heads": 4}),
    Case("indexer", _indexed, p={"top_k": 5}, keys=("k", "mask")),
    Case("rms_norm", rows(1024), weight("weight", 1024), {"eps": 1e-6, "heads": None}, {"order": "torch.cuda_mean"}),
    Case("rotary", _positions, p={"dim": 24, "rope": _DYNAMIC, "max_positions": 4}),
    Case("all_reduce", _partial_sums, set={"bias": "after", "collective": "nccl.ring"}, axes={"x": 2}, ranks=True),
]


# An op with a state is computed step by step in any case, and its tokens are no tokens without it; one of pairs reads
# the
# sequence beside, as it says (tests/ops/test_preference.py).
@pytest.mark.parametrize("op", [name for name, op in OPS.items() if op.tokens.state is None and not op.tokens.pairs])
def test_every_op_is_tried(op: str) -> None:
    assert any(case.op == op for case in (*CASES, *SEEN))


@pytest.mark.parametrize("case", SEEN, ids=str)
def test_rows_that_an_op_says_it_sees_show(case: Case) -> None:
    op = OPS[case.op]
    active = in_effect(op, {a.name: a.default for a in op.attributes} | dict(case.set), case, "fp32")
    assert op.tokens.sees_rows(active, parameters(op, case))
    assert varying(case, active, torch.float32)


def test_some_bf16_gemm_sees_how_many_rows_it_has() -> None:
    """With AVX-512, with instructions for bf16 or without: of wide GEMMs some row has other bits beside 64 others or
    more. Without AVX-512 torch asks oneDNN for none of these, and no row has.
    """
    shapes = ((2880, 1024), (2051, 1024), (2048, 2048), (4096, 1024))

    def differs(k: int, n: int) -> bool:
        generator = torch.Generator().manual_seed(k)
        x, weight = (torch.randn(rows, k, generator=generator).bfloat16() for rows in (160, n))
        whole = torch.nn.functional.linear(x, weight)
        alone = (torch.nn.functional.linear(x[i : i + 1].clone(), weight) for i in range(64))
        return any(not same_bits(row, whole[i : i + 1]) for i, row in enumerate(alone))

    has_vectors = bool(torch.cpu.get_capabilities().get("avx512_f"))
    assert any(differs(k, n) for k, n in shapes) == has_vectors


@pytest.mark.parametrize("name", RULES)
def test_a_norms_kernel_says_whether_its_order_goes_by_rows(name: str) -> None:
    rule = RULES[name]

    def orders(hidden: int, dtype: str, ranks: int) -> set[str]:
        counts = (1, 2, 8, 15, 16, 17, 33, 67, 132, 133, 255, 256, 300, 2048)
        launches = (Launch(hidden=hidden, rows=n, dtype=dtype, ranks=ranks) for n in counts)
        texts = set()
        for launch in launches:
            try:
                texts.add(rule.order(launch))
            except OrderError:
                texts.add("refused")
        return texts

    sizes = ((h, d, r) for h in (128, 2048, 2880, 4096, 7168, 8192) for d in FLOATS for r in (1, 2, 8))
    assert rule.rows == any(len(orders(*size)) > 1 for size in sizes)


@pytest.mark.parametrize("attend", [{}, {"splits": "fixed", "split_keys": 6}, {"splits": "shared", "shared_keys": 6}])
def test_padding_at_the_left_changes_no_bit_of_attention_in_blocks(attend: Mapping[str, Value]) -> None:
    case = Case("attention", _attention, p={"window": 7}, set=_ATTENDS | dict(attend), **_KEYS)
    op, inputs = OPS[case.op], _attention(torch.bfloat16)
    active = in_effect(op, {a.name: a.default for a in op.attributes} | dict(case.set), case, "bf16")
    (whole,) = computed(case, active, torch.bfloat16, inputs)
    padded = {
        name: torch.cat((x.narrow(a, 0, 3), x), a) for (name, x), a in zip(inputs.items(), (2, 2, 2, 1), strict=True)
    }
    padded["mask"][:, :3] = False
    (later,) = computed(case, active, torch.bfloat16, padded)
    assert same_bits(later[:, 3:].contiguous(), whole)
    assert not later[:, :3].any()


def test_blocks_of_rows_hide_no_other_kernel() -> None:
    linear = OPS["linear"]
    for order, blocks, sees in (("native", "all", True), ("native", 4, False), ("onednn", 4, True), ("tree", 4, False)):
        values = {"inputs": "bf16", "order": order, "rows": blocks, "tf32": "no"}
        assert linear.tokens.sees_rows(values, {}) == sees, (order, blocks)
