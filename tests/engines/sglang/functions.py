"""The functions of SGLang 0.5.23 that are run here, and our attributes for them."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.engines import inputs, ours, products
from tests.engines.function import At, Case, Engine, Function
from tests.ops.plain import BF16, FP32

LAYERS = "sglang/srt/layers"
DEEPSEEK = {"top_k": 6, "score": "sigmoid", "renormalize": True, "groups": 4, "top_groups": 2, "scale": 2.5}
UNGROUPED = {**DEEPSEEK, "groups": 1, "top_groups": 1}
SOFTMAX = {**UNGROUPED, "score": "softmax", "scale": 1.0}
ORDER = {"rms_norm:order": "sequential"}
EPS = {"renormalize_eps": 1e-20}


def norm(name: str, residual: bool, at: Any, *others: dict[str, Any], **settings: Any) -> Function:
    form, of = name.partition(",")[0], ", with residual" if residual else ""
    return Function(
        "rms_norm",
        f"{form}.forward_native{name.removeprefix(form)}{of}",
        f"{LAYERS}/layernorm.py",
        inputs.norms(residual, form=form, **settings),
        ours.norm,
        at,
        (ORDER, *others),
    )


def late(case: Any) -> Any:
    return ours.norm_at(case)


def hugging_face(case: Any) -> Any:
    """cast_x_before_out_mul."""
    return ours.cast_first(case)


def gemma(case: Any) -> Any:
    """The norm reads the sum that is stored."""
    return ours.norm_at(case, offset=1.0, read=case["x"].dtype)


CAST = {"rms_norm:normalized": BF16}
ASSOCIATION = {"rms_norm:association": "weight_rstd_first"}
NORMS = (
    norm("RMSNorm", False, late, CAST, ASSOCIATION),
    norm("RMSNorm", True, late, CAST, ASSOCIATION, {"rms_norm:read": BF16}),
    norm("RMSNorm, cast_x_before_out_mul", False, hugging_face, {"rms_norm:normalized": FP32, **ASSOCIATION},
         cast_x_before_out_mul=True),
    norm("RMSNorm, cast_x_before_out_mul", True, hugging_face, {"rms_norm:read": BF16}, cast_x_before_out_mul=True),
    norm("GemmaRMSNorm", False, gemma, CAST, ASSOCIATION),
    norm("GemmaRMSNorm", True, gemma, CAST, {"rms_norm:read": FP32}),
)  # fmt: skip


def deepseek(case: Any) -> Any:
    """cos, sin and products in fp32, and one rounding."""
    return ours.rotary_at(case, table=FP32, products=FP32)


def rotaries() -> tuple[Function, ...]:
    """cos and sin rounded to the model's dtype, and every step."""
    return tuple(
        Function(
            "rotary",
            f"{of}.forward_native, {style}",
            f"{LAYERS}/rotary_embedding",
            inputs.ropes(names, interleaved, dim),
            ours.rotary,
            deepseek if of.startswith("Deepseek") else ours.rotary_at,
            ({"rope:products": BF16 if of.startswith("Deepseek") else FP32}, {"rotary:output": BF16}),
            p=ours.rotary_p,
            assumed="SGLANG_ROPE_CACHE_FP32: cos and sin kept in fp32, as on CUDA",
        )
        for of, names in (
            ("RotaryEmbedding", ("default", "theta 1e6")),
            ("Llama3RotaryEmbedding", ("llama3",)),
            ("YaRNScalingRotaryEmbedding", ("yarn",)),
            ("DeepseekScalingRotaryEmbedding", ("yarn, mscale",)),
        )
        for style, interleaved, dim in (("neox", False, 64), ("gptj", True, 64), ("neox, half", False, 32))
        # DeepSeek's takes heads that are turned as a whole.
        if dim == 64 or of != "DeepseekScalingRotaryEmbedding"
    )


def router(name: str, p: dict[str, Any], at: dict[str, Any], *others: dict[str, Any], biased: bool = False) -> Function:
    form, dtypes = name.partition(",")[0], (FP32, BF16) if at.get("in_bf16") else (FP32,)
    choices = {key: value for key, value in at.items() if key != "in_bf16"}
    return Function(
        "router",
        name,
        f"{LAYERS}/moe/topk.py",
        inputs.routes(p, biased, dtypes, form=form),
        ours.routed,
        lambda case: ours.router_at(case, **choices),
        others,
        p=lambda case: case["p"],
    )


RECIPROCAL = {"router:renormalize": "reciprocal"}
NO_EPS = {"router:renormalize_eps": 1e-3}
ROUTERS = (
    router("fused_topk_torch_native, softmax", SOFTMAX, {**EPS, "slots": "sorted", "in_bf16": True}, RECIPROCAL, NO_EPS,
           {"router:softmax": "reciprocal"}),
    router("fused_topk_torch_native, sigmoid and bias", {**UNGROUPED, "scale": 1.0}, EPS, RECIPROCAL, NO_EPS,
           {"router:sigmoid": "tanh"}, biased=True),
    router("fused_topk_softmax_torch_raw_logits", SOFTMAX, {"timing": "after_topk", "in_bf16": True},
           {"router:timing": "before_topk"}, {"router:softmax": "reciprocal"}),
    router("grouped_topk_gpu", {**SOFTMAX, "groups": 4, "top_groups": 2},
           {**EPS, "group_score": "max", "group_mask": "zero"}, RECIPROCAL, {"router:group_score": "top2_sum"}),
    router("biased_topk_impl", UNGROUPED, EPS, RECIPROCAL, {"router:renormalize": "scale_first"}, biased=True),
    router("biased_grouped_topk_impl", DEEPSEEK, EPS, RECIPROCAL, {"router:group_score": "max"},
           {"router:renormalize": "scale_over_sum"}, biased=True),
)  # fmt: skip


def head_at(case: Case, form: str) -> At:
    """Operands and logits in one dtype."""
    dtype = {"default": case["x"].dtype, "fp32": FP32, "on_policy": BF16}[form]
    return ours.head_at(case, dtype, dtype)


LM_HEADS = tuple(
    Function(
        "lm_head",
        f"LogitsProcessor._compute_lm_head, {form}",
        f"{LAYERS}/logits_processor.py",
        inputs.heads(form=form),
        ours.head,
        partial(head_at, form=form),
        ({"lm_head:output": control},),
        assumed="" if form != "fp32" else "on CPU: on CUDA torch.mm with out_dtype",
    )
    for form, control in (("default", FP32), ("fp32", BF16), ("on_policy", FP32))
)


FUNCTIONS = (
    *NORMS,
    Function(
        "swiglu",
        "SiluAndMul.forward_native",
        f"{LAYERS}/activation.py",
        inputs.gated(),
        ours.swiglu,
        ours.swiglu_at,
        ({"swiglu:activation": FP32},),
    ),
    *rotaries(),
    *ROUTERS,
    Function(
        "experts",
        "moe_forward_native",
        f"{LAYERS}/moe/fused_moe_native.py",
        inputs.layers(),
        ours.experts,
        lambda case: ours.experts_at(case, "native"),
        ({"experts:activation": FP32}, {"combine:weighted": BF16}, {"combine:leaves": "expert"}),
    ),
    Function(
        "shared_add",
        "_scale_routed_and_add_shared, scale applied before",
        "sglang/srt/models/deepseek_v2.py",
        inputs.scaled(fused=True),
        ours.shared_add,
        lambda case: ours.shared_add_at(case, "weights"),
        ({"shared_add:scaling": "output"},),
    ),
    Function(
        "shared_add",
        "_scale_routed_and_add_shared, scale outstanding",
        "sglang/srt/models/deepseek_v2.py",
        inputs.scaled(fused=False),
        ours.shared_add,
        lambda case: ours.shared_add_at(case, "shared_fma"),
        ({"shared_add:scaling": "shared_add"}, {"shared_add:scaling": "output"}),
        assumed="torch's add with alpha on CPU, contracted there",
    ),
    *LM_HEADS,
    products.product("linear", "UnquantizedLinearMethod.apply", f"{LAYERS}/quantization/unquant.py"),
    products.product(
        "gate", "UnquantizedLinearMethod.apply of a gate", f"{LAYERS}/quantization/unquant.py", kind="linear"
    ),
    products.embedding("UnquantizedEmbeddingMethod.embedding", f"{LAYERS}/quantization/unquant.py"),
    *(
        Function(
            "log_probs",
            f"Sampler.forward, {form}",
            f"{LAYERS}/sampler.py, logprob_processor.py",
            inputs.logits((0.7, 1.0, 1.3), form=form),
            ours.log_probs,
            partial(ours.log_probs_at, **at),
            others,
            assumed=assumed,
        )
        for form, at, others, assumed in (
            ("sampled", {"form": "log_of_softmax"}, ({"log_probs:form": "log_softmax"},),
             "torch's softmax, as for vocabularies below 128256"),
            ("deterministic", {}, ({"log_probs:form": "log_of_softmax"},),
             "torch's log_softmax, in whose place the server puts a kernel in Triton"),
            ("greedy", {"temperature": 1.0}, ({"log_probs:temperature": 0.7},), ""),
        )
    ),
)  # fmt: skip

ENGINE = Engine("SGLang 0.5.23", "sglang.live", ("sglang", "sglang-needs", "triton"), FUNCTIONS)
