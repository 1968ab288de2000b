"""A schedule as a record of settings, before the tokens are known; and the parts in which two of them differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from moeparity.errors import SpecError, Where
from moeparity.plan.schedule.recorded import Recorded, read_batches
from moeparity.plan.schedule.steps import PHASES, TOGETHER, Groups, Phase
from moeparity.plan.spec.scheduling import MOST_SEQUENCES, At, Decode, Rule, Scheduling


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSettings:
    """How a schedule is made, every setting written out.

    batch: how many sequences start together; the next batch starts when all are done (None: all sequences in one).
    continuous: instead, a request joins as soon as there is room. arrivals: the step at which each sequence arrives.
    sequences: the most that run at once. start: from which token on a sequence is decoded (None: not at all). chunk:
    tokens of a step that prefills. verify: drafted tokens that a decoding step verifies. buckets: row counts that
    decoding steps are padded to. block: tokens of a block of the prefix cache. pack: tokens of a pack. updates: for
    each update of the weights the token of every sequence, or of each, from which on it runs on the new ones.
    recomputes: whether these compute the cache anew. keyed: whether the prefix cache tells versions of the weights
    apart. recorded: a schedule from a file; then no other setting counts. groups: groups of ranks that attend apart,
    from the placement.
    """

    rule: Rule = "transformers"
    batch: int | None = None
    continuous: bool = False
    arrivals: tuple[int, ...] = ()
    sequences: int | None = None
    chunk: int | None = None
    start: str | int | None = None
    verify: int = 0
    buckets: tuple[int, ...] = ()
    block: int | None = None
    pack: int | None = None
    mask: str = "block"
    positions: str = "reset"
    updates: tuple[At, ...] = ()
    recomputes: bool = False
    keyed: bool = False
    recorded: Recorded | None = None
    groups: Groups = TOGETHER

    @property
    def is_plain(self) -> bool:
        """Whether it consists of a micro-batch only (and groups)."""
        return self == ScheduleSettings(batch=self.batch, groups=self.groups)

    @property
    def hands_on(self) -> bool:
        """Whether a sequence in a pack is affected by its neighbours: there is no mask, or positions run on."""
        return self.pack is not None and (self.mask, self.positions) != ("block", "reset")

    @property
    def versions(self) -> int:
        """How many earlier versions of the weights its steps run on."""
        return len(self.updates) if self.recorded is None else max(self.recorded.schedule.lags)

    @property
    def is_flat(self) -> bool:
        """Whether it is a server's: the rows of all sequences one behind the other."""
        return self.rule != "transformers"

    @property
    def mixes_sequences(self) -> bool:
        """Whether tokens of a pack see those of other sequences."""
        if self.recorded is not None:
            return self.recorded.schedule.mixes_sequences
        return self.pack is not None and not self.is_flat and self.mask == "none"


PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "schedule:batch": ("rule", "batch", "continuous", "arrivals", "sequences"),
    "schedule:decode": ("start",),
    "schedule:prefill": ("chunk",),
    "schedule:verify": ("verify",),
    "schedule:buckets": ("buckets",),
    "schedule:prefix": ("block",),
    "schedule:pack": ("pack",),
    "schedule:mask": ("mask",),
    "schedule:positions": ("positions",),
    "schedule:updates": ("updates", "recomputes", "keyed"),
}
"""The parts of a schedule that can be exchanged alone, and the settings each consists of."""
UPDATES: Final = "schedule:updates"
"""The part that says which weights each row is computed on."""
WHOLE: Final = "schedule:file"
"""The only part where a side's schedule was recorded."""
MICRO_BATCH: Final = "micro_batch"
"""The name of the only part between two sides whose schedules are micro-batches."""
GROUPS: Final = "placement attention"
"""The part for groups of ranks that attend apart: set by the placement, not by `schedule:`, and possible beside any."""
NAMES: Final = frozenset({*PARTS, WHOLE, MICRO_BATCH, GROUPS})
"""All names of parts of a schedule."""
_WHO_SEES_WHOM: Final = frozenset({"schedule:batch", "schedule:pack", "schedule:mask", "schedule:positions", WHOLE})
"""The parts that decide which sequences share a row, and what they see of each other there."""


def settings(
    scheduling: Scheduling | None,
    micro_batch: int | None,
    sequences: int | None,
    where: Where,
    groups: Groups = TOGETHER,
) -> ScheduleSettings:
    """The settings of a side: from its `schedule:`, else from its micro-batch (None: all sequences together).

    A recorded schedule is read from its file, relative to the folder of `where`. Raises SpecError. Where the number of
    `sequences` is given, larger batches become that number, so that equal schedules have equal settings.
    """
    if scheduling is None:
        return ScheduleSettings(batch=_at_most(micro_batch, sequences), groups=groups)
    _refuse_groups(scheduling, groups, where)
    if scheduling.file is not None:
        line = Where(where.path, scheduling.line_of("file") or where.line)
        return ScheduleSettings(recorded=read_batches(scheduling.file, scheduling.positions or "tokens", line))
    rule, pack, decode = scheduling.rule, scheduling.pack, scheduling.decode
    prefix, most, updates = scheduling.prefix, scheduling.sequences, scheduling.updates
    batch, is_continuous = _batch(decode, rule)
    return ScheduleSettings(
        rule=rule,
        batch=_at_most(batch, sequences),
        continuous=is_continuous,
        arrivals=() if decode is None else tuple(decode.arrivals or ()),
        sequences=MOST_SEQUENCES[rule] if most is None else most,
        chunk=scheduling.budget,
        start=None if decode is None else decode.start,
        verify=scheduling.verify or 0,
        buckets=tuple(sorted(scheduling.buckets)),
        block=None if prefix is None else prefix.block,
        pack=None if pack is None else pack.length,
        mask="block" if pack is None else pack.mask,
        positions="reset" if pack is None else pack.positions,
        updates=() if updates is None else updates.positions,
        recomputes=updates is not None and updates.cache == "recomputed",
        keyed=updates is not None and updates.prefix == "keyed",
        groups=groups,
    )


def _refuse_groups(scheduling: Scheduling, groups: Groups, where: Where) -> None:
    """Raises SpecError for groups that attend apart together with schedule settings for which it is not known what the
    groups do.
    """
    stated = {
        "file": scheduling.file is not None,
        "pack": scheduling.pack is not None,
        "prefix": scheduling.prefix is not None,
        "buckets": bool(scheduling.buckets),
    }
    setting = next((name for name, is_stated in stated.items() if is_stated), None)
    if groups.count > 1 and setting is not None:
        raise SpecError(
            f"{where}: `placement: {{attention: {groups.count}}}` and `schedule: {setting}`: how groups that attend "
            "apart do that is not known here. Leave one of them out."
        )


def _batch(decode: Decode | None, rule: Rule) -> tuple[int | None, bool]:
    """How many sequences start together (None: all), and whether others join as soon as there is room."""
    batch = None if decode is None else decode.batch
    if batch is None:
        return None, rule != "transformers"
    if isinstance(batch, str):
        return 1 if batch == "single" else None, batch == "continuous"
    return batch.fixed, False


def _at_most(batch: int | None, sequences: int | None) -> int | None:
    return batch if sequences is None else min(batch or sequences, sequences)


def parts(reference: ScheduleSettings, candidate: ScheduleSettings) -> list[str]:
    """The names of the parts in which two schedules differ."""
    groups = [GROUPS] if reference.groups != candidate.groups else []
    together = replace(candidate, groups=reference.groups)
    if reference.recorded is not None or candidate.recorded is not None:
        return ([WHOLE] if reference != together else []) + groups
    if reference.is_plain and candidate.is_plain:
        return ([MICRO_BATCH] if reference != together else []) + groups
    return [part for part in PARTS if _values(reference, part) != _values(candidate, part)] + groups


def is_semantic(reference: ScheduleSettings, candidate: ScheduleSettings, part: str) -> bool:
    """Whether a part in which two schedules differ changes what is computed (semantics), and not only in which shapes.

    It does where one side mixes sequences, and the part is one that decides which tokens see each other and at which
    distance. Where sequences are isolated, positions that run on only shift whole sequences, and rotary embeddings
    depend on distances: the rounding differs, the function is the same. Updates of the weights always do.
    """
    return part == UPDATES or (part in _WHO_SEES_WHOM and (reference.mixes_sequences or candidate.mixes_sequences))


def possible_phases(of: ScheduleSettings) -> tuple[Phase, ...]:
    """The phases that the steps of a schedule may have, over all possible tokens."""
    if of.recorded is not None:
        return of.recorded.schedule.phases
    prefills = of.is_flat or of.start is not None
    may_be: dict[Phase, bool] = {
        "forward": not prefills,
        "prefill": prefills or of.chunk is not None,
        "chunk": of.is_flat or of.chunk is not None or bool(of.updates),
        "decode": of.start is not None,
        "verify": of.verify > 0,
    }
    return tuple(phase for phase in PHASES if may_be[phase])


def mixed(base: ScheduleSettings, source: ScheduleSettings, names: Iterable[str]) -> ScheduleSettings:
    """`base` with the named parts taken from `source`. Any mixture is a valid record of settings."""
    part_names = set(names)
    groups = source.groups if GROUPS in part_names else base.groups
    if part_names & {WHOLE, MICRO_BATCH}:
        return replace(source, groups=groups)
    values = {name: getattr(source, name) for part in part_names - {GROUPS} for name in PARTS[part]}
    return replace(base, **values, groups=groups)


def part_in_words(of: ScheduleSettings, part: str) -> str:
    """One side's value of a part, in words."""
    if part == GROUPS:
        return "together" if of.groups == TOGETHER else f"{of.groups.count} groups, gathered for {of.groups.gathered}"
    if part == WHOLE:
        return described(of)
    if part == MICRO_BATCH:
        return str(of.batch)
    if part == "schedule:batch":
        return f"{of.rule}, {_together(of)}"
    words = {
        "schedule:decode": "none" if of.start is None else f"from {_from(of.start)}",
        "schedule:prefill": "whole" if of.chunk is None else f"chunks of {of.chunk:,} tokens",
        "schedule:verify": f"{of.verify} drafted" if of.verify else "none",
        "schedule:buckets": ", ".join(map(str, of.buckets)) or "none",
        "schedule:prefix": "none" if of.block is None else f"blocks of {of.block}",
        "schedule:pack": "none" if of.pack is None else f"{of.pack:,} tokens",
        "schedule:mask": of.mask,
        "schedule:positions": of.positions,
        UPDATES: _updates(of),
    }
    return words[part]


def described(of: ScheduleSettings) -> str:
    """The schedule in one line: `micro-batch 8`, `vllm-v1, continuous, decode from prompt`."""
    if of.recorded is not None:
        return of.recorded.schedule.name
    plain = ScheduleSettings()
    changed = [part for part in PARTS if part != "schedule:batch" and _values(of, part) != _values(plain, part)]
    if of.is_plain:
        return "one batch" if of.batch is None else f"micro-batch {of.batch}"
    words = (f"{part.removeprefix('schedule:')} {part_in_words(of, part)}" for part in changed)
    return ", ".join([part_in_words(of, "schedule:batch"), *words])


def _values(of: ScheduleSettings, part: str) -> tuple[object, ...]:
    return tuple(getattr(of, name) for name in PARTS[part])


def _together(of: ScheduleSettings) -> str:
    """Which sequences are computed together, in words."""
    groups = "all together" if of.batch is None else "one by one" if of.batch == 1 else f"{of.batch} together"
    words = ["continuous" if of.continuous else groups]
    words += [] if of.sequences is None else [f"at most {of.sequences:,}"]
    words += [f"arriving at steps {', '.join(map(str, of.arrivals))}"] if of.arrivals else []
    return ", ".join(words)


def _updates(of: ScheduleSettings) -> str:
    """Where the weights change, in words."""
    at = ["at a token of each sequence" if isinstance(each, tuple) else f"at token {each}" for each in of.updates]
    cache = ["cache recomputed" if of.recomputes else "cache kept"]
    cache += [] if of.block is None else ["prefix cache keyed by version" if of.keyed else "prefix cache kept"]
    return ", ".join([*at, *cache]) if at else "none"


def _from(start: str | int) -> str:
    return "the prompt's end" if start == "prompt" else f"token {start}"
