"""`moeparity variance`: the op that it names is the first with other bits, its ratios are those of plain forwards."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from moeparity.bisection.schedule.show import CANNOT_MATTER
from moeparity.bisection.variance.report import SCHEMA, Comparison, VarianceReport
from moeparity.bisection.variance.run import VarianceRequest, variance
from moeparity.engine.forward import forward
from moeparity.errors import MoeparityError
from moeparity.numerics.bits import same_bits
from moeparity.plan.address import file_key
from tests.checkpoint_factory import WIDE_VOCAB
from tests.command import ROOT, inside
from tests.opened import opened
from tests.planted.places import random_tokens, write_recipe

DEPENDS = "depends on which tokens are computed together"
QUICKSTART = ROOT / "checkpoints" / "quickstart"
FP32 = {"dtype": "fp32"}
INVARIANT = ("vllm-batch-invariant", "sglang-deterministic", "torchtitan-batch-invariant")


def ran(folder: Path, checkpoint: Path, ids: torch.Tensor, side: Mapping[str, object], batches: str) -> VarianceReport:
    recipe = write_recipe(folder, checkpoint, {"input_ids": ids}, side, side)
    return variance(recipe, VarianceRequest.of(batches, "both"), device="cpu")


def only(report: VarianceReport) -> Comparison:
    (side,) = report.sides
    (comparison,) = side.comparisons
    return comparison


@pytest.fixture(scope="module")
def varying(wide: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[torch.Tensor, VarianceReport]:
    """Tokens at which micro-batches 1 and 8 of the wide model differ on this CPU, and what is found of them."""
    for tokens in (3, 2, 5, 9, 17):
        ids = torch.randint(0, WIDE_VOCAB, (8, tokens), generator=torch.Generator().manual_seed(5))
        report = ran(tmp_path_factory.mktemp("variance"), wide, ids, FP32, "1,8")
        if only(report).ratio.off:
            return ids, report
    pytest.fail("no shape varies on this CPU: take others")


def test_log_probabilities_of_other_batches_make_ratios_that_are_not_1(
    wide: Path, varying: tuple[torch.Tensor, VarianceReport]
) -> None:
    ids, report = varying
    assert report.exit_code == 1
    model = opened(wide)
    singly, eight, again = (
        forward(model, ids, profile="hf-eager", dtype="fp32", micro_batch=size)["logits"] for size in (1, 8, 8)
    )
    comparison = only(report)
    expected = ratios(ids, singly, eight)
    assert comparison.ratio.scored == expected.numel()
    assert comparison.ratio.off == int((expected != 1).sum()) > 0
    assert (comparison.ratio.low, comparison.ratio.high) == (float(expected.min()), float(expected.max()))
    factors = torch.maximum(expected, 1 / expected)
    assert comparison.distance.mult_prob_error == pytest.approx(float(factors.mean()), rel=1e-14)
    assert bool((ratios(ids, again, eight) == 1).all())


def ratios(ids: torch.Tensor, previous: torch.Tensor, current: torch.Tensor) -> torch.Tensor:
    """exp(current - previous) of every token but the first, fp64."""
    log_p = [logits[:, :-1].double().log_softmax(-1).gather(2, ids[:, 1:, None]) for logits in (previous, current)]
    return (log_p[1] - log_p[0]).exp()


def test_the_op_named_is_the_first_with_other_bits(wide: Path, varying: tuple[torch.Tensor, VarianceReport]) -> None:
    ids, report = varying
    model = opened(wide)
    first = only(report).first_op
    assert first is not None
    names = [node.name for node in model.graph.nodes]
    saved = names[: names.index(first.node) + 1]
    singly, eight = (
        forward(model, ids, profile="hf-eager", dtype="fp32", micro_batch=size, save=saved) for size in (1, 8)
    )
    *before, last = [node for node in model.graph.nodes if node.name in saved]
    keys = [file_key(value) for node in before for value in node.values]
    assert len(keys) >= len(before) > 0
    assert [key for key in keys if not same_bits(singly[key], eight[key])] == []
    (at,) = map(file_key, last.values)
    differs = (singly[at] != eight[at]).flatten(2).any(-1)
    assert (first.tokens, first.sequences) == (int(differs.sum()), int(differs.any(-1).sum()))
    assert bool(differs[first.sequence, first.token])
    tokens = ids.shape[1]
    assert (str(first.against), str(first.rows)) == (f"1 x {tokens}", f"8 x {tokens}")


def test_what_varies_behind_each_layer_is_what_forwards_give(
    wide: Path, varying: tuple[torch.Tensor, VarianceReport]
) -> None:
    ids, report = varying
    model, comparison = opened(wide), only(report)
    assert comparison.first_op is not None
    *layers, head = comparison.layers
    assert [layer.name for layer in layers] == [f"layers[{number}]" for number in range(model.graph.layers)]
    assert head.name == model.graph.scores
    ends = {node.layer: node.name for node in model.graph.nodes if node.layer is not None}
    singly, eight = (
        forward(model, ids, profile="hf-eager", dtype="fp32", micro_batch=size, save=[*ends.values()])
        for size in (1, 8)
    )
    for number, layer in enumerate(layers):
        key = file_key(ends[number])
        differs = (singly[key] != eight[key]).any(-1)
        assert (layer.tokens, layer.computed) == (int(differs.sum()), ids.numel())
        assert layer.first_node.startswith(f"layers[{number}].") or not layer.tokens
    assert layers[comparison.first_op.layer or 0].first_node == comparison.first_op.node


@pytest.mark.parametrize("profile", INVARIANT)
def test_under_a_batch_invariant_profile_nothing_varies(wide: Path, tmp_path: Path, profile: str) -> None:
    ids = torch.randint(0, WIDE_VOCAB, (4, 3), generator=torch.Generator().manual_seed(5))
    report = ran(tmp_path, wide, ids, {"profile": profile, "dtype": "bf16"}, "1,2,3,4")
    (side,) = report.sides
    assert (report.exit_code, side.varies, side.seeing) == (0, False, {})
    assert all(comparison.ratio.off == 0 for comparison in side.comparisons)
    assert [*report.reading] == [f"{CANNOT_MATTER} here: no op of the reference and the candidate {DEPENDS}."]


def test_decoding_in_batches_is_what_forwards_of_these_schedules_give(tmp_path: Path) -> None:
    ids = random_tokens(4, 10) % 256
    mask = torch.zeros_like(ids, dtype=torch.bool)
    mask[:, 6:] = True
    decoded = {"schedule": {"decode": {"from": "prompt"}}, "dtype": "fp32"}
    recipe = write_recipe(tmp_path, QUICKSTART, {"input_ids": ids, "loss_mask": mask}, decoded, decoded)
    (side,) = variance(recipe, VarianceRequest.of("1,2", "both"), device="cpu").sides
    whole, decode = side.groups
    assert (whole.kind, decode.kind) == ("forward", "decode")
    singly, two = (
        forward(QUICKSTART, ids, profile="hf-eager", dtype="fp32", schedule=_decoding(size), device="cpu")["logits"]
        for size in (1, 2)
    )
    (comparison,) = decode.comparisons
    expected = ratios(ids, singly, two)[:, 5:]
    assert (comparison.ratio.scored, comparison.ratio.off) == (16, int((expected != 1).sum()))
    assert comparison.distance.unequal == int((singly[:, 5:-1] != two[:, 5:-1]).any(-1).sum())


def _decoding(size: int) -> Mapping[str, object]:
    return {"decode": {"from": 6, "batch": {"fixed": size}}}


def test_nothing_varies_on_tokens_that_say_nothing(tmp_path: Path) -> None:
    ids = torch.full((2, 4), 7)
    report = ran(tmp_path, QUICKSTART, ids, {"profile": "torchtitan-batch-invariant"}, "1,2")
    assert report.exit_code == 3
    assert report.reasons == ("every sequence repeats one token id",)


def test_the_command_prints_the_status_twice_and_writes_json(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, QUICKSTART, {"input_ids": random_tokens(3, 6) % 256}, {}, {"dtype": "fp32"})
    done = inside("variance", recipe, "--batches", "1,3", "--json", tmp_path / "out.json", "--device", "cpu")
    report = json.loads((tmp_path / "out.json").read_text("utf-8"))
    assert report["schema"] == SCHEMA
    assert [side["sides"] for side in report["sides"]] == [["reference"], ["candidate"]]
    varies = any(
        comparison["first_op"]
        for side in report["sides"]
        for group in side["groups"]
        for comparison in group["comparisons"]
    )
    assert done.returncode == int(varies)
    first, *_, last = done.stdout.rstrip().split("\n\n")
    assert first.startswith(last.splitlines()[0])
    assert first.startswith("FAIL" if varies else "PASS")
    assert f"exit {done.returncode}" in " ".join(last.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--side", "refernce"),
            "--side refernce: expected one of both, reference, candidate. Did you mean 'reference'?",
        ),
        (("--batches", "1,0"), "--batches 1,0: expected sizes of 1 or more with commas between, such as 1,2,4,8."),
        (("--batches", "one"), "--batches one: expected sizes of 1 or more with commas between, such as 1,2,4,8."),
        (("--batches", "8"), "there is one composition only, so nothing to compare. Give other sizes by --batches"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_asked_is_refused(options: tuple[str, str], message: str) -> None:
    done = inside("variance", ROOT / "recipes" / "batch-aligned.yaml", *options)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())


def test_a_recorded_schedule_has_no_other_sizes(tmp_path: Path) -> None:
    (tmp_path / "batches.jsonl").write_text('{"spans": [[0, 0, 4], [1, 0, 4]]}\n', "utf-8")
    recorded = {"schedule": {"file": "batches.jsonl"}}
    recipe = write_recipe(tmp_path, QUICKSTART, {"input_ids": random_tokens(2, 4) % 256}, {}, recorded)
    with pytest.raises(MoeparityError, match=r"is a recorded list of batches, which has no other sizes"):
        variance(recipe, VarianceRequest.of("1,2", "both"), device="cpu")
    assert variance(recipe, VarianceRequest.of("1,2", "reference"), device="cpu").sides[0].sides == ("reference",)
