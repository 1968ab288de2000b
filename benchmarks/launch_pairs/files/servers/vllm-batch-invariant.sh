docker run --rm --runtime nvidia --gpus '"device=0,1"' --ipc=host \
    -v ~/.cache/huggingface:/root/.cache/huggingface \
    --env "HUGGING_FACE_HUB_TOKEN=$HF_TOKEN" \
    --env "VLLM_BATCH_INVARIANT=1" \
    -p 8000:8000 \
    vllm/vllm-openai:v0.33.0 \
    --model Qwen/Qwen3-30B-A3B \
    --tensor-parallel-size 2 --attention-backend FLASH_ATTN
