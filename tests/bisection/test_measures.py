"""The one list of what is measured: each says what it needs, and looks all of it up; no order of the list matters."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from safetensors.torch import load_file, save_file

from moeparity import bisect
from moeparity.bisection import measures, pipeline
from moeparity.bisection.context import Context, Measure
from moeparity.bisection.data import ReportData
from moeparity.bisection.digests.data import Digests
from moeparity.bisection.distribution.data import Distribution
from moeparity.bisection.floor.data import Floor
from moeparity.bisection.measures import MEASURES, codec, summarise
from moeparity.bisection.observed import Observed
from moeparity.bisection.report import Report
from moeparity.bisection.sections import SECTIONS
from moeparity.bisection.study import Study
from moeparity.bisection.trace.data import Traced
from moeparity.bisection.verdict.data import Verdicts
from moeparity.evidence.explain import inquiry
from moeparity.search.blame import Blame
from tests.bisection.nearest.plants import report_of
from tests.bisection.pages import small_report
from tests.bisection.record.rollout import Rollout, engine
from tests.bisection.reports import folder_of
from tests.evidence.traced import reported
from tests.planted.places import random_tokens, write_recipe

NOT_SHOWN = {
    Distribution: "its figures stand with the metrics",
    Digests: "digests are held to others, and read by nobody",
    Blame: "the summary says it in a line",
}
"""Data that no section is of."""


@dataclass(frozen=True)
class MadeRun:
    """A run: its study, what its passes saw, and the report that was made of it."""

    study: Study
    observed: Observed
    report: Report


def _nonfinite(folder: Path, checkpoint: Path) -> Report:
    """Logits that are beyond what fp16 holds."""
    copied = Path(shutil.copytree(checkpoint, folder / "large"))
    tensors = load_file(copied / "model.safetensors")
    tensors["model.norm.weight"] *= 1e6
    save_file(tensors, copied / "model.safetensors")
    candidate = {"set": {"lm_head:output": "fp16", "layers[0].moe.gate:output": "fp32"}}
    recipe = write_recipe(folder, copied, {"input_ids": random_tokens(3, 8)}, {}, candidate, floor=True, oracle=True)
    return bisect(recipe, device="cpu")


def _contradicted(folder: Path, checkpoint: Path) -> Report:
    """A record that neither side reproduces."""
    record = engine(checkpoint)
    return Rollout(checkpoint, folder).run({**record, "logprobs": record["logprobs"] - 1.0})


def _spiking(folder: Path, checkpoint: Path) -> Report:
    """Two draws of the experts' sum, of which every changed bit counts as a spike."""
    ours, theirs = ({"set": {"layers[*].moe.combine:order": f"unordered({seed})"}} for seed in (100, 0))
    recipe = write_recipe(folder, checkpoint, {"input_ids": random_tokens(2, 6)}, ours, theirs)
    text = json.dumps(json.loads(recipe.read_text("utf-8")) | {"spikes": {"draws": 2, "above": 1.000001}})
    recipe.write_text(text, "utf-8")
    return bisect(recipe, device="cpu")


RUNS: dict[str, Callable[[Path, Path], Report]] = {
    "shares": small_report,
    "not finite": _nonfinite,
    "spikes": _spiking,
    "contradicted": _contradicted,
    "trace": reported,
    "function": lambda folder, checkpoint: report_of(folder, checkpoint, "by_mean_of_sizes", "layers[1].moe.norm"),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, qwen3_moe: Path) -> dict[str, MadeRun]:
    run_by_name: dict[str, MadeRun] = {}

    def keep(study: Study, observed: Observed) -> Report:
        report = summarise(study, observed)
        run_by_name[name] = MadeRun(study, observed, report)
        return report

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pipeline, "summarise", keep)
        patched.setattr(inquiry, "WORK", inquiry.LEAST)
        for name, start in RUNS.items():
            start(tmp_path_factory.mktemp(name.replace(" ", "_")), qwen3_moe)
    assert run_by_name.keys() == RUNS.keys()
    return run_by_name


@dataclass
class Looking:
    """A context that notes what is looked up in it."""

    of: Context
    looked_up: set[type] = field(default_factory=set)

    @property
    def study(self) -> Study:
        return self.of.study

    @property
    def observed(self) -> Observed:
        return self.of.observed

    def __getitem__(self, kind: type) -> Any:
        self.looked_up.add(kind)
        return self.of[kind]

    def get(self, kind: type) -> Any:
        self.looked_up.add(kind)
        return self.of.get(kind)


def listed(monkeypatch: pytest.MonkeyPatch, measures_there: tuple[Measure, ...]) -> None:
    """Let these be the measures that there are."""
    monkeypatch.setattr(measures, "MEASURES", measures_there)
    measures._in_order.cache_clear()


@pytest.fixture(autouse=True)
def _order_anew() -> Any:
    yield
    measures._in_order.cache_clear()


def test_every_measure_gives_data_of_its_own() -> None:
    kinds = [measure.gives for measure in MEASURES]
    assert len(kinds) == len(set(kinds))
    assert all(is_dataclass(kind) for kind in kinds)
    assert {kind for measure in MEASURES for kind in measure.needs} <= set(kinds)
    names = [each.name for measure in MEASURES for each in (measure.watch, measure.search) if each is not None]
    assert len(names) == len(set(names))


def test_every_section_is_of_data_that_a_measure_gives_and_all_other_data_are_known() -> None:
    shown = set(map(folder_of, SECTIONS))
    of_folder = {measure.gives: measure.gives.__module__.split(".")[2] for measure in MEASURES}
    assert shown <= set(of_folder.values())
    assert {kind for kind, folder in of_folder.items() if folder not in shown} == NOT_SHOWN.keys()


def test_every_field_of_a_report_is_given_by_one_measure() -> None:
    hints = get_type_hints(ReportData)
    whole = {kind: name for name, hint in hints.items() for kind in (hint, *get_args(hint))}
    names = [
        name
        for measure in MEASURES
        for name in (
            [whole[measure.gives]] if measure.gives in whole else [each.name for each in fields(measure.gives)]
        )
    ]
    assert sorted(names) == sorted(hints)


def test_the_runs_here_give_what_only_some_have(runs: dict[str, MadeRun]) -> None:
    of = {name: run.report for name, run in runs.items()}
    assert of["shares"].attribution is not None
    assert of["not finite"].nonfinite is not None
    assert of["not finite"].floor is not None
    assert of["contradicted"].verdict.of_record
    assert of["trace"].trace is not None
    assert of["function"].nearest


def test_what_is_looked_up_is_what_is_needed(runs: dict[str, MadeRun], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of no measure less, or it could not be made; nor more, which it would wait for."""
    looked_up: dict[type, set[type]] = {measure.gives: set() for measure in MEASURES}

    def noting(measure: Measure) -> Measure:
        def noted(of: Context) -> Any:
            looking = Looking(of)
            data = measure.measure(looking)  # type: ignore[arg-type]
            looked_up[measure.gives] |= looking.looked_up
            return data

        return replace(measure, measure=noted)

    listed(monkeypatch, tuple(map(noting, MEASURES)))
    for run in runs.values():
        assert summarise(run.study, run.observed).to_json() == run.report.to_json()
    assert looked_up == {measure.gives: set(measure.needs) for measure in MEASURES}


@pytest.mark.parametrize(
    ("gives", "need"),
    [(measure.gives, need) for measure in MEASURES for need in measure.needs],
    ids=lambda k: k.__name__,
)
def test_a_measure_that_does_not_say_what_it_needs_fails(
    gives: type, need: type, runs: dict[str, MadeRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    without = tuple(
        replace(m, needs=tuple(n for n in m.needs if n is not need)) if m.gives is gives else m for m in MEASURES
    )
    listed(monkeypatch, without)

    def fails(run: MadeRun) -> bool:
        try:
            summarise(run.study, run.observed)
        except KeyError as error:
            return error.args == (need,)
        return False

    assert any(map(fails, runs.values()))


@pytest.mark.parametrize("seed", range(5))
def test_no_order_of_the_list_matters(seed: int, runs: dict[str, MadeRun], monkeypatch: pytest.MonkeyPatch) -> None:
    shuffled = random.Random(seed).sample(MEASURES, len(MEASURES))  # noqa: S311
    assert tuple(shuffled) != MEASURES
    listed(monkeypatch, tuple(shuffled))
    for run in runs.values():
        report = summarise(run.study, run.observed)
        assert report.to_json() == run.report.to_json()
        # NaN is no NaN, so words are compared; fields that no JSON has are among them.
        assert repr(replace(report, per_token=None)) == repr(replace(run.report, per_token=None))


def test_needs_that_go_round_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    round_ = tuple(replace(m, needs=(Blame,)) if m.gives is Verdicts else m for m in MEASURES)
    listed(monkeypatch, round_)
    with pytest.raises(ValueError, match="cycle"):
        measures._in_order()


def test_what_was_not_found_is_none_and_what_is_not_there_an_error() -> None:
    of = Context(None, None, {Floor: None, Verdicts: "verdicts"})  # type: ignore[arg-type]
    assert of.get(Floor) is None
    assert of.get(Verdicts) == of[Verdicts] == "verdicts"
    for look in (lambda: of[Floor], lambda: of[Traced], lambda: of.get(Traced)):
        with pytest.raises(KeyError):
            look()


def test_what_a_pass_saw_is_written_and_read(runs: dict[str, MadeRun]) -> None:
    """Each watch says what its result is made of."""
    for run in runs.values():
        written = codec(run.study.model.graph)
        again = written.decode(*written.encode(replace(run.observed, answers={})))
        report = summarise(run.study, replace(again, answers=run.observed.answers))
        assert report.to_json() == run.report.to_json()


def test_answers_of_searches_stand_under_their_names(runs: dict[str, MadeRun]) -> None:
    names = {measure.search.name for measure in MEASURES if measure.search is not None}
    assert {name for run in runs.values() for name in run.observed.answers} <= names
    assert runs["shares"].observed.answers
