vllm serve --config server.yaml --tensor-parallel-size 2
