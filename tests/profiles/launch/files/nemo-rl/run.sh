cd /opt/nemo-rl
uv run examples/run_grpo_math.py --config nemo-rl/megatron.yaml policy.generation.vllm_cfg.enforce_eager=true \
    ++policy.megatron_cfg.apply_rope_fusion=false cluster.num_nodes=2
