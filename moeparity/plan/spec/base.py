"""The base class of the schema's models: strict, frozen, refuses unknown keys, keeps line numbers of the file.

Also the types that the files and the command line share.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from moeparity.plan.spec import yaml

Setting = str | int | float

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
"""The name of a node, size, block or fusion."""

Side = Literal["candidate", "reference"]

By = Literal["rule", "attribute", "node", "layer", "block"]
"""How differences are bundled into toggles."""


def _with_lines(data: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    """The mapping that pydantic makes, with the line numbers of its keys kept."""
    settings = handler(data)
    if not isinstance(data, yaml.Mapping):
        return settings
    mapping = yaml.Mapping(settings)
    mapping.line, mapping.key_lines = data.line, data.key_lines
    return mapping


Settings = Annotated[dict[str, Setting], WrapValidator(_with_lines)]
"""Values by attribute or address; a `yaml.Mapping` where it was read from a file, so that each key has its line."""


class Model(BaseModel):
    """Base of all: knows the lines its mapping and the keys in it start on (0 when it was not read from a file)."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    _line: int = PrivateAttr(0)
    _key_lines: dict[str, int] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _keep_lines(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        model = handler(data)
        if isinstance(data, yaml.Mapping):
            model._line, model._key_lines = data.line, data.key_lines  # noqa: SLF001
        return model

    @property
    def line(self) -> int:
        """The line its mapping starts on."""
        return self._line

    def line_of(self, key: str) -> int:
        """The line of one of its keys."""
        return self._key_lines.get(key, self._line)
