"""The generators of a rank: digests of their states, and how many draws two states are apart."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

import torch

from moeparity.ranks.differing_fields import ranks_in_words

DRAWS = 4096
"""A generator is advanced by at most this many draws in search of another generator's state."""

_CPU, _ENGINE = 5056, 5016
"""Bytes of a CPU generator's state, and of the Mersenne Twister at its beginning. After that comes a normal number that
was made together with the last one and is drawn next.
"""
_PHILOX = 16
"""Bytes of a CUDA generator's state: its seed, then its offset."""


def states(generators: Mapping[str, torch.Generator]) -> dict[str, bytes]:
    """The states of torch's and the given generators, by name, and of the current CUDA device's if CUDA is in use."""
    generator_states = {"torch": torch.get_rng_state().numpy().tobytes()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        generator_states["cuda"] = torch.cuda.get_rng_state().numpy().tobytes()
    return generator_states | {name: generator.get_state().numpy().tobytes() for name, generator in generators.items()}


def digests(generator_states: Mapping[str, bytes]) -> dict[str, str]:
    """`rng.NAME` -> 16 hexadecimal digits."""
    return {f"rng.{name}": blake2b(state, digest_size=8).hexdigest() for name, state in generator_states.items()}


def apart(name: str, of_rank: Mapping[int, bytes]) -> str:
    """Which ranks drew how many more numbers than the others, in words, if at most DRAWS draws lead from one state
    to the other.
    """
    ranks: dict[bytes, list[int]] = {}
    for rank, state in sorted(of_rank.items()):
        ranks.setdefault(state, []).append(rank)
    usual = max(ranks, key=lambda state: len(ranks[state]))
    words = [_distance(usual, state, ranks) for state in ranks if state != usual]
    return f"rng.{name}: " + "; ".join(words)


def _distance(usual: bytes, state: bytes, ranks: Mapping[bytes, list[int]]) -> str:
    ahead, behind = _draws(usual, state), _draws(state, usual)
    who, others = ranks_in_words(ranks[state]), ranks_in_words(ranks[usual])
    normal = ", for normal numbers" if _waiting(usual) != _waiting(state) else ""
    for count, first, second in ((ahead, who, others), (behind, others, who)):
        if count == 0:
            return f"{who} and {others} are one normal number apart: a generator makes these in pairs"
        if count is not None:
            return f"{first} drew {count} number{'s' if count > 1 else ''} more than {second}{normal}"
    return (
        f"{who} and {others} are more than {DRAWS:,} draws apart: another seed, or many more draws "
        '(seed all ranks alike, or guard with rng="broadcast" where noise is broadcast)'
    )


def _waiting(state: bytes) -> bytes:
    """The normal number that a CPU generator holds ready; empty for other generators."""
    return state[_ENGINE:] if len(state) == _CPU else b""


def _draws(state: bytes, target: bytes) -> int | None:
    """How many draws of 32 bits (CUDA: steps of its counter) lead from one state to another; None if more than
    DRAWS.
    """
    if len(state) != len(target):
        return None
    if len(state) == _PHILOX:
        offsets = [int.from_bytes(each[8:], "little") for each in (state, target)]
        return offsets[1] - offsets[0] if state[:8] == target[:8] and offsets[1] > offsets[0] else None
    engine = target.removesuffix(_waiting(target))
    if state.startswith(engine):
        return 0
    generator = torch.Generator()
    try:
        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    except RuntimeError:
        return None
    for count in range(1, DRAWS + 1):
        torch.rand(1, generator=generator)
        if generator.get_state().numpy().tobytes().startswith(engine):
            return count
    return None
