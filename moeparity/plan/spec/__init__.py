"""The three YAML files: a strict loader and one set of pydantic models."""
