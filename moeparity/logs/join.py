"""Joins two logs of the same sequences: the sampler's side and the trainer's.

Sequences are matched by id or by position. Their token ids have to be equal, or a tokenizer aligns them by their text.
Of the trainer's files only the places of sequences are kept in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import zip_longest
from pathlib import Path

import torch
from torch import Tensor

from moeparity.errors import LogError, TokensError, Where
from moeparity.inputs.tokens.tokenizer import FileTokenizer
from moeparity.logs.formats.fields import Address
from moeparity.logs.formats.further import FURTHER
from moeparity.logs.formats.registry import Source
from moeparity.logs.record import Sequence
from moeparity.logs.retokenised import NAME as RETOKENISED
from moeparity.logs.retokenised import Alignment, Retokenised, align


@dataclass(slots=True)
class Tally:
    """How many sequences were left out because only one side has them."""

    left_out: int = 0


def by_id(
    rollout: list[Source],
    trainer: list[Source],
    tally: Tally,
    *,
    partial: bool,
    tokenizer: Path | None = None,
) -> Iterator[Sequence]:
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
                yield join_sides(sequence, trainer[number].at(address), tokenizer)
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


def in_order(rollout: list[Source], trainer: list[Source], tokenizer: Path | None = None) -> Iterator[Sequence]:
    """Both sides' sequences, joined one by one. Raises LogError if one side ends first, and as `join_sides` does."""
    sides = ((sequence for source in side for _, sequence in source.sequences()) for side in (rollout, trainer))
    for sampled, scored in zip_longest(*sides):
        if sampled is None or scored is None:
            surplus, shorter = (sampled, "trainer's") if scored is None else (scored, "sampler's")
            raise LogError(f"{surplus.where}: the {shorter} files end before this sequence. Is one cut off?")
        yield join_sides(sampled, scored, tokenizer)


def join_sides(sampled: Sequence, scored: Sequence, tokenizer: Path | None = None) -> Sequence:
    """One sequence with both sides' log-probabilities; tokens that both score are scored.

    A side without the prompt covers the last tokens of the other. If token ids differ, the sequence is the sampler's,
    and those of its tokens are scored that have a counterpart. Raises LogError if token ids differ and there is no
    tokenizer, or none that gives their text.
    """
    rollout, trainer = sampled.rollout, scored.rollout if scored.trainer is None else scored.trainer
    if rollout is None or trainer is None:
        side, at = ("sampler", sampled) if rollout is None else ("trainer", scored)
        raise LogError(f"{at.where}: no log-probabilities of the {side}.")
    difference = _difference(sampled, scored)
    if difference and tokenizer is not None:
        return _by_text(sampled, scored, tokenizer)
    if difference:
        raise LogError(
            f"{sampled.where}: sequence {sampled.id} has other tokens than in {scored.where}: {difference}. Score the "
            "sampler's token ids, not its text tokenised again. With --tokenizer FOLDER, which holds the "
            "tokenizer.json of both sides, ids are aligned by their text."
        )
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
        classes=_classes(sampled.classes or scored.classes, size),
        entropy=None if scored.entropy is None else _behind(scored.entropy, ahead),
        labels={} if tokenizer is None else {RETOKENISED: torch.zeros(size, dtype=torch.int64)},
        extra={
            **{key: _behind(column, before) for key, column in sampled.extra.items()},
            **{_TRAINERS.get(key, key): _behind(column, ahead) for key, column in scored.extra.items()},
        },
    )


_TRAINERS = {key: f"trainer_{key}" for key in ("routed_experts", *FURTHER)}
"""Field of the trainer's file -> its name in the joined sequence."""


def _places(trainer: list[Source]) -> dict[str, tuple[int, Address]]:
    places: dict[str, tuple[int, Address]] = {}
    for number, source in enumerate(trainer):
        for address, sequence in source.sequences():
            if sequence.id in places:
                raise LogError(f"{sequence.where}: sequence {sequence.id} comes a second time among the trainer's.")
            places[sequence.id] = (number, address)
    return places


def _difference(sampled: Sequence, scored: Sequence) -> str:
    """Where the ids of both sides differ; "" if they are the same, or the last ones of a longer sequence."""
    mine, theirs = sampled.token_ids, scored.token_ids
    common = min(len(mine), len(theirs))
    differing = (mine[len(mine) - common :] != theirs[len(theirs) - common :]).nonzero()
    shorter = sampled if len(mine) < len(theirs) else scored
    if len(mine) != len(theirs) and shorter.prompt != 0:
        return f"{len(mine)} tokens against {len(theirs)}"
    if not len(differing):
        return ""
    at = int(differing[0, 0]) - common
    return f"token {len(mine) + at} is {int(mine[at])} against {int(theirs[at])}"


@cache
def _opened(tokenizer: Path) -> FileTokenizer:
    return FileTokenizer(tokenizer, Where(tokenizer.parent))


def _alignment(sampled: Sequence, scored: Sequence, tokenizer: Path) -> tuple[int, int, Alignment]:
    """How the ids go together, and the tokens at which each side's begin there: if one side lacks the prompt, the other
    side's response. Raises LogError.
    """
    begin, shift = (
        _response(side) if side.prompt != 0 and beside.prompt == 0 else 0
        for side, beside in ((sampled, scored), (scored, sampled))
    )
    try:
        sides = sampled.token_ids[begin:].tolist(), scored.token_ids[shift:].tolist()
        return begin, shift, align(*sides, _opened(tokenizer))
    except TokensError as error:
        raise LogError(
            f"{sampled.where}: sequence {sampled.id} has other tokens than in {scored.where}: {error}"
        ) from None


def _by_text(sampled: Sequence, scored: Sequence, tokenizer: Path) -> Sequence:
    """The sampler's sequence with the trainer's values at those tokens that have the same id behind the same text."""
    begin, shift, alignment = _alignment(sampled, scored, tokenizer)
    counterparts = alignment.counterparts
    places = torch.cat([torch.full((begin,), -1), torch.where(counterparts >= 0, counterparts + shift, -1)])
    rollout, trainer = sampled.rollout, scored.rollout if scored.trainer is None else scored.trainer
    assert rollout is not None
    assert trainer is not None
    mask = sampled.mask & _gathered(scored.mask, places)
    spans = [
        (slice(begin + span.begin, begin + span.end), slice(shift + span.trainer_begin, shift + span.trainer_end))
        for span in alignment.spans
    ]
    of_both = [(at, there) for at, there in spans if bool(sampled.mask[at].all()) and bool(scored.mask[there].all())]
    in_spans = torch.zeros_like(mask)
    for at, _ in of_both:
        in_spans[at] = True
    first = begin + alignment.first
    behind = torch.arange(len(mask)) >= first
    return replace(
        sampled,
        mask=mask,
        trainer=_gathered(trainer, places),
        step=scored.step if sampled.step is None else sampled.step,
        trainer_version=scored.trainer_version,
        group=scored.group if sampled.group is None else sampled.group,
        entropy=None if scored.entropy is None else _gathered(scored.entropy, places),
        labels={RETOKENISED: behind.long()},
        retokenised=Retokenised(
            kinds=alignment.kinds,
            first=first,
            says=alignment.says,
            sums=torch.tensor(
                [[float(rollout[at].sum()), float(trainer[there].sum())] for at, there in of_both], dtype=torch.float64
            ).view(-1, 2),
            behind=int((mask & behind).sum()),
            lost=int((sampled.mask & ~mask & ~in_spans).sum()),
        ),
        extra={
            **sampled.extra,
            **{_TRAINERS.get(key, key): _gathered(column, places) for key, column in scored.extra.items()},
        },
    )


def _response(sequence: Sequence) -> int:
    """Where the response begins: behind the prompt, or at the first scored token if the prompt's length is unknown."""
    if sequence.prompt is not None:
        return sequence.prompt
    return int(sequence.mask.nonzero()[0, 0]) if bool(sequence.mask.any()) else 0


def _gathered(column: Tensor, places: Tensor) -> Tensor:
    """The entries of a tensor at these places; unknown, as in `_behind`, where a place is -1."""
    missing = (places < 0).view(-1, *[1] * (column.dim() - 1))
    return column[places.clamp(min=0)].masked_fill(missing, _unknown(column))


def _classes(classes: tuple[str, ...] | None, size: int) -> tuple[str, ...] | None:
    """The classes of all `size` tokens; where they are those of a response alone, none for the prompt's, which is not
    scored.
    """
    return None if classes is None else ("",) * (size - len(classes)) + classes


def _behind(column: Tensor, count: int) -> Tensor:
    """A tensor preceded by `count` unknown entries: NaN, -1 or False."""
    if not count:
        return column
    return torch.cat([column.new_full((count, *column.shape[1:]), _unknown(column)), column])


def _unknown(column: Tensor) -> float:
    return torch.nan if column.is_floating_point() else 0 if column.dtype == torch.bool else -1
