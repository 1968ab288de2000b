#!/bin/bash
# Which branch is taken depends on the machine: nothing is guessed.
GPUS=$(nvidia-smi -L | wc -l)
EXTRA=()
if [ "$GPUS" -ge 8 ]; then
  TP=8
  EXTRA+=(--enforce-eager)
else
  TP=4
fi
case "$PRECISION" in
  high) DTYPE=float32 ;;
  *)    DTYPE=bfloat16 ;;
esac
vllm serve Qwen/Qwen3-30B-A3B --tensor-parallel-size $TP --dtype "$DTYPE" "${EXTRA[@]}" --seed "$(date +%s)" "$@"
