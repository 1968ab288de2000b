"""Graph file x config.json -> Graph: references resolved, layers repeated, weights named, wiring checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import networkx as nx

from moeparity.documents.checked import shipped
from moeparity.errors import CheckpointError, GraphError, Where, did_you_mean, listed, shown
from moeparity.ops.declaration import Op, Parameter
from moeparity.ops.registry import OPS
from moeparity.plan.config import Config
from moeparity.plan.graph import SOURCES, Graph, Node, Segment, WeightRef, log_probs
from moeparity.plan.heads import with_head
from moeparity.plan.latest import Latest
from moeparity.plan.layer_values import TABLES, rule_named, values_of_layer
from moeparity.plan.layers import LAYER_RULES
from moeparity.plan.references import Scope
from moeparity.plan.spec import graph_schema, reader

_MISSPELT = 0.9
"""How alike (0 to 1) a model_type must be to a known one to be suggested: high, since a merely similar name is usually
another model.
"""
MAX_LAYERS = 1_000
MAX_EXPERTS = 10_000
"""Several times what any model has. More is a mistake in config.json, and without this bound it would only be noticed
as a hang.
"""


# A checkpoint is opened again and again: for each recipe of a folder, each point of a sweep, each run of a notebook.
_LATEST: Final[Latest[Graph]] = Latest(16)


def expand(config: Config, path: Path | None = None) -> Graph:
    """The graph of a checkpoint: from the file `path`, or the shipped graph file of its `model_type`. Equal files give
    the same object.

    Raises GraphError and CheckpointError.
    """
    path, spec = _shipped_graph(config) if path is None else (path, reader.read_graph(path))
    spec = with_head(spec, config)
    # A graph file that has not changed is read once.
    return _LATEST.of((spec,), (path, config.text), lambda: _expanded(path, spec, config))


def _expanded(path: Path, spec: graph_schema.GraphFile, config: Config) -> Graph:
    return _Expansion(path, spec, config).graph()


def _shipped_graph(config: Config) -> tuple[Path, graph_schema.GraphFile]:
    """The shipped graph of a checkpoint's model_type."""
    model_types: list[str] = []
    # Most graph files are named after their one model_type, so that file is tried first: reading all of them would take
    # longer than the rest.
    for path in sorted(shipped("models").values(), key=lambda path: path.stem != config.model_type):
        spec = reader.read_graph(path)
        if config.model_type in spec.model_type:
            return path, spec
        model_types += spec.model_type
    raise CheckpointError(
        f"{config.where('model_type')}: no graph for model_type {config.model_type!r}; there is one for "
        f"{listed(model_types)}.{did_you_mean(config.model_type, model_types, cutoff=_MISSPELT)} "
        "A new model is a YAML file: see CONTRIBUTING.md."
    )


class _Expansion:
    def __init__(self, path: Path, spec: graph_schema.GraphFile, config: Config) -> None:
        self.path, self.spec, self.config = path, spec, config
        self.scope = Scope(path, spec.sizes, config)
        self.outer: dict[str, str] = {source: source for source in SOURCES}
        self.layer_values: dict[str, str] = {}
        self.earlier: dict[str, str] = {}
        self.producer: dict[str, str] = {source: source for source in SOURCES}
        self.digraph: nx.DiGraph[str] = nx.DiGraph()

    def graph(self) -> Graph:
        self._check_expectations()
        head = self._nodes("", self.spec.before, {}, layer=None, weights="")
        segments = [Segment(name="before", nodes=tuple(head))]
        layers = self.spec.layers
        stream = self._value(layers.input, {}, layers.where_in_file("input"))
        for index, kind in enumerate(self._kinds()):
            nodes: list[Node] = []
            names = {field: getattr(layers, field) for field in TABLES}
            self.scope.layer = values_of_layer(self.config, index, names, layers.where_in_file)
            self.earlier |= {f"earlier.{name}": value for name, value in self.layer_values.items()}
            self.layer_values = {}
            for name in layers.kinds[kind]:
                stream, block = self._block(index, name, stream)
                nodes += block
            segments.append(Segment(name=f"layers[{index}]", nodes=tuple(nodes)))
        self.scope.layer = {}
        tail = self._nodes("", self.spec.after, {layers.output: stream}, layer=None, weights="")
        segments.append(Segment(name="after", nodes=tuple(tail)))
        output = self._value(self.spec.output, {}, self.spec.where_in_file("output"))
        self._refuse_unread(segments, output)
        # Checked before sizes are collected: a field that only a size reads may not matter to this model.
        self.config.check_pairs()
        return Graph(
            path=self.path,
            config=self.config.fields,
            model_type=self.config.model_type,
            segments=tuple(segments),
            output=output,
            ignore=tuple(self.spec.ignore),
            digraph=self.digraph,
            sizes=self.scope.whole_sizes(),
        )

    def _refuse_unread(self, segments: Sequence[Segment], output: str) -> None:
        """Refuse a node whose value nothing reads: a mistake in wiring that could never show in the logits."""
        producer = self.producer[output]
        ancestors = nx.ancestors(self.digraph, producer) | {producer, *log_probs(segments[-1].nodes, output)}
        for node in (node for segment in segments for node in segment.nodes):
            if node.name not in ancestors:
                raise GraphError(
                    f"{node.where}: {node.name}: its value never reaches the output {output!r}. Wire it or drop it."
                )

    def _check_expectations(self) -> None:
        for field, values in self.spec.expects.items():
            if field in self.config and self.config[field] not in values:
                raise CheckpointError(
                    f"{self.config.where(field)}: {field} is {shown(self.config[field])}; "
                    f"{self.path.name} computes only {listed(map(shown, values))}."
                )

    def _kinds(self) -> list[str]:
        layers = self.spec.layers
        where = layers.where_in_file("kinds")
        rule = rule_named("rule", layers.rule, LAYER_RULES, layers.where_in_file)
        count = self.scope.integer(layers.count, layers.where_in_file("count"), most=MAX_LAYERS)
        kinds = [rule(self.config, index) for index in range(count)]
        for kind in dict.fromkeys(kinds):
            if kind not in layers.kinds:
                raise GraphError(
                    f"{where}: layers.kinds has no {kind!r}, which rule {layers.rule!r} asks for; it has "
                    f"{listed(layers.kinds)}."
                )
            for block in layers.kinds[kind]:
                if block not in self.spec.blocks:
                    hint = did_you_mean(block, self.spec.blocks)
                    raise GraphError(
                        f"{where}: block {block!r} is not declared; expected one of {listed(self.spec.blocks)}.{hint}"
                    )
        return kinds

    def _block(self, index: int, name: str, stream: str) -> tuple[str, list[Node]]:
        block = self.spec.blocks[name]
        prefix, weights = f"layers[{index}].{name}.", self.spec.layers.weights.replace("{i}", str(index))
        # A block reads the values of those before it in the layer by their names, as `attention.norm`, and of the last
        # layer before this one that has them as `earlier.attention.index`.
        local = {**self.earlier, **self.layer_values, block.input: stream}
        nodes = self._nodes(prefix, block.nodes, local, layer=index, weights=weights)
        self.layer_values |= {
            f"{name}.{full_name.removeprefix(prefix)}": full_name for n in nodes for full_name in n.values
        }
        return self._value(block.output, local, block.where_in_file("output")), nodes

    def _nodes(
        self, prefix: str, specs: graph_schema.Nodes, local: dict[str, str], *, layer: int | None, weights: str
    ) -> list[Node]:
        """Nodes of one block in the order written; `local` maps the names they may use to value names, and grows."""
        nodes = []
        for name, cases in specs.items():
            spec = self._case(cases)
            if spec is None:
                continue
            node = self._node(prefix + name, spec, local, layer=layer, weights=weights)
            scope = local if prefix else self.outer
            scope |= {full_name.removeprefix(prefix): full_name for full_name in node.values}
            self.producer |= dict.fromkeys(node.values, node.name)
            self.digraph.add_node(node.name)
            self.digraph.add_edges_from((self.producer[value], node.name) for value in node.inputs)
            nodes.append(node)
        return nodes

    def _case(self, cases: graph_schema.Node | list[graph_schema.Node]) -> graph_schema.Node | None:
        for case in cases if isinstance(cases, list) else [cases]:
            if self.scope.holds(case.when, case.where_in_file()):
                return case
        return None

    def _node(
        self, name: str, spec: graph_schema.Node, local: Mapping[str, str], *, layer: int | None, weights: str
    ) -> Node:
        where = spec.where_in_file()
        op = OPS.get(spec.op)
        if op is None:
            raise GraphError(
                f"{where}: {name}: op {spec.op!r} is unknown; expected one of {listed(OPS)}."
                + did_you_mean(spec.op, OPS)
            )
        most, least = len(op.inputs), len(op.inputs) - len(op.optional)
        if not least <= len(spec.inputs) <= most:
            raise GraphError(
                f"{where}: {name}: `in` lists {len(spec.inputs)}; op {op.name} takes "
                f"{most if least == most else f'{least} to {most}'}: {listed(op.inputs)}."
            )
        params = self._params(name, op, spec, where)
        if op.outputs_from and any(type(width) is not int for width in params[op.outputs_from].values()):
            raise GraphError(f"{where}: {name}: the {op.outputs_from} need a whole number each, their width.")
        reason = None if op.refusals.parameters is None else op.refusals.parameters(params)
        if reason is not None:
            raise GraphError(f"{where}: {name}: {reason}")
        return Node(
            name=name,
            op=op,
            inputs=tuple(self._value(value, local, where) for value in spec.inputs),
            outputs=tuple(params[op.outputs_from]) if op.outputs_from else op.outputs,
            weights=self._weights(name, op, spec, weights),
            params=params,
            layer=layer,
            where=where,
        )

    def _value(self, value: str, local: Mapping[str, str], where: Where) -> str:
        full_name = local.get(value) or self.outer.get(value)
        if full_name is None:
            names = [*local, *self.outer]
            raise GraphError(
                f"{where}: no value {value!r} here; expected one of {listed(names)}." + did_you_mean(value, names)
            )
        return full_name

    def _params(self, name: str, op: Op, spec: graph_schema.Node, where: Where) -> dict[str, Any]:
        declared = {p.name: p for p in op.parameters}
        _refuse_unknown(where, f"{name}: parameter", spec.params, declared)
        return {p.name: self._param(name, p, spec.params, where) for p in op.parameters}

    def _param(self, name: str, parameter: Parameter, references: Mapping[str, Any], where: Where) -> Any:
        if parameter.name not in references:
            if parameter.required:
                raise GraphError(
                    f"{where}: {name}: parameter {parameter.name!r} ({parameter.says}) is missing. Add it."
                )
            return parameter.default
        value = self.scope.resolve(references[parameter.name], where)
        if value is None and not parameter.required:
            return parameter.default
        if parameter.type is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, parameter.type) or (isinstance(value, bool) and parameter.type is not bool):
            field = self.scope.field_of(references[parameter.name], value)
            complaint = f"{shown(value)}; expected {_type(parameter)} ({parameter.says})"
            if field is None:
                raise GraphError(f"{where}: {name}: parameter {parameter.name} is {complaint}.")
            raise CheckpointError(f"{self.config.where(field)}: {field} is {complaint}, since {where} reads it.")
        if parameter.values and value not in parameter.values:
            raise GraphError(
                f"{where}: {name}: parameter {parameter.name} is {value!r}; expected one of {listed(parameter.values)}."
                + did_you_mean(str(value), parameter.values)
            )
        return value

    def _weights(self, name: str, op: Op, spec: graph_schema.Node, prefix: str) -> dict[str, WeightRef]:
        where = spec.where_in_file()
        ports = {port.name: port for port in op.weights}
        _refuse_unknown(where, f"{name}: weight", spec.weights, ports)
        refs = {}
        for port in op.weights:
            weight = spec.weights.get(port.name)
            if weight is None and port.required:
                raise GraphError(f"{where}: {name}: weight {port.name!r} ({port.says}) is missing. Add it.")
            if weight is not None and self.scope.holds(weight.when, weight.where_in_file()):
                refs[port.name] = self._weight(weight, prefix, each=port.each)
        return refs

    def _weight(self, weight: graph_schema.Weight, prefix: str, *, each: bool) -> WeightRef:
        where = weight.where_in_file()
        name = prefix + weight.name
        if weight.tied is not None and self.scope.holds(weight.tied.when, where):
            name = weight.tied.to
        shape = tuple(self.scope.integer(size, where) for size in weight.shape)
        fields = tuple(tuple(self.scope.made_of(size)) for size in weight.shape)
        keep_fp32 = weight.dtype == "fp32"
        if each and weight.stacked is not None:
            stack = self._stack_shape(weight.stacked, weight, name, where)
            return WeightRef(
                names=(name,),
                shape=shape,
                fields=fields,
                each=True,
                keep_fp32=keep_fp32,
                where=where,
                stacked=stack,
                outputs_first=weight.outputs_first,
            )
        if each != (weight.each is not None) or each != ("{e}" in name) or weight.stacked is not None:
            takes = "one tensor per expert, so it needs both" if each else "a single tensor, so it takes neither"
            raise GraphError(
                f"{where}: weight {name!r} is {takes} `each:` {'and' if each else 'nor'} {{e}} in its name"
                f"{', or `stacked:`' if each else ', nor `stacked:`'}."
            )
        experts = self.scope.integer(weight.each, where, most=MAX_EXPERTS) if each else 1
        names = tuple(name.replace("{e}", str(e)) for e in range(experts))
        return WeightRef(names=names, shape=shape, fields=fields, each=each, keep_fp32=keep_fp32, where=where)

    def _stack_shape(
        self, sizes: Sequence[Any], weight: graph_schema.Weight, name: str, where: Where
    ) -> tuple[int, ...]:
        """The shape of a tensor that holds every expert's part."""
        if weight.each is not None or "{e}" in name or len(sizes) != len(weight.shape) + 1:
            raise GraphError(
                f"{where}: weight {name!r} is stacked, one tensor with an axis of experts before those of `shape`, so "
                "it takes neither `each:` nor {e} in its name."
            )
        experts, *widths = sizes
        return (self.scope.integer(experts, where, most=MAX_EXPERTS), *(self.scope.integer(n, where) for n in widths))


def _type(parameter: Parameter) -> str:
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}
    words |= {dict: "a mapping", list: "a list"}
    types = parameter.type if isinstance(parameter.type, tuple) else (parameter.type,)
    return " or ".join(words[type_] for type_ in types)


def _refuse_unknown(where: Where, kind: str, keys: Iterable[str], declared: Mapping[str, Any]) -> None:
    for key in keys:
        if key not in declared:
            raise GraphError(
                f"{where}: {kind} {key!r} is unknown; "
                + (f"expected one of {listed(declared)}." if declared else "this op takes none.")
                + did_you_mean(key, declared)
            )
