sbatch --nodes=1 <<'JOB'
#!/bin/bash
#SBATCH --gpus=8
srun --ntasks=1 --gpus=8 sglang serve Qwen/Qwen3-30B-A3B --tp-size 8 --flashinfer-allreduce-fusion-backend trtllm
JOB
