vllm serve deepseek-ai/DeepSeek-V3-0324-BF16 --tensor-parallel-size 4 --data-parallel-size 2 --enable-expert-parallel
