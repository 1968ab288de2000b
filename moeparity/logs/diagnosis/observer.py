"""`Observer`: takes in a log chunk by chunk and gives its diagnosis."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import torch

from moeparity.errors import counted
from moeparity.logs.diagnosis.drafts import NAME as DRAFTED
from moeparity.logs.diagnosis.drafts import Drafts
from moeparity.logs.diagnosis.finding import Diagnosis, Finding
from moeparity.logs.diagnosis.path import inference_path
from moeparity.logs.diagnosis.replays import NAMES, Replays
from moeparity.logs.diagnosis.retokenised import Retokenisations
from moeparity.logs.diagnosis.semantics import DISTRIBUTION, LATER, semantics
from moeparity.logs.diagnosis.staleness import Lags, objective, staleness
from moeparity.logs.diagnosis.state import State
from moeparity.logs.record import Sampling, Sequence
from moeparity.logs.retokenised import NAME as RETOKENISED
from moeparity.metrics.chunk import UNKNOWN, Chunk
from moeparity.metrics.groups import select

CAUSES = (
    "stale weights",
    RETOKENISED,
    "not logs",
    *LATER,
    *DISTRIBUTION,
    DRAFTED,
    "size",
    "confident tokens",
    "growth with position",
    "outlier sequences",
    "routing flips",
    *NAMES,
    "weight lag",
)
"""Every cause that a diagnosis may name."""

_OF_CONTEXTS = (
    "temperature",
    "raw log-probs (temperature)",
    "truncation",
    "raw log-probs (truncation)",
)
"""Causes that move a token by the context it stands in, and not by its P alone."""

FIX_FIRST = (
    "Set what is named above, record one batch again with unchanged weights (learning rate 0), and run moeparity "
    "metrics on it: numerics are worth a look only where E[rho] = 1 and both columns mean the same."
)
BISECT = (
    (
        "To bisect what is left, moeparity needs the checkpoint folder of these weights (config.json, safetensors) and "
        "the token ids of this log."
    ),
    (
        "moeparity init CHECKPOINT writes a recipe, moeparity tokens LOG --from-log --out tokens.jsonl a token file of "
        "this log. Name it in the recipe: tokens: {file: tokens.jsonl, sampled_from: candidate}."
    ),
    (
        "moeparity show launch LAUNCH_FILE reads the profile of each side from its launch configuration; set them "
        "as reference and candidate, then moeparity bisect recipe.yaml."
    ),
)


@dataclass(slots=True)
class Observer:
    """Give it every chunk of a log, however cut, and each sequence if available; equal logs give equal diagnoses.

    It takes about 1 KB per sequence, whatever the sequence's length.
    """

    _fresh: State = field(default_factory=State)
    _unsaid: State = field(default_factory=State)
    _stale: State = field(default_factory=State)
    _lags: Lags = field(default_factory=Lags)
    _sampling: Counter[Sampling] = field(default_factory=Counter)
    _retokenisations: Retokenisations = field(default_factory=Retokenisations)
    _replays: Replays = field(default_factory=Replays)
    _drafts: Drafts = field(default_factory=Drafts)

    def add(self, chunk: Chunk) -> None:
        """Take in the scored tokens of whole sequences."""
        self._lags.add(chunk)
        lag = chunk.labels.get("version_lag")
        if lag is None:
            self._drafts.add(chunk, torch.ones_like(chunk.rollout, dtype=torch.bool))
            self._unsaid.add(chunk)
            return
        unsaid, fresh = lag == UNKNOWN, lag == 0
        self._drafts.add(chunk, fresh | unsaid)
        for state, mask in ((self._fresh, fresh), (self._unsaid, unsaid), (self._stale, ~(fresh | unsaid))):
            if bool(mask.any()):
                state.add(chunk if bool(mask.all()) else select(chunk, mask))

    def note(self, sequence: Sequence) -> None:
        """Take in what a sequence says besides its log-probabilities: sampling parameters, versions, whether both
        sides have the same ids, and whose routes the trainer has.
        """
        self._sampling[sequence.sampling] += 1
        self._lags.note(sequence)
        self._retokenisations.note(sequence)
        self._replays.note(sequence)

    @property
    def lost(self) -> int:
        """How many of the sampler's scored tokens have no counterpart, since the ids differ."""
        return self._retokenisations.lost

    def diagnosis(self) -> Diagnosis:
        """The findings so far."""
        states = (self._fresh, self._unsaid, self._stale)
        basis = next((state for state in states if state.tokens), self._fresh)
        if not basis.tokens:
            reason = "The log has no scored token."
            nothing = Finding(tier="semantics", name="E[rho]", verdict="not tested", reason=reason)
            return Diagnosis(sequences=0, tokens=0, stale=0, unsaid=0, declared=(), findings=(nothing,), next=(reason,))
        differing_ids = self._retokenisations.finding()
        of_columns = semantics(basis)
        unsettled = any(finding.verdict == "named" and finding.name in _OF_CONTEXTS for finding in of_columns)
        of_drafts = self._drafts.findings(unsettled=unsettled)
        meaning = (*(() if differing_ids is None else (differing_ids,)), *of_columns, *of_drafts)
        wrong = any(finding.verdict == "named" for finding in meaning)
        findings = (
            staleness(self._lags, basis, *states),
            *meaning,
            *self._replays.findings(),
            *(() if wrong else inference_path(basis)),
            *objective(self._lags, *states),
        )
        return Diagnosis(
            sequences=basis.counts.numel(),
            tokens=basis.tokens,
            stale=0 if basis is self._stale else self._stale.tokens,
            unsaid=self._unsaid.tokens if basis is self._fresh else 0,
            declared=tuple(
                f"{_parameters(sampling)}: {counted(count, 'sequence')}"
                for sampling, count in self._sampling.most_common()
            ),
            findings=findings,
            next=_next(findings, wrong=wrong),
        )


def _parameters(sampling: Sampling) -> str:
    parameters = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "log-probabilities": sampling.logprobs_mode,
    }
    return ", ".join(f"{name} {value}" for name, value in parameters.items() if value is not None) or "nothing said"


def _next(findings: tuple[Finding, ...], *, wrong: bool) -> tuple[str, ...]:
    """What to do, the most important first."""
    advice = [f.advice for f in findings if f.verdict == "named" and f.advice]
    if wrong:
        return (*advice, FIX_FIRST)
    open_ones = [
        f"{f.name}: {f.tells_apart} would decide." for f in findings if f.verdict == "undecided" and f.tells_apart
    ]
    return (*advice, *open_ones, *BISECT)
