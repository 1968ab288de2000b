"""The keys of every kind of file, from the schema that reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from moeparity.plan.editor import json_schema
from scripts.site.table import paragraphs, table

HEAD = """Files are strict: a key that is not here is refused, with the nearest one. `moeparity show schema KIND` prints
the same for editors (`docs/ci.md`)."""
KINDS = {
    "recipe": "What is compared (`docs/recipe.md`).",
    "profile": 'How an engine computes (`docs/recipe.md`, "Your own profile").',
    "log": "A check of a log (`docs/ci.md`).",
    "kernel": "How a compiled kernel is launched (`docs/certify.md`).",
    "fault": "A named mistake, as a rewrite of a node (`docs/faults.md`).",
    "graph": "A model, as in `graphs/models/`.",
}


def keys() -> str:
    """Every key of every kind of file; a model that several kinds share stands under the first."""
    lines = ["# Keys of files", "", HEAD]
    described: set[str] = set()
    for kind, says in KINDS.items():
        schema = json_schema(kind)
        models = {name: model for name, model in schema["$defs"].items() if "properties" in model}
        links = {name: f"[{name}](#{name.lower()})" for name in models}
        lines += ["", f"## {kind}", "", says, *_model(schema, links)]
        for name, model in models.items():
            if name not in described:
                lines += ["", f"### {name}", *_model(model, links)]
        described |= models.keys()
    return "\n".join(lines)


def _model(model: Mapping[str, Any], links: Mapping[str, str]) -> Iterator[str]:
    yield from ("", paragraphs(model.get("description", "")), "")
    required = model.get("required", ())
    rows = [
        (
            f"`{key}`",
            _kind(value, links),
            "required" if key in required else _default(value),
            str(value.get("description", "")),
        )
        for key, value in model.get("properties", {}).items()
    ]
    heading = ("key", "takes", "default", "what it is")
    width = 4 if any(row[3] for row in rows) else 3
    yield from table(heading[:width], [row[:width] for row in rows])


def _default(value: Mapping[str, Any]) -> str:
    default = value.get("default")
    return f"`{json.dumps(default)}`" if default not in (None, {}, []) else ""


def _kind(value: Mapping[str, Any], links: Mapping[str, str]) -> str:
    """What a key takes, in words; a model of the same page as a link to it."""
    if "$ref" in value:
        name = str(value["$ref"]).rpartition("/")[2]
        return links.get(name, name)
    if "enum" in value:
        return ", ".join(f"`{word}`" for word in value["enum"])
    if "const" in value:
        return f"`{value['const']}`"
    if "anyOf" in value:
        kinds = [_kind(branch, links) for branch in value["anyOf"]]
        return " or ".join(dict.fromkeys(kind for kind in kinds if kind))
    kind = value.get("type", "")
    if kind == "array":
        return f"a list of {_kind(value.get('items', {}), links) or 'anything'}"
    names = {"string": "text", "integer": "a whole number", "number": "a number", "boolean": "true or false"}
    return names.get(kind, "a mapping" if kind == "object" else "")
