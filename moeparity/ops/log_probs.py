"""The log-softmax that turns logits into the log-probabilities a side reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from moeparity.numerics.collectives import gloo, nccl
from moeparity.numerics.collectives.registry import COLLECTIVES
from moeparity.numerics.orders import EXPLICIT, NATIVE, Order, OrderError, parse, tree
from moeparity.ops import filters, penalties, requests
from moeparity.ops.attribute import OTHER_THAN_0, OTHER_THAN_1, Attribute, Condition, Value, site, sum_order
from moeparity.ops.declaration import Cut, Op, Refusals, Role, Tokens
from moeparity.ops.filters import truncates
from moeparity.ops.memory import BYTES, Call, Memory, Shapes
from moeparity.ops.placement import NONE, TENSOR, cut, one_tree

UNROUNDED, LOG_SOFTMAX, LOG_OF_SOFTMAX = "unrounded", "log_softmax", "log_of_softmax"
MINUS_LOGSUMEXP, SHIFTED = "minus_logsumexp", "shifted"
DIVIDE, RECIPROCAL, INVERSE = "divide", "reciprocal", "inverse"
VOCABULARY, GATHERED = "vocabulary", "gathered"

_ROUNDED = (LOG_SOFTMAX, LOG_OF_SOFTMAX, MINUS_LOGSUMEXP, SHIFTED)
_ENGINES: Condition = {"form": _ROUNDED}
_TEMPERED: Condition = {"form": _ROUNDED, "temperature": (OTHER_THAN_1,)}
_CUT: Condition = {"form": (SHIFTED,), "block": (0,)}
_REDUCED: Condition = {**_CUT, "parallel": (VOCABULARY,)}


def _refuses(shapes: Shapes, values: Mapping[str, Value]) -> tuple[str, str] | None:
    """Refuses a temperature that is not above 0, filters and penalties outside their range, blocks of a vocabulary of
    which tokens are left out, an order with products, an order of another number of ranks, and a dtype that a library
    does not reduce.
    """
    if float(values["temperature"]) <= 0:
        return "temperature", "logits are divided by it. Set a number above 0."
    if (refusal := filters.refused(values) or penalties.refused(values)) is not None:
        return refusal
    if float(values["soft_cap"]) < 0:
        return "soft_cap", "logits are kept between it and its negative. Set a number above 0 (0: no cap)."
    if _leaves_out(values) and values.get("block"):
        return "block", "no token of a block may be kept, and what its sum is then is not known. Set 0."
    order = str(values.get("order", NATIVE))
    if order != NATIVE and parse(order).fma:
        return "order", "fma contracts products, and exponentials are none."
    if "ranks" in values:
        return _refuses_order(parse(str(values["ranks"])), cut(values))
    name = values.get("collective", NONE)
    if name != NONE and "fp64" in (values.get("scaled", values["inputs"]), values["output"]):
        dtypes = ", ".join(COLLECTIVES[str(name)].dtypes)
        return "collective", f"{name} is known for {dtypes}, and the ranks' sums are in fp64."
    return None


def _leaves_out(values: Mapping[str, Value]) -> bool:
    """Whether tokens may be left out, whose log-probability is -inf then."""
    return truncates(values) or requests.masks(values)


def _changes(values: Mapping[str, Value]) -> bool:
    """Whether logits are changed by what stands before, or by what requests ask for."""
    return penalties.penalizes(values) or bool(requests.applied(values))


def _refuses_order(order: Order, ranks: int) -> tuple[str, str] | None:
    if order.leaves not in {None, ranks}:
        return "ranks", f"{order} adds up {order.leaves} values, and there are {ranks} ranks."
    if order.fma:
        return "ranks", "fma contracts products, and the ranks' sums are none."
    try:
        tree(order, ranks)
    except OrderError as error:
        return "ranks", f"{order}: {error}."
    return None


def _refuses_call(call: Call) -> tuple[str, str] | None:
    """Refuses ranks without any logits, and an order of another number of logits than are added at once."""
    logits, values = call.inputs[0], call.active
    ranks = 1 if "tensor" not in values or values.get("parallel") == GATHERED else cut(values)
    if -(-logits // -(-logits // ranks)) < ranks:
        return "tensor", f"{logits} logits, cut over {ranks} ranks, leave some without any."
    order, size = str(values.get("order", NATIVE)), int(values.get("block", 0)) or -(-logits // ranks)
    leaves = None if order == NATIVE else parse(order).leaves
    if leaves is not None and (leaves != size or logits % size):
        return (
            "order",
            f"{order} adds up {leaves} values, and {logits} logits are added {size} at once. Set another `order`.",
        )
    return None


def _sees_rows(values: Mapping[str, Value], params: Mapping[str, Any]) -> bool:
    """torch's own sum of a single long row is shared by threads, that of several rows is not. A library's cut depends
    on the number of tokens.
    """
    if values.get("order") == NATIVE:
        return True
    return values.get("collective", NONE) != NONE and not one_tree(values)


def _output_bytes(call: Call) -> Sequence[int]:
    """`unrounded`: the logits are handed on as they are, or penalized, divided and filtered in fp64."""
    if "output" in call.active:
        return [call.bytes_of("output")]
    return [0 if _hands_on(call.active) else BYTES["fp64"]]


def _hands_on(values: Mapping[str, Value]) -> bool:
    """Whether, if no engine's form is imitated, logits are handed on as they are."""
    untouched = values.get("temperature") == 1 and not values.get("soft_cap")
    return untouched and not truncates(values) and not _changes(values)


def _scratch(call: Call) -> int:
    """The rounded logits and the ranks' parts of them, the logits minus their maximum, exponentials, and steps of a
    sum. With a temperature alone: the logits in fp64. Filters sort them: values, ids, probabilities, their sums, two
    masks. Penalties count them: counts, scales, and what is subtracted. Requests: a copy, biases, two masks.
    """
    logits = call.tokens * call.inputs[0]
    processing = (4 * BYTES["fp64"] + 2) * logits if truncates(call.active) else 0
    processing += 4 * BYTES["fp64"] * logits if _changes(call.active) else 0
    if "output" in call.active:
        return 5 * call.wide * logits + processing
    return 0 if _hands_on(call.active) else BYTES["fp64"] * logits + processing


LOG_PROBS = Op(
    name="log_probs",
    says="Logits [B, T, V] -> the log-probabilities [B, T, V] that a side reports, from which all metrics are taken.",
    inputs=("x",),
    attributes=(
        Attribute(
            name="form",
            kind="form",
            default=UNROUNDED,
            values=(UNROUNDED, *_ROUNDED),
            says="no engine's: the logits are handed on, and the metrics take their log-softmax in fp64; or torch's "
            "kernel; or torch's softmax, then its log, least finite number for -inf (SGLang's sampler); or "
            "x - (max + log sum) (torch.logsumexp, FlashAttention's cross entropy); or (x - max) - log sum "
            "(Megatron-LM, NeMo-RL, vLLM's Triton kernel). All exponentials and logarithms are torch's own",
        ),
        Attribute(
            name="temperature",
            kind="semantics",
            default=1.0,
            number=True,
            says="the logits are divided by it; it is that of the sampler where log-probabilities are processed ones",
        ),
        Attribute(
            name="soft_cap",
            kind="semantics",
            default=0.0,
            number=True,
            says="the logits x are cap * tanh(x / cap) before anything else, as models with final_logit_softcapping "
            "have them (0: no cap)",
        ),
        site(
            "capped",
            "the logits, and each step of the cap, are rounded to this dtype: that of the head (transformers, vLLM), "
            "or fp32 (SGLang)",
            when={"soft_cap": (OTHER_THAN_0,)},
        ),
        site("inputs", "the logits are rounded to this dtype first", default="fp32", when=_ENGINES),
        *requests.REQUESTS,
        *penalties.PENALTIES,
        Attribute(
            name="division",
            kind="form",
            default=DIVIDE,
            values=(DIVIDE, RECIPROCAL, INVERSE),
            when=_TEMPERED,
            says="the logits are divided by the temperature, or multiplied by its reciprocal in fp32, as torch does "
            "on CUDA where the temperature is a Python number (aten/native/cuda/BinaryDivTrueKernel.cu, read); or by "
            "the fp64 quotient of 1 and it, which is rounded to fp32 only then (TRL's head in chunks)",
        ),
        site("scaled", "logits over temperature are rounded to this dtype", default="fp32", when=_TEMPERED),
        *filters.FILTERS,
        sum_order(
            "order",
            "in which order the exponentials are added, in fp32: torch's own, or one written out",
            when={"form": (MINUS_LOGSUMEXP, SHIFTED)},
        ),
        Attribute(
            name="block",
            kind="form",
            default=0,
            least=0,
            when={"form": (MINUS_LOGSUMEXP, SHIFTED)},
            says="logits of one block, of which maximum and sum are taken together: before the next is added, the sum "
            "so far is multiplied by exp(its maximum - the new one) (FlashAttention's cross entropy, SGLang's prompts: "
            "16384); 0: the maximum of all first",
        ),
        replace(TENSOR, when=_CUT, says="over how many ranks the vocabulary of the logits is cut"),
        Attribute(
            name="parallel",
            kind="placement",
            default=VOCABULARY,
            values=(VOCABULARY, GATHERED),
            needs="pieces",
            when=_CUT,
            says="each rank keeps its part of the vocabulary, and maxima and sums of the ranks are reduced "
            "(Megatron-LM, NeMo-RL); or all logits are gathered first, and a rank's log-softmax is that of one rank "
            "(vLLM, SGLang)",
        ),
        Attribute(
            name="collective",
            kind="order",
            default=NONE,
            values=(NONE, gloo.ALL_REDUCE.name, nccl.RING.name, nccl.TREE.name),
            needs="pieces",
            redrawn=False,
            when=_REDUCED,
            says="the library's algorithm that adds the ranks' sums, one for each token; `none`: `ranks` says "
            "the order",
        ),
        Attribute(
            name="ranks",
            kind="order",
            default="sequential",
            values=EXPLICIT,
            order=True,
            needs="pieces",
            when={**_REDUCED, "collective": (NONE,)},
            says="in which order the ranks' sums are added",
        ),
        site(
            "output",
            "the log-probabilities, computed in fp32, are rounded to this dtype (torch.log_softmax of 16-bit logits "
            "does so on CUDA, read; its kernel on CPU also rounds the sum and its log to 16 bits: not imitated)",
            default="fp32",
            when=_ENGINES,
        ),
    ),
    tokens=Tokens(sees_rows=_sees_rows, reads_text=_changes, applies=requests.applied),
    refusals=Refusals(values=_refuses, call=_refuses_call),
    cut=Cut(pieces=cut),
    role=Role(family="head", reports=True, truncates=_leaves_out),
    memory=Memory(output_bytes=_output_bytes, scratch=_scratch),
    kernel="log_probs:log_probs",
    source="torch 2.13.0 log_softmax, softmax and logsumexp; NVIDIA-NeMo/RL 0433dae8dd, "
    "nemo_rl/distributed/model_utils.py _compute_distributed_log_softmax",
)
