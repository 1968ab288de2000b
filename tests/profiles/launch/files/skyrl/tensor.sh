#!/bin/bash
uv run -m skyrl.train.entrypoints.main_base trainer.strategy=megatron \
    trainer.policy.model.path=Qwen/Qwen3-30B-A3B \
    trainer.policy.megatron_config.tensor_model_parallel_size=4 \
    trainer.policy.megatron_config.context_parallel_size=2 \
    trainer.policy.megatron_config.pipeline_model_parallel_size=2 \
    trainer.policy.megatron_config.expert_model_parallel_size=8 \
    generator.inference_engine.data_parallel_size=2 \
    generator.inference_engine.expert_parallel_size=4 \
    generator.inference_engine.tensor_parallel_size=2
