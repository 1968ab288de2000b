"""Every recipe in recipes/ says what it expects, and `moeparity check` finds it so."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeparity.plan.spec.reader import read_recipe
from tests.command import ROOT, inside

RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))


BY_KERNELS = {
    "tensor-parallel",
    "reward",
    "decode",
    "batch-mismatch",
    "chunked-prefill",
    "packed",
    "prefix-cache",
    "latent-decode",
    "in-flight-update",
    "cache-recomputed",
    "stale-prefix",
    "speculative",
}
"""Recipes of which the CPU's GEMM kernels decide where bits first differ."""


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe_meets_what_it_expects_of_itself(path: Path) -> None:
    expected = read_recipe(path).expect
    assert expected is not None
    assert expected.verdict is not None
    assert (expected.first_divergence is None) == (path.stem in BY_KERNELS)
    done = inside("check", path.relative_to(ROOT), "--device", "cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    first, name, *lines, last = done.stdout.splitlines()
    met = [line for line in lines if line and not line.startswith(" ")]  # what does not fit goes on below
    assert name == str(path.relative_to(ROOT))
    assert all(line.startswith("ok ") for line in met)
    assert first == last == f"PASS    1 recipe held to what it expects, {len(met)} met; exit 0"
    assert len(met) > 2
