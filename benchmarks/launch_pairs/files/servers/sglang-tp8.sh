python3 -m sglang.launch_server --model-path Qwen/Qwen3-30B-A3B --tp 8 --trust-remote-code \
    --mem-fraction-static 0.85 --host 0.0.0.0 --port 30000 --attention-backend fa3
