"""The functions of TensorRT-LLM's PyTorch backend that are run here, and our attributes for them."""

from __future__ import annotations

from tests.engines import inputs, ours, products
from tests.engines.function import Engine, Function
from tests.ops.plain import FP32

LINEAR = "tensorrt_llm/_torch/modules/linear.py"
SAMPLER = "tensorrt_llm/_torch/pyexecutor/sampler/ops/vanilla.py"
_FOLDERS = ("tensorrt-llm",)
ENGINES = (
    Engine(
        "TensorRT-LLM 00bbf71e79",
        "tensorrt_llm.live",
        _FOLDERS,
        (products.product("linear", "UnquantizedLinearMethod.apply", LINEAR, assumed="no use_custom_cublas_mm"),),
    ),
    Engine(
        "TensorRT-LLM 09009fbfba",
        "tensorrt_llm.live",
        _FOLDERS,
        (
            Function(
                "log_probs",
                "Fusions.gather_log_softmax",
                SAMPLER,
                inputs.logits((1.0,), (FP32,)),
                ours.log_probs,
                ours.log_probs_at,
                ({"log_probs:form": "minus_logsumexp"}, {"log_probs:form": "log_of_softmax"}),
                assumed="torch's own log_softmax: what Inductor makes of it is not run",
            ),
        ),
    ),
)
"""By commit: of each only one file is had."""
