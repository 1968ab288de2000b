"""Records planted in a rollout: reproduced, or not, by how much and from where on, whatever the record lacks."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import Tensor

from moeparity.bisection.observed import codec
from moeparity.bisection.pipeline import bisect, passes
from moeparity.bisection.prepare import Options
from moeparity.bisection.record.report import LogprobRecord
from moeparity.bisection.report import Report
from moeparity.bisection.summarise import summarise
from moeparity.bisection.text import print_report
from moeparity.errors import TokensError
from moeparity.plan.spec import schema
from tests.bisection.record.rollout import IDS, LEGAL, MASK, PROMPT, SEQUENCES, WIDTH, Rollout, engine

SCORED = SEQUENCES * (WIDTH - PROMPT)
Record = dict[str, Tensor]
Again = Callable[..., Report]


@pytest.fixture(scope="module")
def rollout(qwen3_moe: Path, tmp_path_factory: pytest.TempPathFactory) -> Rollout:
    return Rollout(qwen3_moe, tmp_path_factory.mktemp("rollout"))


@pytest.fixture(scope="module")
def own(qwen3_moe: Path) -> Record:
    """The candidate's own."""
    return engine(qwen3_moe)


@pytest.fixture(scope="module")
def other(qwen3_moe: Path) -> Record:
    """The reference's own."""
    return engine(qwen3_moe, profile="hf-default")


@pytest.fixture(scope="module")
def again(rollout: Rollout, own: Record) -> Again:
    """The report of a run that saw what is recorded of it replaced: what both sides compute does not hang on it."""
    plan, observed = passes(rollout.recipe(own), device="cpu", options=Options(attribution=False))

    def report(*gates: schema.Gate, **tensors: Tensor) -> Report:
        records = replace(observed.sections["record"], **tensors)
        recipe = plan.recipe.model_copy(update={"gate": list(gates)}) if gates else plan.recipe
        sections = {**observed.sections, "record": records}
        return summarise(replace(plan, recipe=recipe), replace(observed, sections=sections))

    return report


def printed(report: Report, width: int = 160) -> str:
    out = io.StringIO()
    print_report(report, Console(file=out, width=width, highlight=False, markup=False, emoji=False))
    return out.getvalue()


def judged(report: Report) -> tuple[str, str, int]:
    return report.record.status, report.verdict.status, report.exit_code


REPRODUCED = ("reproduced", "pass", 0)
CONTRADICTED = ("not reproduced", "inconclusive", 3)


def logprobs_of(report: Report) -> LogprobRecord:
    assert report.record.logprobs is not None
    return report.record.logprobs


def test_what_the_candidate_gives_itself_is_reproduced(rollout: Rollout, own: Record) -> None:
    report = rollout.run(own)
    assert judged(report) == REPRODUCED
    record, routes = logprobs_of(report), report.record.routes
    assert (record.mean_abs_delta, record.tokens, record.scored, record.sequences) == (0.0, SCORED, SCORED, SEQUENCES)
    assert record.floor > 0
    assert (record.from_position, record.before) == (None, SCORED)
    assert routes is not None
    assert [layer.other_sets for layer in routes.layers] == [0, 0, 0]


def test_another_legal_order_of_the_candidate_reproduces_it(rollout: Rollout, qwen3_moe: Path) -> None:
    report = rollout.run(engine(qwen3_moe, LEGAL))
    assert judged(report) == REPRODUCED
    assert logprobs_of(report).mean_abs_delta > 0


def test_without_a_record_nothing_is_said_of_an_engine(rollout: Rollout) -> None:
    report = rollout.run()
    assert judged(report) == ("no record", "pass", 0)
    assert "NO RECORD  of an engine that ran these tokens. What follows compares two simulations." in printed(report)
    nothing = rollout.run(
        {"logprobs": torch.full(IDS.shape, math.nan), "routed_experts": torch.full((*IDS.shape, 3, 4), -1)}
    )
    assert judged(nothing) == ("no record", "pass", 0)


def test_a_record_that_contradicts_both_sides_is_said_above_the_rest(again: Again, own: Record) -> None:
    noise = torch.randn(IDS.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).abs()
    report = again(logprobs=own["logprobs"] - 1.5 * noise)
    assert judged(report) == CONTRADICTED
    assert report.recorded is not None
    assert report.recorded.logprobs[1].k3 > 1
    lines = printed(report).splitlines()
    verdict = next(i for i, line in enumerate(lines) if line.startswith("INCONCLUSIVE"))
    record = next(i for i, line in enumerate(lines) if line.startswith("NOT REPRODUCED"))
    assert record < verdict
    assert "it is two simulations that agree" in lines[verdict + 1]
    assert "What follows compares two simulations" in lines[verdict - 2]
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
    "filled with zeros": lambda record: torch.zeros_like(record["logprobs"]),
    "whole numbers": lambda record: record["logprobs"].round(),
    "log base 2": lambda record: record["logprobs"] / math.log(2),
    "off by a little": lambda record: record["logprobs"] - 0.02,
}


@pytest.mark.parametrize("plant", CONTRADICTIONS)
def test_a_contradiction_is_no_parity(again: Again, own: Record, plant: str) -> None:
    report = again(logprobs=CONTRADICTIONS[plant](own))
    assert judged(report) == CONTRADICTED
    if plant == "late":
        assert (logprobs_of(report).from_position, logprobs_of(report).before) == (7, SEQUENCES * (7 - PROMPT))


def test_one_wrong_token_of_one_sequence_is_found_in_no_mean(again: Again, own: Record) -> None:
    logprobs = own["logprobs"].clone()
    logprobs[17, 6] -= 1.25
    report = again(logprobs=logprobs)
    assert judged(report) == CONTRADICTED
    record = logprobs_of(report)
    assert record.mean_abs_delta < record.floor
    assert (record.outside_tokens, record.outside_sequences) == (1, 1)
    assert (record.largest.sequence, record.largest.position, record.from_position) == (17, 6, 6)
    assert record.largest.computed - record.largest.recorded == pytest.approx(1.25, abs=1e-12)
    assert "by far: 1 token in 1 sequence." in printed(report)


def test_a_temperature_is_reproduced_by_a_side_that_has_it(rollout: Rollout, qwen3_moe: Path) -> None:
    logprobs = engine(qwen3_moe, temperature=0.7)["logprobs"]
    assert judged(rollout.run({"logprobs": logprobs})) == CONTRADICTED
    candidate = '{profile: hf-eager, micro_batch: 5, set: {"log_probs:temperature": 0.7}}'
    path = rollout.recipe({"logprobs": logprobs}, candidate=candidate, gate="{metric: k3, below: 100}")
    report = bisect(path, device="cpu", options=Options(attribution=False))
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
    again: Again, own: Record, rounded: Callable[[Tensor], Tensor], says: str
) -> None:
    report = again(logprobs=rounded(own["logprobs"]).double())
    assert judged(report) == REPRODUCED
    assert logprobs_of(report).last_digit == says
    assert logprobs_of(report).mean_abs_delta <= logprobs_of(report).half_unit


def test_a_record_with_holes_is_held_to_what_it_has(rollout: Rollout, own: Record) -> None:
    logprobs = own["logprobs"].clone()
    logprobs[5:] = math.nan
    logprobs[2, ::2] = math.nan
    report = rollout.run({"logprobs": logprobs})
    assert judged(report) == REPRODUCED
    record = logprobs_of(report)
    assert (record.tokens, record.scored, record.sequences) == (4 * 7 + 4, SCORED, 5)
    assert "32 of 210 scored tokens in 5 sequences" in printed(report)
    # One sequence bounds nothing by an interval, and yet hides nothing.
    logprobs[1:] = math.nan
    logprobs[0] -= 0.05
    assert judged(rollout.run({"logprobs": logprobs})) == CONTRADICTED


def test_what_is_not_scored_is_not_compared(rollout: Rollout, own: Record) -> None:
    logprobs = own["logprobs"].clone()
    logprobs[:, :PROMPT] = 0.0
    assert judged(rollout.run({"logprobs": logprobs})) == REPRODUCED


@pytest.mark.parametrize("end", ["left", "right"])
def test_positions_do_not_count_pads(rollout: Rollout, qwen3_moe: Path, end: str) -> None:
    mask = torch.ones_like(IDS)
    pads = slice(0, 2) if end == "left" else slice(-2, None)
    mask[::3, pads] = 0
    loss_mask = MASK.clone()
    loss_mask[::3, pads] = 0
    logprobs = engine(qwen3_moe, attention_mask=mask)["logprobs"]
    assert judged(rollout.run({"logprobs": logprobs, "attention_mask": mask, "loss_mask": loss_mask})) == REPRODUCED
    column = 6 if end == "left" else 4
    logprobs[3, column] += 1.0
    logprobs.clamp_(max=0.0)
    report = rollout.run({"logprobs": logprobs - 1e-9, "attention_mask": mask, "loss_mask": loss_mask})
    assert judged(report) == CONTRADICTED
    assert (logprobs_of(report).largest.sequence, logprobs_of(report).largest.position) == (3, 4)


def test_a_record_of_the_other_side_is_recognised(rollout: Rollout, other: Record) -> None:
    report = rollout.run(other)
    assert judged(report) == CONTRADICTED
    assert "The reference lies 0 from the record." in printed(report)
    assert max(map(len, printed(report, width=80).splitlines())) <= 80
    swapped = rollout.run(other, sampled_from="reference")
    assert judged(swapped) == REPRODUCED
    assert swapped.record.side == "reference"


def test_routes_that_go_elsewhere_are_named_by_layer(rollout: Rollout, own: Record) -> None:
    routes = own["routed_experts"].clone()
    routes[:, 4:, 1] = (routes[:, 4:, 1] + 1) % 16
    report = rollout.run({"logprobs": own["logprobs"], "routed_experts": routes})
    assert judged(report) == CONTRADICTED
    assert report.record.routes is not None
    assert [layer.layer for layer in report.record.routes.layers if not layer.reproduced] == [1]
    assert logprobs_of(report).reproduced
    assert "does not give the recorded routes" in printed(report)
    assert "more than its floor in layers[1]." in printed(report)
    # Without log-probabilities routes are a record all the same, in whatever order.
    assert judged(rollout.run({"routed_experts": routes.flip(-1)})) == CONTRADICTED


def test_a_side_without_numbers_reproduces_nothing(again: Again, own: Record) -> None:
    """NaN in a record stands for none; in a side it is a token that is not what was recorded."""
    exact = again(logprobs=own["logprobs"])
    assert exact.record.logprobs is not None
    computed = own["logprobs"][MASK.bool()].clone()
    computed[20] = math.nan
    report = again(computed={name: [computed] for name in ("reference", "candidate")}, draws=())
    assert report.record.status == "not reproduced"
    record = logprobs_of(report)
    assert math.isnan(record.mean_abs_delta)
    assert (record.outside_tokens, record.outside_sequences, record.largest.sequence) == (1, 1, 2)
    assert json.loads(report.to_json())["record"]["logprobs"]["mean_abs_delta"] == "nan"


def test_a_failure_stays_one(again: Again, own: Record) -> None:
    report = again(schema.Gate(metric="k3", below=1e-9), logprobs=own["logprobs"] - 1.0)
    assert judged(report) == ("not reproduced", "fail", 1)


def test_micro_batches_of_both_sides_that_do_not_meet(rollout: Rollout, own: Record) -> None:
    candidate = "{profile: hf-eager, micro_batch: 4}"
    path = rollout.recipe(own, candidate=candidate)
    report = bisect(path, device="cpu", options=Options(attribution=False))
    assert report.record.status == "reproduced"
    assert logprobs_of(report).tokens == SCORED


def test_a_bound_on_the_record_decides_in_place_of_the_floor(again: Again, own: Record) -> None:
    shift = 0.05 * (1 + torch.arange(SEQUENCES, dtype=torch.float64)[:, None] / 10)
    off, of_reference = own["logprobs"] - shift, schema.Gate(metric="k3", below=1)
    within = again(of_reference, schema.Gate(recorded="k3", below=0.1), logprobs=off)
    assert judged(within) == ("not reproduced", "pass", 0)
    assert within.record.gate is not None
    # Of a constant distance in each sequence: exp(d) - 1 - d.
    expected = float((shift.expm1() - shift).mean())
    assert within.record.gate.value.estimate == pytest.approx(expected, rel=1e-9)
    assert "its gate 0.1: pass" in printed(within)
    beyond = again(of_reference, schema.Gate(recorded="k3", below=1e-4), logprobs=off)
    assert judged(beyond) == ("not reproduced", "fail", 1)
    assert beyond.verdict.reason.startswith("against the record, ")
    open_ = again(of_reference, schema.Gate(recorded="k3", below=expected), logprobs=off)
    assert judged(open_) == ("not reproduced", "inconclusive", 3)


def test_a_bound_on_the_record_alone_is_one_on_the_reference_too(rollout: Rollout, again: Again, own: Record) -> None:
    assert judged(rollout.run(own, gate="{recorded: k3, below: 1}")) == REPRODUCED
    report = again(schema.Gate(recorded="k3", below=1e-9))
    assert judged(report) == ("reproduced", "fail", 1)
    assert report.verdict.below == 1e-9


def test_a_bound_on_few_recorded_sequences_passes_nothing(rollout: Rollout, own: Record) -> None:
    logprobs = own["logprobs"].clone()
    logprobs[5:] = math.nan
    report = rollout.run({"logprobs": logprobs - 1e-5}, gate="{recorded: k3, below: 1}")
    assert judged(report) == ("reproduced", "inconclusive", 3)


def test_what_a_pass_kept_comes_back(rollout: Rollout, own: Record) -> None:
    plan, observed = passes(rollout.recipe(own), device="cpu", options=Options(attribution=False))
    code = codec(plan.model.graph)
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


@pytest.mark.parametrize("side", ["reference", "candidate"])
def test_the_side_that_was_recorded_lies_nearest(rollout: Rollout, own: Record, other: Record, side: str) -> None:
    data = {name: tensor.clone() for name, tensor in (own if side == "candidate" else other).items()}
    # Engines fill places they did not sample with 0, and do not run the last token.
    data["logprobs"][:, :PROMPT] = 0.0
    data["routed_experts"][:, -1] = -1
    report = rollout.run(data)
    assert report.recorded is not None
    for logprobs, routes in zip(report.recorded.logprobs, report.recorded.routes, strict=True):
        assert logprobs.side == routes.side
        assert logprobs.tokens == SCORED
        assert routes.token_layers == SEQUENCES * (WIDTH - 1) * 3
        if logprobs.side == side:
            assert (logprobs.mean_abs_delta, logprobs.max_abs_delta, logprobs.k3) == (0.0, 0.0, 0.0)
            assert routes.same_sets == routes.token_layers
        else:
            assert logprobs.max_abs_delta == report.metrics.max_abs_delta > 0
            if side == "candidate":
                assert logprobs.k3 == pytest.approx(report.metrics.k3, rel=1e-12)
            assert math.isclose(logprobs.mean_abs_delta, report.metrics.mean_abs_delta, rel_tol=1e-12)
            assert routes.same_sets < routes.token_layers
