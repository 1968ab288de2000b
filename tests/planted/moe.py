"""What planting a value of the router, the experts, the combine or the shared expert's addition needs."""

from __future__ import annotations

from moeparity.ops.attribute import Value
from tests.planted.ranks import RANKS

MODEL_OF = {
    "shared_add": "deepseek_v3",
    **{f"router:{name}": "deepseek_v3" for name in ("sigmoid", "choice", "group_score", "group_mask")},
    **{f"router:{name}": "glm4_moe" for name in ("correction", "chosen")},
    # With a routed_scaling_factor.
    **{f"router:{name}": "deepseek_v3" for name in ("renormalize", "scaling", "quotient")},
    "router:capped": "laguna",
    # Scores that are not renormalised.
    "router:normalizer": "olmoe",
    "combine:shared": "deepseek_v3",
    "experts:score_site=input": "qwen3_moe_top1",
    **{f"experts:{name}": "gpt_oss" for name in ("unbiased", "biased", "gain", "sigmoid", "shifted")},
}

ORDERS: dict[str, tuple[str, ...]] = {
    "router:denominator": ("lanes(4) | sequential", "threads(4, vector=2) | fold_lo"),
    "router:renormalize_order": ("tree(0+3+(1+2)+(4+5))",),
}

_FP32: dict[str, Value] = {"weights": "fp32"}
BACKGROUND: dict[str, dict[str, Value]] = {
    # One bit of an fp32 score shows in few bf16 weights.
    **{
        f"router:{name}": _FP32
        for name in (
            "renormalize",
            "timing",
            "softmax",
            "normalizer",
            "math",
            "denominator",
            "sigmoid",
            "renormalize_order",
            "scores",
            "chosen",
        )
    },
    "router:renormalize_eps_at": {"renormalize_order": "sequential", "renormalize_eps": 1e-2, **_FP32},
    "router:capped": {"scores": "fp64", "total": "fp64", **_FP32},
    # eps is lost in the second rounding where it is small beside the first.
    "router:renormalize_eps_at=rounded": {"total": "bf16", "renormalize_eps": 1e-2, **_FP32},
    # The sum of fp32 scores is one in fp32 already.
    "router:total": {"scores": "fp64", **_FP32},
    "router:quotient": {"scores": "fp64", "total": "fp64", **_FP32},
    # Scores whose sum with a bias is rounded coarsely tie, and a bit of the bias decides.
    "router:correction": {"choice": "bf16"},
    # Scores in bf16 tie where fp32 logits do not.
    "router:rank_on": {"scores": "bf16"},
    "combine:shared": {"order": "sequential"},
}

REFERENCE_VALUE: dict[str, Value] = {
    # x is fp32 there.
    "rms_norm:scaled=fp32": "bf16",
    "rms_norm:scaled=fp64": "bf16",
    "router:renormalize_eps_at=end": "start",
    "router:correction=fp32": "bf16",
    "router:choice=fp32": "bf16",
    # Of four experts in two groups it is the two best.
    "router:group_score=topk_share_sum": "max",
    "router:group_score=top2_sum": "max",
    "experts:score_site=combine": "epilogue",
}

FED_FP32 = ("router:rank_on", "rms_norm:scaled")

WITHOUT_EFFECT = {
    "rms_norm:sm_count=16": "96 elements are 12 threads, one cluster on any GPU; tests/ops has wider ones",
    f"rms_norm:tensor={RANKS}": "96 elements are 12 threads, one cluster for any number of rows; see tests/ops",
    "router:correction=fp64": "the bias is fp32",
    "all_reduce:collective=vllm.cpu_shm": "it runs on two ranks, whose sum in fp32 is one; see tests/real",
    "router:choice=fp64": "no two biased scores lie so near that fp32 does not tell them apart",
    **{
        f"add:{value}": "no kernel is fused in the profile it is planted in; see tests/plan/test_pipeline.py"
        for value in ("stage=goes_on", "stage=ends", "hands_on=sum", "hands_on=apart")
    },
}
"""Values that change nothing in the checkpoint they are planted in, and why."""

SHORT = {
    "router:correction": (4, 96, 4),
    # Biased scores below zero are rare, and so are ties.
    "router:group_mask": (4, 384, 4),
    **dict.fromkeys(("router:rank_on", "router:choice", "router:tie_break"), (4, 48, 4)),
}

HOST_DEPENDENT = {
    "router:correction=fp16": "the eleventh bit of a bias decides one route in some ten thousand",
    "router:sigmoid=native": "on CPU it is the form by exp",
    "router:sigmoid=exp": "on CPU it is torch's own",
    "router:softmax=native": "whether torch's own kernel is a division by torch's own sum is up to the CPU's vectors",
    "router:softmax=divide": "whether torch's own kernel is a division by torch's own sum is up to the CPU's vectors",
    **{
        f"router:{name}={order}": "in which order torch's own sum adds few values is up to the CPU's vectors"
        for name in ("denominator", "renormalize_order")
        for order in ("native", "sequential")
    },
}
