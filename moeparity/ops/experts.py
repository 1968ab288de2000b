"""The routed experts: one row for each token and slot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from moeparity.numerics.collectives.declaration import Evidence
from moeparity.numerics.dtypes import stored_name
from moeparity.ops import adapter, measured
from moeparity.ops.attribute import LOGISTIC, Attribute, Condition, Value, site
from moeparity.ops.declaration import Cut, Op, Parameter, Refusals, Role, Tokens, WeightPort, sees_rows_by_sigmoid
from moeparity.ops.linear import COLUMN, FORMS, INSIDE, ROW, ROWS, TF32, in_8_bits, refuses_form, sees_rows
from moeparity.ops.memory import BYTES, INTEGER, Call, Memory, Shapes, on_tensor_cores
from moeparity.ops.placement import BLOCKS, PARTIAL, TENSOR, cut, refuse_pieces
from moeparity.ops.quantised import BY_TOKEN, rounds_operands
from moeparity.ops.scale_choices import DISPATCH, JOINED

COMBINE, EPILOGUE, ACTIVATION, INPUT = "combine", "epilogue", "activation", "input"
"""Where the routing weight is multiplied in."""
LOOP, GROUPED, BATCHED = "loop", "grouped", "batched"
OUTPUT = "output"
"""Where a model has it by itself: on the experts' inputs, or, as a fault, on their outputs."""

SWIGLU, CLAMPED, RELU2 = "swiglu", "clamped", "relu2"
"""How gate and up are combined; or the square of relu(up), of experts that have no gate."""

_CLAMPED = {"glu": (CLAMPED,)}
_GATED = {"glu": (SWIGLU, CLAMPED)}
_NARROWED: Condition = {"score_site": (ACTIVATION, INPUT, None)}
_CHOSEN: Condition = {"scored_at": (None,)}
_LOOP = {"implementation": (LOOP,)}


def _refuses(shapes: Shapes, values: Mapping[str, Value]) -> tuple[str, str] | None:
    """Refuses a score on the input of more than one expert, sizes that do not divide, and a GEMM that torch does not
    have.
    """
    if values.get("score_site", INPUT) == INPUT and shapes["ids"] != (1,):
        reason = f"each token has {shapes['ids'][0]} experts, and engines scale the input where it has one only."
        return "score_site", reason
    if shapes.get("zero", (0,))[0] and (values["implementation"] != LOOP or cut(values) > 1):
        attribute = "implementation" if values["implementation"] != LOOP else "tensor"
        return attribute, "experts without weights stand in no GEMM of all experts, nor on a rank's part of one."
    if values.get("score_site") in _NARROWED["score_site"] and "down_bias" in shapes:
        return "score_site", "the down projection's bias comes later, and meets no weight. Set combine or epilogue."
    if values.get("weight_scales") == JOINED and values.get("gate_up") == "split":
        return "weight_scales", "gate and up of an expert are two tensors here. Set gate_up: fused, or tensor."
    if adapter.is_unmerged(values) and (cut(values) > 1 or values["implementation"] != LOOP):
        return "adapter", "rows beside a GEMM of all experts, or of experts cut over ranks, have no kernel. Set merged."
    return _refuses_gemm(shapes, values)


def _refuses_gemm(shapes: Shapes, values: Mapping[str, Value]) -> tuple[str, str] | None:
    """Refuses sizes that do not divide, a form that does not fit K, and a GEMM that torch does not have."""
    sizes = {"intermediate channels": shapes["down"][-1]}
    sizes |= {} if _row_wise(values) else {"hidden channels": shapes["down"][-2]}
    uneven = refuse_pieces(values, sizes)
    if uneven is not None:
        return uneven
    k = {
        _first(shapes): shapes[_first(shapes)][-1],
        "down": shapes["down"][-1] // (cut(values) if _row_wise(values) else 1),
    }
    if values["implementation"] == GROUPED:
        return _refuses_grouped(k, values)
    if values["implementation"] == BATCHED:
        return _refuses_batched(values, has_bias="down_bias" in shapes)
    return refuses_form(k[_first(shapes)], values, str(values["projections"])) or refuses_form(
        k["down"], values, stored_name(_hidden(values))
    )


def _refuses_grouped(k: Mapping[str, int], values: Mapping[str, Value]) -> tuple[str, str] | None:
    """Why torch's grouped GEMM cannot compute these experts: the attribute and a sentence; None if it can.

    It has no fp64, takes no scales, and needs rows whose bytes are a multiple of 16.
    """
    if rounds_operands(values):
        return "implementation", "torch's grouped GEMM takes no operands with scales. Set `loop`."
    dtypes = (values["projections"], _hidden(values), values.get("output", values.get("partial")))
    if "fp64" in (*dtypes, values.get("unbiased")):
        return "implementation", "torch's grouped GEMM has no fp64. Set `loop`, or other dtypes."
    for port, dtype in zip(k, (str(values["projections"]), _hidden(values)), strict=True):
        if k[port] * BYTES[dtype] % 16:
            reason = (
                f"torch's grouped GEMM needs rows of a multiple of 16 bytes, and {port} has rows of {k[port]} {dtype}"
                f"{' on each rank' if cut(values) > 1 else ''}. transformers refuses this here too; set `loop`."
            )
            return "implementation", reason
    return None


def _refuses_batched(values: Mapping[str, Value], *, has_bias: bool) -> tuple[str, str] | None:
    """Why no batched product of all experts is known for these: the attribute and a sentence; None if there is one."""
    if has_bias:
        return "implementation", "a batched product of experts with a bias is not known. Set `loop`."
    if rounds_operands(values):
        return "implementation", "a batched product takes no operands with scales. Set `loop`."
    if cut(values) > 1:
        return "implementation", "a batched product of a rank's part of each expert is not known. Set `loop`."
    return None


def _first(shapes: Shapes) -> str:
    """The port of a weight that x enters."""
    return "gate" if "gate" in shapes else "up"


def _misfit(params: Mapping[str, Any]) -> str | None:
    if params["glu"] == RELU2 and params["interleaved"]:
        return "interleaved is set, and experts by relu2 have no gate that up could alternate with."
    return None


def _row_wise(values: Mapping[str, Value]) -> bool:
    """Whether the down projection is cut along its inputs; as long as nothing is cut, it might be."""
    return values.get("parallel", ROW) == ROW


def _hidden(values: Mapping[str, Value]) -> str:
    """The dtype in which the activations enter the down projection."""
    return str(values["scored"] if values.get("score_site") == ACTIVATION else values["product"])


def _partials(pieces: int, values: Mapping[str, Value], params: Mapping[str, Any], inputs: Sequence[int]) -> int:
    return pieces if _row_wise(values) else 1


def _sees_rows(values: Mapping[str, Value], params: Mapping[str, Any]) -> bool:
    # A grouped GEMM is torch's own.
    operands = ("projections", "scored" if values.get("score_site") == ACTIVATION else "product")
    return sees_rows(values, operands) or sees_rows_by_sigmoid(values, params) or adapter.is_unmerged(values)


def _joins(values: Mapping[str, Value]) -> bool:
    """Of one rank."""
    return cut(values) == 1 and values["implementation"] != BATCHED and not adapter.is_unmerged(values)


def _bias(name: str, says: str, stack: str) -> WeightPort:
    return WeightPort(name=name, says=says, required=False, stack=stack, initial=0.0)


def _widths(weights: Shapes, params: Mapping[str, Any], inputs: Sequence[int]) -> Sequence[int]:
    return [inputs[0] * inputs[1]]


def _scratch(call: Call) -> int:
    count, width, hidden = call.weights["up"]
    slots = call.tokens * call.inputs[1]
    implementation = call.active.get("implementation")
    # Every token may choose the same expert.
    rows = {GROUPED: slots, BATCHED: count * call.tokens}.get(str(implementation), call.tokens)
    stacks = 1 if implementation == LOOP else count
    values = rows * (hidden * call.bytes_of("projections") + 2 * width * call.wide * 2 + 3 * width * call.wide)
    values += rows * hidden * (call.bytes_of("output") + call.wide)
    # Numbers, codes and quotients of a dispatch, and scales spread over them.
    values += 6 * 4 * rows * hidden if "dispatch_group" in call.active else 0
    values += max(in_8_bits(call, 2 * width, hidden, rows), in_8_bits(call, hidden, width, rows))
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
    "within a limit, or down(relu(up(x))^2) without a gate, of each token's chosen experts: x [B, T, H], ids [B, T, K] "
    "-> rows [B, T, K, H]; weights "
    "[B, T, K] are read where a row is multiplied with its own here.",
    inputs=("x", "ids", "weights"),
    weights=(
        WeightPort(name="gate", says="[experts, I, H]; none of relu2", stack="gate_up", required=False),
        WeightPort(name="up", says="[experts, I, H]", stack="gate_up"),
        WeightPort(name="down", says="[experts, H, I]", stack="down"),
        _bias("gate_bias", "[experts, I], added to the GEMM's result", "gate_up_bias"),
        _bias("up_bias", "[experts, I], likewise", "gate_up_bias"),
        _bias("down_bias", "[experts, H], likewise", "down_bias"),
        *adapter.ports("gate_up", "[experts * r, H]", "[2I, r * experts]"),
        *adapter.ports("down", "[experts * r, I]", "[H, r * experts]"),
    ),
    parameters=(
        Parameter(
            name="glu",
            type=str,
            required=False,
            default=SWIGLU,
            values=(SWIGLU, CLAMPED, RELU2),
            says="silu(gate) * up; or (up + 1) * gate * sigmoid(alpha * gate), gate at most `limit` and up between "
            "-limit and limit (gpt-oss); or relu(up)^2, without a gate (Nemotron-H)",
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
        adapter.PARAMETER,
        Parameter(
            name="zero",
            type=int,
            required=False,
            default=0,
            says="so many experts behind those with weights hand on x as it is (LongCat's zero experts)",
        ),
        Parameter(
            name="scored_at",
            type=str,
            required=False,
            values=(INPUT, OUTPUT),
            says="the routing weight multiplies x, of one expert per token, or the result; null: as `score_site` says",
        ),
    ),
    attributes=(
        Attribute(
            name="implementation",
            kind="form",
            default=LOOP,
            values=(LOOP, GROUPED, BATCHED),
            same_sums={GROUPED: LOOP},
            says="one GEMM per expert that was hit; torch's grouped GEMM over tokens sorted by expert; or torch's "
            "batched product, of all experts for all tokens, in which those that a token has not chosen are zeros "
            "(Llama 4 of transformers)",
        ),
        Attribute(
            name="gate_up",
            kind="form",
            default="fused",
            values=("fused", "split"),
            when_parameters=_GATED,
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
        replace(
            site(
                "activation",
                "silu(gate), or gate * sigmoid(alpha * gate), is rounded to this dtype before it meets up; fp32 is the "
                "one-rounding SwiGLU",
                measured=measured.SWIGLU,
            ),
            when_parameters=_GATED,
        ),
        site("product", "silu(gate) * up, its product with up + 1, or relu(up)^2, is rounded to this dtype", cuts=True),
        Attribute(
            name="score_site",
            kind="form",
            default=COMBINE,
            values=(COMBINE, EPILOGUE, ACTIVATION, INPUT),
            measured=measured.SCORE_SITE,
            when_parameters=_CHOSEN,
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
        replace(LOGISTIC, when_parameters=_GATED),
        replace(TF32, when={}, says="the fp32 operands of all GEMMs are rounded to TF32, to nearest, ties away"),
        replace(
            ROWS,
            when={"implementation": (LOOP, GROUPED)},
            says=f"{ROWS.says}. Blocks are of one expert's rows; an order written out has the same bits in any",
        ),
        *(replace(form, when={**form.when, **_LOOP}) for form in FORMS if form not in (TF32, ROWS)),
        *DISPATCH,
        *BY_TOKEN,
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
        *adapter.FORMS_OF_EXPERTS,
    ),
    reads={"weights": ({"score_site": (EPILOGUE, ACTIVATION, INPUT, None)},)},
    tokens=Tokens(sees_rows=_sees_rows, joins=_joins),
    refusals=Refusals(values=_refuses, parameters=_misfit),
    cut=Cut(pieces=cut, partials=_partials),
    role=Role(family="experts", gemm=True, inside=INSIDE, slot_order=True),
    integers=("ids",),
    memory=Memory(widths=_widths, scratch=_scratch),
    kernel="experts:experts",
    source="transformers 5.17.0 and 5.23.0, *Experts.forward (loop), integrations/moe.py grouped_mm_experts_forward; "
    "batched: Llama4TextMoe.forward; clamped: GptOssExperts._apply_gate; relu2: NemotronHExperts.forward; "
    "score sites, read: vLLM 0.33.0 fused_moe_kernel, Megatron-LM d98e8a64dd experts.py bias_act_func",
)
