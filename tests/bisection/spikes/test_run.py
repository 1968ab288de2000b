"""Draws of a trained model: their values are those of plain forwards, and forced routes do what the report says."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from moeparity.bisection.measures import searched, summarise
from moeparity.bisection.options import Options
from moeparity.bisection.pipeline import passes_over, ready
from moeparity.bisection.report import Report
from moeparity.bisection.spikes.data import ONE_FLIP
from moeparity.bisection.spikes.observe import SPIKES, Draws, DrawValues, pairs
from moeparity.bisection.spikes.search import TRIED, Tried, side_of
from moeparity.bisection.study import Study
from moeparity.bisection.trials import Trial, TrialKey, walker
from moeparity.engine.forward import forward
from moeparity.engine.routes import IDS, Forced, Recorded
from moeparity.engine.view import NodeView
from moeparity.plan.sides import CANDIDATE, REFERENCE
from tests.command import ROOT

QUICKSTART = ROOT / "checkpoints" / "quickstart"
ORDER = "layers[*].moe.combine:order"
ACCUMULATE = "layers[*].moe.combine:accumulate"
ROWS = [2, 7, 8]
RECIPE = f"""kind: recipe
checkpoint: {QUICKSTART}
tokens: {{file: tokens.safetensors, sampled_from: candidate}}
reference: {{profile: hf-default, micro_batch: 3, set: {{"{ACCUMULATE}": bf16, "{ORDER}": unordered(100)}}}}
candidate: {{profile: hf-default, micro_batch: 3, set: {{"{ACCUMULATE}": bf16, "{ORDER}": unordered(0)}}}}
gate: {{metric: k3, below: 1e-2}}
floor: false
spikes: {{draws: 2, above: 1.08}}
"""


@dataclass(frozen=True, slots=True)
class Run:
    """A recipe's run: its plan, report, tokens, and what was seen of the draws."""

    study: Study
    report: Report
    tokens: dict[str, Tensor]
    drawn: DrawValues
    tried: list[Tried]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("spikes")
    tokens = {name: value[ROWS] for name, value in load_file(ROOT / "recipes" / "spikes.safetensors").items()}
    save_file({name: value.contiguous() for name, value in tokens.items()}, folder / "tokens.safetensors")
    (folder / "recipe.yaml").write_text(RECIPE, "utf-8")
    study = ready(folder / "recipe.yaml", device="cpu", options=Options())
    _, observed = passes_over(study, None)
    observed = searched(study, observed)
    drawn, tried = observed.of_watch(SPIKES), observed.of_search(TRIED)
    assert drawn is not None
    assert tried
    return Run(study, summarise(study, observed), tokens, drawn, list(tried))


def log_p(logits: Tensor, ids: Tensor) -> Tensor:
    """The log-probability of every token but the first, fp64 [B, T - 1]."""
    return logits[:, :-1].double().log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]


def test_every_draw_is_what_two_plain_forwards_give(run: Run) -> None:
    tokens, report = run.tokens, run.report.spikes
    assert report is not None
    scored = tokens["loss_mask"][:, 1:]
    for draw in range(2):
        ours, theirs = (
            forward(
                QUICKSTART,
                tokens["input_ids"],
                profile="hf-default",
                micro_batch=3,
                settings={ORDER: f"unordered({seed})", ACCUMULATE: "bf16"},
                attention_mask=tokens["attention_mask"],
                device="cpu",
            )
            for seed in (100 + draw, draw)
        )
        p, q = (log_p(side["logits"], tokens["input_ids"]) for side in (ours, theirs))
        factors = (p - q).abs().exp()[scored]
        assert bool(((q - p).abs() == run.drawn.values[0, draw, :, 1:].abs())[scored].all())
        assert bool((p == run.drawn.values[3, draw, :, 1:])[scored].all())
        assert report.draws[draw].highest == pytest.approx(float(factors.max()), rel=1e-14)
        assert report.draws[draw].mean == pytest.approx(float(factors.mean()), rel=1e-14)
        assert report.draws[draw].spikes == int((factors > 1.08).sum())
        for layer in range(4):
            sets = (side[f"layers.{layer}.router.ids"].sort(-1).values for side in (ours, theirs))
            flipped = torch.ne(*sets).any(-1).view(tokens["input_ids"].shape)
            assert bool((flipped == run.drawn.flips[draw, layer]).all())


@dataclass(slots=True)
class Logits:
    """Keeps logits, and what the reference's routers choose."""

    logits: dict[str, Tensor] = field(default_factory=dict)
    ids: dict[str, Tensor] = field(default_factory=dict)

    def see(self, view: NodeView) -> None:
        if view.node.op.role.routes:
            self.ids[view.node.values[0]] = view.tensor("reference").flatten(0, 1).clone()
        if view.node.name == "log_probs":
            self.logits = {name: view.tensor(name).clone() for name in view.outputs if isinstance(name, str)}


def test_a_spike_of_one_flip_is_gone_with_that_one_route_of_that_one_token(run: Run) -> None:
    """The trial again, with a table of routes that is written here."""
    report, ids = run.report.spikes, run.tokens["input_ids"]
    assert report is not None
    assert report.share(ONE_FLIP) > 0
    ended = [t for t in run.tried if abs(t.first_flip) <= 0.04]
    assert ended
    spike = ended[0]
    keys = [TrialKey("arrival", side, spike.draw) if spike.draw else side for side in (REFERENCE, CANDIDATE)]
    reference = walker(run.study, "reference", side_of(run.study, keys[0]))
    observer = Logits()
    run.study.passes().run([reference], [observer])
    flipped = [layer for layer in range(4) if run.drawn.flips[spike.draw, layer, spike.sequence, spike.column - 1]]
    tables = {}
    for layer, (value, rows) in enumerate(observer.ids.items()):
        tables[value] = torch.full_like(rows, -1)
        if layer == flipped[0]:
            row = spike.sequence * ids.shape[1] + spike.column - 1
            tables[value][row] = rows[row]
    candidate = side_of(run.study, keys[1])
    trials = [
        walker(run.study, "natural", candidate),
        replace(walker(run.study, "one", candidate), routes=Recorded(of=tables, replayed=IDS)),
        walker(run.study, "all", candidate, routes=Forced(of="reference", replayed=IDS)),
    ]
    run.study.passes().run([reference, *trials], [observer])
    of_token = {
        name: float(log_p(logits, ids)[spike.sequence, spike.column - 1]) for name, logits in observer.logits.items()
    }
    deltas = {name: abs(of_token["reference"] - of_token[name]) for name in ("natural", "one", "all")}
    assert deltas["one"] == abs(spike.first_flip)
    assert deltas["all"] == abs(spike.all_routes)
    assert deltas["natural"] > 2 * deltas["one"]


def test_the_report_names_the_tokens_by_what_they_are(run: Run) -> None:
    report = run.report.spikes
    assert report is not None
    assert report.tokens == len(report.listed) > 0
    for token in report.listed:
        column = token.token + int(run.tokens["attention_mask"][token.sequence].long().argmax())
        assert token.token_id == int(run.tokens["input_ids"][token.sequence, column])
        deltas = run.drawn.values[0, :, token.sequence, column].abs()
        assert token.draws == int((deltas.exp() > 1.08).sum()) == sum(token.causes.values())
        assert token.flips == int(run.drawn.flips[:, :, token.sequence, column - 1].any(-1).sum())


def test_the_section_is_absent_unless_it_is_asked_for(run: Run, tmp_path: Path) -> None:
    text = RECIPE.replace("spikes:", "# spikes:").replace(
        "tokens.safetensors", str(run.study.path.parent / "tokens.safetensors")
    )
    (tmp_path / "recipe.yaml").write_text(text, "utf-8")
    study = ready(tmp_path / "recipe.yaml", device="cpu")
    assert SPIKES.observer(study, {}) is None
    assert SPIKES.bytes_per_token(study) == 0
    assert SPIKES.bytes_per_token(run.study) == 2 * (4 * 8 + 1 + 4)


def test_what_shards_saw_joins_to_what_one_pass_saw(run: Run) -> None:
    keys = [TrialKey("arrival", side, 1) for side in (REFERENCE, CANDIDATE)]
    assert pairs(keys) == [(REFERENCE, CANDIDATE), tuple(keys)]
    whole, joined = (
        SPIKES.observer(run.study, dict.fromkeys(keys, Trial(side=run.study.candidate, base=CANDIDATE)))
        for _ in range(2)
    )
    assert isinstance(whole, Draws)
    assert isinstance(joined, Draws)
    whole.drawn = run.drawn
    for rows in (slice(0, 1), slice(1, 3)):
        joined.join(whole.part(rows), rows)
    for name in ("values", "counts", "flips"):
        assert torch.equal(getattr(joined.result, name), getattr(run.drawn, name))
    assert bool(joined.result.flips.any())
