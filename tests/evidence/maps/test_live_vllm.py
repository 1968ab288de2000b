"""vLLM 0.33.0's own models, built here, against the map and the layout of vLLM: their modules' names, the values of a
forward, what each rank loads; and its own writer of hidden states against what `moeparity import vllm` makes of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from moeparity.bisection.pipeline import bisect
from moeparity.engine.forward import forward
from moeparity.errors import Where
from moeparity.evidence.importers.registry import import_trace
from moeparity.evidence.maps.forwards import module_calls
from moeparity.evidence.maps.module_map import LAYER, load_map, map_of
from moeparity.evidence.trace.reader import open_trace
from moeparity.evidence.weights.compare import compare
from moeparity.evidence.weights.fingerprint_files import open_weights
from moeparity.numerics.bits import same_bits
from moeparity.plan.address import file_key, role
from tests.engines.live import Found, ask
from tests.evidence.node_values import values_at
from tests.evidence.traced import recipe
from tests.evidence.weights.programs import grouped, job
from tests.hf.compare import opened

pytestmark = pytest.mark.live
RANKS = 4
MODELS = ("qwen3_moe", "mixtral", "qwen2_moe", "olmoe", "glm4_moe", "deepseek_v3")
IDS = torch.randint(0, 300, (1, 11), generator=torch.Generator().manual_seed(4))
STATES = torch.randn(11, 3, 8, generator=torch.Generator().manual_seed(5)).bfloat16()
INSIDE = {"rotary.cos", "rotary.sin", "log_probs"} | {
    f"layers{LAYER}.{name}"
    for name in (
        "attention.rope.q", "attention.rope.k", "attention.cache.k", "attention.cache.v", "attention.rope.pe",
        "attention.expand", "attention.kv_split.latent", "attention.kv_split.rope", "attention.q_split.nope",
        "attention.q_split.rope", "moe.router.ids", "moe.router.weights", "moe.experts",
    )
}  # fmt: skip
"""What no module of vLLM shows: it is computed within attention's and the experts' modules."""


SHARED = {
    f"layers{LAYER}.moe.{name}"
    for name in ("combine", "combine_reduce", "shared", "shared_add", "shared_gate", "shared_reduce")
}
"""Where there is a shared expert, its sum with the others is made in the experts' module."""


@pytest.fixture(scope="module")
def cut_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return grouped(tmp_path_factory.mktemp("cut") / "checkpoint", dense=True)


@pytest.fixture(scope="module")
def live_run(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, cut_checkpoint: Path
) -> tuple[Found, Path]:
    trace = tmp_path_factory.mktemp("vllm") / "trace"
    cases: dict[str, dict[str, Any]] = {
        name: {"kind": "names", "folder": str(request.getfixturevalue(name))} for name in MODELS
    }
    whole = {"kind": "forward", "folder": cases["qwen3_moe"]["folder"], "trace": str(trace), "ids": IDS[0]}
    loaded: dict[str, dict[str, Any]] = {
        f"loaded {experts} {rank}": {
            "kind": "loaded", "folder": str(cut_checkpoint), "rank": rank, "ranks": RANKS, "experts": experts
        }
        for experts in (False, True) for rank in range(RANKS)
    }  # fmt: skip
    hidden = trace.with_name("hidden")
    hidden.mkdir()
    written = {"kind": "write", "folder": str(hidden), "states": STATES, "ids": IDS[0], "unfinished": "cmpl-1"}
    cases |= {"forward": whole, "write": written, **loaded}
    return ask("live_vllm_modules", ("vllm", "vllm-arguments"), cases), trace


@pytest.mark.parametrize("experts", [False, True])
def test_what_each_rank_loads_is_what_the_layout_says(
    live_run: tuple[Found, Path], cut_checkpoint: Path, experts: bool
) -> None:
    """Two heads of keys and values on four ranks, gate and up in one, a filled vocabulary, experts cut or as wholes."""
    ranks = [live_run[0][f"loaded {experts} {rank}"] for rank in range(RANKS)]
    report = compare(open_weights(cut_checkpoint), job(ranks, experts=experts, checkpoint=cut_checkpoint))
    assert (report.exit_code, report.findings, report.aside) == (0, (), ())
    assert report.equal == report.compared == 35
    # Heads of keys and values of another rank.
    ranks[1], ranks[2] = ranks[2], ranks[1]
    report = compare(open_weights(cut_checkpoint), job(ranks, experts=experts, checkpoint=cut_checkpoint))
    assert report.exit_code == 1
    assert {finding.sort for finding in report.findings} >= {"replicas"}, report.findings


@pytest.mark.parametrize("name", MODELS)
def test_every_value_that_is_mapped_has_a_module_of_that_name(
    request: pytest.FixtureRequest, live_run: tuple[Found, Path], name: str
) -> None:
    graph = opened(request.getfixturevalue(name)).graph
    modules = live_run[0][name].keys()
    places = load_map("vllm", Where(Path("vllm"))).on(graph)
    # The sampler's log-probabilities are no module's: an op's, outside of all.
    mapped = {value: shown for value, shown in places.items() if any(place.module for place in shown)}
    assert places.keys() - mapped.keys() == {"log_probs"}
    nowhere = {value for value, shown in mapped.items() if not any(place.module in modules for place in shown)}
    assert nowhere == set()
    unmapped = {role(value) for node in graph.nodes for value in node.values} - {role(value) for value in places}
    assert unmapped <= INSIDE | (SHARED if f"layers{LAYER}.moe.shared_add" in unmapped else set())


def test_a_forward_shows_the_values_of_the_nodes(qwen3_moe: Path, live_run: tuple[Found, Path]) -> None:
    """Each within what bf16 makes of it; before attention vLLM computes here as transformers does, bit for bit."""
    model = opened(qwen3_moe)
    trace = open_trace(live_run[1]).ranks[0]
    assert map_of(module_calls(trace), Where(live_run[1])).file.program == "vllm"
    shown = values_at(trace, model.graph)
    computed = forward(model, IDS, profile="hf-eager", dtype="bf16", save=["**"])
    tensors = {
        value: tensor
        for node in model.graph.nodes
        if node.name in shown
        for value, tensor in zip(node.values, shown[node.name].outputs, strict=True)
        if tensor is not None
    }
    assert {role(value) for node in model.graph.nodes for value in node.values} - {role(v) for v in tensors} <= INSIDE
    for value, tensor in tensors.items():
        expected = computed[file_key(value)].double()
        assert float((tensor.double() - expected).norm() / expected.norm()) < 0.1, value
    for name in ("norm", "q_proj", "k_proj", "v_proj", "q_norm", "k_norm"):
        assert same_bits(tensors[f"layers[0].attention.{name}"], computed[file_key(f"layers[0].attention.{name}")])


def test_it_is_a_side_of_a_recipe(qwen3_moe: Path, live_run: tuple[Found, Path], tmp_path: Path) -> None:
    report = bisect(recipe(tmp_path, qwen3_moe, IDS, live_run[1], grafts=False), device="cpu")
    # The first screen names the largest local error; in order of computation attention of layer 0 comes first.
    assert any(root.node.startswith("layers[0].attention") for root in report.roots), report.roots
    assert report.summary.starts.startswith(report.roots[0].node)
    assert "recorded values at" in report.summary.sure


def test_the_hidden_states_that_its_writer_wrote_are_imported(live_run: tuple[Found, Path], tmp_path: Path) -> None:
    folder, loaded = live_run[1].with_name("hidden"), live_run[0]["write"]
    assert same_bits(loaded["hidden_states"], STATES)
    assert sorted(file.name for file in folder.glob("cmpl-1*")) == ["cmpl-1.safetensors.lock"]
    import_trace("vllm", folder, tmp_path / "t")
    rank = open_trace(tmp_path / "t").ranks[0]
    calls = {call.path: call for call in rank.contents.calls}
    assert calls.keys() == {"", *(f"hidden_states.{layer}" for layer in range(3))}
    shown = {path: next(iter((*call.outputs.values(), *call.inputs.values()))) for path, call in calls.items()}
    tensors = {path: rank.tensor(rank.contents.values[number]) for path, number in shown.items()}
    expected = {"": IDS[0]} | {f"hidden_states.{layer}": STATES[:, layer].contiguous() for layer in range(3)}
    for path, tensor in tensors.items():
        assert tensor is not None
        assert same_bits(tensor, expected[path]), path
