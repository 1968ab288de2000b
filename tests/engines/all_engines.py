"""Every engine whose functions are run here."""

from tests.engines.flashinfer.functions import ENGINE as FLASHINFER
from tests.engines.megatron.builds import COMPILED as MEGATRON_COMPILED
from tests.engines.megatron.builds import CORE_0_16
from tests.engines.megatron.functions import ENGINE as MEGATRON
from tests.engines.sglang.functions import ENGINE as SGLANG
from tests.engines.tensorrt_llm.functions import ENGINES as TENSORRT_LLM
from tests.engines.trainers.functions import ENGINES as TRAINERS
from tests.engines.transformer_engine.functions import ENGINE as TRANSFORMER_ENGINE
from tests.engines.vllm.compiled import COMPILED as VLLM_COMPILED
from tests.engines.vllm.functions import ENGINE as VLLM

ENGINES = (
    VLLM,
    VLLM_COMPILED,
    SGLANG,
    FLASHINFER,
    MEGATRON,
    MEGATRON_COMPILED,
    CORE_0_16,
    TRANSFORMER_ENGINE,
    *TENSORRT_LLM,
    *TRAINERS,
)
