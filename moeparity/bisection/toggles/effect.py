"""What a toggle's two trials did, and which toggles are worth taking apart; no torch here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moeparity.bisection.toggles.report import TrialResult
from moeparity.plan.evidence import in_words
from moeparity.plan.toggles import Toggle
from moeparity.search.contrast import surely_below
from moeparity.search.roles import SHARE


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """A toggle with its two trials: thrown alone in the reference, and restored alone in the candidate.

    `change` bounds what restoring it alone does to the candidate's KL, in nats per token: the 95 % interval of the
    paired difference over sequences. `is_large`: alone it surely makes `LEAST_SATURATION` of that KL, and restored as
    much is surely left. `is_legal`: it is neither another model nor a user's function. `evidence`: the lowest level of
    the values it rests on, on the reference's and the candidate's side. `restores_all` says that restoring it alone
    gives the reference's bits at every node. A trial is None where an op refuses that mixture of both sides.
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
        """Its name, and how sure the values are that it rests on."""
        return f"{self.toggle.name} ({in_words(self.evidence)})"

    @property
    def had_no_effect(self) -> bool:
        """True when both trials ran and neither changed a bit at any node."""
        return all(trial is not None and trial.changed_nodes == 0 for trial in (self.alone, self.restored))

    @property
    def is_masked(self) -> bool:
        """True when it acts alone in the reference, and restoring it changes no bit of the candidate."""
        if self.alone is None or self.restored is None:
            return False
        return self.alone.changed_nodes > 0 and self.restored.changed_nodes == 0


def worth_splitting(effects: Sequence[Effect], total_kl: float) -> list[Toggle]:
    """The toggles to take apart next: not yet split, made of several differences, and with a share to find.

    A share is there when alone the toggle costs at least `SHARE` of `total_kl`, or restoring it alone surely lowers it.
    """
    parents = {effect.toggle.parent for effect in effects}
    return [
        effect.toggle
        for effect in effects
        if effect.toggle.name not in parents
        and not effect.had_no_effect
        and (surely_below(effect.change) or (effect.alone is not None and effect.alone.kl >= SHARE * total_kl))
    ]
