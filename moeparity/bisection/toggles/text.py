"""Toggles, swapped blocks, and what they mean, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType

from moeparity.bisection.report import Report
from moeparity.bisection.sections import Shown
from moeparity.bisection.toggles.report import ToggleResult, TrialResult
from moeparity.output.tables import Stacked, Words, bullets, plain_table
from moeparity.output.words import of_whole, percent, quantity


def _table_section(report: Report) -> Shown:
    if report.toggles:
        yield "Toggles", _toggles(report)


def _swap_section(report: Report) -> Shown:
    if report.swaps:
        yield "Swapped blocks", _swaps(report)


def _words_section(report: Report) -> Shown:
    if report.reading:
        yield "In words", bullets(report.reading)


def _toggles(report: Report) -> RenderableType:
    table = _effects_table("toggle")
    for toggle, depth in _nested(report.toggles):
        cells, below = _toggle_row(toggle, report.metrics.kl, depth)
        table.add_row(*cells, below=below)
    note = Words(
        "alone: the reference with this one choice of the candidate; "
        "restored: the candidate with this one choice of the reference.\n"
        "In brackets: how sure the profile is of the value (docs/glossary.md).\n"
        "KL(trial || reference) over the vocabulary, nats per token, and in percent of the candidate's KL, which do "
        "not add up.\nflips: token-layers with another expert set.",
        style="dim",
    )
    return Group(table, note)


def _nested(
    toggles: Sequence[ToggleResult], parent: str | None = None, depth: int = 0
) -> Iterator[tuple[ToggleResult, int]]:
    """Every toggle followed by the parts it was taken apart into."""
    for toggle in toggles:
        if toggle.parent == parent:
            yield toggle, depth
            yield from _nested(toggles, toggle.name, depth + 1)


def _swaps(report: Report) -> RenderableType:
    table = _effects_table("block")
    for swap in report.swaps:
        if swap.toggle is None:
            table.add_row(swap.selector, "", "", "", "", below=[f"{quantity(swap.nodes, 'node')}, nothing differs"])
        else:
            counts = f"{quantity(swap.nodes, 'node')}, {quantity(swap.toggle.nodes, 'node')} differ"
            (_, *cells), _ = _toggle_row(swap.toggle, report.metrics.kl, 0)
            table.add_row(swap.selector, *cells, below=[counts])
    note = Words("restored: the candidate with the reference's numerics in the whole block.", style="dim")
    return Group(table, note)


def no_effect_table(toggles: Sequence[ToggleResult]) -> RenderableType:
    """Choices that differ and change no bit at any node, with both values and how sure these are."""
    table = plain_table("reference", "candidate", names="no bit changed at any node by", names_first=True)
    for toggle in toggles:
        table.add_row(
            toggle.name,
            f"{toggle.reference} ({toggle.reference_evidence})",
            f"{toggle.candidate} ({toggle.candidate_evidence})",
        )
    return table


def _effects_table(names: str) -> Stacked:
    return Stacked(names, "class", "alone: KL", "flips", "restored: KL")


def _toggle_row(toggle: ToggleResult, total: float, depth: int) -> tuple[list[str], list[str]]:
    """Its cells, and what stands below them."""
    idle = _is_idle(toggle)
    share = None if toggle.alone is None or idle else toggle.alone.flipped_routes
    flips = "" if share is None else percent(share)
    indent = "  " * depth
    name = toggle.name.removeprefix(f"{toggle.parent} / ")
    reference = f"{toggle.reference} ({toggle.reference_evidence})"
    candidate = f"{toggle.candidate} ({toggle.candidate_evidence})"
    below = [*([] if depth else [f"{reference} -> {candidate}"]), *_resting(toggle)]
    alone, restored = trial_words(toggle, total)
    return [f"{indent}{name}", toggle.kind, alone, flips, restored], below


def trial_words(toggle: ToggleResult, total: float) -> tuple[str, str]:
    """What a toggle costs alone, and what is left with it restored: KL and its part of the `total`, or why neither."""

    def kl(trial: TrialResult | None) -> str:
        if trial is not None and (toggle.had_no_effect or (_is_idle(toggle) and trial is toggle.alone)):
            return "no effect"
        return of_whole(None if trial is None else trial.kl, total)

    exact = "all bits" if toggle.restores_all and not toggle.had_no_effect else kl(toggle.restored)
    return kl(toggle.alone), "masked" if toggle.masked else exact


def _is_idle(toggle: ToggleResult) -> bool:
    """Whether it changes nothing alone."""
    return toggle.had_no_effect or (toggle.alone is not None and not toggle.alone.changed_nodes)


def _resting(toggle: ToggleResult) -> Iterator[str]:
    """On which sides its value takes no effect, because of another choice."""
    for side, count in (("reference", toggle.reference_resting), ("candidate", toggle.candidate_resting)):
        if count:
            nodes = "" if count == toggle.nodes else f" at {count} of {quantity(toggle.nodes, 'node')}"
            yield f"rests in the {side}{nodes}"


SHOWN = {"toggles": _table_section, "swaps": _swap_section, "reading": _words_section}
