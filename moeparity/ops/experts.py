"""The routed experts: one row for each token and slot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from moeparity.numerics.collectives.declaration import Evidence
from moeparity.numerics.dtypes import stored_name
from moeparity.ops import measured
from moeparity.ops.attribute import LOGISTIC, Attribute, Value, site
from moeparity.ops.declaration import Op, Parameter, WeightPort, sees_rows_by_sigmoid
from moeparity.ops.linear import COLUMN, FORMS, INSIDE, ROW, ROWS, TF32, refuses_form, sees_rows
from moeparity.ops.memory import BYTES, INTEGER, Call, Memory, Shapes, on_tensor_cores
from moeparity.ops.placement import BLOCKS, PARTIAL, TENSOR, cut, refuse_pieces

COMBINE, EPILOGUE, ACTIVATION, INPUT = "combine", "epilogue", "activation", "input"
"""Where the routing weight is multiplied in."""

SWIGLU, CLAMPED = "swiglu", "clamped"
"""How gate and up are combined."""

_CLAMPED = {"glu": (CLAMPED,)}
_NARROWED = {"score_site": (ACTIVATION, INPUT)}
_LOOP = {"implementation": ("loop",)}


def _refuses(shapes: Shapes, values: Mapping[str, Value]) -> tuple[str, str] | None:
    """Refuses a score on the input of more than one expert, sizes that do not divide, and a GEMM that torch does not
    have.
    """
    if values["score_site"] == INPUT and shapes["ids"] != (1,):
        reason = f"each token has {shapes['ids'][0]} experts, and engines scale the input where it has one only."
        return "score_site", reason
    if values["score_site"] in _NARROWED["score_site"] and "down_bias" in shapes:
        return "score_site", "the down projection's bias comes later, and meets no weight. Set combine or epilogue."
    return _refuses_gemm(shapes, values)


def _refuses_gemm(shapes: Shapes, values: Mapping[str, Value]) -> tuple[str, str] | None:
    """Refuses sizes that do not divide, a form that does not fit K, and a GEMM that torch does not have."""
    sizes = {"intermediate channels": shapes["down"][-1]}
    sizes |= {} if _row_wise(values) else {"hidden channels": shapes["down"][-2]}
    uneven = refuse_pieces(values, sizes)
    if uneven is not None:
        return uneven
    k = {"gate": shapes["gate"][-1], "down": shapes["down"][-1] // (cut(values) if _row_wise(values) else 1)}
    if values["implementation"] == "grouped":
        return _refuses_grouped(k, values)
    return refuses_form(k["gate"], values, str(values["projections"])) or refuses_form(
        k["down"], values, stored_name(_hidden(values))
    )


def _refuses_grouped(k: Mapping[str, int], values: Mapping[str, Value]) -> tuple[str, str] | None:
    """torch's grouped GEMM has no fp64, and takes only rows that are multiples of 16 bytes, as transformers finds."""
    dtypes = (values["projections"], _hidden(values), values.get("output", values.get("partial")))
    if "fp64" in (*dtypes, values.get("unbiased")):
        return "implementation", "torch's grouped GEMM has no fp64. Set `loop`, or other dtypes."
    for port, dtype in (("gate", str(values["projections"])), ("down", _hidden(values))):
        if k[port] * BYTES[dtype] % 16:
            reason = (
                f"torch's grouped GEMM needs rows of a multiple of 16 bytes, and {port} has rows of {k[port]} {dtype}"
                f"{' on each rank' if cut(values) > 1 else ''}. transformers refuses this here too; set `loop`."
            )
            return "implementation", reason
    return None


def _row_wise(values: Mapping[str, Value]) -> bool:
    """Whether the down projection is cut along its inputs; as long as nothing is cut, it might be."""
    return values.get("parallel", ROW) == ROW


def _hidden(values: Mapping[str, Value]) -> str:
    """The dtype in which the activations enter the down projection."""
    return str(values["scored"] if values["score_site"] == ACTIVATION else values["product"])


def _partials(pieces: int, values: Mapping[str, Value], params: Mapping[str, Any], inputs: Sequence[int]) -> int:
    return pieces if _row_wise(values) else 1


def _sees_rows(values: Mapping[str, Value], params: Mapping[str, Any]) -> bool:
    # A grouped GEMM is torch's own.
    operands = ("projections", "scored" if values["score_site"] == ACTIVATION else "product")
    return sees_rows(values, operands) or sees_rows_by_sigmoid(values, params)


def _joins(values: Mapping[str, Value]) -> bool:
    """Of one rank."""
    return cut(values) == 1


def _bias(name: str, says: str, stack: str) -> WeightPort:
    return WeightPort(name=name, says=says, required=False, stack=stack, initial=0.0)


def _widths(weights: Shapes, params: Mapping[str, Any], inputs: Sequence[int]) -> Sequence[int]:
    return [inputs[0] * inputs[1]]


def _scratch(call: Call) -> int:
    count, width, hidden = call.weights["gate"]
    slots = call.tokens * call.inputs[1]
    grouped = call.active.get("implementation") == "grouped"
    # Every token may choose the same expert.
    rows = slots if grouped else call.tokens
    stacks = count if grouped else 1
    values = rows * (hidden * call.bytes_of("projections") + 2 * width * call.wide * 2 + 3 * width * call.wide)
    values += rows * hidden * (call.bytes_of("output") + call.wide)
    values += on_tensor_cores(call, "order", 2 * width, hidden, rows)
    values += on_tensor_cores(call, "order", hidden, width, rows)
    if "gate_bias" in call.weights:
        # The rows' own biases, and the results before them.
        values += 2 * rows * (2 * width + hidden) * call.wide
    # Of the clamped form every step.
    values += 6 * rows * width * call.wide if "gain" in call.active else 0
    score_site = call.active.get("score_site", COMBINE)
    if score_site != COMBINE:
        # The fp32 result before its score, or what is scaled, and the products.
        values += 2 * rows * max(hidden, width) * call.wide
    # A sigmoid written out: its input in wide, the exponentials and their sum with 1.
    values += 3 * rows * width * call.wide if call.active.get("logistic") == "exp" else 0
    if call.rounds_to_tf32:
        values += 4 * call.wide * (2 * width * hidden * stacks + rows * max(hidden, width))
    dtypes = {call.active.get(site, call.dtype) for site in ("projections", "product", "scored", "output")}
    mixed = len(dtypes | {call.dtype}) > 1 or score_site == EPILOGUE
    return values + 4 * INTEGER * slots + (2 * width * hidden * stacks * 2 * call.wide if mixed else 0)


EXPERTS = Op(
    name="experts",
    says="down(silu(gate(x)) * up(x)), or gpt-oss's down((up + 1) * gate * sigmoid(alpha * gate)) of gate and up held "
    "within a limit, of each token's chosen experts: x [B, T, H], ids [B, T, K] -> rows [B, T, K, H]; weights "
    "[B, T, K] are read where a row is multiplied with its own here.",
    inputs=("x", "ids", "weights"),
    weights=(
        WeightPort(name="gate", says="[experts, I, H]", stack="gate_up"),
        WeightPort(name="up", says="[experts, I, H]", stack="gate_up"),
        WeightPort(name="down", says="[experts, H, I]", stack="down"),
        _bias("gate_bias", "[experts, I], added to the GEMM's result", "gate_up_bias"),
        _bias("up_bias", "[experts, I], likewise", "gate_up_bias"),
        _bias("down_bias", "[experts, H], likewise", "down_bias"),
    ),
    parameters=(
        Parameter(
            name="glu",
            type=str,
            required=False,
            default=SWIGLU,
            values=(SWIGLU, CLAMPED),
            says="silu(gate) * up; or (up + 1) * gate * sigmoid(alpha * gate), gate at most `limit` and up between "
            "-limit and limit (gpt-oss)",
        ),
        Parameter(name="alpha", type=float, required=False, default=1.702, says="gain of the clamped form's sigmoid"),
        Parameter(name="limit", type=float, required=False, default=7.0, says="what the clamped form holds within"),
        Parameter(
            name="interleaved",
            type=bool,
            required=False,
            default=False,
            says="gate and up alternate in the one tensor both are `stacked` in",
        ),
    ),
    attributes=(
        Attribute(
            name="implementation",
            kind="form",
            default="loop",
            values=("loop", "grouped"),
            same_sums={"grouped": "loop"},
            says="one GEMM per expert that was hit, or torch's grouped GEMM over tokens sorted by expert",
        ),
        Attribute(
            name="gate_up",
            kind="form",
            default="fused",
            values=("fused", "split"),
            says="gate and up as one GEMM of width 2I, or as two of width I",
        ),
        site("projections", "inputs of the gate and up GEMMs, and their results where these have no biases"),
        replace(
            site(
                "unbiased",
                "the result of each GEMM is rounded to this dtype before its bias is added; fp32 is a bias in the "
                "epilogue, one rounding",
            ),
            weight="gate_bias",
        ),
        replace(site("biased", "gate and up, biases included, are rounded to this dtype"), weight="gate_bias"),
        replace(site("gain", "alpha * gate is rounded to this dtype"), when_parameters=_CLAMPED),
        replace(site("sigmoid", "the sigmoid of that is rounded to this dtype"), when_parameters=_CLAMPED),
        replace(site("shifted", "up + 1 is rounded to this dtype"), when_parameters=_CLAMPED),
        site(
            "activation",
            "silu(gate), or gate * sigmoid(alpha * gate), is rounded to this dtype before it meets up; fp32 is the "
            "one-rounding SwiGLU",
            measured=measured.SWIGLU,
        ),
        site("product", "silu(gate) * up, or its product with up + 1, is rounded to this dtype", cuts=True),
        Attribute(
            name="score_site",
            kind="form",
            default=COMBINE,
            values=(COMBINE, EPILOGUE, ACTIVATION, INPUT),
            measured=measured.SCORE_SITE,
            sources={ACTIVATION: Evidence("read", "Megatron-LM d98e8a64dd experts.py bias_act_func")},
            says="where a row meets its routing weight: in the combine; in the down projection's epilogue, on its fp32 "
            "result, which is rounded once (vLLM's and SGLang's Triton kernels, TensorRT-LLM's fused finalize); on "
            "silu(gate) * up (Megatron-LM); or on x, which is another function, of one expert per token (Llama 4). The "
            "combine follows this choice: it multiplies only if the rows have not met their weights before",
        ),
        site(
            "scored",
            "silu(gate) * up, or x, times the routing weight is rounded to this dtype; with fp32 for `activation` and "
            "`product` there is one rounding of all three factors",
            when=_NARROWED,
        ),
        site(
            "output",
            "the down projection's result, one row per token and slot, is rounded to this dtype",
            needs="no partials",
        ),
        LOGISTIC,
        replace(TF32, when={}, says="the fp32 operands of all GEMMs are rounded to TF32, to nearest, ties away"),
        # Of the grouped GEMM too, whose order of its own rests.
        replace(ROWS, when={}, says=f"{ROWS.says}. Blocks are of one expert's rows; an order written out has none"),
        *(replace(form, when={**form.when, **_LOOP}) for form in FORMS if form not in (TF32, ROWS)),
        TENSOR,
        BLOCKS,
        Attribute(
            name="parallel",
            kind="placement",
            default=ROW,
            values=(ROW, COLUMN),
            needs="pieces",
            says="gate and up are cut along their outputs, and the down projection along its inputs (row-wise: partial "
            "sums, which an all-reduce adds up), or along its outputs too, the activations gathered before it",
        ),
        replace(PARTIAL, says="a rank's part of the down projection's result is rounded to this dtype, then combined"),
    ),
    reads={"weights": ({"score_site": (EPILOGUE, ACTIVATION, INPUT)},)},
    sees_rows=_sees_rows,
    refuses=_refuses,
    pieces=cut,
    partials=_partials,
    family="experts",
    gemm=True,
    inside=INSIDE,
    joins=_joins,
    slot_order=True,
    integers=("ids",),
    memory=Memory(widths=_widths, scratch=_scratch),
    kernel="experts:experts",
    source="transformers 5.17.0 and 5.23.0, *Experts.forward (loop), integrations/moe.py grouped_mm_experts_forward; "
    "clamped: GptOssExperts._apply_gate; "
    "score sites, read: vLLM 0.33.0 fused_moe_kernel, Megatron-LM d98e8a64dd experts.py bias_act_func",
)
