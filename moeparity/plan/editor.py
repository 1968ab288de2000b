"""JSON Schemas for editors: the loader's pydantic schema, with the attributes and values that ops declare added.

Stricter than the loader in one thing: a key that may be left out may not be given as null. What a schema cannot express
(that a selector matches, that a reference resolves) only the loader checks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from moeparity.documents.checked import shipped
from moeparity.metrics.registry import METRICS
from moeparity.numerics.orders import FORMS
from moeparity.ops.attribute import EDGE, STORED, Attribute
from moeparity.ops.declaration import Op, Parameter, WeightPort
from moeparity.ops.registry import OPS
from moeparity.plan.layers import LAYER_RULES
from moeparity.plan.schedule.steps import PHASES
from moeparity.plan.spec import reader

Json = dict[str, Any]

_SELECTOR = r"^([^\[\]:]|\[[^\]]*\])+:"
"""A selector and the colon after it, as `address.split` reads them."""

_CASE = rf"({'|'.join(PHASES)})(\[[^\[\]]+\])?"
_PHASES = rf"(@{_CASE}(, *{_CASE})*)?"
"""The cases behind an attribute, as `address.split` reads them."""

_ORDER = rf"^\s*({'|'.join(FORMS)})\b"
"""How any summation order begins."""

_REFERENCE: Json = {
    "description": "`$name` is a declared size or a field of config.json, a list of references is a fallback, a "
    "mapping is arithmetic such as {product: [$heads, $head_dim]} or named parts; anything else stands for itself.",
    "anyOf": [
        {"type": ["string", "number", "boolean", "null"]},
        {"type": "array", "items": {"$ref": "#/$defs/Reference"}},
        {"type": "object", "additionalProperties": {"$ref": "#/$defs/Reference"}},
    ],
}


def json_schema(kind: str) -> Json:
    """The JSON Schema (draft 2020-12) of one kind of file that is read, by the name in `reader.KINDS`."""
    model = reader.KINDS[kind]
    schema = _plain(model.model_json_schema(by_alias=True))
    definitions: Json = schema.pop("$defs")
    refine = {"graph": _graph, "profile": _profile, "recipe": _recipe, "log": _log}.get(kind)
    if refine is not None:
        refine(schema, definitions)
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"urn:moeparity:schema:{kind}"}
    return {**head, "title": f"moeparity {kind}", **schema, "$defs": dict(sorted(definitions.items()))}


def _plain(schema: Any) -> Any:
    """pydantic's schema without generated titles and without null for what may be left out; maps of names closed."""
    if isinstance(schema, list):
        return [_plain(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {key: _plain(value) for key, value in schema.items() if key != "title" or not isinstance(value, str)}
    if plain.get("default", 0) is None:
        del plain["default"]
    branches = [branch for branch in plain.get("anyOf", ()) if branch != {"type": "null"}]
    if len(branches) == 1:
        del plain["anyOf"]
        plain = {**branches[0], **plain}
    elif branches:
        plain["anyOf"] = branches
    if "patternProperties" in plain:
        plain["additionalProperties"] = False
    return plain


def _graph(schema: Json, definitions: Json) -> None:
    definitions["Reference"] = _REFERENCE
    reference = {"$ref": "#/$defs/Reference"}
    node, weight, layers = (definitions[name]["properties"] for name in ("Node", "Weight", "Layers"))
    schema["properties"]["sizes"]["patternProperties"] = dict.fromkeys(_NAMES, reference)
    node["params"]["patternProperties"] = dict.fromkeys(_NAMES, reference)
    weight["shape"]["items"] = weight["stacked"]["items"] = reference
    for properties, key in ((node, "when"), (weight, "each"), (weight, "when"), (layers, "count")):
        properties[key] = {**reference, **properties[key]}
    definitions["Tied"]["properties"]["when"] = reference
    layers["rule"]["enum"] = list(LAYER_RULES)
    node["op"] = _ops()
    definitions["Node"]["allOf"] = [_for_op(op, _node_of(op)) for op in OPS.values()]
    graphs = {"enum": list(shipped("models"))}
    schema["properties"]["extends"] = {**_shipped_or_path(graphs), "description": "A shipped graph, or a path to one."}
    _partial_where_extended(schema, definitions)


def _partial_where_extended(schema: Json, definitions: Json) -> None:
    """In a file that extends another one only what differs has to be said, and null drops what the other one says."""
    required, properties = schema.pop("required"), schema["properties"]
    whole = {key: value for key, value in properties.items() if key in required and key not in _OF_EACH}
    properties |= {key: _partial(value) for key, value in properties.items() if key not in _OF_EACH}
    definitions |= {f"Partial{name}": _partial(definitions[name]) for name in _PARTIAL}
    schema["if"], schema["then"] = {"required": ["extends"]}, {"required": list(_OF_EACH)}
    schema["else"] = {"required": required, "properties": whole}


_OF_EACH = ("kind", "model_type")
"""What every graph file says."""
_PARTIAL = ("Block", "Layers", "Node", "Tied", "Weight")


def _partial(schema: Json) -> Json:
    """The schema of what is laid over another file: no key is required, and what a key maps to may be null."""
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    if name in _PARTIAL:
        return {**schema, "$ref": f"#/$defs/Partial{name}"}
    partial = {key: value for key, value in schema.items() if key != "required"}
    for key in ("properties", "patternProperties"):
        if key in schema:
            partial[key] = {name: _or_null(value) for name, value in schema[key].items()}
    if isinstance(schema.get("additionalProperties"), dict):
        partial["additionalProperties"] = _or_null(schema["additionalProperties"])
    if "anyOf" in schema:
        partial["anyOf"] = [_partial(branch) for branch in schema["anyOf"]]
    return partial


def _or_null(schema: Json) -> Json:
    return {"anyOf": [{"const": None}, _partial(schema)]}


_NAMES = (r"^[a-z][a-z0-9_]*$",)


def _node_of(op: Op) -> Json:
    """The schema of a node of this op: how many inputs, which parameters and which weights."""
    ports = ", ".join(op.inputs) or "nothing"
    weights = {port.name: _weight(port) for port in op.weights}
    parameters = {parameter.name: _parameter(parameter) for parameter in op.parameters}
    required = {
        "params": [parameter.name for parameter in op.parameters if parameter.required],
        "weights": [port.name for port in op.weights if port.required],
    }
    properties = {
        "in": {
            "minItems": len(op.inputs) - len(op.optional),
            "maxItems": len(op.inputs),
            "description": f"{op.says} Reads {ports}.",
        },
        "params": {**_closed_mapping(parameters), "required": required["params"]},
        "weights": {**_closed_mapping(weights), "required": required["weights"]},
    }
    return {"required": [key for key, names in required.items() if names], "properties": properties}


def _weight(port: WeightPort) -> Json:
    words: Json = {"$ref": "#/$defs/Weight", "description": port.says}
    return {"anyOf": [{"required": ["each"]}, {"required": ["stacked"]}], **words} if port.each else words


def _parameter(parameter: Parameter) -> Json:
    words: Json = {"$ref": "#/$defs/Reference", "description": parameter.says}
    if parameter.values:
        # A word, or a reference to one.
        reference = [{"type": "array"}, {"type": "string", "pattern": r"^\$"}]
        return {"anyOf": [{"enum": list(parameter.values)}, *reference], **words}
    return words


def _profile(schema: Json, definitions: Json) -> None:
    schema["properties"]["extends"] = _profile_name(schema["properties"]["extends"])
    fusion = definitions["Fusion"]
    for rule in (definitions["Rule"], definitions["FlagRule"]):
        rule["properties"]["op"] = _ops()
        rule["properties"]["set"] = {"type": "object"}
        rule["oneOf"] = [{"required": ["op"]}, {"required": ["nodes"]}]
        rule["allOf"] = [_for_op(op, {"properties": {"set": _attributes([op])}}) for op in OPS.values()]
        of_nodes = {"properties": {"set": _attributes(OPS.values())}}
        rule["allOf"].append({"if": {"required": ["nodes"]}, "then": of_nodes})
    numbers = {attribute.name for op in OPS.values() for attribute in op.attributes if attribute.can_be_requested}
    definitions["FlagRule"]["properties"]["requested"]["items"] = {"enum": sorted(numbers)}
    definitions["Flag"]["properties"]["becomes"] = _profile_name(definitions["Flag"]["properties"]["becomes"])
    fusion["properties"]["chain"]["items"] = _ops()
    fusion["properties"]["set"] = _fusion_keys()


def _recipe(schema: Json, definitions: Json) -> None:
    variant = definitions["Variant"]["properties"]
    variant["profile"] = _profile_name(variant["profile"])
    attributes = _attributes(OPS.values())
    patterns = {f"{_SELECTOR}{name}{_PHASES}$": values for name, values in attributes["properties"].items()}
    patterns |= {_SELECTOR + site.removeprefix("^"): values for site, values in attributes["patternProperties"].items()}
    variant["set"] = {"type": "object", "patternProperties": patterns, "additionalProperties": False}
    del schema["properties"]["expect"]["default"]
    definitions["Tokens"]["oneOf"] = [{"required": ["sampled_from"]}, {"required": ["sample"]}]


def _log(schema: Json, definitions: Json) -> None:
    del schema["properties"]["expect"]["default"]
    bounds = definitions["LogExpect"]["properties"]["metrics"]
    bounds["propertyNames"] = {"enum": list(METRICS)}
    means = [metric.name for metric in METRICS.values() if metric.reduce.has_interval]
    definitions["LogGate"]["properties"]["metric"]["enum"] = means


def _attributes(ops: Iterable[Op]) -> Json:
    """The schema of a mapping whose keys are attributes of some ops, or their sites on single edges
    (`output->rms_norm`), and no others.
    """
    by_name: dict[str, list[Attribute]] = {}
    for op in ops:
        for attribute in op.attributes:
            by_name.setdefault(attribute.name, []).append(attribute)
    edges = {name: [a for a in attributes if a.edge] for name, attributes in by_name.items()}
    return {
        **_closed_mapping({name: _values(attributes) for name, attributes in by_name.items()}),
        "patternProperties": {
            f"^{name}{EDGE}.+$": _values(attributes, STORED) for name, attributes in edges.items() if attributes
        },
    }


def _fusion_keys() -> Json:
    """The keys of a fusion's `set`: `op:attribute`, and `op:site->op` for a site on an edge of the chain."""
    attributes = [(op, attribute) for op in OPS.values() for attribute in op.attributes]
    return {
        **_closed_mapping({f"{op.name}:{attribute.name}": _values([attribute]) for op, attribute in attributes}),
        "patternProperties": {
            f"^{op.name}:{attribute.name}{EDGE}({'|'.join(OPS)})$": _values([attribute], STORED)
            for op, attribute in attributes
            if attribute.edge
        },
    }


def _values(attributes: list[Attribute], *extra: str) -> Json:
    """The schema of a value that any of these attributes, which share a name, allows."""
    words = list(dict.fromkeys([*extra, *(word for attribute in attributes for word in attribute.values)]))
    branches: list[Json] = [{"enum": words}] if words else []
    branches += [{"type": "number"}] if any(attribute.number for attribute in attributes) else []
    least = [attribute.least for attribute in attributes if attribute.least is not None]
    branches += [{"type": "integer", "minimum": min(least)}] if least else []
    branches += [{"type": "string", "pattern": _ORDER}] if any(attribute.order for attribute in attributes) else []
    says = "\n".join(dict.fromkeys(f"{attribute.kind}: {attribute.says}" for attribute in attributes))
    value_schema: Json = {"description": says, **(branches[0] if len(branches) == 1 else {"anyOf": branches})}
    return value_schema if len(attributes) > 1 else {**value_schema, "default": attributes[0].default}


def _closed_mapping(properties: Mapping[str, Json]) -> Json:
    return {"type": "object", "properties": dict(properties), "additionalProperties": False}


def _for_op(op: Op, then: Json) -> Json:
    return {"if": {"properties": {"op": {"const": op.name}}, "required": ["op"]}, "then": then}


def _ops() -> Json:
    return {"type": "string", "enum": list(OPS), "description": "`moeparity show ops` lists them."}


def _profile_name(field_schema: Json) -> Json:
    names = {"enum": list(shipped("profiles"))}
    return {**field_schema, "description": "A shipped profile, or a path to one.", **_shipped_or_path(names)}


def _shipped_or_path(names: Json) -> Json:
    """One of the shipped names, or a path."""
    return {"anyOf": [names, {"type": "string", "pattern": "/|" + re.escape(".yaml") + "$"}]}
