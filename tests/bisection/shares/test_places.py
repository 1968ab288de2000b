"""Places left unquantised: what each set leaves, against a bisection of a recipe in which these places are not set."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from moeparity.bisection.options import Options
from moeparity.bisection.pipeline import bisect
from moeparity.bisection.report import Report
from moeparity.bisection.shares.data import PlacesRow
from tests.opened import opened
from tests.planted.places import random_tokens, write_recipe

SCALES = {"weight_block": 32, "activation_group": 16}
EXPERTS = {"implementation": "loop", "weights": "fp8_e4m3", "weight_scales": "block", "weight_block": 32}
LINEAR = {"weights": "fp8_e4m3", "activations": "fp8_e4m3", "weight_scales": "block", **SCALES}
TOKENS = {"input_ids": random_tokens(6, 9)}
SIDE: dict[str, Any] = {"micro_batch": 3}
FEW = {"by": "block", "mixtures": 32}
"""So that few other mixtures are run."""
BESIDE = {"layers[*].moe.combine:weighted": "fp32", "layers[1].attention.norm:output": "fp32"}
"""What else differs, and stays as the candidate has it."""
OF_LAYER = {
    "layers[0]": {"layers[0].attention.*_proj": LINEAR, "layers[0].moe.experts": EXPERTS},
    "layers[1]": {"layers[1].attention.v_proj": LINEAR, "layers[1].moe.experts": EXPERTS},
    "layers[2]": {"layers[2].moe.experts": EXPERTS},
    "lm_head": {"lm_head": LINEAR},
}


def settings(layers: set[str], ops: set[str]) -> dict[str, Any]:
    """A recipe's `set:` with only these layers and only these kinds of ops quantised."""
    chosen = {name: values for layer in layers for name, values in OF_LAYER[layer].items()}
    kinds = {name: "experts" if "experts" in name else "lm_head" if name == "lm_head" else "linear" for name in chosen}
    loops = {"layers[*].moe.experts:implementation": "loop"}
    grids = {
        f"{name}:{key}": value
        for name, values in chosen.items()
        if kinds[name] in ops
        for key, value in values.items()
        if key != "implementation"
    }
    return {**BESIDE, **loops, **grids}


ALL_LAYERS, ALL_OPS = set(OF_LAYER), {"experts", "linear", "lm_head"}


def planted(folder: Path, checkpoint: Path, candidate: dict[str, Any]) -> Path:
    reference = {**SIDE, "set": {"layers[*].moe.experts:implementation": "loop"}}
    path = write_recipe(folder, checkpoint, TOKENS, reference, {**SIDE, "set": candidate}, below=1e-9)
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), "floor": False, **FEW}), "utf-8")
    return path


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, qwen3_moe: Path) -> Report:
    path = planted(tmp_path_factory.mktemp("places"), qwen3_moe, settings(ALL_LAYERS, ALL_OPS))
    return bisect(path, device="cpu", opener=opened, options=Options(attribute=True))


def of(report: Report, by: str) -> PlacesRow:
    assert report.attribution is not None
    (places,) = (places for places in report.attribution.places if places.by == by)
    return places


def kl(folder: Path, checkpoint: Path, layers: set[str], ops: set[str]) -> float:
    folder.mkdir()
    return bisect(planted(folder, checkpoint, settings(layers, ops)), device="cpu", opener=opened).metrics.kl


def test_every_set_of_layers_leaves_what_a_recipe_without_them_has(
    report: Report, tmp_path: Path, qwen3_moe: Path
) -> None:
    places = of(report, "layer")
    assert places.unquantised
    assert [len(row.places) for row in places.sets] == [1, 2, 3, 4]
    kl_with = {
        restored: kl(tmp_path / "-".join(("by", *restored)), qwen3_moe, ALL_LAYERS - set(restored), ALL_OPS)
        for size in (1, 3)
        for restored in itertools.combinations(OF_LAYER, size)
    }
    for row in (places.sets[0], places.sets[2]):
        of_size = [value for restored, value in kl_with.items() if len(restored) == len(row.places)]
        assert row.kl == kl_with[row.places] == min(of_size)
        assert row.gone == pytest.approx(1 - row.kl / report.metrics.kl, abs=1e-12)
        assert row.best
    everything = places.sets[-1]
    assert everything.kl == kl(tmp_path / "nothing", qwen3_moe, set(), ALL_OPS) > 0, "what else differs stays"
    assert not everything.exact


def test_every_set_of_ops_leaves_what_a_recipe_without_them_has(
    report: Report, tmp_path: Path, qwen3_moe: Path
) -> None:
    places = of(report, "op")
    assert {row.name for row in places.shares.rows} == ALL_OPS
    for row in places.sets[:2]:
        assert row.kl == kl(tmp_path / "-".join(row.places), qwen3_moe, ALL_LAYERS, ALL_OPS - set(row.places))
    assert sum(row.share for row in places.shares.rows) == pytest.approx(places.shares.total)


def test_the_smallest_fix_by_layers_passes_in_a_recipe_of_its_own(tmp_path: Path, qwen3_moe: Path) -> None:
    """Six sequences are too few for any other fix than equal bits: all places, and only where nothing else differs."""
    candidate = {key: value for key, value in settings(ALL_LAYERS, ALL_OPS).items() if key not in BESIDE}
    path = planted(tmp_path, qwen3_moe, candidate)
    places = of(bisect(path, device="cpu", opener=opened, options=Options(attribute=True)), "layer")
    assert set(places.fixes[0].toggles) == ALL_LAYERS
    assert places.fixes[0].exact


def test_the_summary_names_the_fewest_places_that_take_half_away(report: Report) -> None:
    for by in ("op", "layer"):
        enough = [row for row in of(report, by).sets[:-1] if row.gone >= 0.5]
        words = f" left unquantised removes {enough[0].gone:.0%}" if enough else ""
        assert words in report.summary.to_set
    assert "left unquantised" in report.summary.to_set


def test_a_difference_in_one_place_has_no_places_to_choose_from(tmp_path: Path, qwen3_moe: Path) -> None:
    path = planted(tmp_path, qwen3_moe, {**settings({"lm_head"}, ALL_OPS)})
    attribution = bisect(path, device="cpu", opener=opened, options=Options(attribute=True)).attribution
    assert attribution is not None
    assert [places.by for places in attribution.places] == []


def test_another_rounding_without_a_grid_is_told_as_the_references(tmp_path: Path, qwen3_moe: Path) -> None:
    loops = {"layers[*].moe.experts:implementation": "loop", "layers[*].moe.experts:activation": "fp32"}
    report = bisect(planted(tmp_path, qwen3_moe, loops), device="cpu", opener=opened, options=Options(attribute=True))
    places = of(report, "layer")
    assert not places.unquantised
    assert [len(row.places) for row in places.sets] == [1, 2, 3]
    assert places.sets[-1].exact
    assert "left unquantised" not in report.summary.to_set
