"""A LoRA adapter as peft writes it (adapter_config.json, adapter_model.safetensors), put beside a graph's weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from moeparity.errors import CheckpointError, Where, did_you_mean, listed
from moeparity.inputs.weights.adapter_config import AdapterConfig, read_adapter_config
from moeparity.inputs.weights.checkpoint import ADAPTER, Checkpoint
from moeparity.inputs.weights.source import Entry
from moeparity.plan.graph import Graph, Node, WeightRef

_PREFIX: Final = "base_model.model."
_NESTED: Final = ".base_layer"
"""Behind a module of which peft wraps a second parameter."""
_HALVES: Final = {"a": ".lora_A.weight", "b": ".lora_B.weight"}
_MODULE, _EXPERTS = ("weight",), ("gate_up", "down")
"""The weights of a linear module, and of a stack of experts, that an adapter can stand beside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A weight that an adapter can stand beside: `name` is peft's of its module or parameter, experts 1 for a module;
    shape: outputs and inputs.
    """

    node: Node
    weight: str
    module: str
    name: str
    experts: int
    shape: tuple[int, int]


def adapted(graph: Graph, checkpoint: Checkpoint, folder: Path) -> Graph:
    """The graph with the adapter of a folder at its nodes; its tensors become entries of the checkpoint.

    Raises CheckpointError for an adapter that cannot be read, that is none of this model, or that lacks a tensor.
    """
    if checkpoint.formats:
        raise CheckpointError(
            f"{Where(folder)}: the adapter stands beside {checkpoint.folder}, whose weights are quantised "
            f"({listed(checkpoint.formats)}); expected plain weights. Give the checkpoint that these were made of."
        )
    config = read_adapter_config(folder)
    entries = checkpoint.open_beside(folder / ADAPTER)
    places = [place for node in graph.nodes for place in _places(node)]
    modules = _modules(entries, places)
    _refuse_missing(config, places, modules)
    refs: dict[str, dict[str, WeightRef]] = {}
    adapters: dict[str, dict[str, Any]] = {}
    for module, place in modules.items():
        matrices = _refs(config, entries, place, module)
        before = refs.setdefault(place.node.name, {})
        if matrices.keys() & before.keys():
            raise CheckpointError(
                f"{Where(folder / ADAPTER)}: {module} and another module are both beside {place.name}; expected one. "
                "Save it with peft's save_pretrained."
            )
        before |= matrices
        adapter = {"alpha": float(config.alpha_of(place.name)), "rslora": config.rslora, "times": 1, "in_weight": False}
        if adapters.setdefault(place.node.name, adapter) != adapter:
            raise CheckpointError(
                f"{Where(config.path)}: alpha_pattern gives {place.name} another alpha than the other parameter of "
                f"{place.module} has; expected one for both, which {place.node.name} computes."
            )
    return _with(graph, refs, adapters)


def _places(node: Node) -> Iterator[_Place]:
    """The weights of a node that an adapter can stand beside, in the layout that peft adapts."""
    ports = {port.name for port in node.op.weights}
    for weight in (*_MODULE, *_EXPERTS):
        if f"{weight}_a" not in ports:
            continue
        if weight in _MODULE:
            ref = node.weights[weight]
            module = ref.names[0].removesuffix(".weight")
            yield _Place(node=node, weight=weight, module=module, name=module, experts=1, shape=ref.shape)  # type: ignore[arg-type]
            continue
        parts = ("gate", "up") if weight == "gate_up" else (weight,)
        refs = [node.weights[port] for port in parts if port in node.weights]
        if refs and all(ref.each and ref.stacked is None for ref in refs):
            module, (rows, columns) = refs[0].names[0].rpartition(".0.")[0], refs[0].shape
            shape, name = (rows * len(refs), columns), f"{module}.{weight}_proj"
            yield _Place(node=node, weight=weight, module=module, name=name, experts=refs[0].count, shape=shape)


def _modules(entries: Mapping[str, Entry], places: list[_Place]) -> dict[str, _Place]:
    """By the name of an adapted module in the file, the place that it is beside. Raises CheckpointError."""
    names: dict[str, set[str]] = {}
    for name, entry in entries.items():
        half = next((half for half, ending in _HALVES.items() if name.endswith(ending)), None)
        if half is None or not name.startswith(_PREFIX):
            raise CheckpointError(
                f"{Where(entry.file)}: {name} is no tensor of a plain LoRA adapter; expected names such as "
                f"{_PREFIX}model.layers.0.self_attn.q_proj{_HALVES['a']}. Save it with peft's save_pretrained."
            )
        names.setdefault(name.removesuffix(_HALVES[half]), set()).add(half)
    return {name: _place(name, halves, entries, places) for name, halves in names.items()}


def _place(name: str, halves: set[str], entries: Mapping[str, Entry], places: list[_Place]) -> _Place:
    file = next(entry.file for key, entry in entries.items() if key.startswith(f"{name}."))
    if len(halves) == 1:
        (missing,) = _HALVES.keys() - halves
        raise CheckpointError(f"{Where(file)}: {name}{_HALVES[missing]} is missing. Is the adapter complete?")
    module = name.removeprefix(_PREFIX).removesuffix(_NESTED)
    of_module = [place for place in places if place.module == module]
    if not of_module:
        linears = sorted({place.module for place in places})
        raise CheckpointError(
            f"{Where(file)}: the adapter is beside {module}, which is no module of this model that can have one: "
            f"linear modules and whole stacks of experts can.{did_you_mean(module, linears)} Is it the adapter of "
            "this checkpoint?"
        )
    outputs, inputs = entries[f"{name}{_HALVES['b']}"].shape[0], entries[f"{name}{_HALVES['a']}"].shape[-1]
    fitting = [place for place in of_module if place.shape == (outputs, inputs)]
    if not fitting:
        shapes = " or ".join(f"{list(place.shape)} of {place.name}" for place in of_module)
        raise CheckpointError(
            f"{Where(file)}: {name} maps {inputs} inputs to {outputs} outputs; expected [outputs, inputs] as in "
            f"{shapes}. Is it the adapter of this checkpoint?"
        )
    return fitting[0]


def _refuse_missing(config: AdapterConfig, places: list[_Place], modules: Mapping[str, _Place]) -> None:
    """Raise CheckpointError for a module that the configuration names and the file has nothing of."""
    there = {place.name for place in modules.values()}
    for place in places:
        if place.experts == 1 and place.name not in there and config.targets(place.name):
            raise CheckpointError(
                f"{Where(config.path)}: target_modules names {place.name}, and {ADAPTER} has no tensor of it; expected "
                f"{_PREFIX}{place.name}{_HALVES['a']}. Is the adapter complete?"
            )


def _refs(config: AdapterConfig, entries: Mapping[str, Entry], place: _Place, module: str) -> dict[str, WeightRef]:
    """The ports of A and B. Raises CheckpointError if their ranks are not the configuration's."""
    rank, (outputs, inputs) = config.rank_of(place.name), place.shape
    rows = rank * place.experts
    expected = {"a": (rows, inputs), "b": (outputs, rows)}
    for half, shape in expected.items():
        entry = entries[f"{module}{_HALVES[half]}"]
        if entry.shape != shape:
            raise CheckpointError(
                f"{Where(entry.file)}: {module}{_HALVES[half]} has shape {list(entry.shape)}; expected {list(shape)}, "
                f"of rank {rank}{f' for each of {place.experts} experts' * (place.experts > 1)} as {config.path.name} "
                "says. Do both files belong together?"
            )
    return {
        f"{place.weight}_{half}": WeightRef(
            names=(f"{module}{ending}",), shape=expected[half], fields=((), ()), each=False, keep_fp32=True,
            where=Where(entries[f"{module}{ending}"].file),
        )
        for half, ending in _HALVES.items()
    }  # fmt: skip


def _with(
    graph: Graph, refs: Mapping[str, Mapping[str, WeightRef]], adapters: Mapping[str, Mapping[str, Any]]
) -> Graph:
    def node_of(node: Node) -> Node:
        if node.name not in refs:
            return node
        params = {**node.params, "adapter": dict(adapters[node.name])}
        return replace(node, weights={**node.weights, **refs[node.name]}, params=params)

    segments = (replace(segment, nodes=tuple(map(node_of, segment.nodes))) for segment in graph.segments)
    return replace(graph, segments=tuple(segments))
