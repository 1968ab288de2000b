"""The base class of every schema: strict, frozen, refuses unknown keys, keeps line numbers of the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidatorFunctionWrapHandler,
    model_validator,
)

from moeparity.documents import yaml
from moeparity.errors import Where


def with_lines(data: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    """The mapping that pydantic makes, with the line numbers of its keys kept."""
    settings = handler(data)
    if not isinstance(data, yaml.Mapping):
        return settings
    mapping = yaml.Mapping(settings)
    mapping.path, mapping.line, mapping.key_lines = data.path, data.line, data.key_lines
    return mapping


class Model(BaseModel):
    """Base of all: knows where its mapping and the keys in it stand (on line 0 when it was not read from a file)."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    _path: Path = PrivateAttr(Path())
    _line: int = PrivateAttr(0)
    _key_lines: dict[str, int] = PrivateAttr(default_factory=dict)
    _key_paths: dict[str, Path] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _keep_lines(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        model = handler(data)
        if isinstance(data, yaml.Mapping):
            model._path, model._line = data.path, data.line  # noqa: SLF001
            model._key_lines, model._key_paths = data.key_lines, data.key_paths  # noqa: SLF001
        return model

    @property
    def line(self) -> int:
        """The line its mapping starts on."""
        return self._line

    def line_of(self, key: str) -> int:
        """The line of one of its keys."""
        return self._key_lines.get(key, self._line)

    def where_in_file(self, key: str | None = None) -> Where:
        """The file and line its mapping starts on, or one of its keys stands on."""
        if key is None:
            return Where(self._path, self._line)
        return Where(self._key_paths.get(key, self._path), self.line_of(key))
