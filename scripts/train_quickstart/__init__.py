"""Train the small byte-level Qwen3-MoE checkpoint that ships in checkpoints/quickstart/.

Run from the repository root, in an environment with torch, transformers and safetensors:

    python -m scripts.train_quickstart

The same Python standard library, torch version, CPU type and --threads give the same weights.
"""
