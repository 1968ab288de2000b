"""What vLLM imports and what is run here needs none of."""

LEFT_OUT = (
    "requests urllib3 aiohttp av cachetools cbor2 cloudpickle cpuinfo einops fastapi llguidance mistral_common msgspec "
    "openai openai_harmony partial_json_parser prometheus_client psutil pybase64 uvloop xgrammar zmq zstandard blake3"
)
"""Serving, tokenizers, grammars, images."""
