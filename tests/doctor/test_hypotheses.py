"""What a fault in transformers makes of log-probabilities is what its hypothesis makes of the simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from moeparity.doctor.case import Case, DoctorRequest, gather, opened
from moeparity.doctor.hypotheses import Hypothesis, coarse, groups, nodes_of, stale_parts
from moeparity.doctor.misread import in_one_phase, misread
from moeparity.doctor.numbers import families
from moeparity.inputs.model import open_model
from tests.doctor.faulty import decoded_otherwise, dropping, older_prompt, renormalised
from tests.doctor.programs import log, scored, tokens

PROMPT = 8


@pytest.fixture(scope="module")
def ids() -> torch.Tensor:
    return tokens(8, 24)


def case_of(small: Path, previous: Path, folder: Path, ids: torch.Tensor, wrong: torch.Tensor) -> Case:
    """The case of a sampler that says `wrong`, beside a trainer without a fault."""
    path = log(folder / "log.jsonl", ids, wrong, scored(small, ids, 4), prompt=PROMPT)
    request = DoctorRequest(evidence=(path,), checkpoint=small, previous=previous, sampler="hf-eager", device="cpu")
    return opened(request, gather(request))


def assert_explained(case: Case, hypothesis: Hypothesis) -> None:
    """The hypothesis makes the difference at the sampler, token by token, up to rounding."""
    (tried,) = case.simulated([hypothesis], "sampler")
    assert case.difference.share(tried.simulated).estimate > 0.8
    assert 0.8 < case.difference.slope(tried.simulated).estimate < 1.2


def sharper_in_one_layer(model: Any) -> None:
    model.model.layers[1].self_attn.scaling *= 1.4


def one_expert_less(model: Any) -> None:
    for layer in model.model.layers:
        layer.mlp.gate.top_k -= 1


@pytest.mark.parametrize(
    ("patch", "family", "of", "number"),
    [
        (sharper_in_one_layer, "softmax-scale", "layers[1].attention.attend", 1.4),
        (one_expert_less, "experts-per-token", "", 5),
        (dropping(8), "capacity-drop", "", 8),
    ],
)
def test_a_number_at_some_nodes(
    small: Path, small_before: Path, tmp_path: Path, ids: torch.Tensor, patch: Any, family: str, of: str, number: float
) -> None:
    case = case_of(small, small_before, tmp_path, ids, scored(small, ids, 1, patch=patch))
    graph = case.bench.model.graph
    whole = next(each for each in families(graph, 24, padded=False) if each.name == family)
    family_of = {part.of: part for part in (whole, *whole.parts(graph))}
    assert_explained(case, family_of[of].at(number))


@pytest.mark.parametrize("count", [6, 12])
def test_a_prefix_of_older_weights(
    small: Path, small_before: Path, tmp_path: Path, ids: torch.Tensor, count: int
) -> None:
    case = case_of(small, small_before, tmp_path, ids, older_prompt(small, small_before, ids, count))
    every = {each.name: each for each in misread(case.bench.model.graph, small_before, case.bench.prompts)}
    assert_explained(case, every[f"first {count} tokens computed with older weights"])


def test_a_mistake_in_decoding_alone(small: Path, small_before: Path, tmp_path: Path, ids: torch.Tensor) -> None:
    """The prompt is right, and its keys and values are; the response is computed behind them with another router."""
    case = case_of(small, small_before, tmp_path, ids, decoded_otherwise(small, ids, PROMPT, renormalised))
    whole = next(each for each in coarse(case.bench.model.graph, None) if each.name == "renormalisation")
    in_decoding = [each for each in in_one_phase(whole, case.bench.prompts) if "decoding" in each.name]
    assert_explained(case, in_decoding[0])
    assert [*in_one_phase(in_decoding[0], case.bench.prompts)] == []


def test_sides_that_compute_the_same_share_their_simulations(
    small: Path, small_before: Path, tmp_path: Path, ids: torch.Tensor
) -> None:
    """Two engines in fp32 make the same of a hypothesis, so it runs once; with another temperature they do not."""
    values = scored(small, ids, 4)
    path = log(tmp_path / "log.jsonl", ids, values, values, prompt=PROMPT)
    request = DoctorRequest(evidence=(path,), checkpoint=small, previous=small_before, device="cpu")
    case = opened(request, gather(request))
    assert {case.profile_in_fp32("sampler"), case.profile_in_fp32("trainer")} == {"hf-eager"}
    warmer = {key: x * 1.1 if key.profile == "vllm" else x for key, x in case.bench.scored.items()}
    case.bench.scored.update(warmer)
    assert case.profile_in_fp32("sampler") == "vllm"


def test_each_node_may_have_older_weights(small: Path, small_before: Path) -> None:
    graph = open_model(small, device="cpu").graph
    names = [each.name for each in stale_parts(graph, small_before)]
    assert len(names) == len({*names})
    ours = {"layers[0].attention.o_proj", "layers[*].attention.o_proj", "layers[1].moe.experts", "layer 1", "norm"}
    assert {f"stale weights of {says}" for says in ours} <= {*names}


def test_parts_are_layers_kinds_and_single_nodes(small: Path) -> None:
    graph = open_model(small, device="cpu").graph
    norms = [node.name for node in graph.nodes if node.name.endswith("_norm")]
    names = [says for says, _ in groups(nodes_of(graph, norms))]
    of_layers = ["attention of layer 0", "attention of layer 1"]
    assert names == [*of_layers, "layers[*].attention.q_norm", "layers[*].attention.k_norm", *norms]
