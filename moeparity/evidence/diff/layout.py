"""Ranks of one trace put together as a declared layout says, and tokens where the traces do not say them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from moeparity.documents.checked import read
from moeparity.errors import TraceError, Where
from moeparity.evidence.alignment.tokens import Tokens, stated
from moeparity.evidence.diff.joined_ranks import Joined
from moeparity.evidence.diff.own_experts import gathered
from moeparity.evidence.diff.side import Side, side_of
from moeparity.evidence.trace.reader import Contents, Trace
from moeparity.plan.spec.layout_schema import LayoutFile, SideRules


@dataclass(frozen=True, slots=True)
class Layout:
    """What a layout file says of either trace; nothing where there is none."""

    a: SideRules = field(default_factory=SideRules)
    b: SideRules = field(default_factory=SideRules)

    def tokens(self, name: str) -> Tokens | None:
        """The stated tokens of the forward passes of trace A or B."""
        rule = (self.a if name == "A" else self.b).tokens
        return None if rule is None else stated(rule.lengths, rule.padded_to, at_left=rule.padding == "left")


@dataclass(frozen=True, slots=True)
class Sides:
    """Which side is compared with which, and what differs among ranks that the layout calls replicas."""

    pairs: tuple[tuple[Side, Side], ...]
    findings: tuple[str, ...]


def read_layout(path: Path) -> Layout:
    """A layout file. Raises SpecError."""
    file = read(path, LayoutFile)
    return Layout(file.a, file.b)


def sides(traces: tuple[Trace, Trace], layout: Layout) -> Sides:
    """Ranks put together where the layout speaks of them, else rank by rank. Raises TraceError where neither can be."""
    ours, theirs = (
        _sides(name, trace, rules) for name, trace, rules in (("A", traces[0], layout.a), ("B", traces[1], layout.b))
    )
    if len(ours) != len(theirs):
        raise TraceError(
            f"{Where(traces[0].folder)} has {len(ours)} ranks to compare and {Where(traces[1].folder)} {len(theirs)}. "
            "Say with --layout FILE how the ranks of one are put together (docs/diff.md)."
        )
    findings = [text for side in (*ours, *theirs) if isinstance(side.store, Joined) for text in side.store.findings()]
    return Sides(tuple(zip(ours, theirs, strict=True)), tuple(findings))


def _sides(name: str, trace: Trace, rules: SideRules) -> list[Side]:
    parts = [side_of(name, rank) for rank in trace.ranks]
    if not rules.ranks:
        return parts
    gathered_calls = gathered(parts, rules.experts)
    joined = Joined(gathered_calls, rules.ranks)
    contents = Contents(
        gathered_calls.calls, joined.values(), gathered_calls.stacks,
        tuple(dict.fromkeys(note for part in parts for note in part.contents.notes)),
        all(part.contents.whole for part in parts),
    )  # fmt: skip
    return [Side(name, str(Where(trace.folder)), parts[0].head, contents, joined, joined.apart)]
