"""What each toggle does alone, what restoring it alone does, and what that means in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from moeparity.bisection.toggles.effect import Effect
from moeparity.bisection.toggles.report import Offset
from moeparity.output.words import enumerated
from moeparity.plan.evidence import NOT_KNOWN
from moeparity.plan.toggles import SEMANTICS
from moeparity.search.contrast import surely_above, surely_below
from moeparity.search.roles import LEAST_SATURATION, SATURATION


def reading(
    effects: Sequence[Effect], total_kl: float, shares: Sequence[str] | None = None, offsets: Sequence[Offset] = ()
) -> list[str]:
    """The table of effects in sentences; `total_kl` is the candidate's own KL, in nats per token.

    `shares` are sentences on who makes it, where it was shared out; None: they are taken from the two trials of each.
    `offsets` are the pairs of them that offset each other. Toggles that were taken apart stand for their parts, of
    which only the largest is named.
    """
    parts = [e for e in effects if e.toggle.parent is not None]
    effects = [e for e in effects if e.toggle.parent is None]
    sentences = _makers(effects, total_kl, offsets) if shares is None else shares
    pairs = map(_offset, offsets)
    return [
        *_unsure(effects),
        *_other_functions(effects),
        *_acting(effects, total_kl),
        *pairs,
        *sentences,
        *_largest_parts(effects, parts, total_kl),
        *_what_sets(effects),
    ]


def _unsure(effects: Sequence[Effect]) -> Iterator[str]:
    """What comes first: that an answer rests on values which are not known of the engines."""
    unsure = [e for e in effects if not e.had_no_effect and not {*NOT_KNOWN}.isdisjoint(e.evidence)]
    if unsure:
        yield (
            f"This rests on values that nobody vouches for, {_labels(unsure)}: what follows holds of the values that "
            "stand in the profiles, and of the engines only as far as these are right."
        )


def _other_functions(effects: Sequence[Effect]) -> Iterator[str]:
    """Which toggles compute another model: there both sides cannot be right."""
    others = [e for e in effects if e.toggle.kind == SEMANTICS and not e.had_no_effect]
    if others:
        verb, them = ("decides", "it") if len(others) == 1 else ("decide", "them")
        yield (
            f"{_labels(others)} {verb} what is computed, not how it is rounded (class semantics): the two sides of "
            f"{them} are different functions, and no tolerance makes them one."
        )


def _acting(effects: Sequence[Effect], total_kl: float) -> list[str]:
    """Which toggles act at all, and whether it shows."""
    idle = [e for e in effects if e.had_no_effect]
    sentences = [f"{_labels(idle)} had no effect: no bit changed at any node."] if idle else []
    active = [e for e in effects if not e.had_no_effect]
    masked_effects = [e for e in active if e.is_masked]
    if masked_effects:
        sentences.append(f"Masked in the candidate: {_labels(masked_effects)}. Restoring alone changes no bit there.")
    refusals = [e for e in effects if e.alone is None or e.restored is None]
    if refusals:
        sentences.append(f"An op refuses {_labels(refusals)} mixed with the other side's choices: see the table.")
    if active and total_kl == 0:
        sentences.append("Bits change, but none of the changes reaches a scored token.")
    if len(active) == 1 and total_kl > 0:
        sentences.append(f"{active[0].label} alone makes the whole difference.")
    return sentences


def _offset(pair: Offset) -> str:
    sides = ((pair.first, pair.first_nodes), (pair.second, pair.second_nodes))
    names = [name if nodes in name else f"{name} (at {nodes})" for name, nodes in sides]
    return (
        f"{enumerated(names)} offset each other: alone they cost KL {pair.first_alone:.2e} and {pair.second_alone:.2e} "
        f"nats per token, together {pair.together:.2e}. Each hides the other: restoring one alone lays the other bare."
    )


def _makers(effects: Sequence[Effect], total_kl: float, offsets: Sequence[Offset]) -> list[str]:
    """Which of several toggles make the divergence, as far as their two trials tell."""
    # What is said of pairs that offset each other is said.
    in_pairs = {name for pair in offsets for name in (pair.first, pair.second)}
    active = [e for e in effects if not e.had_no_effect and e.toggle.name not in in_pairs]
    if len(active) < 2 or not total_kl > 0:
        return []
    sentences = []
    large_effects = [e for e in active if _seems_large(e, total_kl)]
    saturated_effects = [e for e in large_effects if e.is_large and e.is_legal]
    if len(saturated_effects) > 1:
        sentences.append(
            f"Saturated: {_labels(saturated_effects)} are interchangeable. Each alone costs at least "
            f"{SATURATION:.0%} of the whole divergence (surely {LEAST_SATURATION:.0%}), and restoring any one of them "
            f"leaves as much. Rounding noise, once seeded, grows to the same size: only restoring all toggles "
            "gives the reference's bits."
        )
        sentences += [_apart(e, total_kl) for e in large_effects if e.is_large and not e.is_legal]
    open_effects = [e for e in large_effects if e.is_legal and not e.is_large]
    if open_effects and len(saturated_effects) + len(open_effects) > 1:
        sentences.append(
            f"Not decided with these sequences: whether {_labels(open_effects)} can be stood in for by others. Alone "
            f"each costs at least {SATURATION:.0%} of the whole divergence, and restored it leaves as much, but not "
            "surely."
        )
    sentences += [
        f"Restoring {e.label} alone removes {1 - e.restored.kl / total_kl:.0%} of the divergence."
        for e in active
        if e.restored is not None and surely_below(e.change)
    ]
    worse = [e for e in active if surely_above(e.change)]
    if worse:
        sentences.append(f"Restoring {_labels(worse)} alone raises the divergence: toggles interact.")
    return sentences


def _seems_large(effect: Effect, total_kl: float) -> bool:
    """Whether it would be saturated, going by what was measured without its intervals."""
    # Not by min(), which may drop a NaN.
    trials = (effect.alone, effect.restored)
    return not effect.is_masked and all(trial is not None and trial.kl >= SATURATION * total_kl for trial in trials)


def _apart(effect: Effect, total_kl: float) -> str:
    """What is large as the saturated are, and no legal choice."""
    assert effect.alone is not None
    assert effect.restored is not None
    return (
        f"{effect.label} is as large and not one of them, being no rounding but another function: alone it costs "
        f"{effect.alone.kl / total_kl:.0%} of the whole divergence, and restoring it leaves "
        f"{effect.restored.kl / total_kl:.0%} of it."
    )


def _largest_parts(effects: Sequence[Effect], parts: Sequence[Effect], total_kl: float) -> Iterator[str]:
    """Per toggle that was taken apart, the smallest part that alone still makes most of what it makes."""
    for effect in effects:
        part: Effect | None = effect
        while part is not None and part.alone is not None:
            members = [p for p in parts if p.toggle.parent == part.toggle.name and p.alone is not None]
            largest = max(members, key=lambda p: p.alone.kl if p.alone else 0.0, default=None)
            if largest is None or largest.alone is None or largest.alone.kl < SATURATION * part.alone.kl:
                break
            part = largest
        if part is not None and part is not effect and part.alone is not None and total_kl > 0:
            yield (
                f"In {effect.label} the largest part is {part.label}: alone it costs "
                f"{part.alone.kl / total_kl:.0%} of the whole divergence."
            )


def _what_sets(effects: Sequence[Effect]) -> Iterator[str]:
    """What each side runs of each toggle that acts, and what a user of its engine would change it by; dearest first."""
    active = [e for e in effects if not e.had_no_effect and e.toggle.has_flag]
    groups: dict[tuple[str, str], list[Effect]] = {}
    for effect in sorted(active, key=lambda e: e.alone.kl if e.alone else 0.0, reverse=True):
        t = effect.toggle
        causes = {"reference": t.reference_set_by, "candidate": t.candidate_set_by}
        changes = {"reference": t.reference_changed_by, "candidate": t.candidate_changed_by}
        cause = " and ".join(f"on the {side} by {by}" for side, by in causes.items() if by)
        change = " or ".join(f"{by} on the {side}" for side, by in changes.items() if by)
        groups.setdefault((cause, change), []).append(effect)
    for (cause, change), group in groups.items():
        yield (
            f"{_names(group)} {'is' if len(group) == 1 else 'are'} set {cause}. "
            f"To change {'it' if len(group) == 1 else 'them'}: {change}."
        )


def _labels(effects: Sequence[Effect]) -> str:
    return enumerated([effect.label for effect in effects])


def _names(effects: Sequence[Effect]) -> str:
    return enumerated([effect.toggle.name for effect in effects])
