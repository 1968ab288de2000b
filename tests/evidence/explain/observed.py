"""Observations for tests: what each node computes in a pass under some profile, and combinations of choices drawn."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
import yaml

from moeparity.engine.lockstep import run
from moeparity.engine.values import assemble
from moeparity.engine.view import NodeView
from moeparity.engine.walker import Walker
from moeparity.errors import SpecError, Where
from moeparity.evidence.explain.explain import Question
from moeparity.evidence.explain.explained_profile import profile_text
from moeparity.evidence.explain.inquiry import Memory
from moeparity.evidence.explain.kernels import Kernels
from moeparity.evidence.explain.observation import Observation, region_of
from moeparity.evidence.explain.replaced import Choices, Replaced
from moeparity.evidence.explain.report import Explained, Explanation
from moeparity.evidence.explain.sample import Ports
from moeparity.evidence.explain.show import document
from moeparity.evidence.explain.vocabulary import listed_choices
from moeparity.inputs.model import Model, open_model
from moeparity.inputs.weights.loaded import Loaded
from moeparity.numerics.bits import same_bits
from moeparity.plan.bind import bind
from moeparity.plan.bound import Plan
from moeparity.plan.engine_profile import load_profile
from moeparity.plan.graph import Node
from moeparity.plan.schedule.steps import MicroBatches
from tests.printed import printed


@dataclass(slots=True)
class Seen:
    """A node with the values it read and gave, and its weights."""

    node: Node
    values: Mapping[str, torch.Tensor]
    loaded: Loaded


@dataclass(slots=True)
class Recorder:
    """Keeps what every node reads and gives in a pass."""

    nodes: dict[str, Seen] = field(default_factory=dict)
    values: dict[str, torch.Tensor] = field(default_factory=dict)

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave; of one wave here."""
        walker = next(iter(view.outputs))
        read = zip(view.node.inputs, view.inputs[walker], strict=True)
        self.values |= {name: assemble(blocks, view.batch).clone() for name, blocks in read if blocks is not None}
        self.values |= {value: view.tensor(walker, port).clone() for port, value in enumerate(view.node.values)}
        node_values = {
            name: self.values[name] for name in (*view.node.inputs, *view.node.values) if name in self.values
        }
        self.nodes[view.node.name] = Seen(view.node, node_values, view.loaded)


def bound(model: Model, profile: str) -> Plan:
    """A shipped profile on a model."""
    return bind(model.graph, load_profile(profile, Where(Path("test"))), model.dtype)


def opened(checkpoint: Path) -> Model:
    """A checkpoint whose weights stay."""
    return open_model(checkpoint, device="cpu", residency="resident")


def seen_under(model: Model, plan: Plan, shape: tuple[int, int] = (2, 24), seed: int = 1) -> dict[str, Seen]:
    """What each node of a model computes under a plan, on tokens of a seed."""
    ids = torch.randint(0, model.vocab_size, shape, generator=torch.Generator().manual_seed(seed))
    recorder = Recorder()
    run([Walker(name="seen", plan=plan, schedule=MicroBatches(shape[0]))], model.weights, ids, [recorder])
    return recorder.nodes


def kernels_of(plan: Plan, node_values: Seen) -> tuple[Kernels, Observation]:
    """What computes a node under other choices, on what it read."""
    region = region_of(plan, node_values.node.name, set(node_values.values))
    unknown = [node.name for node in plan.graph.nodes]
    kernels = Kernels(Replaced.of([node.name for node in region], plan, plan, unknown=unknown))
    kernels.loaded = node_values.loaded
    return kernels, Observation(values=node_values.values)


def planted(plan: Plan, node_values: Seen, choices: Choices) -> tuple[Observation, Ports] | None:
    """The node as observed where these choices are made; None where an op refuses them."""
    kernels, observation = kernels_of(plan, node_values)
    out = kernels.outputs(choices, observation.sample(kernels.replaced.nodes))
    if out is None:
        return None
    return Observation(values={**node_values.values, **dict(zip(node_values.node.values, out, strict=True))}), out


def drawn(plan: Plan, node_values: Seen, count: int, seed: str, dearest: float = 50) -> Choices | None:
    """So many listed choices of a node of which each changes some bit beside the others; None where none was met."""
    generator = random.Random(seed)  # noqa: S311
    kernels, observation = kernels_of(plan, node_values)
    sample = observation.sample(kernels.replaced.nodes)
    for _ in range(40):
        choices = _some(kernels.replaced, generator, count)
        try:
            whole = None if choices is None or kernels.price(choices, [sample]) > dearest else choices
        except SpecError:
            whole = None
        out = None if whole is None else kernels.outputs(whole, sample)
        if whole is None or out is None:
            continue
        fewer = [kernels.outputs(whole - {choice}, sample) for choice in whole]
        if not any(ports is not None and all(map(same_bits, out, ports)) for ports in fewer):
            return whole
    return None


def _some(replaced: Replaced, generator: random.Random, count: int) -> Choices | None:
    choices: Choices = frozenset()
    while len(choices) < count:
        chosen = {place for place, _ in choices}
        try:
            listed = [c for c in listed_choices(replaced, replaced.bound(choices)) if c[0] not in chosen]
        except SpecError:
            return None
        places = sorted({place for place, _ in listed if place[1] not in {"tensor", "expert"}})
        if not places:
            return None
        place = generator.choice(places)
        choices |= {(place, generator.choice(sorted((v for p, v in listed if p == place), key=str)))}
    return choices


def result(*answers: Explanation) -> Explained:
    """What the command would say of these nodes."""
    return Explained(
        trace="a trace",
        program="transformers",
        checkpoint="a checkpoint",
        profile="hf-eager",
        dtype="bf16",
        forwards=1,
        taken=(),
        whole=True,
        asked=True,
        nodes=answers,
        unseen=(),
    )


def on_screen(report: Explained, width: int = 1000) -> str:
    """What the command prints of it; a wide terminal breaks no line."""
    return printed(document(report), width)


def rules(answer: Explanation) -> dict[str, tuple[object, str, str]]:
    """What a written profile sets at the node itself: value, level, source."""
    profile = yaml.safe_load(profile_text(result(answer), "written"))
    return {
        name: (value, rule["evidence"]["level"], rule["evidence"]["source"])
        for rule in profile["rules"]
        if rule["nodes"] == answer.node
        for name, value in rule["set"].items()
    }


def explain(
    plan: Plan, node: str, observations: Sequence[Observation], loaded: Loaded, memory: Memory | None = None
) -> Explanation:
    """The choices that give a node's values in all observations; the search starts from those of `plan`."""
    values = set.intersection(*(set(observation.values) for observation in observations))
    region = region_of(plan.at_phase(observations[0].phase), node, values)
    question = Question(plan=plan, region=region, loaded=loaded, memory=memory or Memory())
    return question.answer(observations).explanation
