"""What a drawn job is: its ranks, its calls, its guards' settings, what disturbs it and what is wrong with it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

AT_START = ("variable", "backend", "same shard", "other replica", "never enters")
AT_GUARD = (
    "envelope", "input bit", "input dtype", "input shape", "extra draw", "weight bit", "cache", "skipped call",
    "forgotten update",
)  # fmt: skip
COLLECTIVE = (
    "skipped collective", "exchanged order", "collective dtype", "collective shape", "extra collective",
)  # fmt: skip
LOST = ("killed", "stopped", "slow")
LEFT = ("raises", "leaves")
KINDS = (*AT_START, *AT_GUARD, *COLLECTIVE, *LOST, *LEFT)
PLACES = ("before", "in call", "in collective", "in guard")
"""Where in a call a rank is lost; it is lost inside a collective or a guard by being there before the others."""
NOISE = ("none", "slow start", "slow call", "uneven", "garbage", "holds the lock", "burns")
"""What disturbs a rank, and is no fault."""
OPS = ("all_reduce", "broadcast", "all_gather", "asynchronous", "part")
"""Collectives of a call; `part` is one of all ranks but the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What is wrong on one rank in one call; `op` is the place of a collective among those of the call."""

    kind: str
    on: int
    call: int
    op: int
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A job. `catches`: it handles RankError itself; `destroys`: it destroys its process group in the end."""

    seed: int
    ranks: int
    calls: int
    ops: tuple[str, ...]
    faults: tuple[Fault, ...]
    settings: dict[str, Any]
    noise: str
    noisy: int
    catches: bool
    destroys: bool
    journal: bool

    def to_json(self) -> str:
        """For the arguments of a rank."""
        return json.dumps(asdict(self))

    @property
    def names(self) -> str:
        """The kinds of its faults."""
        return " and ".join(fault.kind for fault in self.faults) or "none"


def draws_first(case: Case, fault: Fault | None) -> bool:
    """Whether a rank has drawn its noise already when it skips a call."""
    return fault is not None and fault.place != "before" and case.settings["rng"] == "lockstep"


def from_json(text: str) -> Case:
    """What `to_json` has written."""
    fields = json.loads(text)
    faults = tuple(Fault(**fault) for fault in fields.pop("faults"))
    return Case(**{**fields, "faults": faults, "ops": tuple(fields["ops"])})


def draw(seed: int) -> Case:
    """The job of a seed: one in four without a fault, one in six of the others with two; every kind in turn."""
    random = Random(f"ranks {seed}")  # noqa: S311
    turn, rest = divmod(seed, 4)
    kinds = [] if rest == 0 else [KINDS[(3 * turn + rest - 1) % len(KINDS)]]
    if kinds and random.random() < 1 / 6:
        kinds.append(random.choice([kind for kind in KINDS if kind not in kinds]))
    ranks = random.choice((2, 2, 3, 3, 4, 5, 6, 8))
    calls = random.randint(6, 9)
    ops = random.sample(OPS if ranks > 2 else OPS[:-1], random.randint(2, 4))
    faults = tuple(_fault(random, kind, ranks, calls, ops) for kind in kinds)
    return Case(
        seed=seed,
        ranks=ranks,
        calls=calls,
        ops=tuple(ops),
        faults=faults,
        settings=_settings(random, kinds),
        noise=random.choice(NOISE),
        noisy=random.randrange(ranks),
        catches=random.random() < 0.5,
        destroys=random.random() < 0.5,
        journal=random.random() < 0.5,
    )


def _fault(random: Random, kind: str, ranks: int, calls: int, ops: list[str]) -> Fault:
    op = random.randrange(len(ops) - (kind == "exchanged order"))
    touched = ops[op : op + 2] if kind == "exchanged order" else ops[op : op + 1]
    last = ranks - 1 if kind in COLLECTIVE and "part" in touched else ranks
    places = PLACES[:2] if kind == "slow" else PLACES
    # The slowest cadence is every third call.
    return Fault(
        kind=kind, on=random.randrange(last), call=random.randint(0, calls - 4), op=op, place=random.choice(places)
    )


def _settings(random: Random, kinds: list[str]) -> dict[str, Any]:
    cadence = {name: random.randint(1, 3) for name in ("inputs_every", "weights_every", "cache_every")}
    if "skipped call" in kinds:
        cadence["inputs_every"] = 1
    blind = not {*COLLECTIVE, *LEFT, "slow", "forgotten update"} & set(kinds)
    return {
        **cadence,
        "sample_bytes": "all",
        "rng": "lockstep" if "extra draw" in kinds else random.choice(("lockstep", "broadcast")),
        "collectives": random.choice(("log", "check", "off") if blind else ("log", "check")),
        "heartbeat_s": random.choice((0.1, 0.2, 0.5)),
        "watchdog_s": random.choice((4, 6, 8)),
    }
