"""What nobody lists, planted in captured programs: numbers to many digits, experts exchanged, and what has no name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from moeparity.evidence.explain.report import Explanation
from moeparity.evidence.explain.trace import Request, explain_trace
from tests.evidence.traced import captured, forward, generated, tokens, uneven

ATTEND, EXPERTS, COMBINE = "layers[1].attention.attend", "layers[1].moe.experts", "layers[1].moe.combine"
SCALE = f"{ATTEND}:fault=softmax-scale(factor="
WIDE = (6, 18)

Run = Callable[[Any, torch.Tensor], object]


def steps(program: Any, ids: torch.Tensor) -> object:
    """A prompt and three steps of decoding."""
    return generated(program, *uneven((9, 7, 5)))


def batches(program: Any, ids: torch.Tensor) -> None:
    for seed in (1, 2, 3):
        forward(program, tokens(seed=seed))


def explained(
    checkpoint: Path,
    folder: Path,
    node: str,
    patch: Callable[[Any], object],
    run: Run = forward,
    profile: str = "hf-eager",
) -> Explanation:
    """What is said of a patched program's node, held to hf-eager."""
    trace = captured(checkpoint, folder / "trace", tokens(WIDE), patch=patch, run=run, profile=profile)
    (answer,) = explain_trace(Request(trace=trace, checkpoint=checkpoint, nodes=node)).nodes
    return answer


def scaled(program: Any, factor: float) -> None:
    program.model.layers[1].self_attn.scaling *= factor


@pytest.mark.parametrize(
    ("factor", "run", "profile"),
    [
        (0.9759183, forward, "hf-eager"),
        (1.0873311, batches, "hf-eager"),
        (0.7731049, steps, "hf-eager"),
        (0.9759183, forward, "hf-default"),
        (1.0412991, steps, "hf-default"),
    ],
)
def test_a_scale_is_solved_for_with_the_range_that_gives_the_same_bits(
    qwen3_moe: Path, tmp_path: Path, factor: float, run: Run, profile: str
) -> None:
    """With one forward, several, and steps of decoding; hf-default is sdpa beside it, which adds in another order."""
    answer = explained(qwen3_moe, tmp_path, ATTEND, partial(scaled, factor=factor), run, profile)
    assert answer.explained, answer.matches
    (first, *_) = answer.matches
    (between,) = first.between
    assert between.place == f"{ATTEND}:fault softmax-scale"
    assert between.least <= factor <= between.greatest
    assert between.greatest - between.least < 1e-3
    scale, *others = first.choices
    assert scale.startswith(SCALE)
    assert others == ([f"{ATTEND}:implementation=sdpa"] if profile == "hf-default" else [])


def test_a_width_that_is_listed_is_told_before_the_factor_that_it_makes(qwen3_moe: Path, tmp_path: Path) -> None:
    def patch(program: Any) -> None:
        program.model.layers[1].self_attn.scaling = 48**-0.5

    answer = explained(qwen3_moe, tmp_path, ATTEND, patch, profile="hf-default")
    assert answer.matches[0].choices == (
        f"{ATTEND}:fault=softmax-scale-of-another-width(width=48)",
        f"{ATTEND}:implementation=sdpa",
    )


def exchanged(program: Any, part: str, *pairs: tuple[int, int]) -> None:
    """Experts' weights exchanged by hand in transformers' own tensors."""
    experts = program.model.layers[1].mlp.experts
    gate, up = experts.gate_up_proj.data.chunk(2, 1)
    parts = {"down": [experts.down_proj.data], "gate": [gate], "up": [up], "gate and up": [gate, up]}
    for first, second in pairs:
        for weight in parts.get(part, [experts.down_proj.data, gate, up]):
            weight[[first, second]] = weight[[second, first]].clone()


@pytest.mark.parametrize(
    ("part", "pair", "run", "profile"),
    [
        ("down", (2, 4), forward, "hf-eager"),
        ("down", (2, 4), steps, "hf-eager"),
        ("down", (7, 12), batches, "hf-eager"),
        ("up", (3, 9), forward, "hf-eager"),
        ("gate and up", (0, 15), forward, "hf-eager"),
        ("", (5, 11), forward, "hf-eager"),
        ("gate", (3, 9), forward, "hf-default"),
    ],
)
def test_two_experts_exchanged_are_named_by_what_the_combine_gave(
    qwen3_moe: Path, tmp_path: Path, part: str, pair: tuple[int, int], run: Run, profile: str
) -> None:
    """The rows of single experts are not in the trace; hf-default adds them up in another order beside it."""
    answer = explained(qwen3_moe, tmp_path, COMBINE, lambda program: exchanged(program, part, pair), run, profile)
    values = f"part={part}, " if part else ""
    fault = f"{EXPERTS}:fault=experts-exchanged({values}experts={pair[0]} {pair[1]})"
    noise = (f"{COMBINE}:accumulate=fp32",) if profile == "hf-default" else ()
    assert answer.matches[0].choices == (fault, *noise)
    words = f"the weights{f' {part}' if part else ''} of experts {pair[0]} and {pair[1]} are exchanged"
    assert answer.matches[0].faults == (words,)


def test_two_pairs_exchanged_are_both_named(qwen3_moe: Path, tmp_path: Path) -> None:
    def patch(program: Any) -> None:
        exchanged(program, "down", (2, 4), (7, 12))

    answer = explained(qwen3_moe, tmp_path, COMBINE, patch)
    assert answer.matches[0].choices == tuple(
        f"{EXPERTS}:fault=experts-exchanged(part=down, experts={pair})" for pair in ("2 4", "7 12")
    )


def turned(program: Any) -> None:
    """Of one expert a fault that has a name, of another what nobody lists."""
    down = program.model.layers[1].mlp.experts.down_proj.data
    down[9], down[2] = 0, down[2].roll(1, 0)


def bent(program: Any) -> None:
    down = program.model.layers[1].mlp.experts.down_proj.data
    down[9], down[2] = down[2].clone(), down[2].flip(0) * 1.1


@pytest.mark.parametrize(
    ("patch", "nearest"),
    [(turned, "expert-zeroed(expert=9)"), (bent, "expert-of-another-expert(part=down, expert=9, other=2)")],
)
def test_the_nearest_has_no_part_that_only_makes_up_for_what_is_missing(
    qwen3_moe: Path, tmp_path: Path, patch: Callable[[Any], None], nearest: str
) -> None:
    """The right half alone, and what is left is told as not explained, of the other expert's tokens."""
    answer = explained(qwen3_moe, tmp_path, COMBINE, patch)
    assert not answer.explained
    assert answer.matches[0].choices == (f"{EXPERTS}:fault={nearest}",)
    assert answer.left is not None
    assert answer.left.extent is not None
    assert [tokens_of.expert for tokens_of in answer.left.extent.experts] == [2]
