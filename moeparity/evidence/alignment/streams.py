"""Sequences over all passes that computed a part of them: a prefill, its chunks, its steps of decoding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Listed
from dataclasses import dataclass, field

from moeparity.evidence.alignment.tokens import Sequence, Tokens


@dataclass(slots=True, eq=False)
class Stream:
    """One sequence, over all passes that computed a part of it: its ids (None if only lengths are known), and for each
    position the pass and the flat place in its grid. `at`: its first pass and its slot there; `slot`: that in the last
    pass. `parts`: by pass, what that has of it. `size`: rows of the last pass, and how many keys each had.
    """

    at: tuple[int, int]
    slot: int
    ids: list[int] | None = field(default_factory=list)
    cells: list[tuple[int, int]] = field(default_factory=list)
    parts: dict[int, Sequence] = field(default_factory=dict)
    size: tuple[int, int] = (0, 0)

    @property
    def start(self) -> int:
        """How many of its first tokens no pass of this trace computed."""
        return next(iter(self.parts.values())).start

    @property
    def last(self) -> tuple[int, Sequence]:
        """Its latest pass, and what that has of it."""
        return next(reversed(self.parts.items()))

    @property
    def request(self) -> str:
        """In a server, whose it is."""
        return self.last[1].request

    @property
    def length(self) -> int:
        """How many tokens a cache holds of it."""
        return self.start + len(self.cells)

    def add(self, number: int, slot: int, sequence: Sequence, tokens: Tokens) -> None:
        """Take in what a pass has of it."""
        self.slot, self.parts[number], self.size = slot, sequence, (tokens.size[0], tokens.columns)
        self.cells += [(number, place) for place in sequence.places]
        self.ids = None if self.ids is None or sequence.ids is None else [*self.ids, *sequence.ids]


def streams(passes: Listed[Tokens]) -> list[Stream]:
    """The sequences of a side. One that begins at 0 is a new one, also under a name that a server had before: that was
    preempted. A part of which it is not known which sequence it goes on is left out.
    """
    every: list[Stream] = []
    of_request: dict[str, list[Stream]] = {"": every}
    for number, tokens in enumerate(passes):
        goes_on: set[int] = set()
        for slot, sequence in zip(tokens.slots, tokens.sequences, strict=True):
            candidates = of_request.get(sequence.request, []) if sequence.start else []
            free = [stream for stream in candidates if id(stream) not in goes_on]
            fitting = _fitting(free, tokens, slot, sequence)
            if len(fitting) > 1:
                continue
            stream = fitting[0] if fitting else Stream((number, slot), slot)
            if not fitting:
                every.append(stream)
            if sequence.request:
                # A request that is computed anew is not gone on as it was before.
                of_request[sequence.request] = [stream]
            goes_on.add(id(stream))
            stream.add(number, slot, sequence, tokens)
    return every


def _fitting(free: Listed[Stream], tokens: Tokens, slot: int, sequence: Sequence) -> list[Stream]:
    """The sequences that a part may go on: in its slot that of as many rows and columns, padding included, whose keys
    the mask has as they were; else one with as many tokens. Of several in one slot it is the latest.
    """
    in_slot = [stream for stream in free if stream.slot == slot]
    if tokens.columns:
        wide = [stream for stream in in_slot if stream.size == (tokens.size[0], tokens.before)]
        earlier = sequence.keys[: -len(sequence.places)]
        alike = [stream for stream in wide if stream.last[1].keys == earlier]
        if wide:
            return [max(alike or wide, key=_latest)]
    fitting = [stream for stream in free if stream.length == sequence.start]
    nearest = [stream for stream in fitting if stream.slot == slot]
    return [max(nearest, key=_latest)] if nearest else fitting


def _latest(stream: Stream) -> int:
    return stream.last[0]


def by_pass(every: Listed[Stream], passes: int) -> list[list[tuple[int, Sequence]]]:
    """Of each pass its sequences, in the order of their places, with the number of the stream that each is of."""
    parts: list[list[tuple[int, Sequence]]] = [[] for _ in range(passes)]
    for run, stream in enumerate(every):
        for number, sequence in stream.parts.items():
            parts[number].append((run, sequence))
    return [sorted(of_pass, key=lambda part: part[1].places[0]) for of_pass in parts]


def earlier_passes(passes: Listed[Tokens]) -> list[tuple[int, ...] | None]:
    """Of each pass the passes before it whose keys it reads, row i on row i; None where that is not known of all its
    rows.
    """
    every = streams(passes)
    before: list[Counter[int]] = [Counter() for _ in passes]
    reaching = Counter[int]()
    for stream in every:
        numbers = list(stream.parts)
        rows = [(passes[n].size[0], stream.parts[n].places[0] // passes[n].grid[-1]) for n in numbers]
        for i, number in enumerate(numbers):
            if not stream.start and set(rows[: i + 1]) == {rows[0]}:
                reaching[number] += 1
                before[number].update(numbers[:i])
    return [
        tuple(sorted(of_pass))
        if reaching[number] == len(tokens.sequences)
        and all(of_pass[earlier] == len(passes[earlier].sequences) for earlier in of_pass)
        else None
        for number, (tokens, of_pass) in enumerate(zip(passes, before, strict=True))
    ]
