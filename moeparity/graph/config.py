"""config.json of a checkpoint, read the same whether transformers 4 or 5 wrote it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moeparity.errors import CheckpointError, Where, did_you_mean
from moeparity.numerics.dtypes import name_of

ALIASES: dict[str, tuple[str, ...]] = {
    "dtype": ("torch_dtype",),
    "num_experts": ("num_local_experts", "n_routed_experts", "moe_num_experts"),
    "num_experts_per_tok": ("moe_k", "moe_topk"),
}
"""Field name used by the graphs -> other names it goes by in hub checkpoints (`attribute_map` of transformers)."""

ROPE_FIELDS = ("rope_theta", "rope_scaling", "partial_rotary_factor")
ROPE_TYPES = ("default", "yarn")
YARN_NEEDS = ("original_max_position_embeddings",)


class Config:
    """The fields of one config.json. Look-ups follow the alias table; `rope_parameters` is always there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fields = _read(path)
        self._fields["rope_parameters"] = _rope_parameters(self)

    def __contains__(self, name: str) -> bool:
        return self._key(name) is not None

    def __getitem__(self, name: str) -> Any:
        key = self._key(name)
        if key is None:
            raise CheckpointError(
                f"{Where(self.path)}: field {name!r} is missing.{did_you_mean(name, self._fields)} "
                "Is this the config.json of the checkpoint?"
            )
        return self._fields[key]

    def get(self, name: str, default: Any = None) -> Any:
        """The field, or `default` where it is absent or null."""
        value = self[name] if name in self else None
        return default if value is None else value

    @property
    def names(self) -> list[str]:
        """All field names, as the file spells them."""
        return list(self._fields)

    @property
    def model_type(self) -> str:
        """The field that picks the graph."""
        return str(self["model_type"])

    @property
    def dtype(self) -> str | None:
        """`bf16`, `fp16` or `fp32` as the checkpoint declares it, None where it does not."""
        return name_of(str(self.get("dtype", "")))

    def _key(self, name: str) -> str | None:
        return next((key for key in (name, *ALIASES.get(name, ())) if key in self._fields), None)


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise CheckpointError(
            f"{Where(path)}: cannot be read: {error.strerror}. Is this a checkpoint folder?"
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        line = getattr(error, "lineno", None)
        raise CheckpointError(f"{Where(path, line)}: not JSON: {error}.") from None
    if not isinstance(data, dict) or not isinstance(data.get("model_type"), str):
        raise CheckpointError(f"{Where(path)}: no `model_type` in it; it decides which graph is used.")
    return data


def _rope_parameters(config: Config) -> Mapping[str, Any]:
    """One dictionary from either generation: `rope_parameters`, or `rope_theta` with `rope_scaling`."""
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope = {"rope_theta": config.get("rope_theta", 10_000.0), **given}
    rope["rope_type"] = rope.get("rope_type") or rope.pop("type", None) or "default"
    if rope["rope_type"] not in ROPE_TYPES:
        raise CheckpointError(
            f"{Where(config.path)}: rope_type is {rope['rope_type']!r}; expected one of {', '.join(ROPE_TYPES)}."
        )
    missing = [field for field in YARN_NEEDS if rope["rope_type"] == "yarn" and rope.get(field) is None]
    if missing:
        raise CheckpointError(f"{Where(config.path)}: rope_type yarn needs {missing[0]!r} beside it.")
    return rope
