"""Every form and site of RMSNorm against exact fractions rounded one operation at a time, and against kernels that run.

Rows are no powers of two long. Where torch's own mean or rsqrt is asked for, what it does is stated and tested first.
"""

from __future__ import annotations

import itertools
from decimal import Decimal, localcontext
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRMSNorm

from moeparity.engine.forward import forward
from moeparity.errors import SpecError
from moeparity.inputs.model import open_model
from moeparity.numerics.bits import same_bits
from moeparity.numerics.special_functions.functions import approximate
from moeparity.ops.kernels.norm import rms_norm
from moeparity.ops.norm.rms_norm import RMS_NORM
from tests.numerics.scalar import FP64, cast, fma, nearest
from tests.ops.plain import BF16, FP16, FP32, SITES, assert_bits, random, times
from tests.verified import record

EPS, LIVE = 1e-6, f"transformers {transformers.__version__}"
DEFAULTS: dict[str, Any] = {
    "square": FP32,
    "scaled": FP32,
    "weight": FP32,
    "normalized": FP32,
    "output": FP32,
    "statistic": "mean_square",
    "order": "native",
    "mean": "native",
    "rsqrt": "native",
    "eps": "config",
    "offset": 0.0,
}


def norm(x: Tensor, gain: Tensor, /, *, heads: int | None = None, **at: Any) -> Tensor:
    return rms_norm(x, w={"weight": gain}, p={"eps": EPS, "heads": heads}, at=DEFAULTS | at)


Row = list[float]


def exact(op: str, a: float, b: float, dtype: torch.dtype = FP32) -> float:
    """One IEEE operation of nonzero results in fp32, then in `dtype`."""
    values = {"*": Fraction(a) * Fraction(b), "+": Fraction(a) + Fraction(b), "-": Fraction(a) - Fraction(b)}
    value = Fraction(a) / Fraction(b) if op == "/" else values[op]
    return cast(nearest(value, FP32), dtype) if value else 0.0


def root(x: float) -> Fraction:
    """sqrt to 60 digits."""
    with localcontext() as context:
        context.prec = 60
        return Fraction(Decimal(x).sqrt())


def rstd_of(x: float, form: str) -> float:
    if form == "ieee":
        return nearest(1 / root(x), FP32)
    return nearest(1 / Fraction(nearest(root(x), FP32)), FP32)


def mean_of(row: Row, form: str, *, square: torch.dtype | None = None, fused: bool = False) -> float:
    """Left to right; with `fused` squares are contracted into their additions."""
    total = 0.0
    for x in row:
        if fused and square is not None:
            total = fma(x, x, total, FP32)
        else:
            total = exact("+", total, x if square is None else exact("*", x, x, square))
    if form == "reciprocal":
        return exact("*", total, nearest(Fraction(1, len(row)), FP32))
    return exact("/", total, float(len(row)))


def scalar_norm(row: Row, weight: Row, at: dict[str, Any]) -> Row:
    """The whole of it, with the sum from left to right."""
    fused = "fma" in at["order"]
    if at["statistic"] == "two_pass":
        mean = mean_of(row, at["mean"])
        apart = [exact("-", x, mean) for x in row]
        statistic = mean_of(apart, at["mean"], square=at["square"], fused=fused)
        statistic = exact("+", statistic, exact("*", mean, mean))
    else:
        statistic = mean_of(row, at["mean"], square=at["square"], fused=fused)
    rstd = rstd_of(exact("+", statistic, nearest(EPS, FP32)), at["rsqrt"])
    out = []
    for unrounded, plain in zip(row, weight, strict=True):
        x = cast(unrounded, at["scaled"])
        offset = nearest(at["offset"], FP32)
        w = cast(nearest(Fraction(plain) + Fraction(offset), FP32) if offset else plain, at["weight"])
        if at["association"] == "weight_rstd_first":
            out.append(exact("*", x, exact("*", rstd, w), at["output"]))
        elif at["association"] == "weight_x_first":
            out.append(exact("*", exact("*", x, w), rstd, at["output"]))
        else:
            out.append(exact("*", exact("*", x, rstd, at["normalized"]), w, at["output"]))
    return out


FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "fma": {"order": "sequential(fma)"},
    "rounded squares": {"square": BF16},
    "fp16 squares": {"square": FP16},
    "reciprocal": {"mean": "reciprocal"},
    "correctly rounded": {"rsqrt": "ieee"},
    "two passes": {"statistic": "two_pass"},
    "two passes, fma, reciprocal": {"statistic": "two_pass", "order": "sequential(fma)", "mean": "reciprocal"},
    "two passes, rounded squares": {"statistic": "two_pass", "square": BF16},
    "Gemma": {"offset": 1.0},
    "SGLang's fused add": {"scaled": BF16, "output": BF16},
    "offset in bf16": {"offset": 1.0, "weight": BF16, "normalized": BF16, "output": BF16},
    "bf16 weight": {"weight": BF16},
    "weight and root first": {"association": "weight_rstd_first"},
    "weight and x first": {"association": "weight_x_first"},
    "two-shot MNNVL": {"association": "weight_x_first", "output": BF16},
    "one-shot MNNVL": {"square": BF16, "output": BF16},
    "Hugging Face": {"normalized": BF16, "output": BF16},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("x_dtype", [BF16, FP32])
def test_each_form_against_fractions(form: str, x_dtype: torch.dtype) -> None:
    at = DEFAULTS | {"order": "sequential", "mean": "divide", "rsqrt": "sqrt_div", "association": "x_rstd_first"}
    at |= FORMS[form]
    x, weight = random(7, 45, dtype=x_dtype), random(45, dtype=FP32, seed=1)
    expected = [scalar_norm(row.double().tolist(), weight.double().tolist(), at) for row in x]
    assert_bits(norm(x, weight, **at), torch.tensor(expected, dtype=FP64).to(at["output"]))


def test_the_forms_differ() -> None:
    base: dict[str, Any] = {"order": "sequential", "mean": "divide", "rsqrt": "sqrt_div"}
    x, weight = random(64, 45, dtype=FP32), random(45, dtype=FP32, seed=1)
    normed = [norm(x, weight, **(base | form)).float() for form in FORMS.values()]
    for a, b in itertools.combinations(normed, 2):
        assert not torch.equal(a, b)


@pytest.mark.parametrize(("model", "normalized", "output"), SITES)
@pytest.mark.parametrize("eps", ["config", 0.25])
def test_sites_around_torchs_own_statistic(
    model: torch.dtype, normalized: torch.dtype, output: torch.dtype, eps: str | float
) -> None:
    x, weight = random(3, 5, 37, dtype=model), random(37, dtype=model, seed=1)
    rstd = torch.rsqrt((x.float() * x.float()).mean(-1, keepdim=True) + (EPS if eps == "config" else float(eps)))
    at: dict[str, Any] = {"normalized": normalized, "output": output, "eps": eps}
    assert_bits(norm(x, weight, **at), times(times(x, rstd, FP32).to(normalized), weight, output))
    if normalized == FP32:
        weight_first = norm(x, weight, **at, association="weight_rstd_first")
        assert_bits(weight_first, times(x, times(rstd, weight, FP32), output))


def test_heads_are_a_view_of_the_normalised_row() -> None:
    x, weight = random(2, 5, 36, dtype=BF16), random(36, dtype=BF16, seed=1)
    whole, heads = (norm(x, weight, heads=n, normalized=BF16, output=BF16) for n in (None, 3))
    assert_bits(heads, whole.view(2, 5, 3, 12))


def test_what_torch_does_on_cpu() -> None:
    """rsqrt is 1 / sqrt in two roundings, for every significand and either parity of the exponent; mean divides."""
    for exponent in (127, 128):
        x = (torch.arange(0, 1 << 23, 5, dtype=torch.int32) + (exponent << 23)).view(FP32)
        two = np.float32(1) / np.sqrt(x.numpy())
        assert_bits(torch.rsqrt(x), torch.from_numpy(two))
    rows = random(50, 2880, dtype=FP32)
    mean = rows.mean(-1)
    assert_bits(mean, torch.from_numpy(rows.sum(-1).numpy() / np.float32(2880)))
    assert not torch.equal(mean, rows.sum(-1) * torch.tensor(1 / 2880))


def test_forms_of_the_root_over_significands() -> None:
    """`ieee` against fp64 division and root of numpy, which for fp32 is correct (the kernel's docstring says why); a
    GPU's by table, which gives other numbers in a fifth (tests/numerics/special_functions holds the table).
    """
    x = (torch.arange(0, 1 << 24, 1013, dtype=torch.int32) + (127 << 23)).view(FP32)
    ones, eps = torch.ones(1, dtype=FP32), 0.0
    at: dict[str, Any] = {"order": "sequential", "eps": eps}
    roots = x.sqrt().unsqueeze(-1)
    squares = (roots * roots).squeeze(-1).numpy()
    for form, expected in (
        ("ieee", (1 / np.sqrt(squares.astype(np.float64))).astype(np.float32)),
        ("sqrt_div", np.float32(1) / np.sqrt(squares)),
        ("sqrt_rcp", approximate("rcp", approximate("sqrt", torch.from_numpy(squares))).numpy()),
        ("approx", approximate("rsqrt", torch.from_numpy(squares)).numpy()),
    ):
        normed = norm(roots, ones, rsqrt=form, **at)
        assert_bits(normed, times(roots, torch.from_numpy(expected).unsqueeze(-1), FP32))
    assert 0.1 < float((norm(roots, ones, rsqrt="ieee", **at) != normed).float().mean()) < 0.3


@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize("width", [96, 1000, 2880, 4096])
def test_cascade_is_torchs_own_mean(dtype: torch.dtype, width: int) -> None:
    weight = random(width, dtype=dtype, seed=1)
    for seed, shape in enumerate(((1, 1), (1, 7), (3, 5), (2, 33))):
        x = random(*shape, width, dtype=dtype, seed=seed) * 3
        for normalized in (dtype, FP32):
            at: dict[str, Any] = {"normalized": normalized, "output": dtype}
            normed = norm(x, weight, order="cascade", mean="divide", rsqrt="sqrt_div", **at)
            assert_bits(normed, norm(x, weight, **at))
            written = DEFAULTS | at | {"order": "cascade", "mean": "divide", "rsqrt": "sqrt_div"}
            record("rms_norm", written, f"torch {torch.__version__}", operands=dtype)


@pytest.mark.parametrize("dtype", [BF16, FP16, FP32])
@pytest.mark.parametrize("width", [45, 1000])
@pytest.mark.parametrize("order", ["native", "cascade"])
def test_modules_of_transformers_and_torch_on_cpu(dtype: torch.dtype, width: int, order: str) -> None:
    x, weight = random(3, 7, width, dtype=dtype) * 5, random(width, dtype=dtype, seed=1)
    sites: dict[str, Any] = {"output": dtype, "order": order}
    llama = LlamaRMSNorm(width, EPS)
    llama.weight.data = weight
    assert_bits(norm(x, weight, normalized=dtype, **sites), llama(x).detach())
    record("rms_norm", DEFAULTS | sites | {"normalized": dtype}, LIVE, operands=dtype)
    for module in (Gemma3RMSNorm(width, EPS), Qwen3NextRMSNorm(width, EPS)):
        module.weight.data = weight
        assert_bits(norm(x, weight, offset=1.0, **sites), module(x).detach())
        record("rms_norm", DEFAULTS | sites | {"offset": 1.0}, LIVE, operands=dtype)
    assert_bits(norm(x, weight, **sites), F.rms_norm(x, (width,), weight, EPS))
    record("rms_norm", DEFAULTS | sites, f"torch {torch.__version__}", operands=dtype)


def test_hf_eager_keeps_its_bits_with_the_order_written_out(qwen3_moe: Path, qwen3: Path) -> None:
    for checkpoint in (qwen3_moe, qwen3):
        model = open_model(checkpoint, device="cpu")
        ids = torch.randint(0, 300, (2, 13), generator=torch.Generator().manual_seed(0))
        norms = [node.name for node in model.graph.nodes if node.op is RMS_NORM]
        eager_logits = forward(model, ids, profile="hf-eager")["logits"]
        values = {f"{name}:order": "cascade" for name in norms} | {f"{name}:rsqrt": "sqrt_div" for name in norms}
        assert same_bits(forward(model, ids, profile="hf-eager", settings=values)["logits"], eager_logits)
        coarse = {f"{name}:order": "sequential" for name in norms} | {f"{name}:output": "fp32" for name in norms}
        assert not same_bits(forward(model, ids, profile="hf-eager", settings=coarse)["logits"], eager_logits)


def chan(a: tuple[float, float], b: tuple[float, float], count: int) -> tuple[float, float]:
    """TransformerEngine's update of two parts' (mean, M2) of `count` elements each, in fp32."""
    n = float(count)
    apart = exact("-", a[0], b[0])
    weighted = exact("*", exact("*", exact("*", exact("*", apart, apart), n), n), 1 / (2 * n))
    m2 = exact("+", exact("+", a[1], b[1]), weighted)
    mean = exact("*", exact("+", exact("*", n, a[0]), exact("*", n, b[0])), 1 / (2 * n))
    return mean, m2


def warp_moments(row: Row, vector: int) -> tuple[float, float]:
    """Mean and M2 of one warp: threads over vectors, lanes folded from neighbours up."""

    def folded(lanes: Row) -> float:
        while len(lanes) > 1:
            lanes = [exact("+", a, b) for a, b in zip(lanes[::2], lanes[1::2], strict=True)]
        return lanes[0]

    per_lane: list[Row] = [[] for _ in range(32)]
    for i, x in enumerate(row):
        per_lane[i // vector % 32].append(x)
    sums = [0.0] * 32
    for lane, values in enumerate(per_lane):
        for x in values:
            sums[lane] = exact("+", sums[lane], x)
    mean = exact("*", folded(sums), nearest(Fraction(1, len(row)), FP32))
    m2s = [0.0] * 32
    for lane, values in enumerate(per_lane):
        for x in values:
            apart = exact("-", x, mean)
            m2s[lane] = fma(apart, apart, m2s[lane], FP32)
    return mean, folded(m2s)


@pytest.mark.parametrize(("width", "dtype"), [(768, BF16), (512, FP32), (4096, BF16)])
def test_transformer_engines_tuned_kernel(width: int, dtype: torch.dtype) -> None:
    x, weight = random(4, width, dtype=dtype) + 0.5, random(width, dtype=dtype, seed=1)
    vector, warps = (8 if dtype == BF16 else 4), (4 if width >= 4096 else 1)
    rstds = []
    for row in x[:2].double():
        parts = row.view(-1, warps, 32 * vector).transpose(0, 1).reshape(warps, -1).tolist()
        moments = [warp_moments(part, vector) for part in parts]
        count = width // warps
        while len(moments) > 1:
            half = len(moments) // 2
            moments = [chan(a, b, count) for a, b in zip(moments[:half], moments[half:], strict=True)]
            count *= 2
        ((mean, m2),) = moments
        square = exact("+", exact("*", m2, nearest(Fraction(1, width), FP32)), exact("*", mean, mean))
        rstds.append([rstd_of(exact("+", square, nearest(EPS, FP32)), "sqrt_div")])
    expected = times(times(x[:2], torch.tensor(rstds, dtype=FP32), FP32), weight, FP32)
    at: dict[str, Any] = {"statistic": "transformer_engine", "rsqrt": "sqrt_div"}
    # The launch sees the dtype of the output; the comparison is made before that rounding.
    assert_bits(norm(x, weight, output=dtype, **at)[:2], expected.to(dtype))
    general = norm(x[:3], weight, output=dtype, **at)
    assert_bits(
        general, norm(x[:3], weight, output=dtype, rsqrt="sqrt_div", mean="reciprocal", order=_general(width, dtype))
    )


def _general(width: int, dtype: torch.dtype) -> str:
    vector = 8 if dtype == BF16 else 4
    if width <= 2048:
        return f"threads(32, vector={vector}, fma) | fold_lo"
    return f"threads(128, vector={vector}, fma) | fold_hi(32) | sequential"


def test_a_rule_sees_rows_dtype_and_sms() -> None:
    """The launch is taken from the call: rows of the whole batch, the dtype of `output`."""
    x, weight = random(5, 60, 1024, dtype=FP32) * 7, random(1024, dtype=FP32, seed=1)
    written = {
        "vllm.rms_norm": "threads(128, vector=8, fma) | fold_lo(32) | sequential",
        "vllm.fused_add_rms_norm": "blocks(2) | blocks(4) | threads(256) | fold_lo(32) | sequential",
        "torch.cuda_mean": "lanes(128) | blocks(4) | fold_hi",
    }
    for name, order in written.items():
        assert_bits(norm(x, weight, order=name, output=BF16), norm(x, weight, order=order, output=BF16))
    few = norm(x[:1, :3], weight, order="torch.cuda_mean")
    assert_bits(few, norm(x[:1, :3], weight, order="lanes(1024) | blocks(4) | fold_hi"))
    wide = random(1, 20, 4096, dtype=BF16)
    for sms, width in ((132, 4), (78, 8)):
        at: dict[str, Any] = {"output": BF16, "normalized": FP32}
        by_rule = norm(wide, random(4096, dtype=BF16), order="trtllm.all_reduce_rms_norm", sm_count=sms, **at)
        order = f"blocks(8, fma) | fold_hi(32) | fold_hi({width}) | sequential"
        assert_bits(by_rule, norm(wide, random(4096, dtype=BF16), order=order, **at))


def test_a_launch_that_a_rule_refuses_is_the_users_error() -> None:
    with pytest.raises(SpecError, match=r"^order: trtllm.rms_norm needs an even hidden size, not 37 .* Set another"):
        norm(random(2, 37, dtype=BF16), random(37, dtype=BF16), order="trtllm.rms_norm", output=BF16)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"order": "trtllm.all_reduce_rms_norm"},
            "trtllm.all_reduce_rms_norm needs a multiple of 16 bytes, not 37 elements in bf16.",
        ),
        ({"order": "tree(0+1+2)"}, "tree(0+1+2) adds up 3 squares, and a row has 37."),
        (
            {"order": "flashinfer.rms_norm", "square": "bf16"},
            "flashinfer.rms_norm has fma, which takes no bf16 squares. Set `square` to fp32.",
        ),
        (
            {"order": "sequential(fma)", "square": "fp16"},
            "sequential(fma) has fma, which takes no fp16 squares. Set `square` to fp32.",
        ),
    ],
)
def test_orders_that_cannot_be(values: dict[str, str], message: str) -> None:
    assert RMS_NORM.refusals.values is not None
    settings = {"square": "fp32", "output": "bf16", **values}
    assert RMS_NORM.refusals.values({"weight": (37,)}, settings) == ("order", message)


def test_orders_that_can_be() -> None:
    assert RMS_NORM.refusals.values is not None
    for order in ("native", "cascade", "apex.rms_norm", "vllm.fused_add_rms_norm"):
        assert RMS_NORM.refusals.values({"weight": (37,)}, {"square": "fp32", "output": "bf16", "order": order}) is None
    assert (
        RMS_NORM.refusals.values(
            {"weight": (37,)}, {"square": "bf16", "output": "bf16", "statistic": "transformer_engine"}
        )
        is None
    )
