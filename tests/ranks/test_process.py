"""A process is held to what a side of a recipe claims: each choice that it breaks is named, and what it can't show."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from moeparity.bisection.contract import contract_of
from moeparity.cli.schemas import report_schema
from moeparity.errors import ContractError, SpecError
from moeparity.ranks import WeightLayout, hold
from moeparity.ranks.contract import Contract, EnvironmentClaim, read_contract, sealed
from moeparity.ranks.journal import Journal
from tests.command import inside
from tests.errors.base import BASE, TOKENS
from tests.evidence.weights.programs import program, served

RECIPE = f"""kind: recipe
checkpoint: {BASE}
tokens: {{file: {BASE / TOKENS}, sampled_from: candidate}}
reference: {{profile: hf-eager, micro_batch: 2}}
candidate: {{profile: hf-default, micro_batch: 1}}
gate: {{metric: k3, below: 1e-4}}
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("contract") / "recipe.yaml"
    path.write_text(RECIPE)
    return path


@pytest.fixture(scope="module")
def claims(recipe: Path) -> Contract:
    """Without the version of transformers, which is that of the machine at hand."""
    whole = contract_of(recipe, "candidate")
    return replace(whole, environment=sealed(EnvironmentClaim(digest="", fields={})))


@pytest.fixture(scope="module")
def trained() -> Any:
    return AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.bfloat16)


@pytest.fixture
def model(trained: Any) -> Iterator[Any]:
    """The model as the candidate's profile says; put back afterwards."""
    before = {name: value.clone() for name, value in trained.state_dict().items()}
    yield trained
    trained.load_state_dict(before)
    trained.set_attn_implementation("sdpa")


LAYOUT = WeightLayout(BASE, "transformers")


def broken(claims: Contract, *modules: nn.Module, **arguments: Any) -> list[str]:
    """The breaches of a process."""
    arguments.setdefault("layout", LAYOUT)
    return [str(breach) for breach in hold(claims, *modules, refuse=False, **arguments).breaches]


def test_a_process_that_keeps_its_contract_is_told_what_it_cant_show(claims: Contract, model: Any) -> None:
    holding = hold(claims, model, layout=LAYOUT)
    assert holding.kept["weights"] == ["45 tensors, by the sums of 1 rank"]
    assert holding.kept["profile"] == ["4 choices, as the process shows"]
    text = str(holding)
    for words in (
        "2 buffers that the checkpoint does not have",
        "schedule: a process does not show it",
        "placement: tensor",
    ):
        assert f"not checked: {words}" in text.replace("weights: ", "")
    choices = sum(len(node.choices) for node in claims.profile.nodes.values())
    assert f"not checked: profile: {choices - 4} choices that nothing here shows" in text


def test_a_weight_an_attention_and_a_schedule_are_named(claims: Contract, model: Any) -> None:
    with torch.no_grad():
        model.model.layers[1].mlp.experts.gate_up_proj[2, 9, 3] *= -1
    model.set_attn_implementation("eager")
    with pytest.raises(ContractError) as refused:
        hold(claims, model, layout=LAYOUT, micro_batch=2)
    words = str(refused.value)
    assert "weights: model.layers.1.mlp.experts.2.up_proj.weight: bfloat16 [8, 16], bits " in words
    assert (
        "profile: layers[0].attention.attend:implementation and at 1 more node: sdpa in the contract, eager here, as "
        "the process shows" in words
    )
    assert "schedule: batch: 1 in the contract, 2 here" in words


def test_weights_of_another_dtype_missing_ones_and_adapters(claims: Contract, model: Any) -> None:
    wide = program({name: value.float() for name, value in served().items()})
    (first, *_) = broken(claims, wide, layout=WeightLayout(BASE, "vllm"))
    assert first.endswith("float32 [32, 16] here")
    assert not [w for w in broken(claims, wide, layout=WeightLayout(BASE, "vllm", dtype="bf16")) if "weights" in w]
    lacking = served()
    del lacking["model.norm.weight"]
    lacking["model.norm.lora_A.weight"] = torch.zeros(2, 16)
    words = [w for w in broken(claims, program(lacking), layout=WeightLayout(BASE, "vllm")) if w.startswith("weights")]
    assert [w.partition(": ")[2].partition(":")[0] for w in words] == ["model.norm.weight", "model.norm.lora_A.weight"]
    assert words[1].endswith("no such parameter in the contract, there is one here")


def test_a_rank_alone_is_not_asked_for_what_the_others_hold(claims: Contract) -> None:
    holding = hold(claims, program(served((0, 2))), layout=WeightLayout(BASE, "vllm", tensor=(0, 2)), refuse=False)
    assert {breach.section for breach in holding.breaches} == {"placement"}
    assert str(holding.breaches[0]) == "placement: tensor: 1 in the contract, 2 here"
    assert any("which the ranks of this job do not hold whole" in words for words in holding.unchecked)


def test_parameters_that_do_not_fit_the_layout_break_it(claims: Contract, model: Any) -> None:
    words = broken(claims, nn.Linear(3, 3), layout=WeightLayout(BASE))
    assert any("weights: weight: no such parameter in the contract" in line for line in words)
    odd = program({"model.norm.weight": torch.zeros(5)})
    assert broken(claims, odd)[0].startswith(
        "weights: layout: one that fits in the contract, model.norm.weight: its shape"
    )


def test_a_launch_file_is_held_choice_by_choice(claims: Contract, tmp_path: Path) -> None:
    script = tmp_path / "serve.sh"
    script.write_text(f"vllm serve {BASE} --dtype float16 --tensor-parallel-size 2\n")
    words = broken(claims, launch=script)
    assert "profile: dtype: bf16 in the contract, fp16 here" in words
    assert "placement: tensor: 1 in the contract, 2 here" in words
    attention = "layers[0].attention.attend:implementation and at 1 more node: sdpa in the contract, flash here"
    assert f"profile: {attention}, as the launch file asks" in words
    with pytest.raises(ContractError, match=r"launch=: its choices are those of a graph"):
        hold(claims, launch=script, layout=WeightLayout())
    with pytest.raises(ContractError, match=r"role is 'trainer'\. Say which"):
        hold(claims, launch=script, role="trainer", layout=LAYOUT)


def test_what_a_trace_decided_is_held_and_what_its_profile_takes_over_is_not(claims: Contract, tmp_path: Path) -> None:
    profile, decided = tmp_path / "explained.yaml", 'evidence: {level: "verified: trace", source: t}'
    profile.write_text(
        "kind: profile\nname: explained\nextends: hf-eager\nrules:\n"
        f'  - {{nodes: "layers[1].moe.combine", set: {{accumulate: fp64}}, {decided}}}\n'
        f'  - {{nodes: "layers[0].moe.gate", set: {{output: model}}, {decided}}}\n'
    )
    holding = hold(claims, layout=LAYOUT, explained=profile, refuse=False)
    assert list(map(str, holding.breaches)) == [
        "profile: layers[1].moe.combine:accumulate: fp32 in the contract, fp64 here, as its trace shows"
    ]
    assert holding.kept["profile"] == ["1 choice, as its trace shows"]
    with pytest.raises(ContractError, match="explained=: its choices are those of a graph"):
        hold(claims, explained=profile)
    profile.write_text("kind: profile\nname: explained\nextends: hf-eager\nrules: []\n")
    with pytest.raises(ContractError, match=r"no choice in it is `verified: trace`"):
        hold(claims, layout=LAYOUT, explained=profile)


def test_the_environment_that_a_job_reported_is_part_of_it(recipe: Path, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "logs", 0, 1)
    journal.write("environment", fields={"switch.threads": "1", "$NCCL_ALGO": "Ring"})
    journal.close()
    done = inside(
        "contract", recipe, "--side", "reference", "--out", tmp_path / "c.json", "--environment", tmp_path / "logs"
    )
    assert done.returncode == 0, done.stderr
    assert "reference of " in done.stdout
    assert "45 tensors" in done.stdout
    jsonschema.validate(json.loads((tmp_path / "c.json").read_text()), report_schema("contract"))
    read = read_contract(tmp_path / "c.json")
    assert read.environment.fields == {"switch.threads": "1", "$NCCL_ALGO": "Ring"}
    assert read.profile.nodes["layers[0].attention.attend"].choices["implementation"] == "eager"
    assert "environment: $NCCL_ALGO: Ring in the contract, absent here" in broken(read)
    assert read.schedule.settings["batch"] == "2"
    assert contract_of(recipe, "reference").environment.fields == {"version.transformers": "5.23.0"}


def test_a_side_claims_its_own_phases_and_no_others(recipe: Path, tmp_path: Path) -> None:
    steps = "schedule: {rule: vllm-v1, decode: {from: prompt}}"
    served = tmp_path / "served.yaml"
    served.write_text(recipe.read_text().replace("micro_batch: 1", steps))
    decoding, forward = contract_of(served, "candidate"), contract_of(served, "reference")
    assert ("forward" in decoding.profile.phases, "decode" in decoding.profile.phases) == (False, True)
    assert forward.profile.phases == ("forward",)
    holding = hold(forward, layout=LAYOUT, schedule={"rule": "vllm-v1", "decode": {"from": "prompt"}}, refuse=False)
    assert "schedule: rule: transformers in the contract, vllm-v1 here" in map(str, holding.breaches)


def test_a_side_that_no_engine_runs_is_refused(recipe: Path, tmp_path: Path) -> None:
    faulty = tmp_path / "faulty.yaml"
    faulty.write_text(
        RECIPE.replace(
            "micro_batch: 1", 'faults: [{name: norm-eps, nodes: "layers[0].attention.norm", values: {eps: 0.1}}]'
        )
    )
    with pytest.raises(SpecError, match="the candidate is made of faults, which no engine can be held to"):
        contract_of(faulty, "candidate")


def test_contracts_that_were_edited_or_are_none_are_refused(claims: Contract, tmp_path: Path) -> None:
    path = tmp_path / "contract.json"
    text = claims.to_json()
    path.write_text(text)
    assert read_contract(path) == claims
    for edited, words in (
        (text.replace('"sdpa"', '"eager"'), "profile was edited: its digest is not that of its contents"),
        (
            text.replace('"side": "candidate"', '"side": "reference"'),
            "it was edited: its digest is not that of its contents",
        ),
        (text.replace("contract/1", "contract/9"), r"schema 'moeparity\.contract/9'; expected moeparity\.contract/1"),
        (text.replace('"model_type"', '"model_tape"'), r"not as a contract is written: model_type: Field required"),
        (text[:-20], "no contract: expected a JSON object"),
        ("[]", "no contract: expected a JSON object"),
    ):
        assert edited != text
        path.write_text(edited)
        with pytest.raises(ContractError, match=words):
            hold(path)
    with pytest.raises(ContractError, match=r"can't be read: No such file"):
        hold(tmp_path / "none.json")
