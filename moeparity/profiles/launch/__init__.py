"""Launch configurations of vLLM, SGLang, verl and NeMo-RL, and which profiles they imply. No torch here."""

from moeparity.profiles.launch.read import read

__all__ = ["read"]
