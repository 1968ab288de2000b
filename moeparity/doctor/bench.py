"""All that simulates: the model, the tokens, the plans of the profiles, and what ran so far."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from moeparity.doctor.hypotheses import AS_CONFIGURED, Hypothesis, runnable
from moeparity.doctor.scores import scores
from moeparity.inputs.model import Model
from moeparity.inputs.tokens.tokenset import TokenSet
from moeparity.plan.bound import BoundGraph
from moeparity.progress import Callback

AS_RUN = "as run"


@dataclass(frozen=True, slots=True)
class Key:
    """A simulation: a hypothesis under a profile."""

    profile: str
    hypothesis: str


@dataclass(slots=True)
class Bench:
    """All that simulates.

    bases: the plans with nothing wrong, by profile, as engines run them. exact: the same in fp32. Hypotheses run in
    fp32: what a mistake makes shows without the rounding noise of two simulations, which is as large as that of two
    engines. scored: log P of all scored tokens in nats, fp64 [N], of what ran so far.
    """

    model: Model
    tokens: TokenSet
    bases: Mapping[str, BoundGraph]
    exact: Mapping[str, BoundGraph]
    progress: Callback | None
    scored: dict[Key, Tensor] = field(default_factory=dict)

    def start(self) -> None:
        """Run what has nothing wrong."""
        plans = {Key(profile, AS_RUN): plan for profile, plan in self.bases.items()}
        exact = {Key(profile, AS_CONFIGURED.name): plan for profile, plan in self.exact.items()}
        self.scored |= scores(self.model, self.tokens, plans | exact, self.progress)

    def score(self, hypotheses: Sequence[Hypothesis], profiles: Iterable[str]) -> None:
        """Run hypotheses under profiles in one pass; what an op refuses is left out."""
        plans = {
            Key(profile, name): plan
            for profile in dict.fromkeys(profiles)
            for name, plan in runnable(hypotheses, self.exact[profile]).items()
        }
        self.scored |= scores(self.model, self.tokens, plans, self.progress)

    def first(self, sequences: int) -> Bench:
        """The same of the first sequences alone; nothing but what has nothing wrong ran on it."""
        tokens = self.tokens
        rows = replace(
            tokens,
            input_ids=tokens.input_ids[:sequences],
            loss_mask=tokens.loss_mask[:sequences],
            attention_mask=tokens.attention_mask[:sequences],
        )
        count = int(rows.loss_mask.sum())
        right = {key: x[:count] for key, x in self.scored.items() if key.hypothesis in {AS_RUN, AS_CONFIGURED.name}}
        return replace(self, tokens=rows, scored=right, progress=None)
