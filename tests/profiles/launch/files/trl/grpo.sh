ACCELERATE_LOG_LEVEL=info accelerate launch --config_file zero3.yaml --num_processes 7 train_grpo.py \
  --model_name_or_path Qwen/Qwen3-30B-A3B --use_vllm --vllm_mode colocate --vllm_tensor_parallel_size 2 \
  --bf16 True --temperature 0.7
