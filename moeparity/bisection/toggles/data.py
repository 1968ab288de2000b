"""What each difference does alone, and what restoring it does; plain data."""

from __future__ import annotations

from dataclasses import dataclass

from moeparity.plan.evidence import in_words
from moeparity.search.blame import by_trials
from moeparity.search.contrast import Interval
from moeparity.search.roles import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """One trial: KL(trial || reference) and k3 in nats per token, fraction of flipped token-layers, number of changed
    nodes.

    flipped_routes: None if there are no routes to compare.
    """

    kl: float
    k3: float
    flipped_routes: float | None
    changed_nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ToggleResult:
    """One toggle and its two trials.

    alone: the reference with this one choice of the candidate. restored: the candidate with this one choice of the
    reference. None if an op refuses the mixture. restored_change_low, restored_change_high: 95 % interval of the
    restored trial's KL minus the candidate's, paired over sequences, nats per token.

    nodes: at how many nodes it differs. reference_resting, candidate_resting: at how many of them its value rests in
    the side itself; there it may wake in a mixture. parent: the toggle of which it is a part.
    set_by: the flag (or `default`) by which an engine has its value. changed_by: the flags that would give it the other
    side's value. evidence: the lowest level of its values.

    large: alone it surely makes, and restored it surely leaves, `roles.LEAST_SATURATION` of the KL. legal: an engine
    may take either value without computing another model. restores_all: restored, every node has the reference's bits.
    had_no_effect: both trials ran, and neither changed a bit. masked: it changes bits alone, and restoring it changes
    none.
    """

    name: str
    kind: str
    reference: str
    candidate: str
    reference_origin: str
    candidate_origin: str
    parent: str | None
    nodes: int
    reference_set_by: str = ""
    candidate_set_by: str = ""
    reference_evidence: str
    candidate_evidence: str
    reference_changed_by: str = ""
    candidate_changed_by: str = ""
    reference_resting: int = 0
    candidate_resting: int = 0
    alone: TrialResult | None
    restored: TrialResult | None
    restored_change_low: float
    restored_change_high: float
    restores_all: bool
    large: bool
    legal: bool
    had_no_effect: bool
    masked: bool

    @property
    def evidence(self) -> tuple[str, str]:
        """The lowest level of its values, on the reference and on the candidate."""
        return self.reference_evidence, self.candidate_evidence

    @property
    def label(self) -> str:
        """Its name and its evidence."""
        return f"{self.name} ({in_words(self.evidence)})"

    @property
    def change(self) -> Interval:
        """The 95 % interval of the restored trial's KL minus the candidate's, nats per token."""
        return self.restored_change_low, self.restored_change_high

    def parts(self, total: float) -> tuple[float | None, float | None]:
        """The fractions of the whole KL that it makes alone, and that are left with it restored.

        None for a trial that can't run, and if `total` is not above 0.
        """
        trials = (self.alone, self.restored)
        alone, restored = (None if trial is None or not total > 0 else trial.kl / total for trial in trials)
        return alone, restored

    def role(self, total: float) -> Role:
        """Its role in a KL of `total` nats per token, by its two trials."""
        return by_trials(
            acts=not self.had_no_effect,
            masked=self.masked,
            legal=self.legal,
            large=self.large,
            parts=self.parts(total),
            change=self.change,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """Two toggles that offset each other: the nodes of each, and the KL that each alone, and both together, give the
    reference, in nats per token.
    """

    first: str
    second: str
    first_nodes: str
    second_nodes: str
    first_alone: float
    second_alone: float
    together: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """A block named by a selector, with all its differences as one toggle; None if nothing differs in it."""

    selector: str
    nodes: int
    toggle: ToggleResult | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Trials that can't run for the same `reason`: the node, the choice that an op refuses there, and why.

    alone, restored: names of toggles. others: further runs of one side, as for the floor and the replay ladder.
    mixtures: how many that the searches for shares asked for.
    """

    reason: str
    alone: tuple[str, ...]
    restored: tuple[str, ...]
    others: tuple[str, ...]
    mixtures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Toggled:
    """What every difference does.

    toggles: all of them. swaps: blocks restored as a whole. reading: what that means, in sentences. offsets: pairs that
    hide each other. left_out: trials that can't run.
    """

    toggles: tuple[ToggleResult, ...]
    swaps: tuple[Swap, ...]
    reading: tuple[str, ...]
    offsets: tuple[Offset, ...]
    left_out: tuple[LeftOut, ...]
