"""RMSNorm over the last axis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moeparity.numerics.collectives.declaration import Evidence
from moeparity.numerics.orders import EXPLICIT, NATIVE, OrderError
from moeparity.ops.attribute import EPS, Attribute, Value, site
from moeparity.ops.declaration import Cut, Op, Parameter, Refusals, Role, Tokens, WeightPort
from moeparity.ops.memory import BYTES, Call, Memory, Shapes, elementwise
from moeparity.ops.norm.launches import SM_COUNT, WELFORD_THREADS, Launch
from moeparity.ops.norm.reductions import BY_RANKS, BY_ROWS, BY_SMS, RULES, TE_SOURCE, WELFORD_SOURCE, order_of

MEAN_SQUARE, TWO_PASS, WELFORD = "mean_square", "two_pass", "welford"
TRANSFORMER_ENGINE = "transformer_engine"
DIVIDE, RECIPROCAL, DIV_FULL = "divide", "reciprocal", "div_full"
SQRT_DIV, SQRT_RCP, IEEE, APPROX = "sqrt_div", "sqrt_rcp", "ieee", "approx"

_ORDERED = {"statistic": (MEAN_SQUARE, TWO_PASS)}


def _refuses(shapes: Shapes, values: Mapping[str, Value]) -> tuple[str, str] | None:
    """Refuses a rule or a written-out tree for another width, and an fma of squares that are rounded before they are
    added.
    """
    name, width = str(values.get("order", NATIVE)), shapes["weight"][0]
    if name == NATIVE:
        return None
    refused = [_refused(name, width, dtype) for dtype in ("bf16", str(values["output"]))]
    # Which of the two dtypes it is depends on x too, so the kernel decides.
    if all(refused):
        return "order", refused[1]
    order = order_of(name, Launch(hidden=width, dtype="bf16" if refused[1] else str(values["output"])))
    if name not in RULES and order.leaves not in {None, width}:
        return "order", f"{order} adds up {order.leaves} squares, and a row has {width}."
    if order.fma and values["square"] not in {"fp32", "fp64"}:
        return "order", f"{name} has fma, which takes no {values['square']} squares. Set `square` to fp32."
    return None


def _refuses_call(call: Call) -> tuple[str, str] | None:
    """Refuses a rule that does not launch for this number of rows, or for rows in the dtype in which it loads them."""
    name, width = str(call.active.get("order", NATIVE)), call.weights["weight"][0]
    if name not in RULES:
        return None
    try:
        order_of(name, launch_of(call.active, width, call.tokens * call.inputs[0] // width, _stored(call)))
    except OrderError as error:
        return "order", f"{error} Set another `order`."
    return None


def _stored(call: Call) -> str:
    """The dtype in which the kernel loads rows: the narrower of x's and the result's."""
    return min(str(call.active["output"]), call.input_dtype, key=BYTES.__getitem__)


def launch_of(values: Mapping[str, Any], hidden: int, rows: int, dtype: str) -> Launch:
    """The launch of a norm with these values in effect."""
    return Launch(
        hidden=hidden,
        rows=rows,
        dtype=dtype,
        sm_count=values.get("sm_count", SM_COUNT),
        ranks=values.get("tensor", 1),
    )


def _sees_rows(values: Mapping[str, Value], params: Mapping[str, Any]) -> bool:
    """Whether the result may depend on the number of rows: a kernel's launch may; torch's own mean takes each row by
    itself.

    (torch's threads share a single row of more than 32768 elements; no model has such rows.)
    """
    return values["statistic"] == TRANSFORMER_ENGINE or values.get("order") in BY_ROWS


def _refused(name: str, width: int, dtype: str) -> str:
    try:
        order_of(name, Launch(hidden=width, dtype=dtype))
    except OrderError as error:
        return str(error)
    return ""


_ROUNDINGS = (
    site(
        "square",
        "each square is rounded to this dtype before it is added; what is added, the mean and the root are fp32, fp64 "
        "where this or x is",
        default="fp32",
        when={"statistic": (MEAN_SQUARE, TWO_PASS, TRANSFORMER_ENGINE)},
    ),
    site(
        "scaled",
        "what the root multiplies is rounded to this dtype; the statistic is of x as it comes: a fused add squares "
        "the unrounded sum and scales the stored one (SGLang 0b2811d7fc jit_kernel fused_add_rmsnorm, read)",
        default="fp32",
    ),
    site("weight", "the weight, or its sum with `offset`, is rounded to this dtype", default="fp32"),
    site(
        "normalized",
        "x * rsqrt(..) is rounded to this dtype before the weight is multiplied: `model` is the Hugging Face form "
        "(cast, then weight), fp32 multiplies the weight in fp32 (weight, then cast)",
    ),
    site("output", "the product with the weight is rounded to this dtype", edge=True),
)
_STATISTIC = (
    Attribute(
        name="statistic",
        kind="form",
        default=MEAN_SQUARE,
        values=(MEAN_SQUARE, TWO_PASS, WELFORD, TRANSFORMER_ENGINE),
        sources={WELFORD: Evidence("read", WELFORD_SOURCE)},
        says="the mean of the squares; mean((x - mean)^2) + mean^2 in two passes, both sums in `order`; the same by "
        "Welford's updates, as F.rms_norm on GPUs takes rows that are no multiple of 4 or not aligned "
        f"({WELFORD_SOURCE}, read; its fma is inferred); or as TransformerEngine launches it: two passes where rows "
        "come in fours and the hidden size is one of its tuned kernels', whose warps' moments are merged, else squares "
        f"({TE_SOURCE}, read)",
    ),
    Attribute(
        name="order",
        kind="order",
        default=NATIVE,
        values=(NATIVE, *EXPLICIT, *RULES),
        sources={name: rule.evidence for name, rule in RULES.items()},
        order=True,
        redrawn=False,
        when=_ORDERED,
        says="in which order the squares of a row are added: torch's own mean, one written out (torch's on CPU is "
        "`cascade`), or that of a kernel by name, which may depend on the hidden size, the number of rows, the "
        "narrower dtype of x and `output`, `sm_count` and `tensor` (printed by moeparity.ops.norm.reductions, "
        "RULES[name].explain(hidden))",
    ),
    Attribute(
        name="sm_count",
        kind="form",
        default=SM_COUNT,
        least=1,
        when={**_ORDERED, "order": BY_SMS},
        says="streaming multiprocessors of the GPU that the rule in `order` is launched on; 132: H100, H200",
    ),
    Attribute(
        name="tensor",
        kind="placement",
        default=1,
        least=1,
        when={**_ORDERED, "order": BY_RANKS},
        says="ranks of the all-reduce that the rule in `order` is fused with; the norm itself is not cut",
    ),
    Attribute(
        name="mean",
        kind="form",
        default=NATIVE,
        values=(NATIVE, DIVIDE, RECIPROCAL, DIV_FULL),
        when=_ORDERED,
        says="the sum / N; the sum * fl(1 / N); or the sum / N by NVIDIA's div.full (Triton's division) or div.approx "
        "(-use_fast_math), which are products with rcp.approx of N; `native` is what torch's mean does: a division on "
        "CPU, a product on GPUs",
    ),
    Attribute(
        name="rsqrt",
        kind="form",
        default=NATIVE,
        values=(NATIVE, SQRT_DIV, SQRT_RCP, IEEE, APPROX),
        says="1 / sqrt with a rounding after each, or 1 / sqrt correctly rounded; `native` is torch.rsqrt, on CPU the "
        "former; by table, of NVIDIA's GPUs, rcp.approx of sqrt.approx, which Triton makes of it (`sqrt_rcp`), or "
        "rsqrt.approx (`approx`). An fp64 mean takes torch.rsqrt",
    ),
)
_SEMANTICS = (
    EPS,
    Attribute(
        name="offset",
        kind="semantics",
        default="config",
        values=("config",),
        number=True,
        usual=(0.0, 1.0),
        says="a number in place of the model's offset of the weight; `config` keeps it",
    ),
)


def _scratch(call: Call) -> int:
    """Scratch memory. With a written-out order also the squares, what a step of the sum leaves, and the other moment.

    With Welford's updates, the moments of each thread.
    """
    statistic = call.active.get("statistic")
    native = call.active.get("order") == NATIVE and statistic == MEAN_SQUARE
    rows = call.tokens * call.inputs[0] // call.weights["weight"][0]
    threads = 10 * WELFORD_THREADS * call.wide * rows if statistic == WELFORD else 0
    return (1 if native else 2) * elementwise(call) + threads


RMS_NORM = Op(
    name="rms_norm",
    says="x / sqrt(mean(x^2) + eps) * weight over the last axis. x is what its edge hands over: the unrounded residual "
    "sum where that is `add:output->rms_norm` in fp32.",
    inputs=("x",),
    weights=(WeightPort(name="weight", says="[width of the last axis]", initial=1.0),),
    parameters=(
        Parameter(name="eps", type=float, says="added to the mean square"),
        Parameter(name="heads", type=int, required=False, says="split the last axis into this many heads, afterwards"),
        Parameter(
            name="offset",
            type=float,
            required=False,
            default=0.0,
            says="added to the weight; 1 where checkpoints hold the weight less 1 (Qwen3-Next, zero-centred gamma)",
        ),
    ),
    attributes=(
        *_ROUNDINGS,
        Attribute(
            name="association",
            kind="form",
            default="x_rstd_first",
            values=("x_rstd_first", "weight_rstd_first", "weight_x_first"),
            says="(x * rstd) * weight, x * (rstd * weight) or (x * weight) * rstd, each product rounded in fp32",
            when={"normalized": ("fp32",)},
        ),
        *_STATISTIC,
        *_SEMANTICS,
    ),
    tokens=Tokens(sees_rows=_sees_rows),
    refusals=Refusals(values=_refuses, call=_refuses_call),
    role=Role(family="norms"),
    cut=Cut(keeps_heads=True),
    memory=Memory(scratch=_scratch),
    kernel="norm:rms_norm",
    source="transformers 5.17.0 and 5.23.0, Qwen3MoeRMSNorm.forward; torch.nn.functional.rms_norm on CPU, torch 2.13",
)
