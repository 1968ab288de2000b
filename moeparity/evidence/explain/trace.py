"""A trace's nodes explained: what its modules show of a graph, node by node, held against a start profile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

import torch

from moeparity.errors import SpecError, TraceError, Where, did_you_mean, listed
from moeparity.evidence.explain.explain import WORK
from moeparity.evidence.explain.inquiry import Memory
from moeparity.evidence.explain.observation import Observation, numbers
from moeparity.evidence.explain.observed import observed
from moeparity.evidence.explain.parts import explained_in_parts
from moeparity.evidence.explain.report import UNSHOWN, Explained, Explanation, Unseen
from moeparity.evidence.explain.statements import as_number
from moeparity.evidence.maps.forwards import module_calls
from moeparity.evidence.maps.module_map import ModuleMap, load_map, map_of
from moeparity.evidence.trace.reader import RankTrace, open_trace
from moeparity.inputs.model import Model, open_model
from moeparity.inputs.weights.store import Loaded
from moeparity.numerics.dtypes import FLOAT_NAMES, torch_dtype
from moeparity.plan.address import select
from moeparity.plan.bind import bind
from moeparity.plan.bound import BoundGraph
from moeparity.plan.changed import in_phases
from moeparity.plan.engine_profile import load_profile
from moeparity.plan.faults.plant import width_of
from moeparity.plan.graph import Node, Segment
from moeparity.plan.schedule.cases import Case
from moeparity.plan.setting import Place, Setting
from moeparity.progress import Callback, Progress, Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be explained. `nodes`: selectors (none: every node that the trace shows). `map_name`: a shipped map
    or a file (None: the shipped map that fits the modules). `dtype`: what the program ran in (None: the dtype of its
    first value). `earlier`: checkpoint folders of the same model whose weights may not have been replaced.
    """

    trace: Path
    checkpoint: Path
    profile: str = "hf-eager"
    nodes: tuple[str, ...] = ()
    map_name: str | None = None
    dtype: str | None = None
    rank: int = 0
    earlier: tuple[Path, ...] = ()


def explain_trace(request: Request, progress: Callback | None = None, stop: Stop | None = None) -> Explained:
    """The choices behind the values of a trace's nodes. Once it is time to `stop`, nodes are only compared.

    Raises TraceError for a trace that shows no values of the graph, MoeparityError for a checkpoint, profile, map or
    selector that does not fit.
    """
    where = Where(Path("explain"))
    if request.dtype is not None and request.dtype not in FLOAT_NAMES:
        near = did_you_mean(request.dtype, FLOAT_NAMES)
        raise SpecError(f"explain: dtype is {request.dtype!r}; expected one of {listed(FLOAT_NAMES)}.{near}")
    profile, trace = load_profile(request.profile, where), _rank(request)
    module_map = _map(request, trace, where)
    model = open_model(request.checkpoint, device="cpu", progress=progress)
    recorded = observed(trace, model.graph, module_map)
    dtype = request.dtype or _dtype([step for step, _ in recorded.steps], model.dtype)
    plan = bind(model.graph, profile, dtype, phases=recorded.phases)
    observations = recorded.in_cases(plan.phases)
    names = [node.name for node in model.graph.nodes]
    of_selectors = [select(selector, names, model.graph.layers, where) for selector in request.nodes]
    selected = set(chain.from_iterable(of_selectors)) if request.nodes else set(names)
    walk = _Walk(
        plan=plan,
        model=model,
        observations=observations,
        for_attention=recorded.for_attention(plan.phases),
        progress=progress,
        stop=stop or Stop(),
        total=len(selected),
        checkpoints=tuple(str(folder.absolute()) for folder in request.earlier),
    )
    for segment, loaded in model.weights.segments(plan.dtypes):
        walk.explain(segment, loaded.beside(), selected)
    if not walk.nodes and not request.nodes:
        raise TraceError(
            f"{Where(trace.folder)}: no node can be explained: {walk.unseen[0].node}: {walk.unseen[0].reason} "
            "Capture whole tensors of all modules: `moeparity capture --save '*'`."
        )
    return Explained(
        trace=str(request.trace),
        program=module_map.file.program,
        checkpoint=str(request.checkpoint),
        profile=request.profile,
        dtype=plan.dtype,
        forwards=len(observations),
        taken=recorded.suppositions,
        whole=trace.contents.whole,
        asked=bool(request.nodes),
        nodes=tuple(walk.nodes),
        unseen=tuple(walk.unseen),
    )


@dataclass(slots=True, kw_only=True)
class _Walk:
    """The nodes in the order of the graph, a segment's weights at a time."""

    plan: BoundGraph
    model: Model
    observations: Sequence[Observation]
    for_attention: Sequence[Observation]
    progress: Callback | None
    stop: Stop
    total: int
    checkpoints: tuple[str, ...] = ()
    nodes: list[Explanation] = field(default_factory=list)
    unseen: list[Unseen] = field(default_factory=list)
    memories: dict[tuple[str, ...], Memory] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)

    def explain(self, segment: Segment, loaded: Loaded, selected: set[str]) -> None:
        """Explain the selected nodes of a segment, whose weights are loaded."""
        for node in (node for node in segment.nodes if node.name in selected):
            name = node.name
            if self.progress is not None:
                done = len({*(node.node for node in self.nodes), *(unseen.node for unseen in self.unseen)})
                self.progress(Progress(step="explaining", at=name, done=done, total=self.total, work=done, unit="node"))
            steps = self.for_attention if node.op.mixes_tokens else self.observations
            shaped = {step: words for step in steps if (words := _other_shape(step, node))}
            known_values = [step for step in steps if all(value in step.values for value in node.values)]
            # Of a table that is made of positions alone there are faults that give it another width.
            shown = [step for step in known_values if step not in shaped or width_of(node) is not None]
            with torch.inference_mode():
                parts = explained_in_parts(
                    self.plan, name, shown, loaded, self.memories, self.answered, WORK, self.stop, self.checkpoints
                )
            self.nodes += (_shaped(answer, shaped) for answer in parts.explanations)
            self.nodes += _of_other_shapes(node, [step for step in shaped if step not in shown], shaped)
            self.unseen += parts.unseen
            hidden = [step for step in steps if step not in shown and step not in shaped]
            if len(hidden) == len(steps):
                self.unseen.append(Unseen(node=name, reason=UNSHOWN))
            elif hidden:
                self.unseen.append(Unseen(node=name, reason=UNSHOWN, forwards=numbers(hidden)))
            self._learn(parts.explanations)

    def _learn(self, answers: Sequence[Explanation]) -> None:
        """Use the answers for a node at later ones, in two cases: for what the node hands on to them, and for what all
        layers share, which was computed once.
        """
        changes: dict[Case, dict[Place, Setting]] = {}
        for answer in answers:
            others = {phase for further in answers if further is not answer for phase in further.phases}
            for phase in (phase for phase in answer.phases if answer.explained and phase not in others):
                changes[phase] = self._handed_on(answer)
        if changes:
            self.plan = in_phases(self.plan, changes)
        if answers and all(answer.explained for answer in answers):
            self.answered |= {name for answer in answers for name in answer.nodes}

    def _handed_on(self, answer: Explanation) -> dict[Place, Setting]:
        """What an explanation says of choices that other nodes go along with, and of what all layers share."""
        told_names = {name for node in self.plan.graph.nodes for name in node.op.choices_elsewhere}
        shared = {node.name for node in self.plan.graph.nodes if node.layer is None}
        places = {tuple(address.rsplit(":", 1)): value for address, value in answer.settings}
        return {
            (node, name): Setting(value=as_number(value), rule=None)
            for (node, name), value in places.items()
            if name in told_names or node in shared
        }


def _other_shape(step: Observation, node: Node) -> str:
    """What a token has in a step in place of a node's values; empty where it has what the checkpoint says."""
    return next((step.other_shapes[value] for value in node.values if value in step.other_shapes), "")


def _of_other_shapes(
    node: Node, steps: Sequence[Observation], shaped: Mapping[Observation, str]
) -> Iterator[Explanation]:
    """What is said of steps in which a node's values have another shape: their bits are compared with nothing."""
    for words in dict.fromkeys(shaped[step] for step in steps):
        alike = [step for step in steps if shaped[step] == words]
        yield Explanation(
            node=node.name,
            op=node.op.name,
            nodes=(node.name,),
            forwards=numbers(alike),
            phases=tuple(dict.fromkeys(step.phase for step in alike)),
            elements=0,
            as_it_is=0.0,
            as_started=False,
            tried=0,
            calls=0,
            other_shape=words,
        )


def _shaped(answer: Explanation, shaped: Mapping[Observation, str]) -> Explanation:
    """An answer to values of another shape: what nothing explains has no distance from what is computed."""
    words = next((words for step, words in shaped.items() if step.number in answer.forwards), "")
    return answer if answer.explained or not words else replace(answer, left=None, other_shape=words)


def _rank(request: Request) -> RankTrace:
    ranks = open_trace(request.trace).ranks
    if request.rank >= len(ranks):
        raise TraceError(
            f"{Where(request.trace)}: it has no rank {request.rank}; expected one of 0 to {len(ranks) - 1}."
        )
    return ranks[request.rank]


def _map(request: Request, trace: RankTrace, where: Where) -> ModuleMap:
    if request.map_name is not None:
        return load_map(request.map_name, where)
    return map_of(module_calls(trace), Where(trace.folder))


def _dtype(observations: Sequence[Observation], default: str) -> str:
    """What the program ran in: the dtype of the first value that is rounded as the model is."""
    first: Mapping[str, torch.Tensor] = observations[0].values
    dtypes = [first[name].dtype for name in ("embed", "norm", "lm_head") if name in first]
    return next((name for dtype in dtypes for name in FLOAT_NAMES if torch_dtype(name) == dtype), default)
