python -m sglang.launch_server --model-path Qwen/Qwen3-30B-A3B --tp 8 --ep-size=8 --moe-a2a-backend deepep --enable-deterministic-inference
