"""Makes the JSON Schema of a report from its dataclass."""

from __future__ import annotations

from dataclasses import Field, fields, make_dataclass
from typing import Any, get_type_hints

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_DIGEST = {
    "type": "string",
    "pattern": "^sha256:[0-9a-f]{64}$",
    "description": "Of all keys but `digest` and `cost`; docs/ci.md says how it is taken.",
}


class _Written(GenerateJsonSchema):
    """Describes what `to_json` writes: every field is present, and a number that is not finite is a word."""

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:  # noqa: ARG002
        return {"anyOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}]}

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        written = super().dataclass_schema(schema)
        for field in fields(schema["cls"]):
            if not field.metadata.get("json", True):
                del written["properties"][field.name]
                written["required"].remove(field.name)
        return written

    def field_is_required(self, field: Any, total: bool) -> bool:  # noqa: ARG002
        return True


def json_schema(report: type, schema: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of what `to_json(schema, ...)` writes for a report of this dataclass.

    It allows unknown keys, since new ones may appear under the same schema name.
    """
    hints = get_type_hints(report, include_extras=True)
    members: list[Field[Any]] = [field for field in fields(report) if field.metadata.get("json", True)]
    written = make_dataclass(report.__name__, [(field.name, hints[field.name]) for field in members])
    body = TypeAdapter(written).json_schema(schema_generator=_Written, mode="serialization")
    head = {"schema": {"const": schema}, "digest": _DIGEST}
    return {
        "$schema": _DRAFT,
        **body,
        "title": schema,
        "description": report.__doc__ or "",
        "properties": {**head, **body["properties"]},
        "required": [*head, *body["required"]],
    }
