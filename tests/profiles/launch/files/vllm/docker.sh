docker run --rm -d --gpus all --ipc=host -p 8000:8000 \
  -e VLLM_BATCH_INVARIANT=1 --env HF_TOKEN \
  -v ~/.cache/huggingface:/root/.cache/huggingface \
  vllm/vllm-openai:v0.33.0 --model Qwen/Qwen3-30B-A3B --tensor-parallel-size 2 --enforce-eager
