"""By how many numbers two generators are apart."""

from __future__ import annotations

import pytest
import torch

from moeparity.ranks.rng import apart, digests, states


def state(draws: int, seed: int = 0) -> bytes:
    """A generator's state after so many numbers."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(draws):
        torch.rand(1, generator=generator)
    return generator.get_state().numpy().tobytes()


@pytest.mark.parametrize(
    ("draws", "words"),
    [
        ((5, 6, 5), "rng.x: rank 1 drew 1 number more than ranks 0, 2"),
        ((9, 6, 9), "rng.x: ranks 0, 2 drew 3 numbers more than rank 1"),
        ((700, 0, 700), "rng.x: ranks 0, 2 drew 700 numbers more than rank 1"),
    ],
)
def test_the_rank_that_drew_more_is_named_with_how_many(draws: tuple[int, ...], words: str) -> None:
    assert apart("x", {rank: state(count) for rank, count in enumerate(draws)}) == words


def after_normals(count: int) -> bytes:
    """A generator's state after so many normal numbers in one call; fewer than 16 are made in pairs."""
    generator = torch.Generator().manual_seed(0)
    torch.randn(64, generator=generator)
    if count:
        torch.randn(count, generator=generator)
    return generator.get_state().numpy().tobytes()


def test_normal_numbers_are_told_though_one_of_a_pair_waits() -> None:
    """Three are four of 64 bits, of which one is kept: the Twister is 8 draws further."""
    words = apart("x", {0: after_normals(0), 1: after_normals(3), 2: after_normals(0)})
    assert words == "rng.x: rank 1 drew 8 numbers more than ranks 0, 2, for normal numbers"
    assert apart("x", {0: after_normals(0), 1: after_normals(4)}) == "rng.x: rank 1 drew 8 numbers more than rank 0"


def test_one_of_a_pair_of_normal_numbers_is_no_other_seed() -> None:
    words = apart("x", {0: after_normals(3), 1: after_normals(4)})
    assert words == "rng.x: rank 1 and rank 0 are one normal number apart: a generator makes these in pairs"


def test_another_seed_is_not_called_so_many_draws() -> None:
    words = apart("x", {0: state(1), 1: state(1), 2: state(1, seed=3)})
    assert words.startswith("rng.x: rank 2 and ranks 0-1 are more than 4,096 draws apart: another seed")


def test_an_offset_of_a_cuda_generator_is_read_off_its_state() -> None:
    seed = (7).to_bytes(8, "little")
    of_rank = {rank: seed + offset.to_bytes(8, "little") for rank, offset in enumerate((16, 16, 24))}
    assert apart("cuda", of_rank) == "rng.cuda: rank 2 drew 8 numbers more than ranks 0-1"


def test_states_of_given_generators_stand_beside_torchs() -> None:
    generator = torch.Generator().manual_seed(3)
    before = digests(states({"noise": generator}))
    torch.rand(1, generator=generator)
    after = digests(states({"noise": generator}))
    assert set(before) >= {"rng.torch", "rng.noise"}
    assert [name for name in before if before[name] != after[name]] == ["rng.noise"]
