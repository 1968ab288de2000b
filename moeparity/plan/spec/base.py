"""Types that several files and the command line share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, WrapValidator

from moeparity.documents.model import with_lines
from moeparity.numerics.tensor_core.instructions import architecture_of

Setting = str | int | float

Identifier = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
"""The name of a node, size, block or fusion."""

Side = Literal["candidate", "reference"]

By = Literal["rule", "attribute", "node", "layer", "block"]
"""How differences are bundled into toggles."""


def _gpu(name: str) -> str:
    try:
        architecture_of(name)
    except ValueError as error:
        raise ValueError(str(error).removeprefix("gpu: ")) from None
    return name


Gpu = Annotated[str, AfterValidator(_gpu)]
"""A GPU whose tensor cores are known: `h100`."""


SettingsByName = Annotated[dict[str, Setting], WrapValidator(with_lines)]
"""Values by attribute or address; a `yaml.Mapping` where it was read from a file, so that each key has its line."""
