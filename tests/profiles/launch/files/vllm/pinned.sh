#!/bin/bash
pip install --no-cache-dir "vllm==0.9.2" transformers==4.53.0
vllm serve Qwen/Qwen3-30B-A3B -tp 2
