docker run --rm -it --ipc host --gpus all --ulimit memlock=-1 --ulimit stack=67108864 -p 8000:8000 \
    -v ~/.cache:/root/.cache:rw nvcr.io/nvidia/tensorrt-llm/release:1.2.0 \
    trtllm-serve Qwen/Qwen3-30B-A3B --host 0.0.0.0 --port 8000 --backend pytorch \
    --max_batch_size 256 --max_num_tokens 8192 --tp_size 4 --ep_size 4
