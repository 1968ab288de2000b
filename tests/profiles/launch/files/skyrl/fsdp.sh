: "${NUM_GPUS:=4}"
: "${TP:=$((NUM_GPUS / 2))}"
uv run --isolated --extra fsdp -m skyrl.train.entrypoints.main_base \
  trainer.strategy=fsdp2 generator.inference_engine_tensor_parallel_size="$TP" generator.sampling_params.temperature=0.6
