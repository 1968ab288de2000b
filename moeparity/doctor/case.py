"""A case: what two parties recorded of the same tokens, and the simulations that stand beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from moeparity.doctor.bench import AS_RUN, Bench, Key
from moeparity.doctor.evidence import Batch, Evidence, batch, find
from moeparity.doctor.hypotheses import AS_CONFIGURED, Hypothesis
from moeparity.doctor.judge import Difference
from moeparity.doctor.report import Party
from moeparity.errors import CheckpointError, GraphError, LogError, SpecError, Where
from moeparity.inputs.model import Model, checked_tokens, open_model
from moeparity.inputs.tokens.tokenset import TokenSet
from moeparity.inputs.weights.checkpoint import Checkpoint
from moeparity.inputs.weights.fit import check
from moeparity.logs.record import Sampling
from moeparity.metrics.verdict import Interval
from moeparity.plan.bind import bind
from moeparity.plan.bound import BoundGraph
from moeparity.plan.engine_profile import load_profile, overrides
from moeparity.plan.schedule.steps import FORWARD, Phase
from moeparity.progress import Callback

LEGAL = ("hf-eager", "vllm", "megatron")
"""Profiles of engines that make no mistake; what lies between two of them is noise."""
SEQUENCES = 64
_HERE = Where(Path("doctor"))
_IN_STEPS: tuple[Phase, ...] = (FORWARD, "prefill", "chunk")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to examine. sampler, trainer: the profiles of the two parties. sequences: how many of the log are simulated.
    every: simulate even if the log alone names a cause.
    """

    evidence: tuple[Path, ...]
    checkpoint: Path | None = None
    previous: Path | None = None
    sampler: str = "vllm"
    trainer: str = "hf-eager"
    sequences: int = SEQUENCES
    every: bool = False
    device: str = "auto"

    def profile(self, party: Party) -> str:
        """The profile of a party."""
        return self.sampler if party == "sampler" else self.trainer


@dataclass(frozen=True, slots=True)
class Tried:
    """A hypothesis about a party, with the difference, sampler minus trainer, that it makes: fp64 [N] in nats. Nobody
    is the party if nothing is wrong. number: the hypothesis' number with its interval, if it was solved for.
    """

    hypothesis: Hypothesis
    party: Party | None
    simulated: Tensor
    number: Interval | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Records, and the bench.

    recorded: log P by party, fp64 [N], at the tokens of `mask`, the scored tokens at which every party that recorded
    anything did so. difference: sampler minus trainer there; a party without a record is taken as simulated.
    """

    request: Request
    evidence: Evidence
    of_log: Batch
    bench: Bench
    mask: Tensor
    recorded: Mapping[Party, Tensor]
    difference: Difference

    def right(self, party: Party) -> Tensor:
        """The log-probabilities of a party with nothing wrong, at the mask tokens: fp64 [N] in nats."""
        return self._scored(party, AS_RUN)

    @property
    def legal(self) -> dict[str, Tensor]:
        """The same of engines that make no mistake, by profile."""
        keys = [Key(name, AS_RUN) for name in LEGAL]
        return {key.profile: self.bench.scored[key][self.mask] for key in keys if key in self.bench.scored}

    def tried(self, hypotheses: Iterable[Hypothesis]) -> list[Tried]:
        """Those of the hypotheses that ran, for each party that recorded anything."""
        runs: list[Tried] = []
        legal = self.legal_difference
        for hypothesis in hypotheses:
            if hypothesis is AS_CONFIGURED:
                runs.append(Tried(hypothesis, None, legal))
                continue
            for party in self.recorded:
                if Key(self.request.profile(party), hypothesis.name) in self.bench.scored:
                    wrong = self._scored(party, hypothesis.name) - self._scored(party, AS_CONFIGURED.name)
                    runs.append(Tried(hypothesis, party, legal + (wrong if party == "sampler" else -wrong)))
        return runs

    @property
    def legal_difference(self) -> Tensor:
        """Sampler minus trainer with nothing wrong: fp64 [N] in nats.

        It is that of the two profiles as engines run them, if that surely explains anything of the recorded difference.
        If not, it is theirs in fp32, which has their settings and none of their rounding.
        """
        as_run = self.right("sampler") - self.right("trainer")
        if self.difference.share(as_run).low > 0:
            return as_run
        return self._scored("sampler", AS_CONFIGURED.name) - self._scored("trainer", AS_CONFIGURED.name)

    def first(self, sequences: int) -> Case:
        """The case of the first sequences alone."""
        bench = self.bench.first(sequences)
        mask = self.mask[: int(bench.tokens.loss_mask.sum())]
        count = int(mask.sum())
        return replace(
            self,
            bench=bench,
            mask=mask,
            recorded={party: values[:count] for party, values in self.recorded.items()},
            difference=Difference(d=self.difference.d[:count], sequence=self.difference.sequence[:count]),
        )

    def simulated(self, hypotheses: Sequence[Hypothesis], party: Party) -> list[Tried]:
        """Those of the hypotheses that can be run, run for a party."""
        self.bench.score(hypotheses, [self.request.profile(party)])
        return [each for each in self.tried(hypotheses) if each.party == party]

    def _scored(self, party: Party, name: str) -> Tensor:
        return self.bench.scored[Key(self.request.profile(party), name)][self.mask]


def opened(request: Request, progress: Callback | None = None) -> Case:
    """The case of some evidence, with every profile simulated as configured.

    Raises MoeparityError for evidence that can't be used: no log, no checkpoint, tokens outside the vocabulary, or
    profiles that do not fit the model.
    """
    evidence = find(request.evidence, request.checkpoint, request.previous)
    of_log = batch(evidence, request.sequences)
    model = open_model(evidence.checkpoint, device=request.device, progress=progress)
    if evidence.previous is not None:
        _refuse_unfit(evidence.previous, model)
    tokens = _on_device(of_log.tokens, model, Where(evidence.logs[0]))
    bases = _bases(request, model, of_log.sampling, model.dtype, LEGAL, (FORWARD,))
    bench = Bench(model, tokens, bases, _bases(request, model, of_log.sampling, "fp32", (), _IN_STEPS), progress)
    bench.start()
    return _case(request, evidence, of_log, bench)


def _case(request: Request, evidence: Evidence, of_log: Batch, bench: Bench) -> Case:
    scored_mask = of_log.tokens.loss_mask
    columns: dict[Party, Tensor | None] = {
        "sampler": of_log.tokens.logprobs,
        "trainer": of_log.tokens.trainer_logprobs,
    }
    recorded = {party: values[scored_mask] for party, values in columns.items() if values is not None}
    recorded = {party: values for party, values in recorded.items() if bool(values.isfinite().any())}
    mask = torch.ones(int(scored_mask.sum()), dtype=torch.bool)
    for values in recorded.values():
        mask &= values.isfinite()
    if not bool(mask.any()):
        raise LogError(f"{Where(evidence.logs[0])}: no token has a log-probability of every side that recorded any.")
    case = Case(
        request=request,
        evidence=evidence,
        of_log=of_log,
        bench=bench,
        mask=mask,
        recorded={party: values[mask] for party, values in recorded.items()},
        difference=Difference(d=torch.empty(0), sequence=scored_mask.nonzero()[:, 0][mask]),
    )
    sides = [case.recorded.get(party, case.right(party)) for party in ("sampler", "trainer")]
    return replace(case, difference=replace(case.difference, d=sides[0] - sides[1]))


def _refuse_unfit(previous: Path, model: Model) -> None:
    """Raises CheckpointError unless the weights before the update are those of the same model, in another folder."""
    if previous.resolve() == model.folder.resolve():
        raise CheckpointError(
            f"{Where(previous)}: given as the weights before the update, and as those that both sides were to have. "
            "Give --previous the folder of an earlier step."
        )
    check(Checkpoint(previous, None), model.graph)


def _on_device(tokens: TokenSet, model: Model, where: Where) -> TokenSet:
    """The tokens on the model's device, checked against its vocabulary."""
    return replace(
        tokens,
        input_ids=checked_tokens(tokens.input_ids, model, str(where)),
        loss_mask=tokens.loss_mask.to(model.device),
        attention_mask=tokens.attention_mask.to(model.device),
    )


def _bases(
    request: Request,
    model: Model,
    sampling: Sampling | None,
    dtype: str,
    others: Sequence[str],
    phases: tuple[Phase, ...],
) -> dict[str, BoundGraph]:
    """Plans of both parties' profiles in a dtype, and of those others that fit the model. Raises SpecError,
    GraphError.
    """
    bases: dict[str, BoundGraph] = {}
    rules = overrides(_temperature(sampling), _HERE)
    for name in dict.fromkeys((request.sampler, request.trainer, *others)):
        try:
            bases[name] = bind(model.graph, load_profile(name, _HERE), dtype, rules, phases=phases)
        except (SpecError, GraphError):
            if name in {request.sampler, request.trainer}:
                raise
    return bases


def _temperature(sampling: Sampling | None) -> dict[str, float]:
    """The temperature by which both sides divide, if the log states one and that its log-probabilities have it."""
    if sampling is None or sampling.logprobs_mode != "processed" or sampling.temperature in {None, 0.0, 1.0}:
        return {}
    return {"log_probs:temperature": float(sampling.temperature or 1.0)}
