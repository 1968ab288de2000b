"""What a toggle's two trials did, and which toggles are worth taking apart; needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moeparity.bisection.toggles.data import TrialResult
from moeparity.plan.evidence import in_words
from moeparity.plan.toggles import Toggle
from moeparity.search.blame import by_trials
from moeparity.search.contrast import surely_below
from moeparity.search.roles import SHARE, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """A toggle with its two trials (None if an op refuses the mixture): alone in the reference, restored in the
    candidate.

    change: the 95 % interval of the restored trial's KL minus the candidate's, paired over sequences, nats per token.
    is_large: alone it surely makes, and restored it surely leaves, `LEAST_SATURATION` of that KL. is_legal: it is a
    legal choice. evidence: the lowest level of its values on each side. restores_all: restored, every node has the
    reference's bits.
    """

    toggle: Toggle
    alone: TrialResult | None
    restored: TrialResult | None
    change: tuple[float, float]
    is_large: bool
    is_legal: bool
    evidence: tuple[str, str]
    restores_all: bool

    @property
    def label(self) -> str:
        """Its name and its evidence."""
        return f"{self.toggle.name} ({in_words(self.evidence)})"

    @property
    def had_no_effect(self) -> bool:
        """Whether both trials ran and neither changed a bit at any node."""
        return all(trial is not None and trial.changed_nodes == 0 for trial in (self.alone, self.restored))

    @property
    def is_masked(self) -> bool:
        """Whether it changes bits alone, while restoring it changes no bit of the candidate."""
        if self.alone is None or self.restored is None:
            return False
        return self.alone.changed_nodes > 0 and self.restored.changed_nodes == 0

    def parts(self, total_kl: float) -> tuple[float | None, float | None]:
        """The fractions of the whole KL that it makes alone, and that are left with it restored."""
        alone, restored = (None if trial is None else trial.kl / total_kl for trial in (self.alone, self.restored))
        return alone, restored

    def role(self, total_kl: float) -> Role:
        """Its role, by its two trials."""
        return by_trials(
            acts=not self.had_no_effect,
            masked=self.is_masked,
            legal=self.is_legal,
            large=self.is_large,
            parts=self.parts(total_kl),
            change=self.change,
        )


def worth_splitting(effects: Sequence[Effect], total_kl: float) -> list[Toggle]:
    """The toggles to take apart next: not split yet, made of several differences, and worth it.

    A toggle is worth it if alone it costs at least `SHARE` of `total_kl`, or if restoring it surely lowers the KL.
    """
    parents = {effect.toggle.parent for effect in effects}
    return [
        effect.toggle
        for effect in effects
        if effect.toggle.name not in parents
        and not effect.had_no_effect
        and (surely_below(effect.change) or (effect.alone is not None and effect.alone.kl >= SHARE * total_kl))
    ]
