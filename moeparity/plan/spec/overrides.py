"""`--over KEY=VALUE,...`: other values for fields of a recipe's sides, or for attributes at addresses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import ValidationError

from moeparity.documents import yaml
from moeparity.documents.checked import complaint
from moeparity.documents.model import Model
from moeparity.errors import SpecError, Where, did_you_mean, listed
from moeparity.plan.spec import recipe_schema, variant_schema
from moeparity.plan.spec.base import Setting, Side

HERE = Where(Path("--over"))

_SIDES: dict[str, tuple[Side, ...]] = {
    "candidate.": ("candidate",),
    "reference.": ("reference",),
    "both.": ("reference", "candidate"),
}
_ADDRESS = re.compile(r"(?:[^\[\]:]|\[[^\]]*\])*:")
"""Matches text with a colon outside brackets; inside brackets a colon belongs to a slice of layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """A value that replaces a recipe's own, on one or both sides.

    `name` is the key as the user wrote it; `key` is a field of a side (`placement.tensor`) or an address
    (`is_address`).
    """

    name: str
    sides: tuple[Side, ...]
    key: str
    value: Setting | None

    @property
    def is_address(self) -> bool:
        """Whether it sets an attribute, as `set:` does, and not a field of a side."""
        return _ADDRESS.match(self.key) is not None

    def apply(self, recipe: recipe_schema.RecipeFile) -> recipe_schema.RecipeFile:
        """The recipe with this field in place of its own; an address leaves it as it is. Raises SpecError."""
        if self.is_address:
            return recipe
        sides: dict[str, Any] = {
            side: _with_value(getattr(recipe, side), self.key.split("."), self.value) for side in self.sides
        }
        return recipe.model_copy(update=sides)


Axis = tuple[Override, ...]
"""One `--over`: the same field or attribute with each of its values."""


def axes(options: Sequence[str]) -> list[Axis]:
    """Every `KEY=VALUE,...` read and checked against the schema.

    Raises SpecError for a key or a value that no recipe may hold, and where two keys set one thing on one side.
    """
    result = [_axis(text) for text in options]
    name_of: dict[tuple[str, str], str] = {}
    for override, *_ in result:
        for side in override.sides:
            if (side, override.key) in name_of:
                raise SpecError(
                    f"{HERE}: {override.key!r} of the {side} is given twice, by {name_of[side, override.key]!r} and "
                    f"{override.name!r}. Give all its values in one --over."
                )
            name_of[side, override.key] = override.name
    return result


def addresses(overrides: Iterable[Override], side: Side) -> dict[str, Setting]:
    """The overrides at addresses on one side, in the form of a recipe's `set:`."""
    mine = (override for override in overrides if override.is_address and side in override.sides)
    return {override.key: override.value for override in mine if override.value is not None}


def fields(model: type[Model] = variant_schema.Variant, prefix: str = "") -> Iterator[str]:
    """The names of a side's fields that hold a single value; those inside `placement` as `placement.tensor`."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Model):
            yield from fields(field.annotation, f"{prefix}{name}.")
        elif get_origin(field.annotation) not in {dict, list} and not _is_optional_mapping(field.annotation):
            yield prefix + name


def _is_optional_mapping(annotation: Any) -> bool:
    return any(isinstance(branch, type) and issubclass(branch, Model) for branch in get_args(annotation))


def _axis(text: str) -> Axis:
    name, equals, values = text.partition("=")
    if not equals:
        raise SpecError(f"{HERE}: {text!r} has no value; expected KEY=VALUE,VALUE as in micro_batch=1,2,4.")
    prefix = next((prefix for prefix in _SIDES if name.startswith(prefix)), "")
    key = name.removeprefix(prefix)
    address, names = _ADDRESS.match(key) is not None, list(fields())
    if not address and key not in names:
        raise SpecError(
            f"{HERE}: {key!r} is nothing that can be swept; expected one of {listed(names)}, or an address such as "
            f"layers[*].moe.gate:output; `reference.` or `both.` in front says whose.{did_you_mean(key, names)}"
        )
    scalars = [yaml.scalar(value, Where(Path(f"--over {name}"))) for value in _values(values)]
    for value in scalars:
        _with_value(_placeholder(key), ["set", key] if address else key.split("."), value)
    return tuple(Override(name=name, sides=_SIDES[prefix or "candidate."], key=key, value=value) for value in scalars)


def _placeholder(key: str) -> variant_schema.Variant:
    """A minimal valid side, on which a value of the key can be validated."""
    return variant_schema.Variant(trace="any") if key in {"trace", "map"} else variant_schema.Variant(profile="any")


def _values(text: str) -> list[str]:
    """The text split at commas outside parentheses: an order such as `threads(4, vector=2)` is one value."""
    parts, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _with_value(variant: variant_schema.Variant, keys: Sequence[str], value: Any) -> variant_schema.Variant:
    data = _data(variant, keys, value)
    try:
        return variant_schema.Variant.model_validate(data)
    except ValidationError as error:
        raise SpecError(f"{HERE}: {complaint(data, variant_schema.Variant, error)[1]}") from None


def _data(container: Model | Mapping[str, Any], keys: Sequence[str], value: Any) -> yaml.Mapping:
    """The mapping that a file would hold for a model (or mapping) with one field changed, with line numbers."""
    key, *inner_keys = keys
    if isinstance(container, Model):
        data = yaml.Mapping({name: getattr(container, name) for name in container.model_fields_set})
        data.path, data.line = container.where_in_file().path, container.line
        data.key_lines = {name: container.line_of(name) for name in data}
        data[key] = _data(getattr(container, key), inner_keys, value) if inner_keys else value
    else:
        data = yaml.Mapping({**container, key: value})
    return data
