"""The shipped profiles: each fits every shipped architecture, says where each value is from, and whom it speaks of."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from moeparity.errors import Where
from moeparity.graph.bind import BoundGraph, bind
from moeparity.graph.config import Config
from moeparity.graph.expand import expand
from moeparity.graph.graph import Graph
from moeparity.graph.match import assignments
from moeparity.graph.profile import EVIDENCE_LEVELS, UNKNOWN, Profile, load_profile
from moeparity.ops.declaration import EDGE
from moeparity.spec import files, schema

HERE = Where(Path(__file__))
CONFIGS = files.shipped("configs", "json")
NAMES = tuple(files.shipped("profiles"))
ENGINES = {
    *("hf-eager", "hf-default", "hf-v4", "vllm", "vllm-batch-invariant", "sglang", "sglang-deterministic"),
    *("sglang-rl-on-policy", "trtllm", "flashinfer-fused", "megatron", "megatron-deterministic", "nemo-rl-dtensor"),
    *("nemo-rl-dtensor-stable", "torchtitan", "deepep-normal", "deepep-internode", "deepep-low-latency"),
    *("fireworks-unfused", "fireworks-mlp-fusion", "fireworks-bmm", "oracle"),
}


@cache
def graph(name: str) -> Graph:
    return expand(Config(CONFIGS[name]))


@cache
def profile(name: str) -> Profile:
    return load_profile(name, HERE)


def test_every_engine_has_its_profile_and_every_graph_its_sizes() -> None:
    assert set(NAMES) >= ENGINES
    models = {name for path in files.shipped("models").values() for name in files.read_graph(path).model_type}
    assert set(CONFIGS) == models


@pytest.mark.parametrize("name", NAMES)
def test_it_binds_to_every_architecture(name: str) -> None:
    for architecture in CONFIGS:
        plan = bind(graph(architecture), profile(name), "bf16")
        assert plan.dtypes == ("bf16",)


@pytest.fixture(scope="module")
def clipped(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    """OLMoE with clipped queries, keys and values, for what concerns clamps."""
    path = tmp_path_factory.mktemp("olmoe") / "config.json"
    path.write_text(json.dumps({**json.loads(CONFIGS["olmoe"].read_text("utf-8")), "clip_qkv": 8.0}), "utf-8")
    return expand(Config(path))


@pytest.mark.parametrize("name", NAMES)
def test_no_rule_matches_nothing(name: str, clipped: Graph) -> None:
    graphs = [clipped, *(graph(architecture) for architecture in CONFIGS)]
    known = [{(node.name, a.name) for node in each.nodes for a in node.attributes} for each in graphs]
    for rule in (rule for layer in profile(name).layers for rule in layer):
        found = set()
        for each, places in zip(graphs, known, strict=True):
            for node, attribute, _ in assignments(each, rule):
                site, edge, _ = attribute.partition(EDGE)
                found |= {site + edge} if edge or (node, attribute) in places else set()
        wanted = {key.rpartition(":")[2] for key, _ in rule.values}
        assert {"".join(attribute.partition(EDGE)[:2]) for attribute in wanted} == found, f"{rule.where} {rule.label}"


@pytest.mark.parametrize("path", files.shipped("profiles").values(), ids=NAMES)
def test_every_value_has_its_source_and_its_flag(path: Path) -> None:
    spec = files.read_profile(path)
    assert path.stem == spec.name
    stated: list[schema.Fusion | schema.Rule] = [*spec.fusions, *spec.rules]
    for given in stated:
        assert given.evidence is not None, f"{path}:{given.line}: no evidence"
        assert len(given.evidence.source.split()) > 1, f"{path}:{given.line}: {given.evidence.source!r} is no source"
        assert given.flag, f"{path}:{given.line}: no flag; where none changes it, say none"


@pytest.mark.parametrize("name", sorted(ENGINES))
def test_a_profile_of_an_engine_names_it_and_its_version(name: str) -> None:
    spec = files.read_profile(files.shipped("profiles")[name])
    assert spec.engine is not None
    assert all((spec.engine.name, spec.engine.version, spec.engine.says))


def test_what_is_taken_over_from_another_engine_is_no_evidence(tmp_path: Path) -> None:
    own = "kind: profile\nname: mine\n{}extends: hf-default\nrules:\n  - {{op: combine, set: {{accumulate: fp32}}}}\n"
    plans = {}
    for engine in (
        "",
        'engine: {name: transformers, version: "5", says: so}\n',
        'engine: {name: X, version: "1", says: so}\n',
    ):
        path = tmp_path / "mine.yaml"
        path.write_text(own.format(engine), "utf-8")
        plans[engine[15:16]] = bind(graph("qwen3_moe"), load_profile("./mine.yaml", Where(tmp_path / "x")), "bf16")

    def setting(plan: BoundGraph, name: str) -> tuple[str, str | None]:
        found = plan.settings["layers[0].moe.experts", name]
        return found.level, found.rule.flag if found.rule else None

    flag = 'experts_implementation="grouped_mm"'
    assert [setting(plan, "implementation") for plan in plans.values()] == [
        ("verified", flag),
        ("verified", flag),
        (UNKNOWN, None),
    ]
    assert plans["X"].settings["layers[0].moe.experts", "implementation"].value == "grouped"
    combine = plans["X"].settings["layers[0].moe.combine", "accumulate"]
    assert (combine.level, combine.value) == (UNKNOWN, "fp32")
    assert plans["X"].settings["layers[0].moe.experts", "tf32"].level == ""


def test_overlays_on_another_engine_claim_only_their_own() -> None:
    plan = bind(graph("qwen3_moe"), profile("deepep-normal"), "bf16")
    levels = {name: plan.settings[name].level for name in plan.settings}
    assert levels["layers[0].moe.combine", "partial"] == "read"
    assert levels["layers[0].moe.experts", "score_site"] == UNKNOWN
    stated = {level for level in levels.values() if level}
    assert stated == {"read", UNKNOWN}
    eager = bind(graph("qwen3_moe"), profile("oracle"), "bf16")
    assert {setting.level for setting in eager.settings.values()} <= {*EVIDENCE_LEVELS, ""}
