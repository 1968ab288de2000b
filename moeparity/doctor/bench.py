"""Where hypotheses are simulated: the model, the tokens, the plans of the profiles, and what ran so far."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from moeparity.doctor.experts import Chosen
from moeparity.doctor.hypotheses import AS_CONFIGURED, Hypothesis, runnable
from moeparity.doctor.noise import drawn
from moeparity.doctor.readings import Alone, Cut, Packs, Prompts, Rows, Shift, Split
from moeparity.doctor.routes import Flips
from moeparity.doctor.scores import Run, scores, together
from moeparity.doctor.tokens import prompts_of, rewritten, shifted
from moeparity.engine.routes import IDS, Recorded, by_slot, tables
from moeparity.inputs.model import Model
from moeparity.inputs.tokens.tokenset import TokenSet
from moeparity.metrics.replay import Replay, replayed
from moeparity.plan.bound import Plan
from moeparity.plan.schedule.steps import MicroBatches, Schedule
from moeparity.progress import Callback, Progress, Stop, StoppedError

AS_RUN = "as run"


@dataclass(frozen=True, slots=True)
class Key:
    """A simulation: a hypothesis under a profile."""

    profile: str
    hypothesis: str


@dataclass(slots=True)
class Bench:
    """Simulates hypotheses on the tokens of a log, and keeps what ran.

    bases: the plans with nothing wrong, by profile, as engines run them. exact: the same in fp32. Hypotheses run in
    fp32, so that the effect of a mistake shows without the rounding noise of two simulations, which is as large as
    that of two engines. flips: compares recorded routes with those of the bases; None without recorded routes.
    chosen: the routes of the first profile in fp32. steps: the recorded schedules of bases. apart: bases that
    compute something else because requests ask for it, so that noise does not lie between these and others. stop:
    when no more hypotheses are run. ran: those that ran, by name. scored: log P of all scored tokens in nats, fp64
    [N], by simulation.
    """

    model: Model
    tokens: TokenSet
    bases: Mapping[str, Plan]
    exact: Mapping[str, Plan]
    progress: Callback | None
    flips: Flips | None = None
    chosen: Chosen = field(init=False)
    steps: Mapping[str, Schedule | MicroBatches] = field(default_factory=dict)
    apart: frozenset[str] = frozenset()
    stop: Stop = field(default_factory=Stop)
    ran: dict[str, Hypothesis] = field(default_factory=dict)
    scored: dict[Key, Tensor] = field(default_factory=dict)

    @property
    def prompts(self) -> Prompts:
        """Where the sequences begin and end, and their prompts."""
        return prompts_of(self.tokens)

    @property
    def together(self) -> MicroBatches:
        """How whole sequences run without rounding."""
        return together(self.model, self.tokens)

    def start(self) -> None:
        """Run the plans with nothing wrong."""
        left_out = self.apart.union(self.steps)
        of_whole_sequences = {name: plan for name, plan in self.bases.items() if name not in left_out}
        engines = {**self.bases, **drawn(of_whole_sequences)}
        plans = {Key(name, AS_RUN): Run(plan, self.steps.get(name)) for name, plan in engines.items()}
        exact = {Key(profile, AS_CONFIGURED.name): Run(plan, self.together) for profile, plan in self.exact.items()}
        if self.flips is not None:
            self.flips.engines = tuple(plans)
        self.chosen = Chosen(next(iter(exact)))
        watching = (self.chosen,) if self.flips is None else (self.chosen, self.flips)
        self.scored |= scores(self.model, self.tokens, plans | exact, self.progress, observers=watching)[0]

    @property
    def engines(self) -> dict[Key, Tensor]:
        """The log-probabilities of engines that compute one model without a mistake: fp64 [N] in nats each."""
        as_run = {key: values for key, values in self.scored.items() if key.hypothesis == AS_RUN}
        return {key: values for key, values in as_run.items() if key.profile not in self.apart}

    def score(self, hypotheses: Sequence[Hypothesis], profiles: Iterable[str]) -> None:
        """Simulate each hypothesis under each profile, unless it ran before. Those that read the log's tokens as they
        stand share one pass. One that an op refuses is left out. Raises StoppedError once it is time to stop.
        """
        self._go_on()
        prompts, runs, cuts = self.prompts, {}, self._cuts(hypotheses)
        for profile in dict.fromkeys(profiles):
            new = [each for each in hypotheses if Key(profile, each.name) not in self.scored]
            plain = [each for each in new if not isinstance(each.reading, Rows | Shift | Cut)]
            plans = runnable(plain, self.exact[profile])
            for each in plain:
                if each.name in plans:
                    runs[Key(profile, each.name)] = self.run_of(each, plans[each.name], prompts)
            self._shift(new, profile)
            self._rewrite([each for each in new if isinstance(each.reading, Rows)], profile, prompts)
            if cuts:
                runs[Key(profile, AS_CONFIGURED.name)] = Run(self.exact[profile], self.together)
        by_key = {key: cuts for key in runs if key.hypothesis == AS_CONFIGURED.name}
        scored, masses = scores(self.model, self.tokens, runs, self._watched, by_key)
        self.scored |= scored
        self.scored |= {Key(key.profile, name): scored[key] - mass for (key, name), mass in masses.items()}
        there = {key.hypothesis for key in self.scored}
        self.ran |= {each.name: each for each in hypotheses if each.name in there}

    def _go_on(self) -> None:
        if self.stop.is_due:
            raise StoppedError

    def _watched(self, progress: Progress) -> None:
        """Called often in a pass."""
        self._go_on()
        if self.progress is not None:
            self.progress(progress)

    def run_of(self, hypothesis: Hypothesis, plan: Plan, prompts: Prompts) -> Run:
        """The run of a hypothesis that reads the tokens of the log, in the steps that it says."""
        reading = hypothesis.reading
        if isinstance(reading, Replay):
            assert self.tokens.routed_experts is not None, "there is nothing to replay"
            routes = replayed(self.tokens.routed_experts, self.tokens.attention_mask, prompts.grid.prompts, reading)
            if reading.by_slot:
                return Run(plan, self.together, grafts=by_slot(routes, self.model.graph))
            recorded = Recorded(of=tables(routes.to(self.model.device), self.model.graph), replayed=IDS)
            return Run(plan, self.together, routes=recorded)
        if isinstance(reading, Packs | Alone | Split):
            return Run(plan, reading.schedule(prompts))
        return Run(plan, self.together)

    def _cuts(self, hypotheses: Sequence[Hypothesis]) -> dict[str, Cut]:
        return {each.name: each.reading for each in hypotheses if isinstance(each.reading, Cut)}

    def _shift(self, hypotheses: Sequence[Hypothesis], profile: str) -> None:
        """Score hypotheses that recorded values beside other tokens."""
        right = self.scored[Key(profile, AS_CONFIGURED.name)]
        sequence = self.tokens.loss_mask.cpu().nonzero()[:, 0]
        for each in hypotheses:
            if isinstance(each.reading, Shift):
                self.scored[Key(profile, each.name)] = shifted(right, each.reading.by, sequence)

    def _rewrite(self, hypotheses: Sequence[Hypothesis], profile: str, prompts: Prompts) -> None:
        """Score hypotheses that read other tokens. A token that has none before it any more keeps its score."""
        for each in hypotheses:
            assert isinstance(each.reading, Rows)
            spans = zip(prompts.grid.spans, prompts.grid.prompts, strict=True)
            sources = [each.reading.sources(last - first, prompt) for (first, last), prompt in spans]
            of = rewritten(self.tokens, sources, prompts)
            key = Key(profile, each.name)
            run = Run(self.exact[profile], together(self.model, of.tokens))
            values = scores(self.model, of.tokens, {key: run}, self._watched)[0][key]
            self.scored[key] = self.scored[Key(profile, AS_CONFIGURED.name)].clone()
            self.scored[key][of.scored] = values

    def of(self, rows: Tensor) -> Bench:
        """A bench with some of the sequences, int64 [n] in ascending order; only the plans with nothing wrong have run
        on it.
        """
        tokens = self.tokens
        at = rows.to(tokens.input_ids.device)
        few = replace(
            tokens,
            input_ids=tokens.input_ids[at],
            loss_mask=tokens.loss_mask[at],
            attention_mask=tokens.attention_mask[at],
            routed_experts=None if tokens.routed_experts is None else tokens.routed_experts[at],
            requests=tuple(tokens.requests[row] for row in rows.tolist()) if tokens.requests else (),
        )
        there = torch.isin(tokens.loss_mask.cpu().nonzero()[:, 0], rows)
        right = {key: x[there] for key, x in self.scored.items() if key.hypothesis in {AS_RUN, AS_CONFIGURED.name}}
        return replace(self, tokens=few, scored=right, ran={}, progress=None)
