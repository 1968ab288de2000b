"""References in a graph file: `$name` is a declared size or a config field, a list is a fallback, `{product: [..]}` and
its like are arithmetic, `{is: [a, b]}` says whether two are equal, and the rest is literal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from moeparity.errors import CheckpointError, GraphError, Where, did_you_mean, listed, shown
from moeparity.plan.config import Config

_ABSENT = object()


class Scope:
    """Resolves references of one graph against its declared sizes and one config.json.

    `layer` holds names that are valid for the current layer only; they take precedence over both.
    """

    def __init__(self, path: Path, sizes: Mapping[str, Any], config: Config) -> None:
        self.path, self.sizes, self.config = path, sizes, config
        self._resolving: list[str] = []
        self.layer: dict[str, Any] = {}

    def resolve(self, reference: Any, where: Where) -> Any:
        """The value of a reference. Raises CheckpointError where it needs a field that config.json lacks."""
        value = self._resolve(reference, where)
        if value is not _ABSENT:
            return value
        names = [name for name in self.fields(reference) if self.config.get(name) is None]
        if not names:
            raise GraphError(f"{where}: {spelled(reference)} has no value.")
        hint = did_you_mean(names[0], self.config.names) if len(names) == 1 else ""
        raise CheckpointError(
            f"{Where(self.config.path)}: field {' or '.join(map(repr, names))} is missing; {where} reads it.{hint}"
        )

    def integer(self, reference: Any, where: Where, *, most: int | None = None) -> int:
        """The value of a reference that must be a whole number, at least 1 and at most `most`."""
        value = self.resolve(reference, where)
        if type(value) is int and value >= 1 and (most is None or value <= most):
            return value
        range_words = "a whole number of at least 1" + ("" if most is None else f" and at most {most}")
        field = self.field_of(reference, value)
        if field is None:
            label = spelled(reference) if self.fields(reference) else "a size"
            raise GraphError(f"{where}: {label} is {shown(value)}; expected {range_words}.")
        raise CheckpointError(
            f"{self.config.where(field)}: {field} is {shown(value)}; expected {range_words}, since {where} reads it."
        )

    def field_of(self, reference: Any, value: Any) -> str | None:
        """The field of config.json that a reference took its value from; None where the graph file made it."""
        names = (name for name in self.fields(reference) if name in self.config)
        return next((name for name in names if self.config[name] is value), None)

    def fields(self, reference: Any, path: tuple[str, ...] = ()) -> list[str]:
        """The fields of config.json a reference may lead to, by way of declared sizes."""
        if isinstance(reference, str) and reference.startswith("$"):
            name = reference[1:]
            if name in self.sizes and name not in path:
                return self.fields(self.sizes[name], (*path, name))
            return [name]
        inner = reference.values() if isinstance(reference, dict) else reference if isinstance(reference, list) else ()
        return list(dict.fromkeys(name for part in inner for name in self.fields(part, path)))

    def made_of(self, reference: Any, path: tuple[str, ...] = ()) -> list[str]:
        """The fields of config.json, as the file spells them, that a value is computed from; of a list (a fallback)
        those of the first item that is present.
        """
        if isinstance(reference, str) and reference.startswith("$"):
            name = reference[1:]
            if name in self.sizes and name not in path:
                return self.made_of(self.sizes[name], (*path, name))
            return [self.config.spelled(name)]
        if isinstance(reference, list):
            there = (r for r in reference if all(self.config.get(name) is not None for name in self.fields(r, path)))
            return self.made_of(next(there, None), path)
        operands = next(iter(reference.values())) if isinstance(reference, dict) else []
        return list(dict.fromkeys(name for operand in operands for name in self.made_of(operand, path)))

    def holds(self, reference: Any, where: Where) -> bool:
        """True when the reference is set: present and neither null, false nor 0."""
        value = self._resolve(reference, where)
        return value is not _ABSENT and bool(value)

    def whole_sizes(self) -> dict[str, int]:
        """The declared sizes that have a value and are whole numbers."""
        values = {name: self._resolve(f"${name}", Where(self.path)) for name in self.sizes}
        return {name: value for name, value in values.items() if type(value) is int}

    def _resolve(self, reference: Any, where: Where) -> Any:
        if isinstance(reference, str) and reference.startswith("$"):
            return self._name(reference[1:], where)
        if isinstance(reference, list) and any(isinstance(r, str | dict) for r in reference):
            values = (self._resolve(r, where) for r in reference)
            return next((v for v in values if v is not _ABSENT and v is not None), _ABSENT)
        if isinstance(reference, dict) and len(reference) == 1 and next(iter(reference)) in _OPERATIONS:
            return self._arithmetic(*next(iter(reference.items())), where)
        if isinstance(reference, dict):
            return {key: self.resolve(value, where) for key, value in reference.items()}
        return reference

    def _name(self, name: str, where: Where) -> Any:
        if name in self.layer:
            return self.layer[name]
        # Inside a size's own definition its name means the config field of that name.
        if name not in self.sizes or name in self._resolving:
            if name in self._resolving[:-1] and name not in self.config:
                circle = " -> ".join((*self._resolving, name))
                raise GraphError(f"{where}: sizes are defined by each other in a circle: {circle}. Break it.")
            return self.config[name] if name in self.config else _ABSENT
        self._resolving.append(name)
        try:
            return self._resolve(self.sizes[name], where)
        finally:
            self._resolving.pop()

    def _arithmetic(self, operation: str, operands: Any, where: Where) -> Any:
        if not isinstance(operands, list) or len(operands) < 2:
            raise GraphError(f"{where}: {operation} of {spelled(operands)}; expected a list of at least two values.")
        values = [self._resolve(operand, where) for operand in operands]
        if any(value is _ABSENT or value is None for value in values):
            return _ABSENT
        shape = f"{where} with {Where(self.config.path)}: {operation} of {spelled(operands)}"
        shape += f", here {listed(map(shown, values))}"
        if operation == "is":
            return values[0] == values[1]
        if operation == "portion":
            return _portion(values, shape)
        if operation == "power":
            return _power(values, shape)
        if operation == "ratio":
            return _ratio(values, shape)
        if any(type(value) is not int for value in values):
            raise GraphError(f"{shape}; expected whole numbers.")
        if operation == "quotient" and (len(values) != 2 or values[1] == 0 or values[0] % values[1]):
            raise GraphError(f"{shape}; expected two numbers, the first a multiple of the second.")
        return _ARITHMETIC[operation](values)


def _portion(values: list[Any], shape: str) -> int:
    """A fraction of a whole number, rounded down to a whole number as transformers does."""
    number, share, *extra = values
    if extra or type(number) is not int or type(share) not in {int, float} or not (0 < share <= 1 <= number * share):
        raise GraphError(f"{shape}; expected a whole number and a fraction of it above 0 and up to 1.")
    return int(number * share)


def _ratio(values: list[Any], shape: str) -> float:
    """A number over another above 0, in fp64 as Python has it."""
    if len(values) != 2 or any(type(value) not in {int, float} for value in values) or values[1] <= 0:
        raise GraphError(f"{shape}; expected two numbers, the second above 0.")
    return float(values[0] / values[1])


def _power(values: list[Any], shape: str) -> float:
    """A number above 0 to the power of another, in fp64 as Python has it."""
    if len(values) != 2 or any(type(value) not in {int, float} for value in values) or values[0] <= 0:
        raise GraphError(f"{shape}; expected two numbers, the first above 0.")
    base, exponent = values
    return float(base**exponent)


_ARITHMETIC: dict[str, Callable[[list[int]], int]] = {
    "sum": sum,
    "product": math.prod,
    "quotient": lambda values: values[0] // values[1],
}


_OPERATIONS = (*_ARITHMETIC, "portion", "power", "ratio", "is")


def spelled(reference: Any) -> str:
    """A reference as a graph file spells it."""
    if isinstance(reference, list):
        return f"[{listed(map(spelled, reference))}]"
    if isinstance(reference, dict):
        return f"{{{listed(f'{key}: {spelled(value)}' for key, value in reference.items())}}}"
    return reference if isinstance(reference, str) else shown(reference)
