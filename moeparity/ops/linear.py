"""GEMMs with one weight: `linear`, `gate` (the router's) and `lm_head`, three ops so that a profile can name them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from moeparity.numerics import gemm_forms
from moeparity.numerics.collectives.declaration import Evidence
from moeparity.numerics.gemm_forms import ALL, ONE_ROW, ONEDNN, refusal, unplanned
from moeparity.numerics.orders import NATIVE
from moeparity.numerics.tensor_core.gemm_orders import USUAL
from moeparity.ops import adapter
from moeparity.ops.attribute import ABOVE_1, Attribute, Value, site, sum_order
from moeparity.ops.declaration import Cut, Op, Parameter, Refusals, Role, Tokens, WeightPort, always
from moeparity.ops.memory import BYTES, Call, Memory, Shapes, on_tensor_cores
from moeparity.ops.placement import BIAS, BLOCKS, PARTIAL, TENSOR, cut, refuse_pieces
from moeparity.ops.quantised import (
    OPERANDS,
    QUANTISED,
    misfit,
    multiplies_codes,
    part_of_k,
    rounds_operands,
    scales_see_rows,
)
from moeparity.ops.scale_choices import WEIGHTS

_SITES = (
    site("inputs", "activations and weight are rounded to this dtype before the GEMM"),
    site(
        "output",
        "the GEMM's result is rounded to this dtype; the same 16-bit dtype as `inputs` is torch's 16-bit kernel, any "
        "other pair is torch's fp32 kernel (fp64 where one is fp64) on the upcast operands, rounded at the end",
    ),
)
TF32 = Attribute(
    name="tf32",
    kind="form",
    default="no",
    values=("no", "yes"),
    when={"inputs": ("fp32",)},
    says="fp32 operands are rounded to TF32 (10 bits of mantissa) before the fp32 kernel, to nearest, ties away from "
    "zero: the cvt.rna.tf32 of NVIDIA's PTX. That cuBLAS rounds so is inferred, not run",
)
ROWS = Attribute(
    name="rows",
    kind="form",
    default=ALL,
    values=(ALL,),
    least=1,
    when={"order": (NATIVE,)},
    says="torch's kernel on all rows of a step at once, by whose number it chooses how it adds; or on blocks of so "
    "many, the last filled up with zeros, so that no bit of a token depends on which others are computed with it. That "
    "a row's place in its block does not matter either is tried on the machine at hand, and refused where it does",
)
_RECORDED: Final = "north-numerical-computing/MATLAB-tensor-core b12b5a7, outputs recorded on GPUs"
ORDER = replace(
    sum_order(
        "order",
        "in which order the K products of an output are added, in fp32: torch's own kernel, or one written out, "
        "whose bits depend on neither M nor N (and which takes far longer than the kernel); `tensor_core(h100)`: as "
        "the tensor cores of that GPU add them, one chain over K, or with `promote=128` one for each 128. Their "
        "operands are bf16, fp16 or TF32: fp32 without TF32 is left to torch's kernel, which takes the place of CUDA "
        f"cores ({_RECORDED}); `cublaslt(...)`: as cuBLASLt plans it for N, K and the number of rows, which a side's "
        "`plans:` sets",
        tensor_cores=True,
    ),
    sources=dict.fromkeys(USUAL, Evidence("read", _RECORDED)),
)
"""The order in which a GEMM adds up its products."""
SPLITS = Attribute(
    name="splits",
    kind="form",
    default=1,
    least=1,
    says="split-K: K is cut into this many parts, each a GEMM of its own, whose results are added up; on tensor cores "
    "into whole multiples of 64, as cuBLASLt cuts it",
)
FORMS = (
    TF32,
    ORDER,
    ROWS,
    SPLITS,
    site(
        "split",
        "the result of each part, and every addition of two, is rounded to this dtype",
        default="fp32",
        when={"splits": (ABOVE_1,)},
    ),
    sum_order("splits_order", "in which order the parts are added", default="sequential", when={"splits": (ABOVE_1,)}),
)
"""The forms of a GEMM, as `numerics.gemm` computes them."""

INSIDE = frozenset(form.name for form in (*FORMS, BLOCKS))
"""The names of these forms and of its blocks: all of it happens inside one kernel."""

_ORDER = replace(
    ORDER,
    values=(*ORDER.values, ONEDNN),
    says=f"{ORDER.says}; `{ONEDNN}`: oneDNN called by itself, torch's kernel for two rows and more, and for "
    f"a single row `{ONE_ROW}`, with AVX-512 and without BF16",
)
_DENSE = tuple(_ORDER if form.name == _ORDER.name else form for form in FORMS)
"""The forms of a GEMM that a library may be called for by itself."""

_WEIGHT = WeightPort(name="weight", says="[N, K]")
_BIAS = WeightPort(name="bias", says="[N], added inside the GEMM kernel", required=False)

PLAN, COLUMN, ROW = "plan", "column", "row"


def way(values: Mapping[str, Value], params: Mapping[str, Any]) -> str:
    """How a `linear` is cut over ranks: as the graph says, unless `parallel` says something else."""
    parallel = str(values["parallel"])
    return str(params["parallel"]) if parallel == PLAN else parallel


def _partials(pieces: int, values: Mapping[str, Value], params: Mapping[str, Any], inputs: Sequence[int]) -> int:
    return pieces if pieces > 1 and way(values, params) == ROW else 1


def _refuses(shapes: Shapes, values: Mapping[str, Value]) -> tuple[str, str] | None:
    """Refuses pieces that do not divide inputs or heads (ranks may share one head), and forms that do not fit K."""
    rowwise = shapes["partials"][0] > 1
    k = shapes["weight"][1] // (cut(values) if rowwise else 1)
    refusal = _refuses_pieces(shapes, values, rowwise=rowwise) or refuses_form(k, values, str(values["inputs"]))
    return refusal or _refuses_unplanned(shapes, values)


def refuses_form(k: int, values: Mapping[str, Value], inputs: str) -> tuple[str, str] | None:
    """The one of `FORMS` that a GEMM with K inputs of a dtype cannot have, and why; None if it can have all."""
    order, splits, tf32 = str(values["order"]), int(values["splits"]), values.get("tf32") == "yes"
    unfit = misfit(k, values)
    if unfit is not None:
        return unfit
    if multiplies_codes(values):
        if values[WEIGHTS] == "int8":
            return None
        part = part_of_k(values) or k
        sizes = {min(part, k - start) for start in range(0, k, part)}
        refusals = (refusal(size, order, splits, "sequential", str(values[WEIGHTS])) for size in sorted(sizes))
        return next((each for each in refusals if each is not None), None)
    inputs = "fp32" if values.get("scaling") == OPERANDS else inputs
    return refusal(k, order, splits, str(values.get("splits_order", "sequential")), inputs, tf32=tf32)


def sees_rows(values: Mapping[str, Value], inputs: Iterable[str] = ("inputs",)) -> bool:
    """Whether a GEMM of operands rounded to one of these sites depends on other rows: torch's own kernel, and oneDNN's,
    if run on all rows at once.
    """
    if scales_see_rows(values):
        return True
    order, tf32 = str(values.get("order", NATIVE)), values.get("tf32") == "yes"
    if order == NATIVE and values.get(ROWS.name, ALL) != ALL:
        return False
    return any(gemm_forms.sees_rows(order, str(values[name]), tf32=tf32) for name in inputs if name in values)


def _sees_rows(values: Mapping[str, Value], params: Mapping[str, Any]) -> bool:
    return sees_rows(values)


def _refuses_whole(shapes: Shapes, values: Mapping[str, Value]) -> tuple[str, str] | None:
    return refuses_form(shapes["weight"][1], values, str(values["inputs"])) or _refuses_unplanned(shapes, values)


def _refuses_unplanned(shapes: Shapes, values: Mapping[str, Value]) -> tuple[str, str] | None:
    """Refuses plans without the GEMM of a node in one piece; those of its pieces are looked up as they are computed."""
    if (
        multiplies_codes(values)
        or "output" not in values
        or int(values.get("tensor", 1)) * int(values.get("blocks", 1)) > 1
    ):
        return None
    order, inputs, output = (str(values[name]) for name in ("order", "inputs", "output"))
    n, k = shapes["weight"]
    tf32 = values.get("tf32") == "yes"
    reason = unplanned(n, k, order, inputs, output, tf32=tf32, biased="bias" in shapes)
    return None if reason is None else ("order", reason)


def _refuses_pieces(shapes: Shapes, values: Mapping[str, Value], *, rowwise: bool) -> tuple[str, str] | None:
    if "tensor" not in values or cut(values) == 1:
        return None
    if rowwise:
        return refuse_pieces(values, {"inputs": shapes["weight"][1]})
    heads = shapes.get("heads", (0,))[0]
    return None if not heads or cut(values) % heads == 0 else refuse_pieces(values, {"heads": heads})


def _rows(weights: Shapes, params: Mapping[str, Any], inputs: Sequence[int]) -> Sequence[int]:
    return weights["weight"][:1]


def _scratch(call: Call) -> int:
    """Operands rounded to `inputs`; and everything in a wider dtype if the kernel is not that of `inputs`."""
    rows, columns = call.weights["weight"]
    operand, dtype = call.bytes_of("inputs"), BYTES[call.dtype]
    copies = rows * columns * operand if operand != dtype else 0
    copies += in_8_bits(call, rows, columns, call.tokens)
    copies += call.tokens * columns * operand + on_tensor_cores(call, "order", rows, columns, call.tokens)
    # Rounding to TF32: the bits, which are finite, and the result, for one operand while the other one's are in memory.
    copies += 4 * operand * (rows * columns + call.tokens * columns) if call.rounds_to_tf32 else 0
    if call.active.get("inputs") == call.active.get("output"):
        return copies
    return copies + call.wide * (rows * columns + call.tokens * columns + call.tokens * rows)


def in_8_bits(call: Call, rows: int, columns: int, tokens: int) -> int:
    """Bytes of operands on a grid of 8 bits: numbers, scales spread over them, quotients and codes, each in fp32 at
    most, of the operand that is larger; both operands' codes; and four results.
    """
    if not rounds_operands(call.active):
        return 0
    return 4 * (6 * max(rows, tokens) * columns + 3 * (rows + tokens) * columns + 4 * rows * tokens)


def joins(values: Mapping[str, Value]) -> bool:
    """Whether rows of several steps may be computed at once."""
    return not scales_see_rows(values)


def _sees_rows_or_adapts(values: Mapping[str, Value], params: Mapping[str, Any]) -> bool:
    return sees_rows(values) or adapter.is_unmerged(values)


def _joins_without_adapter(values: Mapping[str, Value]) -> bool:
    return joins(values) and not adapter.is_unmerged(values)


_MEMORY = Memory(widths=_rows, scratch=_scratch)

LINEAR = Op(
    name="linear",
    says="x @ weight.T + bias, optionally seen as heads: [B, T, K] -> [B, T, N] or [B, T, heads, N / heads].",
    inputs=("x",),
    weights=(_WEIGHT, replace(_BIAS, initial=0.0), *adapter.ports("weight", "[r, K]", "[N, r]")),
    parameters=(
        Parameter(name="heads", type=int, required=False, says="split the last axis into this many heads"),
        Parameter(
            name="parallel",
            type=str,
            required=False,
            default=COLUMN,
            values=(COLUMN, ROW, "none"),
            says="how tensor parallel engines cut it: its outputs (column), its inputs (row), or not at all",
        ),
        adapter.PARAMETER,
    ),
    attributes=(
        _SITES[0],
        replace(_SITES[1], needs="no partials"),
        *_DENSE,
        *QUANTISED,
        replace(TENSOR, parameter="parallel"),
        replace(BLOCKS, parameter="parallel"),
        Attribute(
            name="parallel",
            kind="placement",
            default=PLAN,
            values=(PLAN, COLUMN, ROW),
            needs="pieces",
            parameter="parallel",
            says="each rank computes some of the outputs from all inputs (column-wise), or a partial sum of all "
            "outputs from some of the inputs (row-wise), which an all-reduce adds up; `plan` is the graph's own way, "
            "row-wise for what leads back to the residual stream, column-wise for the rest",
        ),
        replace(PARTIAL, parameter="parallel"),
        replace(BIAS, parameter="parallel"),
        *adapter.FORMS,
    ),
    tokens=Tokens(sees_rows=_sees_rows_or_adapts, joins=_joins_without_adapter),
    refusals=Refusals(values=_refuses),
    cut=Cut(pieces=cut, partials=_partials, joins_heads=True),
    role=Role(gemm=True, inside=INSIDE),
    memory=_MEMORY,
    kernel="linear:linear",
    source="torch.nn.functional.linear as called by transformers 5.17.0 and 5.23.0",
)

GATE = Op(
    name="gate",
    says="The router's GEMM on tokens laid out as rows: [B, T, K] -> [B, T, experts].",
    inputs=("x",),
    # transformers draws this bias too.
    weights=(_WEIGHT, _BIAS),
    attributes=(*_SITES, *_DENSE),
    tokens=Tokens(sees_rows=_sees_rows, joins=always),
    refusals=Refusals(values=_refuses_whole),
    role=Role(family="router", gemm=True, inside=INSIDE, gates=True),
    memory=_MEMORY,
    kernel="linear:gate",
    source="transformers 5.17.0 and 5.23.0, *TopKRouter.forward of qwen3_moe, deepseek_v3 and gpt_oss",
)

LM_HEAD = Op(
    name="lm_head",
    says="The projection onto the vocabulary: [B, T, hidden] -> logits [B, T, vocab].",
    inputs=("x",),
    weights=(_WEIGHT, _BIAS),
    attributes=(*_SITES, *_DENSE, *QUANTISED, TENSOR, BLOCKS),
    tokens=Tokens(sees_rows=_sees_rows, joins=joins),
    refusals=Refusals(values=_refuses_whole),
    cut=Cut(pieces=cut),
    role=Role(family="head", gemm=True, inside=INSIDE),
    memory=_MEMORY,
    kernel="linear:lm_head",
    source="transformers 5.17.0 and 5.23.0, *ForCausalLM.forward: logits stay in the model's dtype",
)
