"""A trace's nodes explained: what its modules show of a graph, node by node, held against a start profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch

from moeparity.errors import SpecError, TraceError, Where, did_you_mean, listed
from moeparity.evidence.explain.inquiry import WORK
from moeparity.evidence.explain.observation import Observation
from moeparity.evidence.explain.observed import observed
from moeparity.evidence.explain.report import Explained
from moeparity.evidence.explain.unlisted_orders import OrderBudget
from moeparity.evidence.explain.walk import Walk, targets
from moeparity.evidence.maps.forwards import map_for
from moeparity.evidence.trace.reader import RankTrace, open_trace
from moeparity.inputs.model import open_model
from moeparity.numerics.dtypes import FLOAT_NAMES, torch_dtype
from moeparity.plan.address import select
from moeparity.plan.bind import bind
from moeparity.plan.engine_profile import load_profile
from moeparity.progress import Callback, Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainRequest:
    """What is to be explained. `nodes`: selectors (none: every node that the trace shows). `map_name`: a shipped map
    or a file (None: the shipped map that fits the modules). `dtype`: what the program ran in (None: the dtype of its
    first value). `previous`: checkpoint folders of the same model whose weights may not have been replaced. `budget`:
    seconds that may be spent on orders that no file lists, at nodes that nothing else explains; None: none is sought.
    """

    trace: Path
    checkpoint: Path
    profile: str = "hf-eager"
    nodes: tuple[str, ...] = ()
    map_name: str | None = None
    dtype: str | None = None
    rank: int = 0
    previous: tuple[Path, ...] = ()
    budget: float | None = None


def explain_trace(request: ExplainRequest, progress: Callback | None = None, stop: Stop | None = None) -> Explained:
    """The choices behind the values of a trace's nodes. Once it is time to `stop`, nodes are only compared.

    Raises TraceError for a trace that shows no values of the graph, MoeparityError for a checkpoint, profile, map or
    selector that does not fit.
    """
    where = Where(Path("explain"))
    if request.dtype is not None and request.dtype not in FLOAT_NAMES:
        near = did_you_mean(request.dtype, FLOAT_NAMES)
        raise SpecError(f"explain: dtype is {request.dtype!r}; expected one of {listed(FLOAT_NAMES)}.{near}")
    profile, trace = load_profile(request.profile, where), _rank(request)
    module_map = map_for(trace, request.map_name, where)
    model = open_model(request.checkpoint, device="cpu", progress=progress)
    recorded = observed(trace, model.graph, module_map)
    dtype = request.dtype or _dtype([step for step, _ in recorded.steps], model.dtype)
    plan = bind(model.graph, profile, dtype, phases=recorded.phases)
    names = [node.name for node in model.graph.nodes]
    of_selectors = [select(selector, names, model.graph.layers, where) for selector in request.nodes]
    selected = set(chain.from_iterable(of_selectors)) if request.nodes else set(names)
    walk = Walk(
        plan=plan,
        weights=model.weights,
        progress=progress,
        stop=stop or Stop(),
        work=WORK,
        checkpoints=tuple(str(folder.absolute()) for folder in request.previous),
        orders=None if request.budget is None else OrderBudget(request.budget),
    )
    walk.explain(targets(plan, selected, recorded))
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
        forwards=len(recorded.steps),
        taken=recorded.suppositions,
        whole=trace.contents.whole,
        asked=bool(request.nodes),
        nodes=tuple(walk.nodes),
        unseen=tuple(walk.unseen),
        budget=request.budget,
    )


def _rank(request: ExplainRequest) -> RankTrace:
    ranks = open_trace(request.trace).ranks
    if request.rank >= len(ranks):
        raise TraceError(
            f"{Where(request.trace)}: it has no rank {request.rank}; expected one of 0 to {len(ranks) - 1}."
        )
    return ranks[request.rank]


def _dtype(observations: Sequence[Observation], default: str) -> str:
    """What the program ran in: the dtype of the first value that is rounded as the model is."""
    first: Mapping[str, torch.Tensor] = observations[0].values
    dtypes = [first[name].dtype for name in ("embed", "norm", "lm_head") if name in first]
    return next((name for dtype in dtypes for name in FLOAT_NAMES if torch_dtype(name) == dtype), default)
