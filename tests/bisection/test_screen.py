"""What the terminal shows of a report."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from rich.console import Console

from moeparity.bisection.degeneracy.data import Degeneracy
from moeparity.bisection.divergence.data import Choice, LayerGrowth, NodeError, Root, Size, TokenPlace
from moeparity.bisection.flips.data import LayerFlips, RoutingFlips
from moeparity.bisection.record.data import Record
from moeparity.bisection.report import Report
from moeparity.bisection.run.data import Cost, Run, Variant
from moeparity.bisection.sections import ON_REQUEST, SECTIONS, asked_for, print_report
from moeparity.bisection.summary.data import Summary
from moeparity.bisection.toggles.data import Swap, ToggleResult, TrialResult
from moeparity.bisection.verdict.data import Metrics
from moeparity.errors import MoeparityError
from moeparity.metrics.verdict import Interval, Verdict
from moeparity.search.blame import Blame
from tests.bisection.reports import fill

RUN = Run(
    recipe="recipes/quickstart.yaml",
    checkpoint="checkpoints/[/final]",
    model_type="qwen3_moe",
    sequences=30,
    tokens_per_sequence=8,
    scored_tokens=210,
    sampled_from="candidate",
    device="cpu",
    cpu="Some CPU",
    torch="2.13.0",
    threads=1,
    variants=8,
)
COST = Cost(
    evaluations=123,
    naive_evaluations=456,
    weight_bytes_read=1_500_000,
    seconds=1.25,
    memory_estimated=2_500_000_000,
    memory_peak=1_250_000_000,
)
METRICS = Metrics(
    k1=0.0011,
    k2=0.0012,
    k3=0.0013,
    kl=0.002,
    kl_reverse=0.0021,
    mean_abs_delta=0.03,
    max_abs_delta=0.4,
    top1_agreement=0.975,
    nonfinite_tokens=0,
    unequal_tokens=200,
)
INTERVAL = Interval(estimate=0.0013, low=0.0009, high=0.0017, level=0.95, method="bootstrap-t")
VERDICT = Verdict(
    status="fail",
    reason="the 95% interval 0.0009 to 0.0017 lies above the gate 0.0001",
    metric="k3",
    reduce="token",
    below=1e-4,
    value=INTERVAL,
)
SIZE = Size(
    equal_share=0.25,
    mean_abs=1e-4,
    max_abs=1e-2,
    mean_ulp=0.75,
    max_ulp=9,
    relative_l2=3.5e-3,
    nonfinite_reference=0,
    nonfinite_candidate=0,
)
CHOICE = Choice(
    attribute="accumulate",
    reference="model (bf16)",
    candidate="fp32",
    reference_origin="hf-eager.yaml:9 (op combine)",
    candidate_origin="recipe.yaml:7 (layers[*].moe.combine)",
    reference_evidence="verified",
    candidate_evidence="set by the recipe",
)
ROOTS = tuple(
    Root(
        node=f"layers[{i}].moe.combine",
        op="combine",
        sequences=30 - i,
        tokens=198 - i,
        pads=0,
        same_values=False,
        local=0.001,
        places=(TokenPlace(sequence=i, position=3),),
        choices=(CHOICE,),
    )
    for i in range(7)
)


def trial(kl: float) -> TrialResult:
    return TrialResult(kl=kl, k3=kl, flipped_routes=0.0125, changed_nodes=3)


TOGGLE = ToggleResult(
    name="layers[*].moe.combine:accumulate",
    kind="rounding",
    reference="model (bf16)",
    candidate="fp32",
    reference_origin=CHOICE.reference_origin,
    candidate_origin=CHOICE.candidate_origin,
    reference_evidence="verified",
    candidate_evidence="set by the recipe",
    parent=None,
    nodes=7,
    alone=trial(0.001),
    restored=trial(0.0005),
    restored_change_low=-0.002,
    restored_change_high=-0.001,
    restores_all=False,
    large=False,
    legal=True,
    had_no_effect=False,
    masked=False,
)
INERT = replace(TOGGLE, name="op experts:implementation", alone=trial(0.0), restored=trial(0.002), had_no_effect=True)
MASKED = replace(TOGGLE, name="op router:weights", masked=True)
FLIPS = RoutingFlips(
    layers=(LayerFlips(layer=1, tokens=240, set_flips=12, slot_flips=24, slots_replaced=13, zero_overlap=2),),
    tokens=240,
    tokens_any_layer=18,
)
SOUND = Degeneracy(constant_weights=(), scored_tokens=240, flat=0, sequences=32, distinct=32, constant_sequences=0)
FAIL = Report(
    run=RUN,
    cost=COST,
    reference=Variant(profile="hf-eager", dtype="bf16", micro_batch=8, schedule="micro-batch 8"),
    candidate=Variant(profile="my-server", dtype="fp16", micro_batch=4, schedule="micro-batch 4"),
    record=Record(
        status="no record",
        side="candidate",
        logprobs=None,
        routes=None,
        gate=None,
        reading=("of an engine that ran these tokens.",),
    ),
    degeneracy=SOUND,
    blame=fill(Blame),
    summary=fill(Summary, verdict="k3 0.0013", record="none given", starts="layers[0]", blame="a", to_set="b"),
    verdict=VERDICT,
    metrics=METRICS,
    roots=ROOTS,
    growth=(
        LayerGrowth(
            name="layers[0]",
            node="layers[0].moe.residual",
            carried=SIZE,
            largest_local=2.5e-3,
            largest_local_node="layers[0].moe.combine",
        ),
        LayerGrowth(name="after", node="lm_head", carried=SIZE, largest_local=0.0, largest_local_node=""),
    ),
    flips=FLIPS,
    toggles=(TOGGLE, INERT, MASKED),
    swaps=(),
    reading=("op experts:implementation had no effect: no bit changed at any node.",),
    nodes=(NodeError(node="lm_head", op="lm_head", layer=None, carried=SIZE, local=SIZE),),
)
ZEROS = Interval(estimate=0.0, low=0.0, high=0.0, level=0.95, method="exact")
PASS = replace(
    FAIL,
    verdict=replace(VERDICT, status="pass", reason="all bits are equal", value=ZEROS),
    metrics=replace(METRICS, k1=0.0, k2=0.0, k3=0.0, kl=0.0, kl_reverse=0.0),
    roots=(),
    toggles=(),
    reading=(),
)


def rendered(report: Report, width: int = 240, sections: Sequence[str] = ON_REQUEST) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False)
    print_report(report, console, sections)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def lines(report: Report) -> list[str]:
    """The lines with runs of spaces made one."""
    return [re.sub(r"\s+", " ", line).strip() for line in rendered(report).splitlines()]


def test_fail() -> None:
    shown = lines(FAIL)
    at = shown.index("Metrics")
    assert shown[at + 1 : at + 4] == [
        "interval of k3: 95%, bootstrap-t, over sequences",
        "k1 0.0011, k2 0.0012, k3 0.0013, KL(candidate || reference) 0.002, KL(reference || candidate) 0.0021",
        "|delta log p| mean 0.03, max 0.4; top-1 agreement 97.50%",
    ]


def test_what_was_run_is_shown_as_it_is_called() -> None:
    shown = lines(FAIL)
    assert "recipe recipes/quickstart.yaml" in shown
    assert "checkpoint checkpoints/[/final] (qwen3_moe), 30 x 8 tokens sampled from the candidate, 210 scored" in shown
    assert "reference hf-eager, bf16, micro-batch 8" in shown
    assert "candidate my-server, fp16, micro-batch 4" in shown
    assert "machine Some CPU, torch 2.13.0, 1 thread" in shown


def test_the_first_root_is_shown_with_its_choices_and_the_others_by_name() -> None:
    shown = lines(FAIL)
    at = shown.index("Where it starts")
    assert shown[at + 1 : at + 5] == [
        "layers[0].moe.combine (combine), equal inputs, unequal output in 30 of 30 sequences (198 of 240 tokens)",
        "accumulate reference model (bf16) (verified), hf-eager.yaml:9 (op combine)",
        "candidate fp32 (set by the recipe), recipe.yaml:7 (layers[*].moe.combine)",
        "further roots (equal inputs, unequal output): " + ", ".join(root.node for root in ROOTS[1:5]) + " and 2 more",
    ]
    assert "and" not in lines(replace(FAIL, roots=ROOTS[:5]))[at + 4].split()
    assert not any("further roots" in line for line in lines(replace(FAIL, roots=ROOTS[:1])))


def test_growth_and_flips() -> None:
    shown = lines(FAIL)
    assert "layers[0] 3.50e-03 ####### 25.0% 0.75 9 2.50e-03 moe.combine" in shown
    assert any(line.startswith("lm_head 3.50e-03 ####### 25.0% 0.75 9 no op of its own differs") for line in shown)
    assert "1 12 (5.00%) 24 (10.00%) 2" in shown
    assert "18 of 240 tokens (7.50%) flip in some layer" in shown


def test_toggles() -> None:
    shown = lines(FAIL)
    at = shown.index("layers[*].moe.combine:accumulate rounding 1.00e-03 50% 1.25% 5.00e-04 25%")
    assert shown[at + 1] == "model (bf16) (verified) -> fp32 (set by the recipe)"
    assert "op router:weights rounding 1.00e-03 50% 1.25% masked" in shown
    assert "op experts:implementation rounding no effect no effect" in shown
    assert "- op experts:implementation had no effect: no bit changed at any node." in shown


def test_a_toggle_that_alone_changes_no_bit_is_not_given_a_kl() -> None:
    idle = replace(TOGGLE, name="op combine:leaves", alone=replace(trial(0.0), changed_nodes=0))
    assert "op combine:leaves rounding no effect 5.00e-04 25%" in lines(replace(FAIL, toggles=(idle,)))


def test_a_sentence_goes_on_under_its_first_word() -> None:
    shown = rendered(replace(FAIL, reading=("word " * 60,))).splitlines()
    first = next(i for i, line in enumerate(shown) if line.startswith("  - word"))
    assert shown[first + 1].startswith("    word")


def test_a_toggle_taken_apart_is_followed_by_its_parts() -> None:
    whole = replace(TOGGLE, name="fusion ar_norm")
    edge = replace(TOGGLE, name="fusion ar_norm / add:output->rms_norm", parent=whole.name)
    half = replace(TOGGLE, name="layers[0:2].moe.residual:output->rms_norm", parent=edge.name)
    text = rendered(replace(FAIL, toggles=(whole, INERT, edge, half))).splitlines()
    names = [line for line in text if "rounding" in line]
    assert [line.split("  rounding")[0].rstrip() for line in names] == [
        "  fusion ar_norm",
        "    add:output->rms_norm",
        "      layers[0:2].moe.residual:output->rms_norm",
        "  op experts:implementation",
    ]


def test_what_restores_all_bits_says_so() -> None:
    exact = replace(TOGGLE, restores_all=True, restored=trial(0.0))
    assert "layers[*].moe.combine:accumulate rounding 1.00e-03 50% 1.25% all bits" in lines(
        replace(FAIL, toggles=(exact,))
    )


def test_a_trial_without_routes_shows_none() -> None:
    blind = replace(TOGGLE, alone=replace(trial(0.001), flipped_routes=None))
    assert "layers[*].moe.combine:accumulate rounding 1.00e-03 50% 5.00e-04 25%" in lines(
        replace(FAIL, toggles=(blind,))
    )


def test_swapped_blocks() -> None:
    block = replace(TOGGLE, name="layers[*].moe", kind="several", nodes=4)
    swaps = (Swap(selector="layers[*].moe", nodes=24, toggle=block), Swap(selector="norm", nodes=1, toggle=None))
    shown = lines(replace(FAIL, swaps=swaps))
    at = shown.index("Swapped blocks")
    assert shown[at + 2 : at + 6] == [
        "layers[*].moe several 1.00e-03 50% 1.25% 5.00e-04 25%",
        "24 nodes, 4 nodes differ",
        "norm",
        "1 node, nothing differs",
    ]
    assert "Swapped blocks" not in lines(FAIL)


def test_cost() -> None:
    (cost,) = (line for line in lines(FAIL) if "evaluations" in line)
    for part in ("123 op evaluations", "8 variants", "456 without sharing", "1.5 MB of weights", "1.2 s"):
        assert part in cost


def test_pass_without_a_difference() -> None:
    shown = lines(PASS)
    assert not [line for line in shown if line.startswith("interval of")], "bits have none"
    assert "k1 0, k2 0, k3 0, KL(candidate || reference) 0, KL(reference || candidate) 0" in shown
    assert "nowhere: every node has equal bits on both sides" in shown
    for absent in ("Growth over layers", "Routing flips", "Toggles", "In words"):
        assert absent not in shown


def test_inconclusive() -> None:
    value = replace(INTERVAL, low=-math.inf, high=math.inf, method="none")
    verdict = replace(VERDICT, status="inconclusive", reason="one is too few", value=value)
    shown = lines(replace(FAIL, verdict=verdict))
    assert shown[0] == "INCONCLUSIVE k3 0.0013"
    assert not [line for line in shown if line.startswith("interval of")], "there is none"


def test_no_routers() -> None:
    shown = lines(replace(FAIL, flips=None))
    assert "Routing flips" not in shown
    assert "Growth over layers" in shown


def test_nonfinite() -> None:
    nan = math.nan
    metrics = replace(METRICS, k1=nan, k2=nan, k3=nan, kl=nan, kl_reverse=nan, nonfinite_tokens=7)
    toggle = replace(TOGGLE, alone=trial(nan), restored=trial(nan))
    shown = lines(replace(FAIL, metrics=metrics, toggles=(toggle,)))
    assert "7 tokens have NaN or infinite logits" in shown
    assert any(line.startswith("k1 nan, k2 nan, k3 nan") for line in shown)
    assert "layers[*].moe.combine:accumulate rounding nan 1.25% nan" in shown
    assert not any("NaN or infinite" in line for line in lines(FAIL))


@pytest.mark.parametrize("width", [60, 80, 100])
def test_narrow_terminals_lose_nothing(width: int) -> None:
    text = rendered(FAIL, width)
    assert all(len(line) <= width for line in text.splitlines())
    squeezed = re.sub(r"\s", "", text)
    for piece in ("interval of k3: 95%, bootstrap-t, over sequences", ROOTS[0].node, "FAIL", *FAIL.reading):
        assert re.sub(r"\s", "", piece) in squeezed


def test_a_trial_that_cannot_run_and_a_root_that_only_widens() -> None:
    shown = lines(replace(FAIL, toggles=(replace(TOGGLE, alone=None), replace(TOGGLE, restored=None))))
    start = "layers[*].moe.combine:accumulate rounding"
    assert f"{start} cannot run 5.00e-04 25%" in shown
    assert f"{start} 1.00e-03 50% 1.25% cannot run" in shown
    widened = lines(replace(FAIL, roots=(replace(ROOTS[0], same_values=True),)))
    assert any("equal values in another dtype in 30 of 30 sequences (198 of 240 tokens)" in line for line in widened)


def test_long_sections_are_a_line_each_until_they_are_asked_for() -> None:
    """What is listed and what is printed are together everything, whichever is asked for."""
    asking = re.compile(r"--section (\w+)  ")
    listed = asking.findall(rendered(FAIL, sections=()))
    assert listed == ["metrics", "starts", "growth", "flips", "toggles", "words", "cost"]
    whole = rendered(FAIL)
    assert "--section" not in whole
    titles = ("Metrics", "Where it starts", "Growth over layers", "Routing flips", "Toggles", "In words", "Cost")
    for name, title in zip(listed, titles, strict=True):
        some = rendered(FAIL, sections=(name,))
        assert f"\n{title}\n" in whole
        assert [heading for heading in titles if f"\n{heading}\n" in some] == [title]
        assert asking.findall(some) == [section for section in listed if section != name]


def test_a_report_opens_and_closes_with_its_summary_whatever_is_asked() -> None:
    for sections in ((), ("toggles",), ON_REQUEST):
        shown = rendered(FAIL, sections=sections).splitlines()
        assert shown[:7] == shown[-7:]
        assert shown[0].startswith("FAIL")


def test_a_section_that_this_report_has_not_is_said() -> None:
    assert "--section oracle: nothing; the recipe does not ask for it" in rendered(FAIL, sections=("oracle",))


def test_a_mistyped_section_is_refused() -> None:
    with pytest.raises(MoeparityError, match=r"--section togles: there is no such section; .*Did you mean 'toggles'\?"):
        asked_for(["growth", "togles"], all_of_them=False)
    assert asked_for(["growth"], all_of_them=True) == ON_REQUEST


@pytest.mark.parametrize("name", ON_REQUEST)
def test_every_long_section_says_what_it_holds_on_one_line(name: str) -> None:
    first, *others = [section.holds for section in SECTIONS if section.asked_for == name]
    assert first
    assert all(len(f"  --section {name}  {holds}") <= 80 for holds in (first, *others))


def test_no_word_is_broken_at_80_columns() -> None:
    words = set(re.findall(r"\S+", rendered(FAIL, width=1000)))
    narrow = rendered(FAIL, width=80)
    assert max(map(len, narrow.splitlines())) <= 80
    tokens = re.findall(r"\S+", narrow)
    # A long address may go on below, behind a dot or a colon; of a long path the middle is left out.
    assert {token for token in tokens if token not in words and not re.search(r"[.:,\])]$|\.\.\.", token)} <= {
        tail for word in words for tail in re.split(r"(?<=[.:])", word)
    }
