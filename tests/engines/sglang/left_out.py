"""What SGLang imports and what is run here needs none of."""

LEFT_OUT = (
    "requests urllib3 torchvision IPython aiohttp compressed_tensors einops gguf mistral_common openai "
    "partial_json_parser psutil pybase64 sentencepiece sgl_kernel starlette tvm_ffi xgrammar zmq zstandard orjson "
    "fastapi uvicorn uvloop"
)
"""Serving, tokenizers, grammars, quantised formats, and its CUDA kernels."""
