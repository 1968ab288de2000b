"""Explanations as shown, in this order: the answer; what is not explained; what is other than in the start profile;
what is the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter

from moeparity.errors import counted
from moeparity.evidence.explain.remainder_lines import extent_lines, order_lines, remainder
from moeparity.evidence.explain.report import (
    UNSHOWN,
    Explained,
    Explanation,
    OpenChoice,
    Unseen,
    is_near,
)
from moeparity.ops.attribute import EDGE
from moeparity.output.blocks import Block, Document, Group, Status, group, lines
from moeparity.output.status import state_of
from moeparity.output.words import more, percent, two_digits
from moeparity.plan.address import pattern, role

SHOWN_OTHERS = 3
"""So many further combinations are told behind the plainest."""
SHOWN_OPEN = 3
"""So many of the values that do as well are told at each place."""
_LAYER = re.compile(r"layers\[\d+\]")


def document(result: Explained) -> Document:
    """What was explained; nodes of several layers of which the same is said together."""
    return Document(command="explain", subject=result.trace, blocks=tuple(_blocks(result)))


def _blocks(result: Explained) -> Iterator[Block]:
    yield Status(state_of(result.exit_code), summary(result), lines=tuple(_head(result)))
    yield from _of_other_shapes(result)
    without = [part for part in result.nodes if not (part.explained or part.other_shape)]
    yield from _titled("Not explained", [part for part in without if part.searched], result.forwards)
    yield from _unsearched([part for part in without if not part.searched], result.forwards)
    otherwise = [part for part in result.nodes if part.explained and not part.as_started]
    yield from _titled("Under other choices", otherwise, result.forwards)
    yield from _equal(result, [part for part in result.nodes if part.as_started])
    if result.unseen:
        yield group("Not shown by this trace", lines(*_unseen_lines(result)))


def _head(result: Explained) -> Iterator[tuple[str, str]]:
    yield "trace", f"{result.trace}: {counted(result.forwards, 'forward')} by the map of {result.program}"
    yield "held to", f"{result.profile} on {result.checkpoint} in {result.dtype}"
    yield "assumed", f"{' and '.join(result.taken)}, for attention"
    if result.budget is not None:
        spent = f"{result.seconds_on_orders:.1f} s of {result.budget:g} s"
        yield "orders", f"{spent} spent on orders that no file lists"
    if not result.whole:
        yield "note", "the trace was cut: its program did not get to the end of its recording"


def _unseen_lines(result: Explained) -> Iterator[str]:
    """The nodes that are not shown; with the reasons where they were asked for, or where something of them is shown."""
    explained = {node.node for node in result.nodes}
    groups: dict[tuple[object, ...], list[Unseen]] = {}
    for unseen in result.unseen:
        is_told = result.asked or not result.nodes or unseen.node in explained or unseen.reason != UNSHOWN
        words: tuple[object, ...] = (role(unseen.node), _spread(unseen.reason), unseen.forwards) if is_told else ()
        groups.setdefault(words, []).append(unseen)
    for words, members in sorted(groups.items(), key=lambda pair: not pair[0]):
        names = pattern(unseen.node for unseen in members)
        where = _forwards(members[0].forwards, result.forwards)
        yield f"{names}{where}: {_spread(members[0].reason)}" if words else names


def _forwards(numbers: Sequence[int], every: int, phases: Sequence[str] = ()) -> str:
    """Where something holds, if not in every forward."""
    if not numbers or len(numbers) == every:
        return ""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    words = ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in runs)
    noun = "forward" if len(numbers) == 1 else "forwards"
    return f" in {noun} {words}" + (f" ({', '.join(phases)})" if phases else "")


def _of_other_shapes(result: Explained) -> Iterator[Group]:
    """The nodes that gave a token numbers of another shape than the checkpoint says, grouped by that shape."""
    names: dict[tuple[str, str], list[str]] = {}
    for part in (part for part in result.nodes if part.other_shape):
        tried = f"; none of the {counted(part.tried, 'choice')} tried gives that shape" if part.tried else ""
        where = _forwards(part.forwards, result.forwards, part.phases)
        names.setdefault((where, f"{part.other_shape}{tried}"), []).append(part.node)
    if names:
        sentences = (f"{pattern(nodes)}{where}: {words}" for (where, words), nodes in names.items())
        yield group("Not explained: of another shape, so no bits were compared", lines(*sentences))


def _titled(title: str, nodes: Sequence[Explanation], forwards: int) -> Iterator[Group]:
    if nodes:
        yield group(
            title, lines(*(line for alike in _alike(_by_size(nodes)) for line in node_lines(*alike, forwards=forwards)))
        )


def _by_size(nodes: Iterable[Explanation]) -> list[Explanation]:
    """The largest local error first."""
    return sorted(nodes, key=lambda part: -part.local_error)


def _unsearched(nodes: Sequence[Explanation], forwards: int) -> Iterator[Group]:
    """The nodes whose search was stopped, those with the largest local error first."""
    if nodes:
        words = list[str]()
        for part in _by_size(nodes):
            names = f"{part.node}{_forwards(part.forwards, forwards, part.phases)}"
            words.append(
                f"{names}: {percent(part.as_it_is)} of elements equal under the profile as it is, local error "
                f"{two_digits(part.local_error)}; {part.tried} tried"
            )
            words += () if part.extent is None else extent_lines(part.extent)
        yield group("Not searched to the end, since the search was stopped", lines(*words))


def _equal(result: Explained, nodes: Sequence[Explanation]) -> Iterator[Group]:
    """What the start profile computes: in full where nodes were asked for, else by name and number."""
    title = f"As {result.profile} computes it"
    if result.asked:
        yield from _titled(title, nodes, result.forwards)
    elif nodes:
        yield group(title, lines(*_equal_lines(result, nodes)))


def _equal_lines(result: Explained, nodes: Sequence[Explanation]) -> Iterator[str]:
    parts: dict[str, list[Explanation]] = {}
    for node in nodes:
        parts.setdefault(_forwards(node.forwards, result.forwards, node.phases), []).append(node)
    for where, alike in parts.items():
        yield f"{counted(len(alike), 'node')}{where}, all bits equal: {_names(alike)}"
    between = dict.fromkeys(role(name) for node in nodes for name in node.nodes if name != node.node)
    if between:
        yield f"computed anew between them, as not shown: {', '.join(between)}"
    undecided = sum(bool(node.open) for node in nodes)
    if undecided:
        choices = sum(len(node.open) for node in nodes)
        yield (
            f"{counted(choices, 'choice')} at {undecided} of them not decided by these values: --node NAME prints "
            "those of a node, --json all"
        )


def _names(nodes: Iterable[Explanation]) -> str:
    return pattern(node.node for node in nodes)


def summary(result: Explained) -> str:
    """How many nodes the start profile explains as it is, how many other choices explain, and how many nothing does, in
    one line. A node that was recorded in parts counts as explained if all of them are.
    """
    by_node: dict[str, list[Explanation]] = {}
    for part in result.nodes:
        by_node.setdefault(part.node, []).append(part)
    as_started = sum(all(part.as_started for part in parts) for parts in by_node.values())
    otherwise = sum(all(part.explained for part in parts) for parts in by_node.values()) - as_started
    stopped = sum(any(not part.searched for part in parts) for parts in by_node.values())
    nothing = len(by_node) - as_started - otherwise - stopped
    parts = [f"{as_started} as {result.profile} computes them", f"{otherwise} under other choices"]
    if stopped:
        parts.append(f"{stopped} not searched to the end (stopped: this is not the whole)")
    return f"{counted(len(by_node), 'node')}: {', '.join(parts)}, {nothing} not explained; exit {result.exit_code}"


def node_lines(first: Explanation, *further: Explanation, forwards: int) -> Iterator[str]:
    """What is said of a node, in a few lines. `further` explanations say the same of other layers; all of them speak of
    the same forwards.
    """
    names = _names((first, *further)) + _forwards(first.forwards, forwards, first.phases)
    inside = ", ".join(role(name) for name in first.nodes if name != first.node)
    through = f" (with {inside})" if inside else ""
    if first.as_started:
        yield f"{names}{through}: as the profile computes it (all bits equal)"
    elif first.explained:
        yield from _matches(first, f"{names}{through}")
    else:
        yield from _nothing(first, f"{names}{through}")
    search = next((node.orders for node in (first, *further) if node.orders is not None), None)
    yield from () if search is None else order_lines(search)
    differing, every = (sum(counts) for counts in zip(*(node.padding for node in (first, *further)), strict=True))
    if differing:
        verb = "has" if differing == 1 else "have"
        yield f"  {differing} of {counted(every, 'padding token')} {verb} other bits, which does not count"
    undecided = "; ".join(_undecided((first, *further)))
    if undecided:
        yield f"  not decided by these values: {undecided}"
    for why, names_of in (
        ("not tried, since the bound on the work was reached", attrgetter("untried")),
        ("not tried, since the node would read what was not recorded", attrgetter("unread")),
    ):
        left_out = "; ".join(_left_out((first, *further), names_of))
        if left_out:
            yield f"  {why}: {left_out}"


def _undecided(nodes: Sequence[Explanation]) -> Iterator[str]:
    """Each place that is open at every one of these nodes, with the values that give the same bits at all of them. The
    JSON tells this of each node, and which dtypes of what it is handed before it is stored.
    """
    every = [{_spread(choice.place): choice.others for choice in node.open} for node in nodes]
    handed: list[str] = []
    for choice in nodes[0].open:
        place = _spread(choice.place)
        if EDGE in place and all(others.get(place) for others in every):
            handed.append(f"{place.partition(':')[0]} ({choice.value})")
            continue
        common = [value for value in choice.others if all(value in others.get(place, ()) for others in every)]
        if common:
            words = " or ".join((choice.value, *common[:SHOWN_OPEN])) + more(len(common), SHOWN_OPEN)
            yield f"{_short(place, nodes[0])} {words}"
        elif all(others.get(place) for others in every):
            yield f"{_short(place, nodes[0])} {choice.value} or another in each layer"
    if handed:
        yield f"in which dtype it is handed what {', '.join(handed)} computes"


def _left_out(nodes: Sequence[Explanation], values_of: Callable[[OpenChoice], Sequence[str]]) -> Iterator[str]:
    """Each place with the values that were not held against those of some of these nodes."""
    by_place: dict[str, dict[str, None]] = {}
    for node in nodes:
        for choice in node.open:
            by_place.setdefault(_spread(choice.place), {}).update(dict.fromkeys(values_of(choice)))
    for place, values in by_place.items():
        if values and EDGE not in place:
            yield f"{_short(place, nodes[0])} {', '.join([*values][:SHOWN_OPEN])}{more(len(values), SHOWN_OPEN)}"


def _short(place: str, node: Explanation) -> str:
    return place.removeprefix(f"{_spread(node.node)}:")


def _matches(node: Explanation, names: str) -> Iterator[str]:
    match, *others = node.matches
    cost = f"{node.tried} tried, {node.calls} kernel calls"
    yield f"{names}: {_spread(str(match))} (all bits equal{match.part_compared}; {cost})"
    yield from (f"  fault: {words}" for words in match.faults)
    if node.extent is not None and node.extent.differing < node.extent.tokens:
        yield from extent_lines(node.extent)
    yield from (f"  so does {n.place} from {n.least:.7g} to {n.greatest:.7g}" for n in match.between)
    if others:
        words = ", or ".join(_spread(str(further)) for further in others[:SHOWN_OTHERS])
        yield f"  the same bits: {words}{more(len(others), SHOWN_OTHERS)}"


def _nothing(node: Explanation, names: str) -> Iterator[str]:
    yield f"{names}: none of the {node.tried} tried gives these bits ({node.calls} kernel calls)"
    has_near = bool(node.matches) and is_near(node.matches[0].equal, node.as_it_is)
    # Beside choices that no file lists the nearest of the listed ones is a name by chance.
    if has_near and node.orders is None:
        best = node.matches[0]
        equal = f"{percent(best.equal)} of elements equal ({percent(node.as_it_is)} without)"
        yield f"  nearest: {_spread(str(best))}, {equal}"
    else:
        equal = f"{percent(node.as_it_is)} of elements equal"
        rest = "" if has_near else "; nothing tried makes half of the others equal"
        yield f"  nearest: the profile as it is, {equal}{rest}"
    if node.left is not None:
        yield f"  which leaves {remainder(node.left)}"
        yield from () if node.left.extent is None else extent_lines(node.left.extent)


def _alike(nodes: Iterable[Explanation]) -> list[list[Explanation]]:
    """Nodes of several layers of which the same is said, together."""
    groups: dict[tuple[object, ...], list[Explanation]] = {}
    for node in nodes:
        matches = tuple(_spread(str(match)) for match in node.matches) if node.explained else node.node
        key = (
            role(node.node),
            tuple(map(role, node.nodes)),
            matches,
            node.as_started,
            node.forwards,
            node.padding[0] > 0,
        )
        groups.setdefault(key, []).append(node)
    return list(groups.values())


def _spread(text: str) -> str:
    return _LAYER.sub("layers[*]", text)
