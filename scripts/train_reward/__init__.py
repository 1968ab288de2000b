"""Train the small byte-level reward model that ships in checkpoints/reward/, and write the pairs it is validated on.

Run from the repository root, in an environment with torch, transformers and safetensors:

    python -m scripts.train_reward

The same Python standard library, torch version and CPU type give the same weights.
"""
