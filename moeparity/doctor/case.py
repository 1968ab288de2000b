"""A case: what two parties recorded of the same tokens, and the simulations with which it is compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from moeparity.doctor.batch import Batch, Gathered, gathered
from moeparity.doctor.bench import AS_RUN, Bench, Key
from moeparity.doctor.engines import DEFAULTS, HERE, Engine, bound_alike, engines, shipped
from moeparity.doctor.evidence import Evidence, find
from moeparity.doctor.hypotheses import AS_CONFIGURED, Hypothesis
from moeparity.doctor.judge import Difference, spread_of
from moeparity.doctor.kinds import kind_of_folder
from moeparity.doctor.report import Clue, Party
from moeparity.doctor.requested import as_requested, dividing, without_cut
from moeparity.doctor.routes import Flips, misfit
from moeparity.doctor.steps import decoding, recorded_steps
from moeparity.errors import CheckpointError, GraphError, SpecError, Where
from moeparity.inputs.model import Model, open_model
from moeparity.inputs.tokens.images import refuse_images
from moeparity.inputs.tokens.tokenset import TokenSet
from moeparity.inputs.weights.checkpoint import Checkpoint
from moeparity.inputs.weights.fit import check
from moeparity.metrics.verdict import Interval
from moeparity.plan.bound import Plan
from moeparity.plan.engine_profile import overrides
from moeparity.plan.rule import Rule
from moeparity.plan.schedule.steps import FORWARD, MicroBatches, Phase, Schedule
from moeparity.progress import Callback

LEGAL = ("hf-eager", "vllm", "megatron")
"""Profiles of engines that make no mistake; what lies between two of them is noise."""
SEQUENCES = 64
_SAME = 1e-4
"""Nats: two fp32 simulations of one model, in other orders, lie no further apart at any token."""
_IN_STEPS: tuple[Phase, ...] = (FORWARD, "prefill", "chunk")


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorRequest:
    """What to examine. sampler, trainer: the profiles of the two parties; None: as launch files say, else the default.
    trainer_logs: logs that only the trainer wrote. sequences: how many sequences of the log are simulated. every:
    simulate even if a file by itself names a cause.
    """

    evidence: tuple[Path, ...]
    checkpoint: Path | None = None
    adapter: Path | None = None
    previous: Path | None = None
    sampler: str | None = None
    trainer: str | None = None
    trainer_logs: tuple[Path, ...] = ()
    sequences: int = SEQUENCES
    every: bool = False
    device: str = "auto"

    def profile(self, party: Party) -> str:
        """The profile of a party, by the name that reports have for it."""
        return (self.sampler if party == "sampler" else self.trainer) or DEFAULTS[party]


@dataclass(frozen=True, slots=True)
class Tried:
    """A hypothesis about a party, with the difference, sampler minus trainer, that it makes: fp64 [N] in nats. party:
    None if nothing is wrong. number: the hypothesis' number with its interval, if it was solved for.
    """

    hypothesis: Hypothesis
    party: Party | None
    simulated: Tensor
    number: Interval | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Records, and the bench.

    recorded: log P by party, fp64 [N], at the tokens of `mask`, the scored tokens at which every party that recorded
    anything did so. difference: sampler minus trainer there; a party without a record is taken as simulated. engines:
    how each party computes. notes: what became of evidence that the simulation takes, in sentences. clues: what files
    tell by themselves. ruled_out: hypotheses, with their party, that something else in the log rules out; fitting:
    those that fit it.
    """

    request: DoctorRequest
    evidence: Evidence
    of_log: Batch
    bench: Bench
    mask: Tensor
    recorded: Mapping[Party, Tensor]
    difference: Difference
    engines: Mapping[Party, Engine]
    notes: tuple[str, ...] = ()
    clues: tuple[Clue, ...] = ()
    ruled_out: frozenset[tuple[str, Party | None]] = frozenset()
    fitting: frozenset[tuple[str, Party | None]] = frozenset()

    def right(self, party: Party) -> Tensor:
        """The log-probabilities of a party with nothing wrong, at the mask tokens: fp64 [N] in nats."""
        return self._scored(party, AS_RUN)

    @property
    def legal(self) -> dict[str, Tensor]:
        """By profile, the log-probabilities of engines that make no mistake, at the mask tokens: fp64 [N] in nats."""
        keys = [Key(name, AS_RUN) for name in LEGAL]
        return {key.profile: self.bench.scored[key][self.mask] for key in keys if key in self.bench.scored}

    def tried(self, hypotheses: Iterable[Hypothesis]) -> list[Tried]:
        """The hypotheses that ran, once for each party that recorded anything."""
        runs: list[Tried] = []
        legal = self.legal_difference
        for hypothesis in hypotheses:
            if hypothesis is AS_CONFIGURED:
                runs.append(Tried(hypothesis, None, legal))
                continue
            for party in self.recorded:
                keys = [Key(self.profile_in_fp32(party), name) for name in (hypothesis.name, AS_CONFIGURED.name)]
                if keys[0] in self.bench.scored:
                    wrong = (self.bench.scored[keys[0]] - self.bench.scored[keys[1]])[self.mask]
                    runs.append(Tried(hypothesis, party, legal + (wrong if party == "sampler" else -wrong)))
        return runs

    def profile_in_fp32(self, party: Party) -> str:
        """The profile under which hypotheses about a party run: the trainer's for both, if without rounding the two
        sides compute the same.
        """
        is_same = float(self.exact_difference.abs().max()) < _SAME
        return self.request.profile("trainer" if is_same else party)

    @property
    def legal_difference(self) -> Tensor:
        """Sampler minus trainer with nothing wrong: fp64 [N] in nats.

        The two profiles are taken as engines run them, if that surely explains anything of the recorded difference. If
        not, they are taken in fp32, which has their settings and none of their rounding.
        """
        as_run = self.right("sampler") - self.right("trainer")
        if self.difference.share(as_run).low > 0:
            return as_run
        return self.exact_difference

    @property
    def exact_difference(self) -> Tensor:
        """What the two sides differ by because of their settings: the sampler's log-probabilities minus the trainer's,
        both simulated in fp32, fp64 [N] in nats.
        """
        return self._scored("sampler", AS_CONFIGURED.name) - self._scored("trainer", AS_CONFIGURED.name)

    def of(self, rows: Tensor) -> Case:
        """The case of some sequences alone, int64 [n], in ascending order."""
        there = torch.isin(self.bench.tokens.loss_mask.cpu().nonzero()[:, 0], rows)
        scored = there[self.mask]
        return replace(
            self,
            bench=self.bench.of(rows),
            mask=self.mask[there],
            recorded={party: values[scored] for party, values in self.recorded.items()},
            difference=self.difference.at(scored),
        )

    def simulated(self, hypotheses: Sequence[Hypothesis], party: Party) -> list[Tried]:
        """The hypotheses that can be run, run for a party."""
        self.bench.score(hypotheses, [self.profile_in_fp32(party)])
        return [each for each in self.tried(hypotheses) if each.party == party]

    def _scored(self, party: Party, name: str) -> Tensor:
        return self.bench.scored[Key(self.request.profile(party), name)][self.mask]


def gather(request: DoctorRequest) -> Gathered:
    """The evidence, and the tokens of its logs. Raises MoeparityError without a log or a checkpoint."""
    evidence = find(request.evidence, request.checkpoint, request.previous, request.trainer_logs, request.adapter)
    return gathered(evidence, request.sequences)


def opened(request: DoctorRequest, material: Gathered, progress: Callback | None = None) -> Case:
    """The case of some evidence, with every profile simulated as configured.

    Raises MoeparityError for evidence that can't be used, such as named profiles that do not fit the model.
    """
    evidence, of_log = material.evidence, material.of_log
    model, note = _model(evidence, request.device, progress)
    if evidence.previous is not None:
        _refuse_unfit(evidence.previous, model)
    refuse_images(of_log.tokens.images, of_log.tokens.input_ids, model.graph, Where(evidence.logs[0]))
    tokens = _on_device(of_log.tokens, model)
    profiles: dict[Party, str | None] = {"sampler": request.sampler, "trainer": request.trainer}
    (bench, parties, notes), aside = engines(
        profiles,
        evidence.launches,
        evidence.checkpoint,
        model.graph,
        model.dtype,
        lambda of_party: _bench(evidence, of_log, model, tokens, of_party, progress),
    )
    evidence = replace(evidence, strangers=(*evidence.strangers, *aside))
    bench.start()
    request = replace(request, sampler=parties["sampler"].name, trainer=parties["trainer"].name)
    _refuse_unable(bench, parties)
    of_sampler = [bench.scored[Key(parties["sampler"].name, kind)] for kind in (AS_RUN, AS_CONFIGURED.name)]
    of_log, cut = without_cut(of_log, of_sampler)
    return _case(request, evidence, of_log, bench, parties, tuple(filter(None, (note, *notes, cut))))


def _model(evidence: Evidence, device: str, progress: Callback | None) -> tuple[Model, str]:
    """The model, with its adapter if that can be simulated here; else without it, and a note that says so."""
    try:
        return open_model(evidence.checkpoint, device=device, progress=progress, adapter=evidence.adapter), ""
    except CheckpointError as error:
        if evidence.adapter is None:
            raise
        note = (
            f"the adapter is not simulated: {error} If an engine ran with it, give the weights with it merged as "
            "--checkpoint"
        )
        return open_model(evidence.checkpoint, device=device, progress=progress), note


def _bench(
    evidence: Evidence,
    of_log: Batch,
    model: Model,
    tokens: TokenSet,
    of_party: Mapping[Party, Engine],
    progress: Callback | None,
) -> tuple[Bench, Mapping[Party, Engine], tuple[str, ...]]:
    """The bench, the engines by the names that its plans have, and what became of a server's recorded steps."""
    rules = overrides(dividing(of_log.sampling), HERE)
    as_sampled, differing = as_requested(of_party["sampler"], of_log)
    is_other = as_sampled != of_party["sampler"]
    of_party = {**of_party, "sampler": as_sampled}
    steps, note = recorded_steps(evidence, of_log, of_party["sampler"], model, rules)
    if steps is not None:
        engine = of_party["sampler"]
        sampler = replace(engine, name=f"{engine.name} on its recorded steps", warnings=engine.warnings_on_steps)
        of_party = {**of_party, "sampler": sampler}
    parties = {engine.name: engine for engine in of_party.values()}
    exact = bound_alike({name: each.alone for name, each in parties.items()}, model.graph, "fp32", rules, _IN_STEPS)
    bases = _beside_legal(parties, model, rules)
    schedules: dict[str, Schedule | MicroBatches] = {}
    if steps is not None:
        bases[sampler.name], schedules[sampler.name] = steps
    elif (decoded := decoding(of_party["sampler"], tokens, model, rules)) is not None:
        name = f"{of_party['sampler'].name} decoding"
        bases[name], schedules[name] = decoded
    flips, unfit = None, misfit(tokens, model.graph, Where(evidence.logs[0]))
    if tokens.routed_experts is not None and not unfit:
        legal = [(Key(name, AS_RUN), name) for name in LEGAL if name in bases][:2]
        name = of_party["sampler"].name
        trainer = Key(of_party["trainer"].name, AS_RUN)
        flips = Flips(tokens.routed_experts, (Key(name, AS_RUN), name), trainer, legal)
    bench = Bench(model, tokens, bases, exact, progress, flips, schedules)
    bench.apart = frozenset(schedules).union({of_party["sampler"].name}) if is_other else frozenset()
    return bench, of_party, tuple(filter(None, (differing, note, unfit)))


def _beside_legal(parties: Mapping[str, Engine], model: Model, rules: tuple[Rule, ...]) -> dict[str, Plan]:
    """The plans of the parties' engines and of those that make no mistake, as far as the latter fit the model."""
    legal = {name: shipped(name, "") for name in LEGAL if name not in parties}
    with suppress(SpecError, GraphError):
        return bound_alike({**parties, **legal}, model.graph, model.dtype, rules)
    fitting: dict[str, Engine] = {}
    for name, engine in legal.items():
        with suppress(SpecError, GraphError):
            bound_alike({name: engine}, model.graph, model.dtype, rules)
            fitting[name] = engine
    return bound_alike({**parties, **fitting}, model.graph, model.dtype, rules)


def _refuse_unable(bench: Bench, of_party: Mapping[Party, Engine]) -> None:
    """Raises SpecError for an engine whose ops refuse these tokens."""
    for party, engine in of_party.items():
        if any(Key(engine.name, kind) not in bench.scored for kind in (AS_RUN, AS_CONFIGURED.name)):
            raise SpecError(
                f"doctor: {engine.name} ({engine.by}) can't run on these tokens: one of its ops refuses. Name another "
                f"profile with --{party}."
            )


def _case(
    request: DoctorRequest,
    evidence: Evidence,
    of_log: Batch,
    bench: Bench,
    of_party: Mapping[Party, Engine],
    notes: tuple[str, ...],
) -> Case:
    mask = of_log.mask
    engines = torch.stack([values[mask] for values in bench.engines.values()])
    case = Case(
        request=request,
        evidence=evidence,
        of_log=of_log,
        bench=bench,
        mask=mask,
        recorded={party: values[mask] for party, values in of_log.recorded.items()},
        difference=Difference(d=torch.empty(0), sequence=of_log.sequence, spread=spread_of(engines)),
        engines=of_party,
        notes=notes,
    )
    sides = [case.recorded.get(party, case.right(party)) for party in ("sampler", "trainer")]
    return replace(case, difference=replace(case.difference, d=sides[0] - sides[1]))


def _refuse_unfit(previous: Path, model: Model) -> None:
    """Raises CheckpointError unless the weights, or the adapter, before the update are those of the same model, in
    another folder.
    """
    if kind_of_folder(previous) == "adapter":
        _refuse_unfit_adapter(previous, model)
        return
    if previous.resolve() == model.folder.resolve():
        raise CheckpointError(
            f"{Where(previous)}: given as the weights before the update, and as those that both sides were to have. "
            "Give --previous the folder of an earlier step."
        )
    check(Checkpoint(previous).fit_to(model.graph), model.graph)


def _refuse_unfit_adapter(previous: Path, model: Model) -> None:
    if model.adapter is None or previous.resolve() == model.adapter.resolve():
        of_update = "no other adapter" if model.adapter is None else "the same folder"
        raise CheckpointError(
            f"{Where(previous)}: given as the adapter before the update, with {of_update} as the one that both sides "
            "were to have. Give the one after the update as --adapter, and that of an earlier step as --previous."
        )
    open_model(model.folder, device="cpu", adapter=previous, values=False)


def _on_device(tokens: TokenSet, model: Model) -> TokenSet:
    return replace(
        tokens,
        input_ids=tokens.input_ids.to(model.device),
        loss_mask=tokens.loss_mask.to(model.device),
        attention_mask=tokens.attention_mask.to(model.device),
    )
