"""The shipped profiles: each fits every shipped architecture, says where each value is from, and whom it speaks of."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from moeparity.documents.checked import shipped
from moeparity.errors import Where
from moeparity.inputs.model import open_model
from moeparity.ops.attribute import EDGE, RefusedError
from moeparity.plan.bind import bind
from moeparity.plan.config import Config
from moeparity.plan.engine_profile import INFERRED, Profile, load_profile, placement_rules
from moeparity.plan.expand import expand
from moeparity.plan.graph import Graph
from moeparity.plan.match import assignments
from moeparity.plan.rule import EVIDENCE_LEVELS, UNKNOWN, Rule
from moeparity.plan.spec import profile_schema, reader
from moeparity.plan.spec.variant_schema import Placement
from tests.command import ROOT

HERE = Where(Path(__file__))
CONFIGS = shipped("configs", "json")
NAMES = tuple(shipped("profiles"))
ENGINES = {
    *("hf-eager", "hf-default", "hf-v4", "vllm", "vllm-batch-invariant", "sglang", "sglang-deterministic"),
    *("sglang-rl-on-policy", "trtllm", "flashinfer-fused", "megatron", "megatron-deterministic", "nemo-rl-dtensor"),
    *("nemo-rl-dtensor-stable", "torchtitan", "deepep-normal", "deepep-internode", "deepep-low-latency"),
    *("fireworks-unfused", "fireworks-mlp-fusion", "fireworks-bmm", "oracle", "verl-fsdp"),
}


@cache
def graph(name: str) -> Graph:
    return expand(Config(CONFIGS[name]))


@cache
def profile(name: str) -> Profile:
    return load_profile(name, HERE)


def test_every_engine_has_its_profile_and_every_graph_its_sizes() -> None:
    assert set(NAMES) >= ENGINES
    models = {name for path in shipped("models").values() for name in reader.read_graph(path).model_type}
    assert set(CONFIGS) == models


@pytest.mark.parametrize("name", NAMES)
def test_it_binds_to_every_architecture(name: str) -> None:
    for architecture in CONFIGS:
        is_whole = architecture in ("llama4_text", "longcat_flash")
        if name == "tp-invariant" and (graph(architecture).sizes["heads"] % 8 or is_whole):
            refusals = r"heads do not divide by 8 blocks|a batched product|experts without weights"
            with pytest.raises(RefusedError, match=refusals):
                bind(graph(architecture), profile(name), "bf16")
            continue
        sizes = graph(architecture).sizes
        if name.endswith("-fp8-blocks") and any(
            (sizes.get(width) or 0) % 128 for width in ("hidden", "intermediate", "norm_rank")
        ):
            with pytest.raises(RefusedError, match="which groups of 128 do not divide"):
                bind(graph(architecture), profile(name), "bf16")
            continue
        plan = bind(graph(architecture), profile(name), "bf16")
        assert plan.dtypes == ("bf16",)


@pytest.fixture(scope="module")
def variants(tmp_path_factory: pytest.TempPathFactory) -> list[Graph]:
    """OLMoE with clipped queries, keys and values, for what concerns clamps; Qwen3 MoE without renormalised weights;
    the shipped reward model, and the shipped checkpoint with its adapter.
    """
    folder = tmp_path_factory.mktemp("variants")
    graphs = []
    for model, field, value in (("olmoe", "clip_qkv", 8.0), ("qwen3_moe", "norm_topk_prob", False)):
        path = folder / model / "config.json"
        path.parent.mkdir()
        path.write_text(json.dumps({**json.loads(CONFIGS[model].read_text("utf-8")), field: value}), "utf-8")
        graphs.append(expand(Config(path)))
    shipped = ROOT / "checkpoints" / "quickstart"
    adapter = ROOT / "checkpoints" / "quickstart-lora"
    reward = expand(Config(ROOT / "checkpoints" / "reward" / "config.json"))
    return [*graphs, reward, open_model(shipped, device="cpu", values=False, adapter=adapter).graph]


def of_its_sizes(expanded: Graph, rule: Rule) -> Graph:
    """The graph, said to be of the least sizes that the rule goes by, as far as it has them."""
    least = {name: next(filter(numbers.hold, itertools.count(1))) for name, numbers in rule.sizes}
    return replace(expanded, sizes={name: least.get(name, size) for name, size in expanded.sizes.items()})


@pytest.mark.parametrize("name", NAMES)
def test_no_rule_matches_nothing(name: str, variants: list[Graph]) -> None:
    graphs = [*variants, *(graph(architecture) for architecture in CONFIGS)]
    places_of = [{(node.name, a.name) for node in expanded.nodes for a in node.attributes} for expanded in graphs]
    for rule in (rule for layer in profile(name).layers for rule in layer):
        matches = set()
        for expanded, places in zip(graphs, places_of, strict=True):
            for node, attribute, *_ in assignments(of_its_sizes(expanded, rule), rule):
                site, edge, _ = attribute.partition(EDGE)
                matches |= {site + edge} if edge or (node, attribute) in places else set()
        names = {key.rpartition(":")[2] for key, _ in rule.values}
        assert {"".join(attribute.partition(EDGE)[:2]) for attribute in names} == matches, f"{rule.where} {rule.label}"


def stated(spec: profile_schema.ProfileFile) -> list[profile_schema.Fusion | profile_schema.Rule]:
    return [*spec.fusions, *spec.rules]


@pytest.mark.parametrize("path", shipped("profiles").values(), ids=NAMES)
def test_every_value_has_its_source(path: Path) -> None:
    spec = reader.read_profile(path)
    assert path.stem == spec.name
    rules = stated(spec)
    for flag in spec.flags:
        rules += [*flag.fusions, *flag.rules]
    for rule in rules:
        assert rule.evidence is not None, f"{path}:{rule.line}: no evidence"
        assert len(rule.evidence.source.split()) > 1, f"{path}:{rule.line}: {rule.evidence.source!r} is no source"


@pytest.mark.parametrize("name", sorted(ENGINES))
def test_a_profile_of_an_engine_names_it_and_its_version(name: str) -> None:
    spec = reader.read_profile(shipped("profiles")[name])
    assert spec.engine is not None
    assert all((spec.engine.name, spec.engine.version, spec.engine.says))


def test_what_is_taken_over_from_another_engine_is_no_evidence(tmp_path: Path) -> None:
    text = "kind: profile\nname: mine\n{}extends: hf-default\nrules:\n  - {{op: combine, set: {{accumulate: fp32}}}}\n"
    plans = {}
    for engine in (
        "",
        'engine: {name: transformers, version: "5", says: so}\n',
        'engine: {name: X, version: "1", says: so}\n',
    ):
        path = tmp_path / "mine.yaml"
        path.write_text(text.format(engine), "utf-8")
        plans[engine[15:16]] = bind(graph("qwen3_moe"), load_profile("./mine.yaml", Where(tmp_path / "x")), "bf16")

    settings = [plan.settings["layers[0].moe.experts", "implementation"] for plan in plans.values()]
    assert [setting.level for setting in settings] == ["verified", INFERRED, UNKNOWN], "the second is another version"
    assert plans["X"].settings["layers[0].moe.experts", "implementation"].value == "grouped"
    combine = plans["X"].settings["layers[0].moe.combine", "accumulate"]
    assert (combine.level, combine.value) == (UNKNOWN, "fp32")
    assert plans["X"].settings["layers[0].moe.experts", "tf32"].level == ""


def active(name: str, architecture: str, node: str, key: str, tensor: int = 1) -> tuple[object, str]:
    """What runs at a node, and its evidence."""
    ranks = placement_rules(Placement(tensor=tensor), HERE)
    setting = bind(graph(architecture), profile(name), "bf16", placement=ranks).settings[node, key]
    return setting.value, setting.level


@pytest.mark.parametrize("architecture", ["deepseek_v3", "glm4_moe"])
def test_vllm_scales_the_routed_output_not_the_weights(architecture: str) -> None:
    router = next(n.name for n in graph(architecture).nodes if n.op.name == "router")
    assert active("vllm", architecture, router, "scaling") == ("shared_fma", "verified: ptx")
    for eager in ("vllm-eager", "vllm-batch-invariant-eager"):
        assert active(eager, architecture, router, "scaling") == ("output", "read")


FUSED_NORMS = [
    (name, fusion)
    for name, path in shipped("profiles").items()
    for fusion in reader.read_profile(path).fusions
    if {"all_reduce", "rms_norm"} <= set(fusion.chain)
]


@pytest.mark.parametrize(("name", "fusion"), FUSED_NORMS, ids=[f"{name}-{fusion.name}" for name, fusion in FUSED_NORMS])
def test_a_norm_fused_with_an_all_reduce_has_an_order_of_its_own(name: str, fusion: profile_schema.Fusion) -> None:
    """It is another kernel: the tree of the engine's plain norm says nothing of it."""
    assert "rms_norm:order" in fusion.set, f"{name}: {fusion.name}"


def test_vllm_takes_flashinfers_mnnvl_kernel_on_one_node() -> None:
    norm, reduce = "layers[0].moe.norm", "layers[0].attention.reduce"
    for overlay, order, square, collective in (
        ("vllm-allreduce-norm", "flashinfer.mnnvl_rms_norm", "model", "vllm.all_reduce_sm90"),
        ("vllm-allreduce-norm-trtllm", "trtllm.all_reduce_rms_norm", "fp32", "vllm.all_reduce_trtllm_sm90"),
    ):
        assert active(overlay, "qwen3_moe", norm, "order", 4)[0] == order
        assert active(overlay, "qwen3_moe", norm, "square", 4)[0] == square
        assert active(overlay, "qwen3_moe", reduce, "collective", 4)[0] == collective


def test_vllm_adds_in_fp32_only_what_it_fuses_with_a_norm() -> None:
    for profile, collective in (
        ("vllm-allreduce-norm-trtllm", "vllm.all_reduce_trtllm_sm90"),
        ("vllm-all-reduce-trtllm", "vllm.all_reduce_trtllm_unfused_sm90"),
    ):
        assert active(profile, "qwen3_moe", "layers[0].attention.reduce", "collective", 4)[0] == collective


def test_sglangs_norms_are_flashinfers_in_cutedsl_but_those_of_heads() -> None:
    orders = {
        node: active("sglang", "qwen3_moe", f"layers[0].{node}", "order")[0]
        for node in ("attention.norm", "attention.q_norm", "moe.norm")
    }
    assert orders == {
        "attention.norm": "flashinfer.cutedsl_rms_norm",
        "attention.q_norm": "sglang.qk_rms_norm",
        "moe.norm": "flashinfer.cutedsl_rms_norm",
    }
    assert (
        active("sglang-deterministic", "qwen3_moe", "layers[0].attention.q_norm", "order")[0] == "vllm.batch_invariant"
    )
    assert active("sglang-allreduce-norm", "qwen3_moe", "layers[0].moe.norm", "order", 4) == (
        "trtllm.all_reduce_rms_norm",
        "read",
    )


def log_probs(name: str, tensor: int = 1) -> dict[str, object]:
    """What a profile states of the log-softmax, as far as it takes effect."""
    plan = bind(graph("qwen3_moe"), profile(name), "bf16", placement=placement_rules(Placement(tensor=tensor), HERE))
    node = next(node for node in plan.graph.nodes if node.op.name == "log_probs")
    return {key: value for key, value in plan.active(node).items() if plan.settings[node.name, key].level}


IN_16_BITS = {"order": "fold_lo(8) | fold_hi(32) | fold_hi(4) | sequential"}
IN_FP32 = {"order": "fold_lo(4) | halves(256) | fold_hi(32) | fold_hi(4) | sequential"}
RAW = {"temperature": 1}
CUT_OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
NO_SUCH_REQUEST = {"bad_words": "ignored", "allowed_token_ids": "ignored"}
ASKED_FOR = {"logit_bias": "ignored", "min_tokens": "ignored", **NO_SUCH_REQUEST}
OFF = {"repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0, **CUT_OFF, **ASKED_FOR}
OFF |= {"soft_cap": 0.0}
# vLLM's raw log-probabilities have what a grammar leaves out.
ALL_OFF = {"grammar": "ignored", **OFF}
SERVED = {"inputs": "fp32", "output": "fp32"}
SHIFTED = {"form": "shifted", "block": 0, **SERVED}
LOG_PROBS: dict[str, dict[str, object]] = {
    "hf-default": {"form": "unrounded", **RAW, **ALL_OFF},
    "hf-v4": {"form": "unrounded", **RAW, **ALL_OFF},
    "vllm": {**SHIFTED, **RAW, **OFF, **IN_16_BITS},
    "vllm-batch-invariant": {**SHIFTED, **RAW, **OFF, **IN_16_BITS},
    "vllm-fp32-head": {**SHIFTED, **RAW, **OFF, **IN_FP32},
    "sglang": {"form": "log_of_softmax", **SERVED, **CUT_OFF, **NO_SUCH_REQUEST},
    "sglang-prompt-logprobs": {**SHIFTED, **RAW, **CUT_OFF, **NO_SUCH_REQUEST, "block": 16384},
    "sglang-deterministic": {**SHIFTED, **CUT_OFF, **NO_SUCH_REQUEST, **IN_FP32},
    "sglang-rl-on-policy": {**SHIFTED, **CUT_OFF, **NO_SUCH_REQUEST, **IN_16_BITS, "inputs": "bf16", "output": "bf16"},
    "megatron": {**SHIFTED, **RAW, **ALL_OFF, "order": "native"},
    "nemo-rl-dtensor-stable": {**SHIFTED, "order": "native"},
    "torchtitan": {"form": "log_softmax", **RAW, **SERVED},
    "torchtitan-batch-invariant": {**SHIFTED, **RAW, **IN_FP32},
    "trtllm": {"form": "log_softmax", **RAW, **SERVED},
    "verl-fsdp": {"form": "minus_logsumexp", **RAW, **ALL_OFF, "block": 16384, **SERVED},
    # Which says nothing of them: as transformers has them.
    "fireworks-unfused": {"form": "unrounded", **RAW, **ALL_OFF},
}


@pytest.mark.parametrize("name", LOG_PROBS)
def test_each_engine_makes_log_probabilities_in_its_own_way(name: str) -> None:
    assert log_probs(name) == LOG_PROBS[name]


@pytest.mark.parametrize(("name", "level"), [("megatron", "inferred"), ("megatron-deterministic", "read")])
def test_trainers_reduce_the_sums_of_a_vocabulary_that_is_cut(name: str, level: str) -> None:
    assert active(name, "qwen3_moe", "log_probs", "collective", 4) == ("nccl.ring", level)
    placement = {"tensor": 4, "parallel": "vocabulary", "collective": "nccl.ring"}
    assert log_probs(name, 4) == {**LOG_PROBS["megatron"], **placement}


@pytest.mark.parametrize("name", ["vllm", "vllm-batch-invariant", "sglang-deterministic", "sglang-rl-on-policy"])
def test_servers_gather_logits_before_their_log_softmax(name: str) -> None:
    assert log_probs(name, 4) == {**LOG_PROBS[name], "tensor": 4, "parallel": "gathered"}


def test_what_divides_by_a_temperature_rounds_it_as_its_engine_does() -> None:
    for name, division, scaled, levels in (
        ("vllm", "divide", "fp32", ("read", "read")),
        ("sglang", "divide", "fp32", ("verified", "verified")),
        ("sglang-rl-on-policy", "divide", "bf16", ("verified", "read")),
        ("nemo-rl-dtensor", "reciprocal", "model", ("read", "read")),
        ("verl-fsdp", "divide", "model", ("read", "read")),
    ):
        assert active(name, "qwen3_moe", "log_probs", "division") == (division, levels[0])
        assert active(name, "qwen3_moe", "log_probs", "scaled") == (scaled, levels[1])


def test_overlays_on_another_engine_claim_only_their_own() -> None:
    plan = bind(graph("qwen3_moe"), profile("deepep-normal"), "bf16")
    levels = {name: plan.settings[name].level for name in plan.settings}
    assert levels["layers[0].moe.combine", "partial"] == "read"
    assert levels["layers[0].moe.experts", "score_site"] == UNKNOWN
    own_levels = {level for level in levels.values() if level}
    assert own_levels == {"read", UNKNOWN}
    eager = bind(graph("qwen3_moe"), profile("oracle"), "bf16")
    assert {setting.level for setting in eager.settings.values()} <= {*EVIDENCE_LEVELS, ""}


@pytest.mark.parametrize(
    ("overlay", "base"),
    [
        ("megatron-unfused-rope", "megatron"),
        ("megatron-unfused-swiglu", "megatron"),
        ("megatron-permute-fusion", "megatron"),
        ("megatron-router-fp32", "megatron"),
        ("megatron-no-grad", "megatron"),
        ("sglang-fp32-head", "sglang"),
        ("vllm-fp32-head", "vllm"),
        ("vllm-fp8-kv", "vllm"),
        ("sglang-fp8-kv", "sglang"),
        ("vllm-eager", "vllm"),
        ("vllm-batch-invariant-eager", "vllm-batch-invariant"),
        ("sglang-deterministic", "sglang"),
        ("flashinfer-unfused-finalize", "flashinfer-fused"),
    ],
)
def test_the_flag_of_an_overlay_sets_it_and_changes_what_it_lies_on(overlay: str, base: str) -> None:
    """Every flag that an overlay is set by is no flag that its base is set by."""
    above, below = (reader.read_profile(shipped("profiles")[name]) for name in (overlay, base))
    flags = {rule.set_by for rule in stated(above) if rule.set_by}
    assert flags
    assert flags.isdisjoint({rule.set_by for rule in stated(below)})


def test_a_default_is_not_said_to_be_set_by_the_flag_that_changes_it() -> None:
    """megatron computes rotary in fp32 by itself; --no-rope-fusion is what would change that, and sets the other."""
    names = ("megatron", "megatron-unfused-rope")
    megatron, unfused = (bind(graph("qwen3_moe"), profile(name), "bf16") for name in names)
    rotary = next(node.name for node in graph("qwen3_moe").nodes if node.op.name == "rotary")
    stands = [plan.settings[rotary, "output"] for plan in (megatron, unfused)]
    assert [stand.set_by for stand in stands] == ["default (megatron)", "--no-rope-fusion (megatron-unfused-rope)"]


@pytest.mark.parametrize("name", ["vllm", "sglang", "trtllm", "megatron", "torchtitan", "vllm-cpu"])
@pytest.mark.parametrize("architecture", ["gpt_oss", "deepseek_v3", "nemotron_h", "granitemoe_swa", "cohere2_moe"])
def test_what_an_engine_does_not_say_of_a_model_is_as_transformers_has_it(name: str, architecture: str) -> None:
    """In the first phase; a step of one token may be put otherwise."""
    theirs, ours = (bind(graph(architecture), profile(of), "bf16") for of in ("hf-eager", name))
    of_models = {rule.where: rule for rule in profile("hf-eager").layers[-1] if rule.model_types is not None}
    compared = 0
    for node in graph(architecture).nodes:
        stated, computed = theirs.active(node), ours.active(node)
        for attribute in node.attributes:
            setting = ours.settings[node.name, attribute.name]
            if (
                setting.rule is not None
                and setting.rule.where in of_models
                and attribute.name in stated.keys() & computed
            ):
                assert (computed[attribute.name], setting.level) == (stated[attribute.name], "unknown")
                compared += 1
    assert compared


def test_an_op_that_an_engine_never_names_is_as_transformers_has_it() -> None:
    plans = [bind(graph("nemotron_h"), profile(name), "bf16") for name in ("hf-eager", "vllm")]
    scan = next(node for node in graph("nemotron_h").nodes if node.op.name == "mamba2")
    assert plans[0].active(scan) == plans[1].active(scan)
    assert plans[1].settings[scan.name, "skip"].level == "unknown"
