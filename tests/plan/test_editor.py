"""The JSON Schemas: what is shipped validates, what is broken does not, and an editor can complete what ops declare."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from moeparity.documents import yaml
from moeparity.documents.checked import shipped
from moeparity.ops.registry import OPS
from moeparity.plan.editor import json_schema
from moeparity.plan.layers import LAYER_RULES
from moeparity.plan.spec import reader
from tests.command import alone, inside
from tests.errors.base import BAD

ROOT = Path(__file__).parents[2]
SHIPPED = [
    *(("graph", path) for path in shipped("models").values()),
    *(("profile", path) for path in shipped("profiles").values()),
    *(("map", path) for path in shipped("maps").values()),
    *(("recipe", path) for path in sorted((ROOT / "recipes").glob("*.yaml"))),
]
BROKEN = [
    *("graph-bad-name", "graph-missing-key-in-node", "graph-missing-parameter", "graph-missing-weight"),
    *("graph-unknown-key", "graph-unknown-key-in-case", "graph-unknown-key-in-node", "graph-unknown-layer-rule"),
    *("graph-unknown-op", "graph-unknown-parameter", "graph-unknown-score", "graph-unknown-weight"),
    *("graph-weight-where-none-is-taken", "graph-wrong-kind", "graph-wrong-number-of-inputs"),
    *("profile-bad-dtype", "profile-bad-value", "profile-evidence-level-unknown", "profile-extends-unknown"),
    *("profile-no-attributes", "profile-no-selector", "profile-rules-not-a-list", "profile-set-missing"),
    *("profile-phase-unknown", "profile-phase-of-none", "profile-fusion-phase-unknown", "recipe-set-phase-unknown"),
    *("profile-two-selectors", "profile-unknown-attribute", "profile-unknown-op", "profile-wrong-kind"),
    *("recipe-boolean-in-set", "recipe-dtype-unknown", "recipe-gate-unknown-metric", "recipe-gate-zero"),
    *("recipe-micro-batch-zero", "recipe-missing-key", "recipe-profile-unknown", "recipe-sampled-from-nobody"),
    *("recipe-set-no-attribute", "recipe-set-bad-value", "recipe-set-unknown-attribute", "recipe-unknown-key"),
    *("recipe-schedule-unknown-key", "recipe-schedule-rule-unknown", "recipe-schedule-prefill-a-word"),
    *("recipe-schedule-chunk-zero", "recipe-schedule-decode-from-nowhere", "recipe-schedule-bucket-too-large"),
    *("recipe-expect-unknown-metric", "recipe-expect-share-in-percent", "recipe-expect-bounds-empty"),
]
"""Bad inputs of which a schema can know that they are bad."""


@cache
def validator(kind: str) -> Any:
    return jsonschema.Draft202012Validator(json_schema(kind))


def errors(kind: str, data: Any) -> list[str]:
    # As an editor sees it: no lines, no tuples.
    return [error.message for error in validator(kind).iter_errors(json.loads(json.dumps(data)))]


def profile(rule: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "profile", "name": "mine", "rules": [rule]}


@pytest.mark.parametrize(("kind", "path"), SHIPPED, ids=lambda parameter: getattr(parameter, "stem", parameter))
def test_what_is_shipped_validates(kind: str, path: Path) -> None:
    assert not errors(kind, yaml.load(path))


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_does_not(name: str) -> None:
    assert errors(name.partition("-")[0], yaml.load(BAD / f"{name}.yaml"))


@pytest.mark.parametrize("kind", reader.KINDS)
def test_schemas_are_valid_and_closed(kind: str) -> None:
    schema = json_schema(kind)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$id"] == f"urn:moeparity:schema:{kind}"
    assert schema["title"] == f"moeparity {kind}"
    assert f"kind: {kind}" in schema["description"]
    assert not [part for part in parts(schema["$defs"]) if isinstance(part.get("title"), str)]
    assert {"type": "null"} not in list(parts(schema))
    # What a condition says of an op's node or rule stands beside the closed mapping itself, and has no type.
    declared = [part for part in parts(schema) if part.get("type") == "object" and _has_reference(part)]
    assert len(declared) > 1
    assert all(part["additionalProperties"] is False for part in declared)


def parts(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
    for inner in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from parts(inner)


def _has_reference(part: dict[str, Any]) -> bool:
    return "properties" in part or "patternProperties" in part


def test_aliases_are_the_names_in_the_file() -> None:
    assert "in" in json_schema("graph")["$defs"]["Node"]["properties"]
    assert "from" in json_schema("recipe")["$defs"]["Sample"]["properties"]


def test_layer_rules_and_ops_are_listed() -> None:
    definitions = json_schema("graph")["$defs"]
    assert definitions["Layers"]["properties"]["rule"]["enum"] == list(LAYER_RULES)
    assert definitions["Node"]["properties"]["op"]["enum"] == list(OPS)


@pytest.mark.parametrize("name", OPS)
def test_a_rule_offers_the_attributes_of_its_op_and_no_others(name: str) -> None:
    branches = {
        b["if"]["properties"]["op"]["const"]: b["then"] for b in json_schema("profile")["$defs"]["Rule"]["allOf"][:-1]
    }
    offered = branches[name]["properties"]["set"]
    assert offered["properties"].keys() == {attribute.name for attribute in OPS[name].attributes}
    for attribute in OPS[name].attributes:
        field_schema = offered["properties"][attribute.name]
        assert attribute.says in field_schema["description"]
        assert field_schema["default"] == attribute.default
        for value in (*attribute.values, attribute.default):
            assert not errors("profile", profile({"op": name, "set": {attribute.name: value}}))
        assert errors("profile", profile({"op": name, "set": {attribute.name: "no such value"}}))
        assert bool(errors("profile", profile({"op": name, "set": {attribute.name: 0.5}}))) != attribute.number
    assert errors("profile", profile({"op": name, "set": {"no_such_attribute": "fp32"}}))


def test_selected_nodes_take_the_attributes_of_any_op() -> None:
    assert not errors("profile", profile({"nodes": "layers[*].moe.gate", "set": {"output": "fp32"}}))
    assert errors("profile", profile({"nodes": "layers[*].moe.gate", "set": {"ouput": "fp32"}}))


def test_sites_on_edges() -> None:
    (site, op) = next((a.name, op.name) for op in OPS.values() for a in op.attributes if a.edge)
    assert not errors("profile", profile({"op": op, "set": {f"{site}->rms_norm": "stored"}}))
    assert errors("profile", profile({"op": op, "set": {f"{site}->rms_norm": "fp31"}}))
    assert errors("profile", profile({"op": op, "set": {"no_site->rms_norm": "fp32"}}))


def test_fusions_and_a_recipes_own_settings() -> None:
    fusion = {"name": "add_norm", "chain": ["add", "rms_norm"], "set": {"rms_norm:normalized": "fp32"}}
    assert not errors("profile", {"kind": "profile", "name": "mine", "fusions": [fusion]})
    assert errors("profile", {"kind": "profile", "name": "mine", "fusions": [fusion | {"set": {"normalized": "fp32"}}]})
    recipe = yaml.load(ROOT / "recipes" / "rounding.yaml")
    for key, good in (
        ("layers[2:4].moe.gate:output", True),
        ("**.gate:output", True),
        ("gate", False),
        ("gate:ouput", False),
        ("**.gate:output@decode", True),
        ("**.gate:output@chunk, verify", True),
        ("**.gate:output@decoding", False),
    ):
        candidate = {"profile": "./mine.yaml", "set": {key: "fp32"}}
        assert bool(errors("recipe", {**recipe, "candidate": candidate})) != good


@pytest.mark.parametrize("kind", reader.KINDS)
def test_the_command_prints_it(kind: str) -> None:
    done = (alone if kind == "recipe" else inside)("show", "schema", kind)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads(json.dumps(json_schema(kind)))
