# Both sides in one file: the server behind, the trainer in front.
CUDA_VISIBLE_DEVICES=0,1,2,3 trl vllm-serve --model Qwen/Qwen3-30B-A3B --tensor-parallel-size 4 &
CUDA_VISIBLE_DEVICES=4,5,6,7 accelerate launch train_grpo.py --config grpo.yaml
