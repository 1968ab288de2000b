podman run --rm --gpus all -e HF_TOKEN nvcr.io/nvidia/tensorrt-llm/release:1.1.0 \
    trtllm-serve serve mistralai/Mixtral-8x7B-v0.1 --tp_size 8 --backend pytorch
