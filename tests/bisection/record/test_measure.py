"""Records planted in a rollout: reproduced, or not, by how much and from where on, whatever the record lacks."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from moeparity.bisection.measures import codec, summarise
from moeparity.bisection.observed import Observed
from moeparity.bisection.options import Options
from moeparity.bisection.pipeline import bisect, passes_over, ready
from moeparity.bisection.record.data import FAR, LogprobRecord
from moeparity.bisection.report import Report
from moeparity.bisection.study import Study
from moeparity.engine.forward import forward
from moeparity.errors import TokensError
from moeparity.plan.spec.gates import Gate
from tests.bisection.record.rollout import (
    IDS,
    MASK,
    MICRO_BATCH,
    PROFILE,
    PROMPT,
    REFERENCE,
    SEQUENCES,
    WIDTH,
    Rollout,
    engine,
)
from tests.bisection.reports import on_screen

SCORED = SEQUENCES * (WIDTH - PROMPT)
Record = dict[str, Tensor]
Seen = tuple[Study, Observed]


@pytest.fixture(scope="module")
def rollout(qwen3_moe: Path, tmp_path_factory: pytest.TempPathFactory) -> Rollout:
    return Rollout(qwen3_moe, tmp_path_factory.mktemp("rollout"))


@pytest.fixture(scope="module")
def own_record(qwen3_moe: Path) -> Record:
    """The candidate's own."""
    return engine(qwen3_moe)


@pytest.fixture(scope="module")
def reference_record(qwen3_moe: Path) -> Record:
    """The reference's own."""
    return engine(qwen3_moe, settings=REFERENCE)


@pytest.fixture(scope="module")
def side_passes(rollout: Rollout, own_record: Record) -> Seen:
    """What a run saw: it does not hang on what is recorded."""
    return passes_over(ready(rollout.recipe(own_record), device="cpu", options=Options(attribution=False)), None)


def report_of(side_passes: Seen, *gates: Gate, **tensors: Any) -> Report:
    """The report of a run under other gates, with something else recorded of the tokens, or of some of them."""
    study, observed = side_passes
    records = observed.sections["record"]
    if "logprobs" in tensors:
        mask = records.mask & ~tensors["logprobs"].isnan()
        computed = {name: [records.of(name)[mask[records.mask]]] for name in records.computed}
        tensors |= {"mask": mask, "computed": computed}
    records = replace(records, **tensors)
    recipe = study.recipe.model_copy(update={"gate": list(gates)}) if gates else study.recipe
    sections = {**observed.sections, "record": records}
    return summarise(replace(study, recipe=recipe), replace(observed, sections=sections))


def judged(report: Report) -> tuple[str, str, int]:
    return report.record.status, report.verdict.status, report.exit_code


REPRODUCED = ("reproduced", "pass", 0)
CONTRADICTED = ("not reproduced", "inconclusive", 3)


def logprobs_of(report: Report) -> LogprobRecord:
    assert report.record.logprobs is not None
    return report.record.logprobs


def test_what_the_candidate_gives_itself_is_reproduced(rollout: Rollout, own_record: Record) -> None:
    report = rollout.run(own_record)
    assert judged(report) == REPRODUCED
    record, routes = logprobs_of(report), report.record.routes
    assert (record.mean_abs_delta, record.tokens, record.scored, record.sequences) == (0.0, SCORED, SCORED, SEQUENCES)
    assert record.floor > 0
    assert (record.from_position, record.before) == (None, SCORED)
    assert routes is not None
    assert [layer.other_sets for layer in routes.layers] == [0, 0, 0]


def test_a_legal_order_of_the_candidate_reproduces_it(side_passes: Seen) -> None:
    """What the candidate would have given in one of its other orders."""
    _, observed = side_passes
    records = observed.sections["record"]
    draw = max(records.draws, key=lambda key: float((records.of(key) - records.of("candidate")).abs().sum()))
    logprobs = torch.full(IDS.shape, math.nan, dtype=torch.float64)
    logprobs[records.mask] = records.of(draw)
    report = report_of(side_passes, logprobs=logprobs)
    assert judged(report) == REPRODUCED
    assert logprobs_of(report).mean_abs_delta == logprobs_of(report).floor > 0


def test_without_a_record_nothing_is_said_of_an_engine(rollout: Rollout) -> None:
    report = rollout.run()
    assert judged(report) == ("no record", "pass", 0)
    assert "record  none given: this compares two simulations" in on_screen(report)
    assert "Record" not in on_screen(report)
    nothing = rollout.run(
        {"logprobs": torch.full(IDS.shape, math.nan), "routed_experts": torch.full((*IDS.shape, 3, 4), -1)}
    )
    assert judged(nothing) == ("no record", "pass", 0)


def test_a_record_that_contradicts_both_sides_is_said_above_the_rest(side_passes: Seen, own_record: Record) -> None:
    noise = torch.randn(IDS.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).abs()
    report = report_of(side_passes, logprobs=own_record["logprobs"] - 1.5 * noise)
    assert judged(report) == CONTRADICTED
    assert report.recorded is not None
    assert report.recorded.logprobs[1].k3 > 1
    opening, _, rest = on_screen(report, 400).partition("\nRun\n")
    assert opening.startswith("INCONCLUSIVE")
    assert "only two simulations agree" in opening.splitlines()[0]
    lines = rest.splitlines()
    metrics = lines.index("Metrics")
    record = next(i for i, line in enumerate(lines) if line.startswith("  NOT REPRODUCED"))
    assert record < metrics
    assert "What follows compares two simulations" in "".join(lines[record:metrics])
    assert logprobs_of(report).from_position == PROMPT
    assert json.loads(report.to_json())["record"]["status"] == "not reproduced"


def _shifted(record: Record) -> Tensor:
    """Response-aligned: each token has that of the token after it."""
    return record["logprobs"].roll(-1, dims=1)


def _another_sequence(record: Record) -> Tensor:
    """One sequence has the numbers of another."""
    logprobs = record["logprobs"].clone()
    logprobs[11] = logprobs[12]
    return logprobs


def _late(record: Record) -> Tensor:
    """All tokens from position 7 on are off by more than the floor."""
    logprobs = record["logprobs"].clone()
    logprobs[:, 7:] -= 0.5
    return logprobs


def _sentinel(record: Record) -> Tensor:
    """Truncated to the likeliest tokens: the others have what the engine writes for none."""
    logprobs = record["logprobs"].clone()
    logprobs[logprobs < -9] = -9999.0
    return logprobs


CONTRADICTIONS: dict[str, Callable[[Record], Tensor]] = {
    "shifted": _shifted,
    "another sequence's": _another_sequence,
    "late": _late,
    "sentinel": _sentinel,
    "fill with zeros": lambda record: torch.zeros_like(record["logprobs"]),
    "whole numbers": lambda record: record["logprobs"].round(),
    "log base 2": lambda record: record["logprobs"] / math.log(2),
    "off by a little": lambda record: record["logprobs"] - 0.02,
}


LOOKS = {
    "shifted": "misaligned",
    "another sequence's": "outlier sequences",
    "fill with zeros": "placeholders",
    "whole numbers": "size",
    "log base 2": "log base",
}
"""What the diagnosis of logs names them, where that is one of its causes."""


@pytest.mark.parametrize("plant", CONTRADICTIONS)
def test_a_contradiction_is_no_parity(side_passes: Seen, own_record: Record, plant: str) -> None:
    report = report_of(side_passes, logprobs=CONTRADICTIONS[plant](own_record))
    assert judged(report) == CONTRADICTED
    assert report.summary.blame.startswith("the record, not the difference of both sides")
    if plant in LOOKS:
        assert f"it looks like {LOOKS[plant]} (" in report.summary.blame
    if plant == "late":
        assert (logprobs_of(report).from_position, logprobs_of(report).before) == (7, SEQUENCES * (7 - PROMPT))


def test_one_wrong_token_of_one_sequence_is_found_in_no_mean(side_passes: Seen, own_record: Record) -> None:
    wrong = 1.1 * FAR * logprobs_of(report_of(side_passes)).floor_largest
    logprobs = own_record["logprobs"].clone()
    logprobs[17, 6] -= wrong
    report = report_of(side_passes, logprobs=logprobs)
    assert judged(report) == CONTRADICTED
    record = logprobs_of(report)
    assert record.mean_abs_delta < record.floor
    assert (record.outside_tokens, record.outside_sequences) == (1, 1)
    assert (record.largest.sequence, record.largest.position, record.from_position) == (17, 6, 6)
    assert record.largest.computed - record.largest.recorded == pytest.approx(wrong, abs=1e-12)
    assert "1 token in 1 sequence has a |delta| above 3 x the largest of the floor." in on_screen(report)


def test_a_temperature_is_reproduced_by_a_side_that_has_it(rollout: Rollout, qwen3_moe: Path) -> None:
    record, gate = engine(qwen3_moe, temperature=0.7), "{metric: k3, below: 100}"
    assert judged(rollout.run(record, gate=gate)) == CONTRADICTED
    report = rollout.run(record, gate=gate, candidate={"log_probs:temperature": 0.7})
    assert judged(report) == REPRODUCED
    assert logprobs_of(report).mean_abs_delta < 1e-6


@pytest.mark.parametrize(
    ("rounded", "says"),
    [
        (lambda x: (x * 1e4).round() / 1e4, "4 decimals"),
        (lambda x: ((x * 1e4).round() / 1e4).float(), "4 decimals"),
        (lambda x: (x * 1e2).round() / 1e2, "2 decimals"),
        (lambda x: x.bfloat16(), "bf16"),
        (lambda x: x.half(), "fp16"),
        (lambda x: (x.bfloat16().double() * 1e4).round() / 1e4, "bf16, written with 4 decimals"),
        (lambda x: x.float(), "fp32"),
    ],
)
def test_a_rounded_record_is_reproduced(
    side_passes: Seen, own_record: Record, rounded: Callable[[Tensor], Tensor], says: str
) -> None:
    report = report_of(side_passes, logprobs=rounded(own_record["logprobs"]).double())
    assert judged(report) == REPRODUCED
    assert logprobs_of(report).last_digit == says
    assert logprobs_of(report).mean_abs_delta <= logprobs_of(report).half_unit


def test_a_record_with_holes_is_held_to_what_it_has(side_passes: Seen, own_record: Record) -> None:
    logprobs = own_record["logprobs"].clone()
    logprobs[5:] = math.nan
    logprobs[2, ::2] = math.nan
    report = report_of(side_passes, logprobs=logprobs)
    assert judged(report) == REPRODUCED
    record = logprobs_of(report)
    assert (record.tokens, record.scored, record.sequences) == (4 * 7 + 4, SCORED, 5)
    assert "32 of 210 scored tokens in 5 sequences" in on_screen(report)
    # One sequence bounds nothing by an interval, and yet hides nothing.
    logprobs[1:] = math.nan
    assert judged(report_of(side_passes, logprobs=logprobs)) == REPRODUCED
    assert judged(report_of(side_passes, logprobs=logprobs - 0.5)) == CONTRADICTED


@pytest.mark.parametrize("end", ["left", "right"])
def test_positions_do_not_count_pads(rollout: Rollout, qwen3_moe: Path, end: str) -> None:
    mask = torch.ones_like(IDS)
    pads = slice(0, 2) if end == "left" else slice(-2, None)
    mask[::3, pads] = 0
    loss_mask = MASK.clone()
    loss_mask[::3, pads] = 0
    logprobs = engine(qwen3_moe, attention_mask=mask)["logprobs"]
    column = 6 if end == "left" else 4
    logprobs[3, column] -= 5.0
    report = rollout.run({"logprobs": logprobs, "attention_mask": mask, "loss_mask": loss_mask})
    assert judged(report) == CONTRADICTED
    record = logprobs_of(report)
    assert (record.largest.sequence, record.largest.position, record.outside_tokens) == (3, 4, 1)
    assert report.record.pads == 20
    assert report.summary.blame.endswith("the candidate computes 20 pads that the engine may not have had")


def test_what_was_scored_alone_without_pads_can_be_stated(rollout: Rollout, qwen3_moe: Path) -> None:
    """Every third sequence is shorter than the others, and each went through the model by itself: bit for bit."""
    mask, logprobs = torch.ones_like(IDS), torch.full(IDS.shape, math.nan, dtype=torch.float64)
    mask[::3, -2:] = 0
    for row, length in enumerate(mask.sum(-1).tolist()):
        ids = IDS[row : row + 1, :length].contiguous()
        scores = forward(qwen3_moe, ids, profile=PROFILE, device="cpu")["logits"].double().log_softmax(-1)
        logprobs[row, 1:length] = scores[0, :-1].gather(-1, ids[0, 1:, None]).squeeze(-1)
    path = rollout.recipe({"logprobs": logprobs, "attention_mask": mask, "loss_mask": MASK * mask})
    before, candidate = path.read_text("utf-8").split("candidate: {")
    stated = candidate.replace(f"micro_batch: {MICRO_BATCH}", "schedule: {rule: vllm-v1, sequences: 1}")
    path.write_text(f"{before}candidate: {{{stated}", "utf-8")
    report = bisect(path, device="cpu", options=Options(attribution=False))
    assert report.record.status == "reproduced"
    assert (logprobs_of(report).mean_abs_delta, report.record.pads) == (0, 0)


def test_a_record_of_the_other_side_is_recognised(rollout: Rollout, qwen3_moe: Path) -> None:
    """The reference divides its logits by 0.7, the candidate does not."""
    record, cold = engine(qwen3_moe, settings=REFERENCE, temperature=0.7), {"log_probs:temperature": 0.7}
    gate = "{metric: k3, below: 100}"
    report = rollout.run(record, gate=gate, reference=cold)
    assert judged(report) == CONTRADICTED
    assert "The reference lies " in on_screen(report)
    assert "check `sampled_from:`" in on_screen(report)
    assert report.summary.to_set.startswith("`sampled_from: reference`")
    assert max(map(len, on_screen(report, width=80).splitlines())) <= 80
    swapped = rollout.run(record, gate=gate, reference=cold, sampled_from="reference")
    assert judged(swapped) == REPRODUCED
    assert swapped.record.side == "reference"


def test_routes_that_go_elsewhere_are_named_by_layer(rollout: Rollout, own_record: Record) -> None:
    routes = own_record["routed_experts"].clone()
    routes[:, 4:, 1] = (routes[:, 4:, 1] + 1) % 16
    report = rollout.run({"logprobs": own_record["logprobs"], "routed_experts": routes})
    assert judged(report) == CONTRADICTED
    assert report.record.routes is not None
    assert [layer.layer for layer in report.record.routes.layers if not layer.reproduced] == [1]
    assert logprobs_of(report).reproduced
    assert "does not give the recorded routes" in on_screen(report)
    assert "beyond it in layers[1]." in on_screen(report)
    assert report.summary.blame.endswith("other experts than recorded from layers[1] on")
    assert report.summary.starts.startswith("layers[1], the first with other experts than recorded")
    # Without log-probabilities routes are a record all the same, in whatever order.
    assert judged(rollout.run({"routed_experts": routes.flip(-1)})) == CONTRADICTED


def test_a_side_without_numbers_reproduces_nothing(side_passes: Seen, own_record: Record) -> None:
    """NaN in a record stands for none; in a side it is a token that is not what was recorded."""
    exact = report_of(side_passes, logprobs=own_record["logprobs"])
    assert exact.record.logprobs is not None
    computed = own_record["logprobs"][MASK.bool()].clone()
    computed[20] = math.nan
    report = report_of(side_passes, computed={name: [computed] for name in ("reference", "candidate")}, draws=())
    assert report.record.status == "not reproduced"
    record = logprobs_of(report)
    assert math.isnan(record.mean_abs_delta)
    assert (record.outside_tokens, record.outside_sequences, record.largest.sequence) == (1, 1, 2)
    assert json.loads(report.to_json())["record"]["logprobs"]["mean_abs_delta"] == "nan"


def test_a_failure_stays_one(side_passes: Seen, own_record: Record) -> None:
    report = report_of(side_passes, Gate(metric="k3", below=1e-9), logprobs=own_record["logprobs"] - 1.0)
    assert judged(report) == ("not reproduced", "fail", 1)


def test_micro_batches_of_both_sides_that_do_not_meet(rollout: Rollout, own_record: Record) -> None:
    report = rollout.run(own_record, micro_batch=4)
    assert report.record.status == "reproduced"
    assert logprobs_of(report).tokens == SCORED


def test_a_bound_on_the_record_decides_in_place_of_the_floor(side_passes: Seen, own_record: Record) -> None:
    shift = 0.05 * (1 + torch.arange(SEQUENCES, dtype=torch.float64)[:, None] / 10)
    off, of_reference = own_record["logprobs"] - shift, Gate(metric="k3", below=1)
    within = report_of(side_passes, of_reference, Gate(recorded="k3", below=0.1), logprobs=off)
    assert judged(within) == ("not reproduced", "pass", 0)
    assert within.record.gate is not None
    # Of a constant distance in each sequence: exp(d) - 1 - d.
    expected = float((shift.expm1() - shift).mean())
    assert within.record.gate.value.estimate == pytest.approx(expected, rel=1e-9)
    assert "its gate 0.1: pass" in on_screen(within)
    beyond = report_of(side_passes, of_reference, Gate(recorded="k3", below=1e-4), logprobs=off)
    assert judged(beyond) == ("not reproduced", "fail", 1)
    assert beyond.verdict.reason.startswith("against the record, ")
    assert beyond.summary.verdict.startswith("k3 against the record ")
    assert "above gate 0.0001 (the most allowed); exit 1; between both sides k3 " in beyond.summary.verdict
    # Both sides agree: what they differ in is no answer to the bound.
    assert beyond.summary.blame.startswith("the record, not the difference of both sides")
    assert within.summary.to_set == "nothing"
    open_ = report_of(side_passes, of_reference, Gate(recorded="k3", below=expected), logprobs=off)
    assert judged(open_) == ("not reproduced", "inconclusive", 3)


def test_a_bound_on_the_record_alone_is_one_on_the_reference_too(
    rollout: Rollout, side_passes: Seen, own_record: Record
) -> None:
    assert judged(rollout.run(own_record, gate="{recorded: k3, below: 1}")) == REPRODUCED
    report = report_of(side_passes, Gate(recorded="k3", below=1e-9))
    assert judged(report) == ("reproduced", "fail", 1)
    assert report.verdict.below == 1e-9


def test_a_bound_on_few_recorded_sequences_passes_nothing(side_passes: Seen, own_record: Record) -> None:
    logprobs = own_record["logprobs"] - 1e-5
    logprobs[5:] = math.nan
    report = report_of(side_passes, Gate(recorded="k3", below=1), logprobs=logprobs)
    assert judged(report) == ("reproduced", "inconclusive", 3)


def test_what_a_pass_kept_comes_back(side_passes: Seen) -> None:
    study, observed = side_passes
    code = codec(study.model.graph)
    again = code.decode(*code.encode(observed)).sections["record"]
    records = observed.sections["record"]
    assert torch.equal(again.delta("candidate"), records.delta("candidate"))
    assert again.draws == records.draws
    assert len(records.draws) > 2


@pytest.mark.parametrize(
    ("routes", "message"),
    [
        (torch.arange(4).expand(*IDS.shape, 2, 4), r"holds 2 layers of 4 experts per token; the model has 3 MoE"),
        (torch.arange(8).expand(*IDS.shape, 3, 8), r"holds 3 layers of 8 experts"),
        (torch.tensor([0, 1, 2, 16]).expand(*IDS.shape, 3, 4), r"names expert 16; the model has experts 0\.\.15"),
    ],
)
def test_records_of_another_model_are_refused(rollout: Rollout, routes: Tensor, message: str) -> None:
    with pytest.raises(TokensError, match=message):
        rollout.run({"routed_experts": routes})


def test_both_sides_lie_beside_the_record(rollout: Rollout, reference_record: Record) -> None:
    """The reference's own: the candidate lies as far from it as from the reference."""
    data = {name: tensor.clone() for name, tensor in reference_record.items()}
    # Engines fill places they did not sample with 0, and do not run the last token.
    data["logprobs"][:, :PROMPT] = 0.0
    data["routed_experts"][:, -1] = -1
    report = rollout.run(data)
    assert report.recorded is not None
    (reference, candidate), (of_reference, of_candidate) = report.recorded.logprobs, report.recorded.routes
    assert (reference.side, candidate.side) == (of_reference.side, of_candidate.side) == ("reference", "candidate")
    assert reference.tokens == candidate.tokens == SCORED
    assert (reference.mean_abs_delta, reference.max_abs_delta, reference.k3) == (0.0, 0.0, 0.0)
    assert candidate.max_abs_delta == report.metrics.max_abs_delta > 0
    assert math.isclose(candidate.mean_abs_delta, report.metrics.mean_abs_delta, rel_tol=1e-12)
    assert of_reference.same_sets == of_reference.token_layers == SEQUENCES * (WIDTH - 1) * 3
    assert of_candidate.same_sets < of_candidate.token_layers
