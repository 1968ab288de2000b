"""The page of all pairs of engine profiles: what must be equal is, and a part of it measured again says the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from moeparity.plan.spec.variant_schema import Placement
from scripts.pages.engine_matrix import WRITTEN, engines, guilty, ranks_of, root
from scripts.pages.engine_pairs import Bench, batches, opened, pairs_of, same_twice
from scripts.pages.registry import PAGES

ROOT = Path(__file__).parents[2]
AGAIN = (("hf-eager", "hf-v4"), ("vllm-eager", "vllm"), ("vllm", "vllm-fp32-head"))
"""Pairs in which one choice leads by far, so that another processor finds the same."""
INVARIANT = ("vllm-batch-invariant", "sglang-deterministic")


@pytest.fixture(scope="module")
def bench() -> Bench:
    """On a part of the page's tokens, the one that single choices are tried on."""
    return opened().part()


def rows() -> dict[tuple[str, str], list[str]]:
    """The first row of each pair, which is that of one rank, cell by cell from its two names on."""
    cells_by_pair: dict[tuple[str, str], list[str]] = {}
    for line in PAGES["engine-matrix"].file.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        names = [i for i, cell in enumerate(cells) if cell.startswith("`")][:2]
        if len(names) == 2 and len(cells) >= 8:
            start = names[0]
            cells_by_pair.setdefault((cells[start].strip("`"), cells[start + 1].strip("`")), cells[start:])
    return cells_by_pair


def bare_choice(cell: str) -> str:
    """A most guilty choice without its figures and doubts."""
    return cell.partition("%")[0].rpartition(" ")[0]


def test_every_pair_of_engines_and_every_overlay_is_on_the_page() -> None:
    whole, overlays = engines()
    cells_by_pair = rows()
    expected = {(a, b) for i, a in enumerate(whole) for b in whole[i + 1 :]}
    assert expected | {(base, overlay) for overlay, base in overlays.items()} <= set(cells_by_pair)


def test_a_part_measured_again_says_the_same(bench: Bench) -> None:
    page = rows()
    measured = pairs_of(bench, tuple(dict.fromkeys(name for pair in AGAIN for name in pair)), AGAIN)
    for pair in measured:
        *_, first, most, _ = page[pair.first, pair.second]
        assert first == root(pair)
        measured_again = bare_choice(guilty(pair))
        assert measured_again
        assert bare_choice(most)
        # Which of several rivals costs most is a processor's.
        if "+" not in most and "+" not in guilty(pair):
            assert bare_choice(most) == measured_again


def test_the_same_engine_twice_is_bit_identical(bench: Bench) -> None:
    names = ("hf-eager", "vllm", "megatron")
    assert same_twice(bench, names) == dict.fromkeys(names, True)
    (itself,) = pairs_of(bench, ("vllm",), [("vllm", "vllm")])
    assert (itself.k3, itself.flips, itself.root, itself.choices) == (0.0, 0.0, None, 0)


def test_batch_invariant_engines_give_the_same_bits_in_any_batch(bench: Bench) -> None:
    """An expert of micro-batch 1 has so few rows that torch's own GEMM would be another one."""
    on_one = batches(replace(bench, settings=WRITTEN), INVARIANT, (1, 4))
    on_four = batches(replace(bench, settings=WRITTEN, placement=Placement(tensor=4)), INVARIANT, (1, 4))
    assert len(on_one) == len(on_four) == 4
    assert set(on_one.values()) | set(on_four.values()) == {None}


def test_an_all_reduce_that_goes_by_the_size_of_the_message_does_not(bench: Bench) -> None:
    roots = batches(replace(bench, placement=Placement(tensor=4)), ["hf-eager"], (1,))
    assert roots == {("hf-eager", 1): "layers[0].attention.reduce"}


def test_an_overlay_of_an_all_reduce_is_compared_on_several_ranks(bench: Bench) -> None:
    assert ranks_of(bench, "vllm-allreduce-norm", "vllm") == Placement(tensor=4, expert=4)
    assert ranks_of(bench, "vllm-fp32-head", "vllm") == Placement()
    assert ranks_of(bench, "deepep-internode", "vllm") is None
