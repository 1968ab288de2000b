# The same server on every node: one command in a loop.
for node in 0 1; do
  ssh "worker-$node" true
  python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 16 --nnodes 2 --node-rank "$node" \
    --enable-deterministic-inference &
done
wait
