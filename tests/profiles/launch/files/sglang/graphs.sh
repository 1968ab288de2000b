python3 -m sglang.launch_server --model-path Qwen/Qwen3-30B-A3B --tp-size 8 \
    --cuda-graph-bs 1 2 4 8 16 32 --cuda-graph-max-bs 32
