"""Toggles and swapped blocks as shown, and sentences on them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from moeparity.bisection.data import ReportData
from moeparity.bisection.toggles.data import LeftOut, Offset, Swap, ToggleResult, TrialResult
from moeparity.output.blocks import Column, Group, Row, Styled, Table, bullets, columns, group, notes, stacked, table
from moeparity.output.figures import Across, Dot, Mark, Strip, Strips, Whisker
from moeparity.output.words import enumerated, of_whole, percent, quantity
from moeparity.plan.evidence import NOT_KNOWN
from moeparity.plan.toggles import SEMANTICS
from moeparity.search.blame import seems_large
from moeparity.search.contrast import surely_above, surely_below
from moeparity.search.roles import LEAST_SATURATION, SATURATION, Role


def reading(
    toggles: Sequence[ToggleResult], total: float, shares: Sequence[str] | None = None, offsets: Sequence[Offset] = ()
) -> list[str]:
    """What the trials say in sentences; `total` is the candidate's KL, in nats per token.

    shares: sentences on who makes the KL, if there are shares; None: they are made from the two trials of each toggle.
    offsets: pairs that offset each other. Of the parts of a toggle that was taken apart, only the largest is named.
    """
    parts = [e for e in toggles if e.parent is not None]
    toggles = [e for e in toggles if e.parent is None]
    sentences = _makers(toggles, total, offsets) if shares is None else shares
    return [
        *_unsure(toggles),
        *_other_functions(toggles),
        *_acting(toggles, total),
        *map(_offset, offsets),
        *sentences,
        *_largest_parts(toggles, parts, total),
        *_what_sets(toggles),
    ]


def _unsure(toggles: Sequence[ToggleResult]) -> Iterator[str]:
    """Opening sentences: which answers rest on values that are not known of the engines."""
    unsure = [e for e in toggles if not e.had_no_effect and not {*NOT_KNOWN}.isdisjoint(e.evidence)]
    if unsure:
        yield (
            f"This rests on values that nobody vouches for, {_labels(unsure)}: what follows holds for the values that "
            "stand in the profiles, and for the engines only as far as these are right."
        )


def _other_functions(toggles: Sequence[ToggleResult]) -> Iterator[str]:
    """Which toggles compute another model, so that both sides can't be right."""
    others = [e for e in toggles if e.kind == SEMANTICS and not e.had_no_effect]
    if others:
        verb, them = ("decides", "it") if len(others) == 1 else ("decide", "them")
        yield (
            f"{_labels(others)} {verb} what is computed, not how it is rounded: the two sides of {them} are different "
            "functions, and no tolerance makes them one."
        )


def _acting(toggles: Sequence[ToggleResult], total: float) -> list[str]:
    """Which toggles have an effect at all, and whether it shows."""
    idle = [e for e in toggles if e.had_no_effect]
    sentences = [f"{_labels(idle)} had no effect: no bit changed at any node."] if idle else []
    active = [e for e in toggles if not e.had_no_effect]
    masked = [e for e in active if e.masked]
    if masked:
        sentences.append(f"Masked in the candidate: {_labels(masked)}. Restoring alone changes no bit there.")
    refusals = [e for e in toggles if e.alone is None or e.restored is None]
    if refusals:
        sentences.append(
            f"{_labels(refusals)} could not be tried both ways, since an op refuses a mixture: see what is left out."
        )
    if active and total == 0:
        sentences.append("Bits change, but none of the changes reaches a scored token.")
    if len(active) == 1 and total > 0:
        sentences.append(f"{active[0].label} alone makes the whole difference.")
    return sentences


def left_out_words(group: LeftOut) -> str:
    """A sentence on trials that can't run, and why."""
    trials = [f"{name} alone" for name in group.alone] + [f"{name} restored" for name in group.restored]
    trials += [*group.others, *([quantity(group.mixtures, "mixture") + " of --attribute"] if group.mixtures else [])]
    return f"{enumerated(trials)}: {group.reason}"


def _offset(pair: Offset) -> str:
    sides = ((pair.first, pair.first_nodes), (pair.second, pair.second_nodes))
    names = [name if nodes in name else f"{name} (at {nodes})" for name, nodes in sides]
    return (
        f"{enumerated(names)} offset each other: alone they cost KL {pair.first_alone:.2e} and {pair.second_alone:.2e} "
        f"nats per token, together {pair.together:.2e}. Each hides the other: restoring one alone exposes the other."
    )


def _makers(toggles: Sequence[ToggleResult], total: float, offsets: Sequence[Offset]) -> list[str]:
    """Which toggles make the divergence, as far as their two trials tell."""
    # Pairs that offset each other have had their sentence.
    in_pairs = {name for pair in offsets for name in (pair.first, pair.second)}
    active = [e for e in toggles if not e.had_no_effect and e.name not in in_pairs]
    if len(active) < 2 or not total > 0:
        return []
    sentences = []
    seem_large = [e for e in active if not e.masked and seems_large(e.parts(total))]
    saturated = [e for e in seem_large if e.role(total) is Role.SATURATED]
    if len(saturated) > 1:
        sentences.append(
            f"Saturated: {_labels(saturated)} are interchangeable. Each alone costs at least "
            f"{SATURATION:.0%} of the whole divergence (95% interval: at least {LEAST_SATURATION:.0%}), and restoring "
            "any one of them leaves as much. Rounding noise, once seeded, grows to the same size: only restoring all "
            "toggles gives the reference's bits."
        )
        sentences += [_apart(e, total) for e in seem_large if e.large and not e.legal]
    open = [e for e in seem_large if e.legal and e.role(total) is Role.UNDECIDED]
    if open and len(saturated) + len(open) > 1:
        sentences.append(
            f"Not decided with these sequences: whether other choices can replace {_labels(open)}. Alone "
            f"{'each' if open[1:] else 'it'} costs at least {SATURATION:.0%} of the whole divergence, and "
            f"restoring it alone leaves at least {SATURATION:.0%}, but the 95% intervals do not settle it."
        )
    sentences += [
        f"Restoring {e.label} alone removes {1 - e.restored.kl / total:.0%} of the divergence."
        for e in active
        if e.restored is not None and surely_below(e.change)
    ]
    worse = [e for e in active if surely_above(e.change)]
    if worse:
        sentences.append(f"Restoring {_labels(worse)} alone raises the divergence: toggles interact.")
    return sentences


def _apart(toggle: ToggleResult, total: float) -> str:
    """A toggle that is as large as the saturated ones, but not a legal choice."""
    assert toggle.alone is not None
    assert toggle.restored is not None
    return (
        f"{toggle.label} is as large but not one of them, since it computes another function: alone it costs "
        f"{toggle.alone.kl / total:.0%} of the whole divergence, and restoring it leaves "
        f"{toggle.restored.kl / total:.0%} of it."
    )


def _largest_parts(toggles: Sequence[ToggleResult], parts: Sequence[ToggleResult], total: float) -> Iterator[str]:
    """For each toggle that was taken apart, the smallest part that alone still makes most of what the toggle makes."""
    for toggle in toggles:
        part: ToggleResult | None = toggle
        while part is not None and part.alone is not None:
            members = [p for p in parts if p.parent == part.name and p.alone is not None]
            largest = max(members, key=lambda p: p.alone.kl if p.alone else 0.0, default=None)
            if largest is None or largest.alone is None or largest.alone.kl < SATURATION * part.alone.kl:
                break
            part = largest
        if part is not None and part is not toggle and part.alone is not None and total > 0:
            yield (
                f"In {toggle.label} the largest part is {part.label}: alone it costs "
                f"{part.alone.kl / total:.0%} of the whole divergence."
            )


def _what_sets(toggles: Sequence[ToggleResult]) -> Iterator[str]:
    """For each toggle with an effect, what each side runs and which flags would change it; the most expensive first."""
    active = [e for e in toggles if not e.had_no_effect and (e.reference_changed_by or e.candidate_changed_by)]
    groups: dict[tuple[str, str], list[ToggleResult]] = {}
    for toggle in sorted(active, key=lambda e: e.alone.kl if e.alone else 0.0, reverse=True):
        causes = {"reference": toggle.reference_set_by, "candidate": toggle.candidate_set_by}
        changes = {"reference": toggle.reference_changed_by, "candidate": toggle.candidate_changed_by}
        cause = " and ".join(f"on the {side} by {by}" for side, by in causes.items() if by)
        change = " or ".join(f"{by} on the {side}" for side, by in changes.items() if by)
        groups.setdefault((cause, change), []).append(toggle)
    for (cause, change), members in groups.items():
        yield (
            f"{_names(members)} {'is' if len(members) == 1 else 'are'} set {cause}. "
            f"To change {'it' if len(members) == 1 else 'them'}: {change}."
        )


def _labels(toggles: Sequence[ToggleResult]) -> str:
    return enumerated([toggle.label for toggle in toggles])


def _names(toggles: Sequence[ToggleResult]) -> str:
    return enumerated([toggle.name for toggle in toggles])


_TITLES = ("class", "alone: KL", "flips", "restored: KL")
_KEYS = {
    "alone": "alone: the reference with this one choice of the candidate",
    "restored": "restored: the candidate with this one choice of the reference, 95% interval",
    "whole": "the candidate's KL",
}


def show(report: ReportData) -> Iterator[Group]:
    """The group of every choice that differs, alone and restored."""
    if not report.toggles:
        return
    rows = [_row(toggle, report.metrics.kl, depth) for toggle, depth in _nested(report.toggles)]
    explained = notes(
        "alone: the reference with this one choice of the candidate; restored: the candidate with this one choice of "
        "the reference.",
        "In brackets: how sure the profile is of the value (docs/glossary.md).",
        "KL(trial || reference) over the vocabulary, nats per token, and in percent of the candidate's KL; the "
        "percents do not add up.",
        "flips: token-layers with another expert set.",
    )
    yield group("Toggles", _picture(report), stacked(_columns("toggle"), rows), explained)


def show_left_out(report: ReportData) -> Iterator[Group]:
    """Trials that can't run."""
    if report.left_out:
        title = "Left out: trials that cannot run"
        yield group(title, bullets(map(left_out_words, report.left_out)))


def show_swaps(report: ReportData) -> Iterator[Group]:
    """Whole blocks restored to the reference."""
    if report.swaps:
        note = "restored: the candidate with the reference's numerics in the whole block."
        rows = [_swap(swap, report.metrics.kl) for swap in report.swaps]
        yield group("Swapped blocks", stacked(_columns("block"), rows, Styled(note, "dim")))


def show_words(report: ReportData) -> Iterator[Group]:
    """What the trials say."""
    if report.reading:
        yield group("In words", bullets(report.reading))


def show_no_effect(report: ReportData) -> Iterator[Group]:
    """The group of choices that differ and change no bit at any node."""
    idle = [toggle for toggle in report.toggles if toggle.had_no_effect]
    if idle:
        yield group("Choices without effect", no_effect_table(idle))


def no_effect_table(toggles: Sequence[ToggleResult]) -> Table:
    """A row for each such choice: both values and their evidence."""
    rows = [
        (
            toggle.name,
            f"{toggle.reference} ({toggle.reference_evidence})",
            f"{toggle.candidate} ({toggle.candidate_evidence})",
        )
        for toggle in toggles
    ]
    sides = ("reference", "candidate")
    return table(columns(*sides, first="no bit changed at any node by", words=sides), rows)


def _columns(first: str) -> tuple[Column, ...]:
    return columns(*_TITLES, first=first, words=("class",))


def _nested(
    toggles: Sequence[ToggleResult], parent: str | None = None, depth: int = 0
) -> Iterator[tuple[ToggleResult, int]]:
    """Every toggle, followed by the parts into which it was taken apart."""
    for toggle in toggles:
        if toggle.parent == parent:
            yield toggle, depth
            yield from _nested(toggles, toggle.name, depth + 1)


def _swap(swap: Swap, total: float) -> Row:
    counts = quantity(swap.nodes, "node")
    if swap.toggle is None:
        return Row((swap.selector, "", "", "", ""), (f"{counts}, nothing differs",))
    (_, *cells) = _row(swap.toggle, total, 0).cells
    verb = "differs" if swap.toggle.nodes == 1 else "differ"
    return Row((swap.selector, *cells), (f"{counts}, {quantity(swap.toggle.nodes, 'node')} {verb}",))


def _row(toggle: ToggleResult, total: float, depth: int) -> Row:
    share = None if toggle.alone is None or _is_idle(toggle) else toggle.alone.flipped_routes
    name = toggle.name.removeprefix(f"{toggle.parent} / ")
    values = [] if depth else [_values(toggle)]
    alone, restored = trial_words(toggle, total)
    cells = (f"{'  ' * depth}{name}", toggle.kind, alone, "" if share is None else percent(share), restored)
    return Row(cells, (*values, *_resting(toggle)))


def _values(toggle: ToggleResult) -> str:
    """Both sides' values, and the evidence for them."""
    reference = f"{toggle.reference} ({toggle.reference_evidence})"
    return f"{reference} -> {toggle.candidate} ({toggle.candidate_evidence})"


def trial_words(toggle: ToggleResult, total: float) -> tuple[str, str]:
    """What a toggle costs alone, and what is left with it restored: the KL and its fraction of `total`, or why there
    is none.
    """

    def kl(trial: TrialResult | None) -> str:
        if trial is not None and (toggle.had_no_effect or (_is_idle(toggle) and trial is toggle.alone)):
            return "no effect"
        return of_whole(None if trial is None else trial.kl, total)

    exact = "all bits" if toggle.restores_all and not toggle.had_no_effect else kl(toggle.restored)
    return kl(toggle.alone), "masked" if toggle.masked else exact


def _is_idle(toggle: ToggleResult) -> bool:
    """Whether it changes no bit alone."""
    return toggle.had_no_effect or (toggle.alone is not None and not toggle.alone.changed_nodes)


def _resting(toggle: ToggleResult) -> Iterator[str]:
    """The sides on which its value has no effect, because of another choice."""
    for side, count in (("reference", toggle.reference_resting), ("candidate", toggle.candidate_resting)):
        if count:
            nodes = "" if count == toggle.nodes else f" at {count} of {quantity(toggle.nodes, 'node')}"
            yield f"takes no effect in the {side}{nodes}"


def _picture(report: ReportData) -> Strips | None:
    """The trials of every toggle that acts; None where there is nothing to draw."""
    acting = [toggle for toggle in report.toggles if toggle.parent is None and not toggle.had_no_effect]
    total = report.metrics.kl
    if not acting or not math.isfinite(total):
        return None
    return Strips(
        title="Each choice alone, and restored",
        strips=[_strip(toggle, total) for toggle in acting],
        over=[total, *(value for toggle in acting for value in _ends(toggle, total))],
        unit="KL(trial || reference), nats per token",
        digits=".2g",
        keys=_KEYS,
    )


def _ends(toggle: ToggleResult, total: float) -> list[float]:
    trials = [trial.kl for trial in (toggle.alone, toggle.restored) if trial is not None]
    return [*trials, total + toggle.restored_change_low, total + toggle.restored_change_high]


def _strip(toggle: ToggleResult, total: float) -> Strip:
    marks: list[Mark] = [Across(total, "whole")]
    if toggle.restored is not None and not toggle.masked:
        low, high = total + toggle.restored_change_low, total + toggle.restored_change_high
        marks += [Whisker(low, high)] if math.isfinite(low) or math.isfinite(high) else []
        marks.append(Dot(toggle.restored.kl, "restored"))
    if toggle.alone is not None:
        marks.append(Dot(toggle.alone.kl, "alone"))
    return Strip(name=toggle.name, marks=marks)
