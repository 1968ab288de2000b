#!/bin/bash
export SGLANG_RETURN_ORIGINAL_LOGPROB=1
MODEL_PATH=${1:-Qwen/Qwen3-30B-A3B}
launch() {
  local tp=$1; shift
  python3 -u -m sglang.launch_server --model-path "$MODEL_PATH" --tp "$tp" "$@"
}
launch $((2 * 4)) --ep-size 8 --moe-a2a-backend deepep --deepep-mode normal \
  --json-model-override-args '{"num_hidden_layers": 4}'
