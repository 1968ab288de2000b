"""The ablation table of two launch configurations, tier by tier, with what has no effect, and an order to set them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from moeparity.bisection.ablation.report import Ablation, Effect, RestoredSetting, Setting
from moeparity.output.blocks import (
    Block,
    Cell,
    Document,
    Lines,
    Row,
    Status,
    Styled,
    bullets,
    columns,
    group,
    names,
    notes,
    stacked,
    warnings,
)
from moeparity.output.words import of_whole, quantity

_QUESTIONS = {
    "semantics": "Semantics: what the log-probabilities are of",
    "inference path": "Inference path: kernels, dtypes, ranks, batches",
    "objective": "Objective: what the trainer makes of them",
}
_STYLES: dict[Effect, str] = {"lowers": "bold green", "raises": "bold red", "refused": "bold red"}
_HARDLY = 0.01


def document(ablation: Ablation) -> Document:
    """The report on two configurations."""
    return Document(command="sweep", subject=ablation.second, blocks=tuple(_blocks(ablation)))


def _blocks(ablation: Ablation) -> Iterator[Block]:
    yield Status("done", _status(ablation))
    yield names(
        [
            ("from", f"{ablation.first} ({ablation.first_release}): the reference"),
            ("to", f"{ablation.second} ({ablation.second_release})"),
            ("checkpoint", f"{ablation.checkpoint}, {ablation.sequences} sequences, {ablation.tokens:,} scored tokens"),
        ]
    )
    yield from warnings(ablation.warnings)
    for tier, title in _QUESTIONS.items():
        settings = [setting for setting in ablation.settings if setting.tier == tier and setting.back is not None]
        if settings:
            yield group(title, _table(settings, ablation.tiers[tier]))
    yield notes(
        "alone: KL(first with this one setting of the second || first), nats per token, and its part of what the tier "
        "begins with. put back: what is left of that with this one setting of the first, the tiers above restored.",
        "[no flag]: no option of the second gives it the first one's value.",
    )
    yield group("Without effect, or not put", _negative(ablation))
    yield group("To set in the second, in this order", _order(ablation))


def _status(ablation: Ablation) -> str:
    acting = sum(setting.effect in ("lowers", "raises", "not shown") for setting in ablation.settings)
    counted = f"{quantity(len(ablation.settings), 'setting')} differ, {acting} change bits"
    if ablation.exact:
        return f"{counted}; together they change none; exit 0"
    return f"{counted}; KL of all together {ablation.kl:.2g} nats per token, k3 {ablation.k3:.2g}; exit 0"


def _table(settings: Sequence[Setting], whole: float) -> Block:
    of = columns("alone", "put back", "effect", first="setting", words=("effect",))
    return stacked(of, [_row(setting, whole) for setting in settings if setting.effect != "no effect"])


def _row(setting: Setting, whole: float) -> Row:
    effect = Styled(setting.effect, _STYLES.get(setting.effect, ""))
    cells: tuple[Cell, ...] = (setting.name, of_whole(setting.alone, whole), of_whole(setting.back, whole), effect)
    flag = "" if setting.cure else " [no flag]"
    below = [f"{setting.first} -> {setting.second}{flag}"]
    if setting.option:
        below.append(f"{_where(setting)}; moves {', '.join(setting.choices)}")
    return Row(cells, tuple(below))


def _where(setting: Setting) -> str:
    return " -> ".join(dict.fromkeys(filter(None, (setting.first_where, setting.second_where))))


def _negative(ablation: Ablation) -> Lines:
    """Each with its reason: equal bits where it was put, a sentence where it was not."""
    sentences = []
    for setting in ablation.settings:
        values = f"{setting.name}: {setting.first} -> {setting.second} ({_where(setting)})"
        if setting.effect == "no effect" and setting.back is not None:
            sentences.append(f"{values}: put alone and put back, no bit changes on these tokens")
        elif setting.effect == "no effect":
            sentences.append(f"{values}: {setting.says}")
        elif setting.effect in ("not put", "refused"):
            sentences.append(f"{values}: {setting.effect}: {setting.says or 'an op refuses the mixture'}")
    return bullets(sentences or ["every setting that differs was put, and acts"])


def _order(ablation: Ablation) -> Lines:
    if not ablation.order:
        return bullets(["nothing that can be set acts"])
    sentences = [_step(step, ablation.kl) for step in ablation.order]
    rest = [s.name for s in ablation.settings if not s.cure and s.effect in ("lowers", "raises", "not shown")]
    if rest and ablation.left > 0:
        sentences.append(f"no flag for {', '.join(rest)}: KL {ablation.left:.2g} stays")
    return Lines(tuple(sentences), "numbered")


def _step(step: RestoredSetting, whole: float) -> str:
    part = step.left / whole if whole > 0 else 0.0
    part_in_words = "under 1%" if part < _HARDLY else f"{part:.0%}"
    shown = (
        "" if step.change_high < 0 else ", a change that is not shown" if step.change_low <= 0 else ", which raises it"
    )
    return f"{step.cure}: leaves KL {step.left:.2g} ({part_in_words}){shown}"
