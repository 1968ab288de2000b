"""A trace's nodes explained: what its modules show of a graph, node by node, held against a start profile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from moeparity.errors import SpecError, TraceError, Where, did_you_mean, listed
from moeparity.evidence.explain.explain import WORK, explain
from moeparity.evidence.explain.inquiry import Memory
from moeparity.evidence.explain.observation import Observation
from moeparity.evidence.explain.report import Explained, Explanation, Unseen
from moeparity.evidence.maps.forwards import forwards, module_calls
from moeparity.evidence.maps.module_map import ModuleMap, load_map, map_of
from moeparity.evidence.maps.values import values_at
from moeparity.evidence.trace.read import RankTrace, open_trace
from moeparity.inputs.model import Model, open_model
from moeparity.inputs.weights.store import Loaded
from moeparity.numerics.dtypes import FLOAT_NAMES, torch_dtype
from moeparity.plan.address import role, select
from moeparity.plan.bind import bind
from moeparity.plan.bound import BoundGraph
from moeparity.plan.changed import in_all_phases
from moeparity.plan.engine_profile import load_profile
from moeparity.plan.graph import Segment
from moeparity.plan.setting import Setting
from moeparity.progress import Callback, Progress

MASK, POSITIONS = "mask", "positions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be explained. `nodes`: a selector (None: every node that the trace shows). `map_name`: a shipped map
    or a file (None: the shipped one that the modules fit). `dtype`: what the program ran in (None: as its first value).
    """

    trace: Path
    checkpoint: Path
    profile: str = "hf-eager"
    nodes: str | None = None
    map_name: str | None = None
    dtype: str | None = None
    rank: int = 0


def explain_trace(request: Request, progress: Callback | None = None) -> Explained:
    """The choices behind the values of a trace's nodes.

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
    observations = tuple(_observations(trace, model, module_map))
    plan = bind(model.graph, profile, request.dtype or _dtype(observations, model.dtype))
    names = [node.name for node in model.graph.nodes]
    selected = names if request.nodes is None else select(request.nodes, names, model.graph.layers, where)
    walk = _Walk(plan=plan, model=model, observations=observations, progress=progress, total=len(selected))
    for segment, loaded in model.weights.segments(plan.dtypes):
        walk.explain(segment, loaded.beside(), set(selected))
    if not walk.nodes and request.nodes is None:
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
        whole=trace.contents.whole,
        asked=request.nodes is not None,
        nodes=tuple(walk.nodes),
        unseen=tuple(walk.unseen),
    )


@dataclass(slots=True, kw_only=True)
class _Walk:
    """The nodes in the order of the graph, a segment's weights at a time."""

    plan: BoundGraph
    model: Model
    observations: Sequence[Observation]
    progress: Callback | None
    total: int
    nodes: list[Explanation] = field(default_factory=list)
    unseen: list[Unseen] = field(default_factory=list)
    memories: dict[str, Memory] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)

    def explain(self, segment: Segment, loaded: Loaded, selected: set[str]) -> None:
        """Explain the selected nodes of a segment, whose weights are loaded."""
        names = [node.name for node in segment.nodes if node.name in selected]
        if not names:
            return
        for name in names:
            if self.progress is not None:
                done = len(self.nodes) + len(self.unseen)
                self.progress(Progress(step="explaining", at=name, done=done, total=self.total, work=done, unit="node"))
            values = next(node.values for node in segment.nodes if node.name == name)
            shown = [
                observation for observation in self.observations if all(value in observation.values for value in values)
            ]
            memory = self.memories.setdefault(role(name), Memory(work=WORK))
            if not shown:
                self.unseen.append(Unseen(node=name, reason="the trace does not show its value whole."))
                continue
            try:
                with torch.inference_mode():
                    self.nodes.append(explain(self.plan, name, shown, loaded, memory, self.known))
                self._learn(self.nodes[-1])
            except TraceError as error:
                self.unseen.append(Unseen(node=name, reason=str(error)))

    def _learn(self, answer: Explanation) -> None:
        """Later nodes go along with what a node that is explained hands them, and with what all layers share, which was
        computed once; with nothing else.
        """
        if answer.explained:
            told_names = {name for node in self.plan.graph.nodes for name in node.op.choices_elsewhere}
            shared = {node.name for node in self.plan.graph.nodes if node.layer is None}
            places = {tuple(address.rsplit(":", 1)): value for address, value in answer.settings}
            settings = {
                (node, name): Setting(value=value, rule=None)
                for (node, name), value in places.items()
                if name in told_names or node in shared
            }
            self.plan = in_all_phases(self.plan, settings)
            self.known |= set(answer.nodes)


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


def _observations(trace: RankTrace, model: Model, module_map: ModuleMap) -> Iterator[Observation]:
    """What each forward shows of the graph. Of a forward of several tokens a sequence, none of them is taken to be
    padding and the first to stand at position 0; of a step of decoding, and where a mask with padding was recorded,
    neither is known.
    """
    padded = _padded(trace)
    for number in range(len(forwards(trace, module_map))):
        by_value: dict[str, torch.Tensor] = {}
        for name, node_values in values_at(trace, model.graph, module_map, forward=number).items():
            node = next(node for node in model.graph.nodes if node.name == name)
            pairs = (
                *zip(node.inputs, node_values.inputs, strict=True),
                *zip(node.values, node_values.outputs, strict=True),
            )
            by_value |= {value: tensor for value, tensor in pairs if tensor is not None}
        ids = by_value.get("tokens")
        if ids is not None and ids.shape[1] > 1 and not padded:
            by_value[MASK] = torch.ones_like(ids, dtype=torch.bool)
            by_value[POSITIONS] = torch.arange(ids.shape[1]).expand(ids.shape).contiguous()
        yield Observation(values=by_value)


def _padded(trace: RankTrace) -> bool:
    """Whether some module was handed an attention mask [B, T] that hides tokens."""
    inputs = {call.inputs["attention_mask"] for call in module_calls(trace) if "attention_mask" in call.inputs}
    values = [trace.contents.values[number] for number in inputs if number in trace.contents.values]
    masks = [trace.tensor(value) for value in values]
    return any(mask is not None and mask.dim() == 2 and not bool(mask.bool().all()) for mask in masks)


def _dtype(observations: Sequence[Observation], default: str) -> str:
    """What the program ran in: the dtype of the first value that is rounded as the model is."""
    first: Mapping[str, torch.Tensor] = observations[0].values
    dtypes = [first[name].dtype for name in ("embed", "norm", "lm_head") if name in first]
    return next((name for dtype in dtypes for name in FLOAT_NAMES if torch_dtype(name) == dtype), default)
