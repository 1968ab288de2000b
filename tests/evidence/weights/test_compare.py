"""What is wrong with a job's weights is named: tensor, expert, rows, and what stands there instead."""

from __future__ import annotations

import json
import random
from pathlib import Path

import jsonschema
import pytest
import torch
from safetensors.torch import load_file, save_file

from moeparity.cli.schemas import report_schema
from moeparity.errors import WeightsError
from moeparity.evidence.weights.compare import compare
from moeparity.evidence.weights.fingerprint_files import RankWeights, Weights, open_weights, write_rank, write_weights
from moeparity.evidence.weights.report import Finding, WeightsReport
from moeparity.evidence.weights.weight_layout import WeightLayout
from tests.command import inside
from tests.errors.base import BASE, copy, rewrite, weights
from tests.evidence.weights.programs import Tensors, job, program, served

HUB = open_weights(BASE)
W13, W2 = ("model.layers.1.mlp.experts.routed_experts." + name for name in ("w13_weight", "w2_weight"))


def ranks(count: int = 2, *, experts: bool = False) -> list[Tensors]:
    """The parameters of a job."""
    return [served((rank, count), (rank, count) if experts else (0, 1)) for rank in range(count)]


def finding_rows(report: WeightsReport) -> list[tuple[str, str, str]]:
    """Tensor, sort and rows of each finding."""
    return [(finding.tensor, finding.sort, finding.rows) for finding in report.findings]


def only(report: WeightsReport) -> Finding:
    """The one finding."""
    (finding,) = report.findings
    return finding


REPLICATED = ("norm.weight", "mlp.gate.weight", "k_proj.weight", "v_proj.weight")
"""What both ranks have all of."""


@pytest.mark.parametrize("seed", range(16))
def test_a_single_bit_anywhere_names_the_tensor_and_the_row(seed: int) -> None:
    """In a tensor of the checkpoint and at a place that are drawn; every other time on one rank only."""
    draw = random.Random(seed)  # noqa: S311
    changed_weights = weights()
    name = draw.choice(sorted(changed_weights))
    place = tuple(draw.randrange(size) for size in changed_weights[name].shape)
    changed_weights[name].view(torch.int16)[place] ^= 1 << draw.randrange(15)
    experts, everywhere = bool(seed % 4 // 2), bool(seed % 2)
    bad = draw.randrange(2)
    rank_tensors = [
        served((rank, 2), (rank, 2) if experts else (0, 1), changed_weights if everywhere or rank == bad else None)
        for rank in range(2)
    ]
    findings = {(f.tensor, f.sort, f.rows) for f in compare(HUB, job(rank_tensors, experts=experts)).findings}
    if everywhere:
        assert findings == {(name, "differs", str(place[0]))}
    elif name.endswith(REPLICATED):
        assert findings >= {(name, "replicas", "")}
        assert {tensor for tensor, _, _ in findings} == {name}
    else:
        # The part is this rank's, or the other's, who has it as it should be.
        assert findings in ({(name, "differs", str(place[0]))}, set())


def test_one_rank_with_another_bit_in_its_own_part() -> None:
    changed_weights = weights()
    changed_weights["model.layers.1.mlp.experts.3.gate_proj.weight"].view(torch.int16)[6, 2] ^= 1
    ranked = [served((rank, 2), (rank, 2), changed_weights if rank == 1 else None) for rank in range(2)]
    assert finding_rows(compare(HUB, job(ranked, experts=True))) == [
        ("model.layers.1.mlp.experts.3.gate_proj.weight", "differs", "6")
    ]


def test_an_expert_with_anothers_weights() -> None:
    rank_tensors = ranks(experts=True)
    rank_tensors[1][W13] = rank_tensors[1][W13][[1, 0]].clone()
    report = compare(HUB, job(rank_tensors, experts=True))
    assert [finding.tensor.split(".")[5] for finding in report.findings] == ["2", "2", "3", "3"]
    assert "B holds A's model.layers.1.mlp.experts.3.gate_proj.weight" in {f.says for f in report.findings}


def test_gate_and_up_exchanged() -> None:
    rank_tensors = ranks(1)
    stack = rank_tensors[0][W13]
    rank_tensors[0][W13] = torch.cat([stack[:, 8:], stack[:, :8]], 1)
    says = {finding.tensor: finding.says for finding in compare(HUB, job(rank_tensors)).findings}
    assert says["model.layers.1.mlp.experts.0.gate_proj.weight"].endswith("model.layers.1.mlp.experts.0.up_proj.weight")
    assert len(says) == 8


def test_the_same_shard_loaded_twice_by_rows_and_by_columns() -> None:
    rank_tensors = ranks()
    rank_tensors[1][W13] = rank_tensors[0][W13]
    rank_tensors[1]["model.layers.0.self_attn.o_proj.weight"] = rank_tensors[0][
        "model.layers.0.self_attn.o_proj.weight"
    ]
    report = compare(HUB, job(rank_tensors))
    doubled = {finding.tensor: finding.says for finding in report.findings if finding.sort == "doubled"}
    assert len(doubled) == 9
    assert doubled["model.layers.0.self_attn.o_proj.weight"].startswith(
        "columns 0:8 of rank 0 and columns 8:16 of rank 1 have the same bits"
    )
    rows = {f.tensor: (f.rows, f.says) for f in report.findings if f.sort == "differs"}
    assert rows["model.layers.1.mlp.experts.0.up_proj.weight"] == ("4:8", "B has A's rows 0:4 there")
    assert rows["model.layers.0.self_attn.o_proj.weight"][0] == ""


def test_replicas_that_differ_and_a_tensor_of_zeros() -> None:
    rank_tensors = ranks()
    rank_tensors[1]["model.norm.weight"] = rank_tensors[1]["model.norm.weight"] * 2
    for tensors in rank_tensors:
        tensors["model.layers.0.mlp.gate.weight"] = torch.zeros(4, 16, dtype=torch.bfloat16)
    report = compare(HUB, job(rank_tensors))
    assert [(f.tensor, f.sort, f.says) for f in report.findings] == [
        ("model.layers.0.mlp.gate.weight", "differs", "one number only in B"),
        ("model.norm.weight", "replicas", "rank 0 and rank 1 hold all of it with other bits"),
    ]


def test_what_is_not_there_is_missing_or_was_not_given() -> None:
    rank_tensors = ranks(experts=True)
    del rank_tensors[0][W2]
    lacking = job(rank_tensors, experts=True)
    report = compare(HUB, lacking)
    assert {(f.tensor.split(".")[5], f.sort) for f in report.findings} == {("0", "missing"), ("1", "missing")}
    half = Weights(source="half", by_rank=lacking.by_rank[1:], missing=(0,))
    report = compare(HUB, half)
    assert (report.exit_code, {f.sort for f in report.findings}) == (3, {"incomplete"})
    replicas = job([{"model.norm.weight": weights()["model.norm.weight"]}] * 2)
    first_rank = Weights(source="one", by_rank=replicas.by_rank[:1], missing=(1,))
    assert (
        compare(first_rank, first_rank).exit_code,
        compare(first_rank, None).exit_code,
        compare(replicas, replicas).exit_code,
    ) == (
        3,
        3,
        0,
    )
    cut = next(f for f in report.findings if f.tensor == "model.layers.0.self_attn.q_proj.weight")
    assert (cut.side, cut.rows) == ("B", "0:8")


def test_an_adapter_is_no_part_of_the_checkpoint_and_a_tied_head_is_its_embedding() -> None:
    rank_tensors = ranks(1)[0]
    rank_tensors["model.layers.0.self_attn.q_proj.lora_A.weight"] = torch.randn(2, 16)
    report = compare(HUB, job([rank_tensors]))
    assert only(report).says == "a parameter that A has not"
    assert (only(report).tensor, report.exit_code) == ("model.layers.0.self_attn.q_proj.lora_A.weight", 1)
    tied = {name: value for name, value in weights().items() if name != "lm_head.weight"}
    module = program(tied)
    module.register_module("lm_head", module.get_submodule("model.embed_tokens"))
    tied_rank = RankWeights(rank=0, ranks=1, cast="", parts=tuple(WeightLayout(BASE).parts([program(tied)])))
    with_head = RankWeights(rank=0, ranks=1, cast="", parts=tuple(WeightLayout().parts([module])))
    sides = [Weights(source="x", by_rank=(side,)) for side in (tied_rank, with_head)]
    report = compare(*sides)
    assert (report.exit_code, report.aside) == (
        0,
        ("lm_head.weight, in B alone, holds the bits of model.embed_tokens.weight",),
    )


def test_parts_that_lie_over_each_other_are_told() -> None:
    whole = WeightLayout(BASE).parts([program({"model.norm.weight": weights()["model.norm.weight"]})])
    (half,) = (part for part in job(ranks(1)).by_rank[0].parts if part.tensor == "model.norm.weight")
    assert half.size == (16, 1)
    from moeparity.evidence.weights.part import part

    some = part("model.norm.weight", weights()["model.norm.weight"][4:8], shape=(16,), start=(4, 0))
    by_rank = tuple(RankWeights(rank=r, ranks=2, cast="", parts=(p,)) for r, p in enumerate((whole[0], some)))
    report = compare(Weights(source="x", by_rank=by_rank), None)
    assert (only(report).sort, report.exit_code) == ("overlap", 3)
    assert only(report).says == "rank 1 holds rows 4:8, parts of which others hold too"


def test_the_command_compares_files_of_ranks_with_a_checkpoint(tmp_path: Path) -> None:
    rank_tensors = ranks()
    rank_tensors[1][W2] = rank_tensors[1][W2].clone()
    rank_tensors[1][W2][3, 5] += 1
    logs = tmp_path / "logs"
    for rank_weights in job(rank_tensors).by_rank:
        write_rank(logs, rank_weights)
    done = inside("weights", BASE, logs, "--json", tmp_path / "report.json")
    assert done.returncode == 1
    assert "1 tensor not as it should be, 44 of 45 compared tensors equal; exit 1" in " ".join(done.stdout.split())
    report = json.loads((tmp_path / "report.json").read_text())
    jsonschema.validate(report, report_schema("weights"))
    (finding,) = report["findings"]
    assert (finding["tensor"], finding["rows"]) == ("model.layers.1.mlp.experts.3.down_proj.weight", "5")
    changed_copy = rewrite(copy(tmp_path / "other"), {"model.norm.weight": weights()["model.norm.weight"].neg()})
    assert "other bits" in inside("weights", BASE, changed_copy).stdout
    assert inside("weights", BASE, "--out", tmp_path / "base.safetensors").returncode == 0
    assert inside("weights", tmp_path / "base.safetensors", BASE).returncode == 0
    rounded = inside("weights", BASE, tmp_path / "base.safetensors", "--dtype", "fp16")
    assert (rounded.returncode, "float16 in A, bfloat16 in B" in rounded.stdout) == (3, True)
    assert inside("weights", logs).returncode == 0


def test_a_rank_without_parameters_has_a_file_and_weights_that_are_nowhere_are_refused(tmp_path: Path) -> None:
    path = WeightLayout(BASE).write(tmp_path, [torch.nn.Module()], 0, 2)
    assert open_weights(path).by_rank[0].parts == ()
    assert compare(HUB, open_weights(tmp_path)).exit_code == 3
    with pytest.raises(WeightsError, match=r"weight: it is on the device meta"):
        WeightLayout().parts([torch.nn.Linear(2, 2, device="meta")])
    with pytest.raises(WeightsError, match=r"weight: torch\.complex128 is no dtype"):
        WeightLayout().parts([torch.nn.Linear(2, 2, dtype=torch.complex128)])


def test_files_that_are_no_fingerprints_are_refused(tmp_path: Path) -> None:
    first, second = job(ranks()).by_rank
    path = write_rank(tmp_path, first)
    tensors, text = load_file(path), path.read_bytes()

    def refused(words: str, at: Path = path, cast: str | None = None) -> None:
        with pytest.raises(WeightsError, match=words):
            open_weights(at, cast)

    (tmp_path / "nothing").mkdir()
    refused("this is a fingerprint", cast="bf16")
    refused("expected a checkpoint folder", at=tmp_path / "nothing")
    refused("another safetensors file", at=BASE / "model.safetensors")
    path.write_bytes(text[:-9])
    refused("no whole fingerprint")
    path.write_bytes(text.replace(b"moeparity.weights-rank/2", b"moeparity.weights-rank/9"))
    refused("schema 'moeparity.weights-rank/9'; expected moeparity.weights-rank/2")
    for broken in (text.replace(b"parameter", b"parametre"), text.replace(b'\\"size\\":[32', b'\\"size\\":[33')):
        assert broken != text
        path.write_bytes(broken)
        refused("not as a fingerprint of weights is written")
    save_file({"sums": tensors["sums"][:-1]}, path, {"moeparity": "{}"})
    refused("not as a fingerprint of weights is written")
    write_rank(tmp_path, first)
    third = write_rank(tmp_path, RankWeights(rank=1, ranks=3, cast="", parts=second.parts))
    refused(r"of 3 ranks, rounded to nothing; .*rank-0.* is of 2", at=tmp_path)
    write_weights(third, first)
    refused("two of its files are of the same rank", at=tmp_path)
