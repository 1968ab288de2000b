"""The records of a trace, each one JSON line of `events.jsonl`, and the head that says what made it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, ClassVar

SCHEMA = "moeparity.trace/1"

DIGEST = "keyed64/1"
"""The name of the digests of `evidence/trace/digest.py`; digests of another name are compared with nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What a rank's trace was made by and on: `head.json`, written before anything else.

    `made_by`: the tool and its version, or what the trace was imported from. `levels`: which calls are recorded, of
    `op`, `module`, `gradient`, `collective`. `selected`: what whole tensors were kept of, in words; empty for none.
    `unseen`: what this trace can't show, in sentences. `rank` counts from 0.
    """

    rank: int = 0
    ranks: int = 1
    made_by: str
    program: tuple[str, ...] = ()
    started: str = ""
    levels: tuple[str, ...] = ("op", "module")
    selected: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    unseen: tuple[str, ...] = ()
    digest: str = DIGEST
    schema: str = SCHEMA


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A tensor as it was at one moment: one storage at one version, seen by one shape and strides.

    `base`: the value whose bytes it is a view of, if any: such a value has no digest of its own. `digest`: 16
    hexadecimal digits, None where none was taken; `rows`: whether one for each row is kept, as int64 [product of all
    axes but the last], from place `at` of the key `rows` of the file of number `file`. `tensor`: whether the whole
    tensor is kept, under the key `ID` of the file of number `tensor_file`. `label`: `random` for what a generator drew,
    `unwritten` for what was allocated and not written, `partly` where part of it was not (its digest is of whatever
    lay there), else None. `stats`: min, max, mean, absmax of the finite numbers, and where there are some, how many
    are nan and inf.
    """

    kind: ClassVar[str] = "value"
    id: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] = ()
    offset: int = 0
    device: str = "cpu"
    storage: int | None = None
    version: int | None = None
    base: int | None = None
    digest: str | None = None
    rows: bool = False
    at: int | None = None
    tensor: bool = False
    file: int | None = None
    tensor_file: int | None = None
    label: str | None = None
    stats: Mapping[str, float] | None = None

    @property
    def steps(self) -> tuple[int, ...]:
        """How far apart neighbours lie in memory, as far as was recorded; of an axis of one there are none."""
        return tuple(step for size, step in zip(self.shape, self.strides, strict=False) if size != 1)

    def part_of(self, base: Value) -> tuple[object, ...]:
        """Which part of what it looks at a view is, and how it lies there."""
        return self.offset - base.offset, self.steps

    @property
    def is_contiguous(self) -> bool:
        """Whether its elements lie in memory one behind the other, in their order."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=False):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True


CallKey = tuple[int, str, str, str, str, int]
"""Step, phase, level, name, path and number of a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of an op, a module or a collective, written when it has returned.

    One of `level` gradient has the gradients of a module's outputs as inputs, and those of its inputs as outputs, or
    that of a parameter.

    `id` counts calls as they were entered, so a module's is below those inside it, whose `inside` it is. `name`: of the
    op with its overload, of the module's class, of the collective. `path`: of the innermost module, as in
    `named_modules`, empty outside all. `nth`: how many calls of that name under that path came before in this `step`.
    `phase`: `forward`, `backward`, `optimizer` or empty. `inputs`, `outputs` and `written` (arguments that were
    changed in place) map a slot to a value's id: `0`, `2.1` for the second of a list, a keyword's name. `weights`: of a
    module where no ops are recorded, its own parameters and buffers by name. `scalars`: arguments that are no tensors,
    by slot. `flags`: `random`, `nan_born`, `inf_born` (in its outputs, and in no input), `raised` (it did not return),
    `unwaited` (it read what a collective had not finished). `forward_call`: of a call in the backward pass, the call
    whose gradient it computes, where that was recorded.
    """

    kind: ClassVar[str] = "call"
    id: int
    level: str
    name: str
    path: str = ""
    nth: int = 0
    step: int = 0
    phase: str = "forward"
    inside: int | None = None
    inputs: Mapping[str, int] = field(default_factory=dict)
    outputs: Mapping[str, int] = field(default_factory=dict)
    written: Mapping[str, int] = field(default_factory=dict)
    weights: Mapping[str, int] = field(default_factory=dict)
    scalars: Mapping[str, Any] = field(default_factory=dict)
    stack: int | None = None
    flags: tuple[str, ...] = ()
    forward_call: int | None = None

    @property
    def key(self) -> CallKey:
        """What tells a call from all others of a run, and has the same value in another run of the program."""
        return self.step, self.phase, self.level, self.name, self.path, self.nth


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The rows that a server's model was given in one `step`: of each of `requests`, in this order, so many `tokens`
    from position `starts` on. `padding`: how many further rows are of no token.
    """

    kind: ClassVar[str] = "batch"
    step: int
    requests: tuple[str, ...]
    starts: tuple[int, ...]
    tokens: tuple[int, ...]
    padding: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Python frames, innermost last, each `file:line function`; calls name it by its id."""

    kind: ClassVar[str] = "stack"
    id: int
    frames: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something a reader of the trace must know, in a sentence: what was not seen, what was skipped."""

    kind: ClassVar[str] = "note"
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The last line of a whole trace: how many calls and values lie before it."""

    kind: ClassVar[str] = "end"
    calls: int
    values: int


Record = Value | Call | Batch | Stack | Note | End

KINDS: Mapping[str, type[Record]] = {record.kind: record for record in (Value, Call, Batch, Stack, Note, End)}


def document(record: Record | Head) -> dict[str, Any]:
    """A record as it is written: what has its default is left out, but for the schema and the digest's name."""
    plain: dict[str, Any] = {"schema": record.schema, "digest": record.digest} if isinstance(record, Head) else {}
    if not isinstance(record, Head):
        plain["e"] = record.kind
    fields, values_of = _FIELDS[type(record)]
    for (name, default), value in zip(fields, values_of(record), strict=True):
        if value is not None and value != default:
            plain[name] = value
    return plain


def _defaults(record: type[Record | Head]) -> dict[str, Any]:
    fields = record.__dataclass_fields__.values()
    plain = {entry.name: entry.default for entry in fields if isinstance(entry.default, (str, int, tuple, bool))}
    absent = {entry.name: None for entry in fields if entry.default is None}
    return plain | absent | {entry.name: {} for entry in fields if entry.default_factory is dict}


def _fields(record: type[Record | Head]) -> tuple[tuple[tuple[str, Any], ...], Callable[[Any], tuple[Any, ...]]]:
    """The fields of a kind of record with their defaults, and what takes all of their values at once."""
    defaults, names = _defaults(record), tuple(record.__dataclass_fields__)
    return tuple((name, defaults.get(name, ...)) for name in names), attrgetter(*names)


_FIELDS: Mapping[type[Record | Head], tuple[tuple[tuple[str, Any], ...], Callable[[Any], Any]]] = {
    record: _fields(record) for record in (Head, *KINDS.values())
}
