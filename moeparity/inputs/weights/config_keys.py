"""Every key that config.json may have of quantised weights, with the values it may have; any other is refused.

Sources: transformers 5.23.0 (utils/quantization_config.py), compressed-tensors 0.20.1 (quantization/quant_args.py),
modelopt 0.47.0 (torch/export/convert_hf_config.py) and gptqmodel 7.7.0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

FREE: Sequence[Any] = ()
"""For a key whose value changes no weight, or is read in `quantisation`: any value."""
NOTHING: Sequence[Any] = (None, {}, [], False)
_CALIBRATION = dict.fromkeys(
    (
        "tokenizer", "dataset", "damp_percent", "act_group_aware", "true_sequential", "meta", "model_seqlen",
        "block_name_to_quantize", "module_name_preceding_first_block", "batch_size", "pad_token_id", "max_input_length",
        "cache_block_outputs", "modules_in_block_to_quantize", "backend", "exllama_config",
    ),
    FREE,
)  # fmt: skip
"""What transformers writes of how GPTQ and AWQ found the codes."""
KEYS: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "fp8": {
        "fmt": ("e4m3", "float8_e4m3fn"), "activation_scheme": ("dynamic", "static"), "weight_block_size": FREE,
        "scale_fmt": (None, "float", "ue8m0"), "expert_dtype": (None, "fp8"), "modules_to_not_convert": FREE,
        "ignored_layers": FREE, "modules_to_convert": FREE, "dequantize": FREE, "kv_cache_scheme": FREE,
    },
    "mxfp4": {"modules_to_not_convert": FREE, "dequantize": FREE},
    "awq": {
        "bits": (4,), "w_bit": (4,), "group_size": FREE, "q_group_size": FREE, "zero_point": (True,),
        "version": ("gemm", "GEMM"), "format": ("gemm",), "modules_to_not_convert": FREE,
        "do_fuse": FREE, "fuse_max_seq_len": FREE, "modules_to_fuse": FREE, "desc_act": (False,), "sym": FREE,
        **_CALIBRATION,
    },
    "gptq": {
        "bits": (4, 8), "group_size": FREE, "desc_act": (True, False), "sym": (True, False),
        "checkpoint_format": ("gptq",), "format": ("gptq",), "pack_dtype": ("int32",), "lm_head": (True, False),
        "dynamic": NOTHING, "static_groups": FREE, "damp_auto_increment": FREE, "mse": FREE,
        "model_name_or_path": FREE, "model_file_base_name": FREE, "use_cuda_fp16": FREE, "use_exllama": FREE,
        "disable_exllama": FREE, **_CALIBRATION,
    },
    "compressed-tensors": {
        "config_groups": FREE, "format": FREE, "ignore": FREE, "kv_cache_scheme": FREE, "version": FREE,
        "quantization_status": ("compressed", "frozen"), "global_compression_ratio": FREE,
        "sparsity_config": NOTHING, "moe_sparsity_config": NOTHING, "transform_config": NOTHING,
        "run_compressed": FREE, "dequantize": FREE,
    },
    "modelopt": {
        "quant_algo": FREE, "config_groups": FREE, "ignore": FREE, "exclude_modules": FREE, "producer": FREE,
        "kv_cache_scheme": FREE, "kv_cache_quant_algo": FREE, "group_size": FREE, "quantized_layers": FREE,
        "has_zero_point": NOTHING, "pre_quant_scale": NOTHING,
    },
}  # fmt: skip
"""quant_method -> key -> the values it may have (none listed: any)."""
ARGUMENTS: Mapping[str, Sequence[Any]] = {
    "num_bits": (4, 8), "type": ("int", "float"), "symmetric": (True, False), "group_size": FREE,
    "strategy": ("tensor", "channel", "group", "tensor_group", "block"), "block_structure": FREE,
    "dynamic": (False,), "actorder": (None, "static", "weight", False), "scale_dtype": FREE,
    "zp_dtype": FREE, "observer": FREE, "observer_kwargs": FREE,
}  # fmt: skip
"""Keys of `weights` in a group of compressed-tensors, as above."""
GROUP = {"targets", "weights", "input_activations", "output_activations", "format"}
