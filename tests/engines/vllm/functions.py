"""The functions of vLLM 0.33.0 that are run here, and our attributes for them."""

from __future__ import annotations

from typing import Any

from tests.engines import inputs, ours, products
from tests.engines.function import At, Case, Engine, Function, Outputs
from tests.ops.plain import BF16, FP32

LAYERS = "vllm/model_executor/layers"
PLATFORM = "the platform answers as an H100; no --linear-backend"
EAGER = "torch.compile off: as written, rounded at every step"
DEEPSEEK = {"top_k": 6, "score": "sigmoid", "renormalize": True, "groups": 4, "top_groups": 2, "scale": 2.5}
SOFTMAX = {"top_k": 6, "score": "softmax", "renormalize": True, "groups": 1, "top_groups": 1, "scale": 1.0}
ORDER = {"rms_norm:order": "sequential"}


def norms(residual: bool) -> tuple[Function, ...]:
    """RMSNorm multiplies the weight in its own dtype, Gemma's in fp32."""
    read: tuple[dict[str, Any], ...] = ({"rms_norm:read": BF16},) if residual else ()
    of, file = ", with residual" if residual else "", f"{LAYERS}/layernorm.py"
    cast_late = {"rms_norm:normalized": FP32, "rms_norm:association": "x_rstd_first"}
    return (
        Function(
            "rms_norm",
            f"RMSNorm.forward_native{of}",
            f"{file}, vllm/ir/ops/layernorm.py",
            inputs.norms(residual, form="RMSNorm"),
            ours.norm,
            ours.cast_first,
            (cast_late, ORDER, *read),
            assumed=EAGER,
        ),
        Function(
            "rms_norm",
            f"GemmaRMSNorm.forward_native{of}",
            file,
            inputs.norms(residual, form="GemmaRMSNorm"),
            ours.norm,
            lambda case: ours.norm_at(case, offset=1.0),
            ({"rms_norm:normalized": BF16}, {"rms_norm:association": "weight_rstd_first"}, ORDER, *read),
            assumed=EAGER,
        ),
    )


def rotaries() -> tuple[Function, ...]:
    """cos and sin in the model's dtype, every step rounded to it."""
    functions = []
    for of, names in (
        ("RotaryEmbedding", ("default", "theta 1e6")),
        ("Llama3RotaryEmbedding", ("llama3",)),
        ("YaRNScalingRotaryEmbedding", ("yarn",)),
        ("DeepseekScalingRotaryEmbedding", ("yarn, mscale",)),
    ):
        for style, interleaved, dim in (("neox", False, 64), ("gptj", True, 64), ("neox, half", False, 32)):
            functions.append(
                Function(
                    "rotary",
                    f"{of}.forward_native, {style}",
                    f"{LAYERS}/rotary_embedding",
                    inputs.ropes(names, interleaved, dim),
                    ours.rotary,
                    ours.rotary_at,
                    ({"rope:products": FP32}, {"rotary:output": FP32}, *(({"rope:layout": "halves"},) * interleaved)),
                    p=ours.rotary_p,
                    assumed=EAGER,
                )
            )
    return tuple(functions)


def router(
    name: str,
    file: str,
    form: str,
    p: dict[str, Any],
    at: dict[str, Any],
    *others: dict[str, Any],
    biased: bool = False,
) -> Function:
    return Function(
        "router",
        name,
        f"{LAYERS}/fused_moe/router/{file}.py" if "/" not in file else f"vllm/model_executor/{file}.py",
        inputs.routes(p, biased, form=form),
        ours.routed,
        lambda case: ours.router_at(case, **at),
        others,
        p=lambda case: case["p"],
        assumed=EAGER,
    )


RECIPROCAL, FIRST = {"router:renormalize": "reciprocal"}, {"router:renormalize": "scale_first"}
ROUTERS = (
    router("grouped_topk, sigmoid and bias", "grouped_topk_router", "grouped", DEEPSEEK, {}, RECIPROCAL, FIRST,
           {"router:group_score": "max"}, {"router:sigmoid": "tanh"}, biased=True),
    router("grouped_topk, softmax", "grouped_topk_router", "grouped", {**SOFTMAX, "groups": 4, "top_groups": 2},
           {"group_score": "max"}, RECIPROCAL, {"router:group_score": "top2_sum"}),
    router("CPURouter, _grouped_topk", "cpu_router", "cpu", DEEPSEEK, {}, RECIPROCAL, FIRST, biased=True),
    router("CPURouter, _softmax_topk", "cpu_router", "softmax", SOFTMAX, {"timing": "after_topk"},
           {"router:timing": "before_topk"}),
    router("Llama4MoE.custom_routing_function", "models/llama4", "llama4",
           {**DEEPSEEK, "groups": 1, "top_groups": 1, "scale": 1.0, "renormalize": False, "top_k": 1}, {},
           {"router:sigmoid": "tanh"}),
)  # fmt: skip


def weighted_first(case: Case, at: At) -> Outputs:
    """Weights rounded to the rows' dtype before they meet."""
    return ours.combined({**case, "weights": case["weights"].to(case["x"].dtype)}, at)


FUNCTIONS = (
    *norms(residual=False),
    *norms(residual=True),
    Function(
        "swiglu",
        "SiluAndMul.forward_native",
        f"{LAYERS}/activation.py",
        inputs.gated(),
        ours.swiglu,
        ours.swiglu_at,
        ({"swiglu:activation": FP32},),
        assumed=EAGER,
    ),
    Function(
        "swigluoai",
        "SwigluOAIAndMul.forward_native",
        f"{LAYERS}/activation.py",
        inputs.gated(alpha=1.702, limit=7.0),
        ours.clamped,
        ours.clamped_at,
        tuple({f"experts:{site}": FP32} for site in ("gain", "sigmoid", "shifted", "activation")),
    ),
    *rotaries(),
    *ROUTERS,
    Function(
        "reduce",
        "TopKWeightAndReduceNaiveBatched.apply",
        f"{LAYERS}/fused_moe/topk_weight_and_reduce.py",
        inputs.slots(),
        weighted_first,
        lambda case: ours.combine_at(case, leaves="expert", weighted=case["x"].dtype),
        ({"combine:accumulate": BF16}, {"combine:leaves": "slot"}),
        blind=("accumulate", "order"),
        assumed="index_add_ on CPU: in fp32, in order of experts; on CUDA it is another kernel",
    ),
    Function(
        "shared_add",
        "MoERunner._maybe_apply_routed_scale_to_output, and the shared expert's sum",
        f"{LAYERS}/fused_moe/runner/moe_runner.py",
        inputs.scaled(),
        ours.shared_add,
        lambda case: ours.shared_add_at(case, "output"),
        ({"shared_add:scaling": "shared_add"}, {"shared_add:scaling": "shared_fma"}),
        assumed="one rank; torch.compile off",
    ),
    products.product("linear", "UnquantizedLinearMethod.apply", f"{LAYERS}/linear.py, utils.py", assumed=PLATFORM),
    products.product("gate", "GateLinear.forward", f"{LAYERS}/fused_moe/router/gate_linear.py", assumed=PLATFORM),
    products.product("lm_head", "LogitsProcessor._get_logits", f"{LAYERS}/logits_processor.py", assumed=PLATFORM),
    products.embedding("UnquantizedEmbeddingMethod.embedding", f"{LAYERS}/vocab_parallel_embedding.py"),
    Function(
        "log_probs",
        "Sampler.compute_logprobs",
        "vllm/v1/sample/sampler.py",
        inputs.logits((1.0, 0.7, 1.3)),
        ours.log_probs,
        ours.log_probs_at,
        ({"log_probs:form": "minus_logsumexp"}, {"log_probs:form": "log_of_softmax"}),
    ),
)

ENGINE = Engine("vLLM 0.33.0", "vllm.live", ("vllm",), FUNCTIONS)
