"""What a report says about its tokens: where they come from, and the candidate's metrics by class of token."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

import torch
from torch import Tensor

from moeparity.bisection.context import Context, Measure
from moeparity.bisection.observers import seen_metrics
from moeparity.bisection.real_ranks.show import real_ranks_warnings
from moeparity.bisection.study import Study
from moeparity.bisection.tokens.data import ClassMetrics, OfTokens
from moeparity.bisection.trials import Trials
from moeparity.bisection.watch import SectionObserver, Watch
from moeparity.engine.view import NodeView
from moeparity.metrics.exact import Exact
from moeparity.metrics.routing import flips
from moeparity.plan.sides import CANDIDATE, REFERENCE, Side


@dataclass(slots=True)
class Classes(SectionObserver):
    """Sums by class of token: log-probability metrics of scored tokens, flips of all real tokens.

    labels: int64 [B, T], the class of each token. k3, abs_delta: by class, in nats, as `TokenMetrics` defines them; NaN
    if a token's logits are not finite. tokens: int64 [C], scored tokens. routes, set_flips: int64 [C], token-layers,
    and those that flip (`Flips`).
    """

    output: str
    input_ids: Tensor
    loss_mask: Tensor
    attention_mask: Tensor
    labels: Tensor
    count: int
    sampled_from: Literal["candidate", "reference"]
    k3: list[Exact] = field(init=False)
    abs_delta: list[Exact] = field(init=False)
    tokens: Tensor = field(init=False)
    routes: Tensor = field(init=False)
    set_flips: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.k3, self.abs_delta = [Exact()] * self.count, [Exact()] * self.count
        self.tokens, self.routes, self.set_flips = (torch.zeros(self.count, dtype=torch.int64) for _ in range(3))

    def join(self, part: Classes, rows: slice) -> None:
        """Add what another observer saw of later waves, the sequences `rows`."""
        self.k3 = [total + further for total, further in zip(self.k3, part.k3, strict=True)]
        self.abs_delta = [total + further for total, further in zip(self.abs_delta, part.abs_delta, strict=True)]
        self.tokens += part.tokens
        self.routes += part.routes
        self.set_flips += part.set_flips

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        rows = slice(*view.wave)
        if view.node.name == self.output:
            tokens = self.input_ids[rows], self.loss_mask[rows]
            metrics = seen_metrics(view, REFERENCE, CANDIDATE, *tokens, self.sampled_from)
            inside = metrics.scored & ~metrics.outside
            labels = self.labels[rows].cpu()[inside]
            self.tokens += torch.bincount(labels, minlength=self.count)
            self._add(self.k3, labels, metrics.k3[inside])
            self._add(self.abs_delta, labels, metrics.delta.abs()[inside])
        if view.node.op.role.routes and view.ran(REFERENCE, CANDIDATE):
            real = self.attention_mask[rows]
            _, flip_mask = flips(view.tensor(REFERENCE)[real], view.tensor(CANDIDATE)[real])
            labels = self.labels[rows][real].cpu()
            self.routes += torch.bincount(labels, minlength=self.count)
            self.set_flips += torch.bincount(labels[flip_mask.cpu()], minlength=self.count)

    def _add(self, sums: list[Exact], labels: Tensor, values: Tensor) -> None:
        """Add `values`, fp64 [N], to the sums of their classes (`labels`, int64 [N])."""
        by_class = torch.zeros(self.count, dtype=torch.float64).index_add_(0, labels, values)
        sums[:] = [total + further for total, further in zip(sums, by_class.tolist(), strict=True)]


def observer(study: Study, trials: Trials) -> Classes | None:
    """The observer of both sides; None if the tokens have no labels."""
    tokens, device = study.tokens, study.model.device
    if tokens.labels is None:
        return None
    return Classes(
        output=study.model.graph.scores,
        input_ids=tokens.input_ids.to(device),
        loss_mask=tokens.loss_mask.to(device),
        attention_mask=tokens.attention_mask.to(device),
        labels=tokens.labels.to(device),
        count=len(tokens.label_names),
        sampled_from=study.recipe.tokens.sampler,
    )


CLASSES: Final[Watch[Classes]] = Watch("tokens", observer, (Classes,))


def measure(of: Context) -> OfTokens:
    """Warnings and classes."""
    sums = of.observed.of_watch(CLASSES)
    return OfTokens(warnings=tuple(warnings(of.study)), classes=() if sums is None else classes(of.study, sums))


def warnings(study: Study) -> Iterator[str]:
    """Sentences on what makes the numbers of a run mean less than they seem to."""
    if study.recipe.synthetic is not None:
        yield (
            f"The weights are {study.recipe.weights}, random numbers of the right shapes. Their router margins and "
            "logits are not those of a trained model, so flip rates, k3 and KL say nothing about one; which node "
            "differs first, and whether bits are equal, still holds."
        )
    if study.real_ranks is not None:
        yield from real_ranks_warnings(study.real_ranks)
    sample = study.recipe.tokens.sample
    if sample is None:
        return
    of_sides = {temperature for side in study.sides.values() for temperature in _temperatures(side)}
    temperatures = of_sides - {sample.temperature}
    if temperatures:
        values = " and ".join(f"{temperature:g}" for temperature in sorted(temperatures))
        advice = f", or set log_probs:temperature to {sample.temperature:g} on both sides" if sample.temperature else ""
        yield (
            f"The tokens are sampled at temperature {sample.temperature:g}, log-probabilities taken at {values}: k3 is "
            f"no estimate of a KL on such tokens. Use temperature 1 for a gate{advice}."
        )


def _temperatures(side: Side) -> set[float]:
    """The temperatures by which a side's logits are divided before its log-softmax, over all phases."""
    place = (side.plan.graph.scores, "temperature")
    settings = [plan.settings.get(place) for plan in side.plan.distinct]
    return {1.0 if setting is None else float(setting.value) for setting in settings}


def sampling(study: Study) -> str | None:
    """How the tokens were generated for this run; None if they come from the file."""
    sample = study.recipe.tokens.sample
    if sample is None:
        return None
    return f"{sample.new_tokens} new tokens per prompt, temperature {sample.temperature:g}, seed {sample.seed}"


def classes(study: Study, sums: Classes) -> tuple[ClassMetrics, ...]:
    """The metrics of each class of tokens."""
    return tuple(
        ClassMetrics(
            name=name,
            scored_tokens=(tokens := int(sums.tokens[i])),
            k3=float(sums.k3[i]) / tokens if tokens else math.nan,
            mean_abs_delta=float(sums.abs_delta[i]) / tokens if tokens else math.nan,
            token_layers=int(sums.routes[i]),
            set_flips=int(sums.set_flips[i]),
        )
        for i, name in enumerate(study.tokens.label_names)
    )


MEASURE = Measure(gives=OfTokens, measure=measure, watch=CLASSES)
