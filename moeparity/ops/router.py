"""The router: scores, expert selection and routing weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from moeparity.numerics.orders import NATIVE, parse
from moeparity.ops.attribute import ABOVE_1, OTHER_THAN_1, Attribute, Condition, Value, site, sum_order
from moeparity.ops.declaration import Op, Parameter, Refusals, Role, Tokens, WeightPort
from moeparity.ops.measured import SCORES
from moeparity.ops.memory import INTEGER, Call, Memory, Shapes

BEFORE, AFTER = "before_topk", "after_topk"
SPARSEMIXER = "sparsemixer"
"""Each expert's score is its softmax among those not far below it, once better ones are gone (Phi-3.5-MoE)."""
START, ROUNDED, LOGSUMEXP, TRITON = "start", "rounded", "logsumexp", "triton"
SHARED_SCALINGS = ("shared_add", "shared_fma")
"""Places where the routed sum is scaled as the shared expert is added to it."""
_BEFORE: Condition = {"timing": (BEFORE, None)}


def _refuses(shapes: Shapes, values: Mapping[str, Value]) -> tuple[str, str] | None:
    """Refuses a ranking or a sum that the model, or torch's own kernel, does not have."""
    biased, grouped = "bias" in shapes, shapes["groups"][0] > 1
    by_logits = "rank_on" if values.get("rank_on") == "logits" else None
    by_logits = "timing" if values.get("timing") == AFTER else by_logits
    if by_logits is not None and (biased or grouped):
        reason = "a bias is added to the scores" if biased else "groups are chosen by their scores"
        return by_logits, f"{reason} before experts are ranked, and logits have none."
    if values.get("renormalize_eps_at") == START and values["renormalize_order"] == NATIVE:
        return "renormalize_eps_at", "torch's own sum has no start. Set renormalize_order: sequential, or another."
    if values.get("scaling") in SHARED_SCALINGS and not shapes["shared"][0]:
        return "scaling", "there is no shared expert to be added. Set weights, accumulator or output."
    return _refuses_share(shapes, values) or _refuses_order(shapes, values)


def _refuses_share(shapes: Shapes, values: Mapping[str, Value]) -> tuple[str, str] | None:
    """Refuses the sum of a group's best top_k / top_groups if that is not a whole number or more than a group has."""
    if values.get("group_score") != "topk_share_sum":
        return None
    (k,), (groups,), size = shapes["top_k"], shapes["top_groups"], shapes["experts"][0] // shapes["groups"][0]
    if k % groups:
        return "group_score", f"{k} experts per token do not divide by {groups} groups."
    if k // groups > size:
        return "group_score", f"{k} experts per token are {k // groups} of each group kept, and a group has {size}."
    return None


def _refuses_order(shapes: Shapes, values: Mapping[str, Value]) -> tuple[str, str] | None:
    for name, size in (("denominator", shapes["experts"][0]), ("renormalize_order", shapes["top_k"][0])):
        if values.get(name, NATIVE) == NATIVE:
            continue
        order = parse(str(values[name]))
        if order.leaves not in {None, size}:
            return name, f"{order} adds up {order.leaves} scores, and there are {size}."
        if order.fma:
            return name, "fma contracts products, and scores are none."
    return None


def _sees_rows(values: Mapping[str, Value], params: Mapping[str, Any]) -> bool:
    """torch's own sigmoid and tanh depend on other rows; softmax, sums and top-k are computed row by row."""
    return values.get("sigmoid") == NATIVE or bool(params.get("cap"))


def _widths(weights: Shapes, params: Mapping[str, Any], inputs: Sequence[int]) -> Sequence[int]:
    return [params["top_k"]] * 2


def _output_bytes(call: Call) -> Sequence[int]:
    return [INTEGER, call.bytes_of("weights")]


def _scratch(call: Call) -> int:
    return 6 * INTEGER * call.tokens * call.inputs[0]


TIE_BREAK = Attribute(
    name="tie_break",
    kind="semantics",
    default="torch_topk",
    values=("torch_topk", "lowest_index", "highest_index"),
    says="which of equal scores is chosen, of experts and of groups: whatever torch.topk does on this device, "
    "the lowest id (vLLM, SGLang, TensorRT-LLM), or the highest",
)
"""How a ranking decides between equals."""

ROUTER = Op(
    name="router",
    says="Scores every expert, picks top-k, returns ids and weights [B, T, K] in slot order.",
    inputs=("logits",),
    outputs=("ids", "weights"),
    weights=(
        WeightPort(
            name="bias", says="[experts] fp32, added to the scores for selection only", required=False, initial=0.0
        ),
    ),
    parameters=(
        Parameter(name="top_k", type=int, says="experts per token"),
        Parameter(
            name="score", type=str, says="softmax, sigmoid or sparsemixer", values=("softmax", "sigmoid", SPARSEMIXER)
        ),
        Parameter(
            name="jitter",
            type=float,
            required=False,
            default=0.01,
            says="router_jitter_noise: to sparsemixer twice this share of a logit is far from the best",
        ),
        Parameter(name="renormalize", type=bool, says="divide the chosen scores by their sum"),
        Parameter(name="experts", type=int, says="how many routed experts there are"),
        Parameter(name="groups", type=int, required=False, default=1, says="expert groups (DeepSeek)"),
        Parameter(name="top_groups", type=int, required=False, default=1, says="groups kept, by their best scores"),
        Parameter(name="scale", type=float, required=False, default=1.0, says="routed_scaling_factor"),
        Parameter(
            name="by_logits",
            type=bool,
            required=False,
            default=False,
            says="experts are ranked by logits, and a bias is added to these: scores are made of the chosen ones only",
        ),
        Parameter(
            name="ranks_logits",
            type=bool,
            required=False,
            default=False,
            says="experts are ranked by their logits, and all are scored (Llama 4)",
        ),
        Parameter(name="shared", type=bool, required=False, default=False, says="a shared expert is added"),
        Parameter(
            name="cap",
            type=float,
            required=False,
            default=0.0,
            says="a logit is held below this number: cap * tanh(logit / cap); 0: it stays as it is",
        ),
    ),
    attributes=(
        replace(
            site("capped", "a capped logit, each step computed in fp32, is rounded to this dtype", default="fp32"),
            parameter="cap",
        ),
        Attribute(
            name="timing",
            kind="form",
            default=BEFORE,
            values=(BEFORE, AFTER),
            when_parameters={"score": ("softmax",), "renormalize": (True,), "by_logits": (False, None)},
            says="softmax over all experts, top-k, renormalised; or top-k on the logits, then softmax over the chosen "
            "(Megatron-LM, gpt-oss), which sums to one by itself",
        ),
        Attribute(
            name="normalizer",
            kind="form",
            default="sum",
            values=("sum", LOGSUMEXP),
            when_parameters={"score": ("softmax",), "renormalize": (False,)},
            says="scores that stay as they are: a softmax; or exp(x - logsumexp(x)), each step rounded to the dtype of "
            "`scores` (vLLM on a CPU)",
        ),
        Attribute(
            name="softmax",
            kind="form",
            default="native",
            values=("native", "divide", "reciprocal"),
            when_parameters={"score": ("softmax",)},
            when={"normalizer": ("sum", None)},
            says="torch's own kernel, that for 16 bits where logits and scores have the same 16; or exp(x - max), "
            "divided by its sum (SGLang), or multiplied with the sum's reciprocal (vLLM's topk_softmax)",
        ),
        Attribute(
            name="math",
            kind="form",
            default="torch",
            values=("torch", "cuda", "cuda_fast", TRITON),
            when={
                "softmax": ("divide", "reciprocal", None),
                "sigmoid": ("exp", "tanh", None),
                "normalizer": ("sum", None),
            },
            says="whose exp and tanh: torch's, CUDA's, CUDA's with -use_fast_math (__expf), or Triton's, whose "
            "quotients are div.full too; approximate instructions are by an H200's tables, but for tanh.approx, which "
            "is taken to be correctly rounded",
        ),
        sum_order(
            "denominator",
            "in which order exp(x - max) is added up, in fp32: torch's own sum, or one written out",
            condition={"score": ("softmax",)},
            when={"softmax": ("divide", "reciprocal"), "normalizer": ("sum", None)},
        ),
        Attribute(
            name="sigmoid",
            kind="form",
            default="native",
            values=("native", "exp", "tanh"),
            when_parameters={"score": ("sigmoid",)},
            says="torch's own kernel; 1 / (1 + exp(-x)) (vLLM's topk_sigmoid); or 0.5 tanh(0.5 x) + 0.5 (vLLM's "
            "grouped_topk, TensorRT-LLM): each step rounded",
        ),
        site(
            "scores",
            "softmax or sigmoid, computed in fp32 (fp64 where this or the logits are), is rounded to this dtype",
            default="fp32",
        ),
        Attribute(
            name="rank_on",
            kind="form",
            default="scores",
            values=("scores", "logits"),
            when_parameters={"score": ("softmax",)},
            when=_BEFORE,
            says="experts are ranked by their scores, of which more may be equal, or by the logits (SGLang)",
        ),
        replace(site("correction", "the correction bias is rounded to this dtype", default="fp32"), weight="bias"),
        replace(site("choice", "score + correction bias is rounded to this dtype", default="fp32"), weight="bias"),
        Attribute(
            name="chosen",
            kind="form",
            default="scores",
            values=("scores", "unbiased"),
            weight="bias",
            when_parameters={"by_logits": (False, None)},
            says="the chosen experts' weights are made of their scores; or of score + bias, from which the bias is "
            "subtracted again (vLLM's single_group_topk_warp_kernel)",
        ),
        Attribute(
            name="group_score",
            kind="semantics",
            default="top2_sum",
            values=("top2_sum", "max", "topk_share_sum"),
            when_parameters={"groups": (ABOVE_1,)},
            says="a group counts by the sum of its two best, by its best, or by the sum of its best top_k / top_groups "
            "(Megatron-LM)",
        ),
        Attribute(
            name="group_mask",
            kind="semantics",
            default="neg_inf",
            values=("neg_inf", "zero"),
            when_parameters={"groups": (ABOVE_1,)},
            says="what experts of other groups are ranked by: minus infinity, or 0, which is more than a negative "
            "biased score (transformers 4)",
        ),
        TIE_BREAK,
        Attribute(
            name="slots",
            kind="order",
            default="sorted",
            values=("sorted", "unsorted"),
            says="slot order of the chosen experts: descending by score, or as torch.topk(sorted=False) leaves them",
            when={"tie_break": ("torch_topk",)},
        ),
        Attribute(
            name="renormalize",
            kind="form",
            default="divide",
            values=("divide", "reciprocal", "scale_first", "scale_over_sum"),
            says="s / sum; s * (1 / sum); (s * scale) / sum (vLLM's grouped_topk for several groups), "
            "in fp64 with a sum in fp64 (TensorRT-LLM's noaux_tc); or s * (scale / sum) (vLLM). The first two are then "
            "multiplied with the scale",
            parameter="renormalize",
            when=_BEFORE,
        ),
        sum_order(
            "renormalize_order",
            "in which order the chosen scores are added up, from the first slot on: torch's own sum, or one "
            "written out",
            parameter="renormalize",
            when=_BEFORE,
        ),
        Attribute(
            name="renormalize_eps",
            kind="semantics",
            default=0.0,
            number=True,
            usual=(0.0, 1e-20, 1e-9, 1e-8, 1e-6),
            says="added to the sum before the division",
            parameter="renormalize",
            when=_BEFORE,
        ),
        Attribute(
            name="renormalize_eps_at",
            kind="form",
            default="end",
            values=("end", START, ROUNDED),
            parameter="renormalize",
            when=_BEFORE,
            says="eps is added to the sum, or is what the sum starts from (vLLM's generic grouped_topk), or is added to"
            " the sum rounded as `total` says, which is then rounded again (LFM2)",
        ),
        replace(
            site("total", "the sum of the chosen scores, eps included, is rounded to this dtype", default="fp32"),
            parameter="renormalize",
            when=_BEFORE,
        ),
        replace(
            site("quotient", "score / sum is rounded to this dtype before it is scaled", default="fp32"),
            parameter="renormalize",
            when_parameters={"scale": (OTHER_THAN_1,)},
            when={**_BEFORE, "renormalize": ("divide", "reciprocal"), "scaling": ("weights",)},
        ),
        Attribute(
            name="scaling",
            kind="form",
            default="weights",
            values=("weights", "accumulator", "output", *SHARED_SCALINGS),
            when_parameters={"scale": (OTHER_THAN_1,)},
            says="what routed_scaling_factor multiplies: the routing weights; the combine's sum, before it is rounded "
            "(SGLang) or after (vLLM, eager); or the routed output as the shared expert is added to it, with or "
            "without a contraction to fma (SGLang with DeepEP; vLLM, compiled)",
        ),
        site("weights", "the routing weights handed to the experts are rounded to this dtype", measured=SCORES),
    ),
    tokens=Tokens(sees_rows=_sees_rows),
    refusals=Refusals(values=_refuses),
    role=Role(family="router", routes=True, slot_order=True),
    memory=Memory(widths=_widths, output_bytes=_output_bytes, scratch=_scratch),
    kernel="router:router",
    source="transformers 5.17.0 and 5.23.0, Qwen3MoeTopKRouter.forward, DeepseekV3TopkRouter.forward; forms by their "
    "engines, read: vLLM 0.33.0 topk_softmax_kernels.cu, grouped_topk_kernels.cu; sglang 0.5.23 moe_fused_gate.py; "
    "Megatron-LM d98e8a64dd moe_utils.py",
)
