"""References in a graph file: `$name` is a declared size or a config field, a list is a fallback, the rest literal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moeparity.errors import CheckpointError, GraphError, Where, did_you_mean
from moeparity.graph.config import Config

_ABSENT = object()


class Scope:
    """Resolves references of one graph against its declared sizes and one config.json."""

    def __init__(self, path: Path, sizes: Mapping[str, Any], config: Config) -> None:
        self.path, self.sizes, self.config = path, sizes, config
        self._resolving: list[str] = []

    def resolve(self, reference: Any, where: Where) -> Any:
        """The value of a reference. Raises GraphError where a name is neither a size nor a field of config.json."""
        value = self._resolve(reference, where)
        if value is not _ABSENT:
            return value
        names = [*self.sizes, *self.config.names]
        missing = reference if isinstance(reference, str) else str(reference)
        raise CheckpointError(
            f"{Where(self.config.path)}: {missing.removeprefix('$')!r} is missing; {where} reads it."
            + did_you_mean(missing.removeprefix("$"), names)
        )

    def integer(self, reference: Any, where: Where) -> int:
        """The same, and it must be a positive whole number."""
        value = self.resolve(reference, where)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise GraphError(f"{where}: {reference!r} is {value!r}; expected a whole number of at least 1.")
        return value

    def holds(self, reference: Any, where: Where) -> bool:
        """True when the reference is set: present and neither null, false nor 0."""
        value = self._resolve(reference, where)
        return value is not _ABSENT and bool(value)

    def _resolve(self, reference: Any, where: Where) -> Any:
        if isinstance(reference, str) and reference.startswith("$"):
            return self._name(reference[1:], where)
        if isinstance(reference, list) and any(isinstance(r, str | dict) for r in reference):
            values = (self._resolve(r, where) for r in reference)
            return next((v for v in values if v is not _ABSENT and v is not None), _ABSENT)
        if isinstance(reference, dict) and len(reference) == 1 and next(iter(reference)) in _ARITHMETIC:
            return self._arithmetic(*next(iter(reference.items())), where)
        if isinstance(reference, dict):
            return {key: self.resolve(value, where) for key, value in reference.items()}
        return reference

    def _name(self, name: str, where: Where) -> Any:
        # Inside its own definition a size's name means the config field it stands for.
        if name not in self.sizes or name in self._resolving:
            return self.config[name] if name in self.config else _ABSENT
        self._resolving.append(name)
        try:
            return self._resolve(self.sizes[name], where)
        finally:
            self._resolving.pop()

    def _arithmetic(self, operation: str, operands: Any, where: Where) -> Any:
        if not isinstance(operands, list) or len(operands) < 2:
            raise GraphError(f"{where}: {operation} takes a list of at least two values, not {operands!r}.")
        values = [self._resolve(operand, where) for operand in operands]
        if any(value is _ABSENT or value is None for value in values):
            return _ABSENT
        if any(not isinstance(value, int) for value in values):
            raise GraphError(f"{where}: {operation} of {values!r}; expected whole numbers.")
        if operation == "quotient" and (len(values) != 2 or values[1] == 0 or values[0] % values[1]):
            raise GraphError(f"{where}: quotient of {values!r} is no whole number.")
        return _ARITHMETIC[operation](values)


_ARITHMETIC = {"sum": sum, "product": math.prod, "quotient": lambda values: values[0] // values[1]}
