python -m sglang.launch_server --model-path Qwen/Qwen3-30B-A3B --tp 4 \
    --enable-deterministic-inference --attention-backend flashinfer --max-running-requests 256
