"""The verifier: it takes the records of a running program, and holds each call to the same one of a recorded trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch

from moeparity.errors import MismatchError
from moeparity.evidence.capture.verify.comparison import Tolerance, near, same
from moeparity.evidence.capture.verify.recorded import Recorded, Values, base_of
from moeparity.evidence.capture.verify.report import Difference, RankReport, Side, text, write
from moeparity.evidence.trace.reader import open_trace
from moeparity.evidence.trace.records import Batch, Call, Value


@dataclass(frozen=True, slots=True)
class Verification:
    """What a program is held to: the trace, by what tolerance, whether it stops, and where its reports are written."""

    recorded: Path
    tolerance: Tolerance = field(default_factory=Tolerance)
    stop: bool = False
    reports: Path | None = None


class Verifier:
    """A sink that compares. `mismatched` is called with an error where the program is to stop."""

    def __init__(self, verification: Verification, rank: int, mismatched: Callable[[MismatchError], None]) -> None:
        self._verification, self._mismatched = verification, mismatched
        self.report = RankReport(rank=rank)
        self._recorded: Recorded | None = None
        ranks = {part.head.rank: part for part in open_trace(verification.recorded).ranks}
        if rank in ranks:
            self._recorded = Recorded(ranks[rank])
        else:
            rank_list = ", ".join(map(str, sorted(ranks)))
            self.report = replace(self.report, problem=f"the recorded trace has no rank {rank}, but {rank_list}.")
        self._values = Values()
        self._stacks: dict[int, tuple[str, ...]] = {}
        self._whole: dict[int, torch.Tensor] = {}
        self.held_bytes = 0
        """Bytes of whole tensors of the program that are held until the flush."""
        self._step = 0

    def value(self, value: Value, *, rows: torch.Tensor | None = None, tensor: torch.Tensor | None = None) -> None:
        """A value of the program."""
        del rows
        if tensor is not None:
            self.keep(value.id, tensor)
        self._values.keep(value)

    def keep(self, number: int, tensor: torch.Tensor) -> None:
        """A whole tensor, which is compared in the flush where the record has it and bits differ."""
        if self._verification.tolerance:
            self._whole[number] = tensor.detach().cpu().clone()
            self.held_bytes += tensor.nbytes

    def stack(self, frames: Iterable[str]) -> int:
        """A stack of the program; those of this flush are remembered."""
        self._stacks[len(self._stacks)] = tuple(frames)
        return len(self._stacks) - 1

    def batch(self, batch: Batch) -> None:
        """Nothing: values are compared, and requests have other names in every run."""

    def note(self, text: str) -> None:
        """A sentence for the reader."""
        self.report = replace(self.report, notes=(*self.report.notes, text))

    def call(self, call: Call) -> None:
        """A call of the program, whose values have been handed over."""
        recorded = self._recorded
        if recorded is None:
            return
        if call.step > self._step:
            self._step = call.step
            # A collective of the last step may be waited for in this one.
            self._missing(recorded.unmet(call.step - 1))
        partner = recorded.of(call.key)
        if partner is None:
            first = self.report.first_unmatched or _words(call, self._stacks)
            self.report = replace(self.report, unmatched=self.report.unmatched + 1, first_unmatched=first)
            return
        self._compare(partner, call, recorded)

    def flush(self) -> None:
        """A flush has ended: its stacks have been told, its values compared."""
        self._stacks.clear()
        self._whole.clear()
        self.held_bytes = 0

    def close(self, *, whole: bool = True) -> None:
        """The program has ended: what the record has beyond it is missing."""
        if self._recorded is not None and whole:
            self._missing(self._recorded.unmet(None))
            if not self._recorded.is_whole:
                self.note("the recorded trace was cut: what comes behind its end was not compared")
        if self._verification.reports is not None:
            write(self.report, self._verification.reports / f"rank-{self.report.rank}.json")

    def _missing(self, calls: list[Call]) -> None:
        if calls:
            first = self.report.first_missing or _words(calls[0], self._recorded.stacks if self._recorded else {})
            self.report = replace(self.report, missing=self.report.missing + len(calls), first_missing=first)

    def _compare(self, recorded: Call, call: Call, side: Recorded) -> None:
        results = self._slots("output", recorded.outputs, call.outputs, side)
        results |= self._slots("written", recorded.written, call.written, side)
        scalars = {
            slot: (recorded.scalars.get(slot), call.scalars.get(slot))
            for slot in {**recorded.scalars, **call.scalars}
            if recorded.scalars.get(slot) != call.scalars.get(slot)
        }
        differs = any(equal is False for equal in results.values())
        untold = not differs and any(equal is None for equal in results.values())
        other_bits = [] if differs or untold else self._other_bits(recorded, call, side)
        by_elements = bool(other_bits) and all(self._elements(*pair, side) for pair in other_bits)
        report = replace(
            self.report,
            compared=self.report.compared + 1,
            differing=self.report.differing + differs,
            near=self.report.near + bool(other_bits),
            near_by_elements=self.report.near_by_elements + by_elements,
            untold=self.report.untold + untold,
        )
        self.report = report
        # A module's weights are recorded where ops are not: where they are, they tell.
        if not differs or report.root is not None or (call.level == "module" and side.has_ops):
            return
        state, inputs = self._inputs(recorded, call, side)
        if report.first is not None and state not in ("equal", "near"):
            return
        difference = self._difference(recorded, call, side, state, {**inputs, **results}, scalars)
        self.report = replace(
            report, first=report.first or difference, root=difference if state in ("equal", "near") else report.root
        )
        if report.first is None and self._verification.stop:
            self._mismatched(MismatchError(f"{self._verification.recorded}: {text(self.report)}"))

    def _other_bits(self, recorded: Call, call: Call, side: Recorded) -> list[tuple[Value, Value]]:
        """The results that lie within the tolerance and have other bits than the recorded, or what they look at."""
        if not self._verification.tolerance:
            return []
        pairs = []
        for word in ("outputs", "written"):
            present: Mapping[str, int] = getattr(call, word)
            was: Mapping[str, int] = getattr(recorded, word)
            for slot, equal in self._slots(word, was, present, side, by_bits=True).items():
                if not equal:
                    name = slot.partition(" ")[2]
                    left, right = side.values[was[name]], self._values[present[name]]
                    pairs.append((base_of(left, side.values) or left, base_of(right, self._values) or right))
        return pairs

    def _elements(self, recorded: Value, present: Value, side: Recorded) -> bool | None:
        """Whether two values lie within the tolerance in each element; None where one side has not the whole."""
        tensor = self._whole.get(present.id)
        whole = side.tensor(recorded) if tensor is not None and recorded.tensor else None
        if tensor is None or whole is None:
            return None
        return near(whole, tensor, self._verification.tolerance)

    def _inputs(self, recorded: Call, call: Call, side: Recorded) -> tuple[str, dict[str, bool | None]]:
        """What is known of a call's inputs, in the words of `Difference.inputs`, and of each."""
        inputs = self._slots("input", recorded.inputs, call.inputs, side)
        inputs |= self._slots("weight", recorded.weights, call.weights, side)
        if False in inputs.values():
            return "differ", inputs
        if None in inputs.values() or call.level == "module":
            return "unknown", inputs
        bits = self._slots("input", recorded.inputs, call.inputs, side, by_bits=True)
        return "equal" if all(bits.values()) else "near", inputs

    def _slots(
        self,
        word: str,
        recorded: Mapping[str, int],
        present: Mapping[str, int],
        side: Recorded,
        *,
        by_bits: bool = False,
    ) -> dict[str, bool | None]:
        """Whether the values of both sides are equal, by slot; a slot that one side lacks is different."""
        tolerance = Tolerance() if by_bits else self._verification.tolerance
        equal: dict[str, bool | None] = {}
        for slot in {**recorded, **present}:
            left = side.values.get(recorded.get(slot, -1))
            right = self._values.get(present.get(slot, -1))
            if (slot in recorded) != (slot in present):
                equal[f"{word} {slot}"] = False
            elif left is None or right is None:
                equal[f"{word} {slot}"] = None
            else:
                bases = base_of(left, side.values), base_of(right, self._values)
                equal[f"{word} {slot}"] = same(
                    left, right, bases, tolerance, lambda was, present: self._elements(was, present, side)
                )
        return equal

    def _difference(
        self,
        recorded: Call,
        call: Call,
        side: Recorded,
        state: str,
        slots: Mapping[str, bool | None],
        scalars: Mapping[str, tuple[object, object]],
    ) -> Difference:
        shown = {}
        for slot in (slot for slot, equal in slots.items() if equal is False):
            word, _, name = slot.partition(" ")
            kind = "written" if word == "written" else f"{word}s"
            left = side.values.get(getattr(recorded, kind).get(name, -1))
            right = self._values.get(getattr(call, kind).get(name, -1))
            shown[slot] = _side(left, side.values), _side(right, self._values)
        return Difference(
            step=call.step,
            level=call.level,
            name=call.name,
            path=call.path,
            nth=call.nth,
            phase=call.phase,
            inputs=state,
            random="random" in call.flags,
            slots=shown,
            scalars=scalars,
            recorded_stack=side.stacks.get(-1 if recorded.stack is None else recorded.stack, ()),
            stack=self._stacks.get(-1 if call.stack is None else call.stack, ()),
        )


def _words(call: Call, stacks: Mapping[int, tuple[str, ...]]) -> str:
    place = f" at {call.path}" if call.path else ""
    frames = stacks.get(-1 if call.stack is None else call.stack, ())
    return f"step {call.step}, {call.name}{place} (call {call.nth}){f', {frames[-1]}' if frames else ''}"


def _side(value: Value | None, values: Values) -> dict[str, object]:
    if value is None:
        return asdict(Side(dtype="nothing", shape=(), digest=None, stats=None))
    base = base_of(value, values) or value
    return asdict(Side(dtype=value.dtype, shape=value.shape, digest=base.digest, stats=base.stats))
