"""Joins two logs of the same sequences: the sampler's side and the trainer's.

Sequences are matched by id or by position, and their token ids have to be equal. Of the trainer's files only the places
of sequences are kept in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest

import torch
from torch import Tensor

from moeparity.errors import LogError
from moeparity.logs.formats.fields import Address
from moeparity.logs.formats.registry import Source
from moeparity.logs.record import Sequence


@dataclass(slots=True)
class Tally:
    """How many sequences were left out because only one side has them."""

    left_out: int = 0


def by_id(rollout: list[Source], trainer: list[Source], tally: Tally, *, partial: bool) -> Iterator[Sequence]:
    """The sampler's sequences in their order, each joined with the trainer's of the same id.

    Raises LogError for a sequence that one side lacks, unless `partial` allows to leave it out, and as `join_sides`
    does.
    """
    places, matches = _places(trainer), 0
    for source in rollout:
        for _, sequence in source.sequences():
            if sequence.id in places:
                matches += 1
                number, address = places[sequence.id]
                yield join_sides(sequence, trainer[number].at(address))
            elif partial:
                tally.left_out += 1
            else:
                raise LogError(
                    f"{sequence.where}: sequence {sequence.id} is not in the trainer's files, whose first is "
                    f"{next(iter(places))}. Write the same `id` in both; or --join order, if both list the sequences "
                    "in one order; or --partial to leave it out."
                )
    tally.left_out += len(places) - matches
    if matches < len(places) and not partial:
        raise LogError(
            f"{trainer[0].path}: {len(places) - matches} of {len(places)} sequences are not in the sampler's files. "
            "Give them all, or --partial to leave these out."
        )


def in_order(rollout: list[Source], trainer: list[Source]) -> Iterator[Sequence]:
    """Both sides' sequences, joined one by one. Raises LogError if one side ends first, and as `join_sides` does."""
    sides = ((sequence for source in side for _, sequence in source.sequences()) for side in (rollout, trainer))
    for sampled, scored in zip_longest(*sides):
        if sampled is None or scored is None:
            surplus, shorter = (sampled, "trainer's") if scored is None else (scored, "sampler's")
            raise LogError(f"{surplus.where}: the {shorter} files end before this sequence. Is one cut off?")
        yield join_sides(sampled, scored)


def join_sides(sampled: Sequence, scored: Sequence) -> Sequence:
    """One sequence with both sides' log-probabilities; tokens that both score are scored.

    A side without the prompt covers the last tokens of the other. Raises LogError if token ids differ.
    """
    rollout, trainer = sampled.rollout, scored.rollout if scored.trainer is None else scored.trainer
    if rollout is None or trainer is None:
        side, at = ("sampler", sampled) if rollout is None else ("trainer", scored)
        raise LogError(f"{at.where}: no log-probabilities of the {side}.")
    _check_same(sampled, scored)
    size = max(len(sampled.token_ids), len(scored.token_ids))
    before, ahead = size - len(sampled.token_ids), size - len(scored.token_ids)
    return replace(
        sampled,
        token_ids=scored.token_ids if before else sampled.token_ids,
        # A scored token without a value on the trainer's side stays scored, so that the check finds it.
        mask=_behind(sampled.mask, before) & torch.cat([torch.ones(ahead, dtype=torch.bool), scored.mask]),
        rollout=_behind(rollout, before),
        trainer=_behind(trainer, ahead),
        prompt=before or sampled.prompt,
        step=scored.step if sampled.step is None else sampled.step,
        versions=None if sampled.versions is None else _behind(sampled.versions, before),
        trainer_version=scored.trainer_version,
        group=scored.group if sampled.group is None else sampled.group,
        entropy=None if scored.entropy is None else _behind(scored.entropy, ahead),
        extra={
            **{key: _behind(column, before) for key, column in sampled.extra.items()},
            **{_TRAINERS.get(key, key): _behind(column, ahead) for key, column in scored.extra.items()},
        },
    )


_TRAINERS = {"routed_experts": "trainer_routed_experts"}
"""Field of the trainer's file -> its name in the joined sequence."""


def _places(trainer: list[Source]) -> dict[str, tuple[int, Address]]:
    places: dict[str, tuple[int, Address]] = {}
    for number, source in enumerate(trainer):
        for address, sequence in source.sequences():
            if sequence.id in places:
                raise LogError(f"{sequence.where}: sequence {sequence.id} comes a second time among the trainer's.")
            places[sequence.id] = (number, address)
    return places


def _check_same(sampled: Sequence, scored: Sequence) -> None:
    mine, theirs = sampled.token_ids, scored.token_ids
    common = min(len(mine), len(theirs))
    differing = (mine[len(mine) - common :] != theirs[len(theirs) - common :]).nonzero()
    if len(mine) < len(theirs) and sampled.prompt != 0:
        difference = f"{len(mine)} tokens against {len(theirs)}"
    elif len(differing):
        at = int(differing[0, 0]) - common
        difference = f"token {len(mine) + at} is {int(mine[at])} against {int(theirs[at])}"
    else:
        return
    raise LogError(
        f"{sampled.where}: sequence {sampled.id} has other tokens than in {scored.where}: {difference}. Score the "
        "sampler's token ids, not its text tokenised again."
    )


def _behind(column: Tensor, count: int) -> Tensor:
    """A tensor preceded by `count` unknown entries: NaN, -1 or False."""
    if not count:
        return column
    fill = torch.nan if column.is_floating_point() else 0 if column.dtype == torch.bool else -1
    return torch.cat([column.new_full((count, *column.shape[1:]), fill), column])
