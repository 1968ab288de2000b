"""Where the tensors of a checkpoint lie in a program's parameters, as rules of a layout say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from moeparity.errors import WeightsError
from moeparity.plan.spec.layout_schema import HeldTensor, WeightRule

Shape = tuple[int, ...]
_WHOLE = (0, 1)
_NUMBERED = ("i", "e")


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A rectangle of a checkpoint's tensor in a parameter: where it begins in the tensor, how wide it is, and where it
    begins in the parameter. `expert`: in which of a stack.
    """

    tensor: str
    start: Shape
    size: Shape
    at: Shape
    expert: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Placing:
    """What rules are read with: shapes of the checkpoint's tensors, fields of its config.json, and by kind of
    parallelism which of how many ranks this is.
    """

    shapes: Mapping[str, Shape]
    fields: Mapping[str, object]
    ranks: Mapping[str, tuple[int, int]]

    def segments(self, rule: WeightRule, name: str, shape: Shape) -> list[Segment] | None:
        """What a parameter of this name and shape holds; None where the rule is not about it.

        Raises WeightsError where the rule and the parameter do not fit.
        """
        words = _pattern(rule.name).fullmatch(name)
        if words is None:
            return None
        spelt = words.groupdict()
        whole_experts = any(cut.over == "expert" for cut in rule.cut) and self.ranks.get("expert", _WHOLE)[1] > 1
        cuts = {
            cut.axis: self.ranks.get(cut.over, _WHOLE) for cut in rule.cut if cut.over == "expert" or not whole_experts
        }
        if rule.stacked:
            return list(self._stacked(rule, name, spelt, cuts, shape))
        if rule.local_experts:
            rank, ranks = self.ranks.get("expert", _WHOLE)
            spelt["e"] = str(rank * (self._experts(rule, spelt, name) // ranks) + int(spelt["e"]))
        return list(self._plain(rule, name, spelt, cuts, shape))

    def _stacked(
        self, rule: WeightRule, name: str, spelt: Mapping[str, str], cuts: Mapping[int, tuple[int, int]], shape: Shape
    ) -> Iterator[Segment]:
        rank, ranks = cuts.get(0, _WHOLE)
        experts = _divided(self._experts(rule, spelt, name), ranks, name)
        if shape[0] != experts:
            raise WeightsError(
                f"{name}: its shape is {list(shape)}; expected {experts} experts in its first axis{_ADVICE}"
            )
        inner = {axis - 1: cut for axis, cut in cuts.items() if axis}
        for expert in range(experts):
            numbered = {**spelt, "e": str(rank * experts + expert)}
            for segment in self._plain(rule, name, numbered, inner, shape[1:]):
                yield replace(segment, expert=expert)

    def _plain(
        self, rule: WeightRule, name: str, spelt: Mapping[str, str], cuts: Mapping[int, tuple[int, int]], shape: Shape
    ) -> Iterator[Segment]:
        """Tensors behind each other along the first axis, in one group or several."""
        rank, ranks = cuts.get(0, _WHOLE)
        groups = _divided(self._number(rule.groups, name), ranks if self._number(rule.groups, name) > 1 else 1, name)
        places = [self._placed(source, name, spelt, (rank, ranks), padded=shape[0] if rule.padded else None)
                  for source in rule.holds]  # fmt: skip
        at = 0
        for group in range(groups):
            for tensor, first, rows in places:
                height = _divided(rows, groups, name)
                whole = self.shapes[tensor]
                start, size = [first + group * height], [height]
                for axis in range(1, len(whole)):
                    place, parts = cuts.get(axis, _WHOLE)
                    width = _divided(whole[axis], parts, name)
                    start.append(place * width)
                    size.append(width)
                if tuple(size[1:]) != shape[1:]:
                    raise WeightsError(
                        f"{name}: its shape is {list(shape)}; expected {size[1:]} behind its rows{_ADVICE}"
                    )
                yield Segment(tensor=tensor, start=tuple(start), size=tuple(size), at=(at, *(0 for _ in whole[1:])))
                at += height
        if at != shape[0] and not (rule.padded and at < shape[0]):
            raise WeightsError(f"{name}: its shape is {list(shape)}; expected {at} rows{_ADVICE}")

    def _placed(
        self, source: str | HeldTensor, name: str, spelt: Mapping[str, str], cut: tuple[int, int], *, padded: int | None
    ) -> tuple[str, int, int]:
        """A tensor with the first of its rows that this rank holds, and how many."""
        tensor = source if isinstance(source, HeldTensor) else HeldTensor(tensor=source)
        full = _filled(tensor.tensor, spelt)
        if full not in self.shapes:
            raise WeightsError(
                f"{name}: the layout says that it holds {full}, which the checkpoint has not. Mend the rule."
            )
        rows, (rank, ranks) = self.shapes[full][0], cut
        if padded is not None:
            first = min(rank * padded, rows)
            return full, first, min(padded, rows - first)
        parts = ranks if tensor.at_most is None else min(ranks, self._number(tensor.at_most, name))
        height = _divided(rows, parts, name)
        return full, rank * parts // ranks * height, height

    def _experts(self, rule: WeightRule, spelt: Mapping[str, str], name: str) -> int:
        """How many experts the checkpoint has there."""
        first = rule.holds[0] if isinstance(rule.holds[0], str) else rule.holds[0].tensor
        count = 0
        while _filled(first, {**spelt, "e": str(count)}) in self.shapes and "{e}" in first:
            count += 1
        if not count:
            raise WeightsError(f"{name}: the checkpoint has no {_filled(first, {**spelt, 'e': '0'})}. Mend the rule.")
        return count

    def _number(self, number: int | str, name: str) -> int:
        if isinstance(number, int):
            return number
        value = self.fields.get(number.removeprefix("$"))
        if type(value) is not int or value < 1:
            raise WeightsError(
                f"{name}: config.json has no whole number {number.removeprefix('$')}, which the layout names."
            )
        return value


_ADVICE = ", by the layout. Mend the rule, or say which rank this is."


def _divided(count: int, parts: int, name: str) -> int:
    if count % parts:
        raise WeightsError(f"{name}: {count} can't be cut into {parts} equal parts, as the layout says. Mend the rule.")
    return count // parts


def _filled(text: str, spelt: Mapping[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda word: spelt.get(word[1], word[0]), text)


@lru_cache(maxsize=512)
def _pattern(name: str) -> re.Pattern[str]:
    pieces: Sequence[str] = re.split(r"\{(\w+)\}", name)
    names: set[str] = set()
    text = ""
    for place, piece in enumerate(pieces):
        if place % 2 == 0:
            text += re.escape(piece)
        elif piece in names:
            text += f"(?P={piece})"
        else:
            names.add(piece)
            text += f"(?P<{piece}>{r'[0-9]+' if piece in _NUMBERED else '.+'})"
    return re.compile(text)
