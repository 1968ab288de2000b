"""One variant's plan: a graph with a setting for every place of it, and what follows from these settings."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import InitVar, dataclass, field

from moeparity.errors import SpecError, listed
from moeparity.numerics.dtypes import MODEL, stored_name
from moeparity.ops.attribute import EDGE, STORED, Attribute, RefusedError, Value, holds
from moeparity.ops.placement import STAGE
from moeparity.plan.borders import in_effect
from moeparity.plan.faults.apply import applied
from moeparity.plan.faults.fault import Planted
from moeparity.plan.graph import Graph, Node
from moeparity.plan.partials import (
    ChoicesTold,
    EarlierPlan,
    NodeValues,
    Partials,
    choices_told,
    inputs_read,
    partials,
    sizes,
)
from moeparity.plan.region import Region
from moeparity.plan.schedule.cases import Case, Sizes, case_of
from moeparity.plan.schedule.steps import FORWARD
from moeparity.plan.setting import DTYPE, FAULT, IMPL, Place, Setting, edges_of


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundGraph:
    """One variant's plan: a graph, the dtype it nominally runs in, and a setting for every place.

    phases: those it was bound for, cut into cases where rules depend on numbers of rows or keys. `settings` and all
        methods speak of the first of them.
    others: the plans of the phases that have other settings than the first.
    regions: the users' functions that either side of a mixture knows, by closing node and call. A region is in force
        where the `impl` setting of its closing node names it.
    faults: those that either side of a mixture knows, by the text that settings have for them.
    dormant: what the profile sets for attributes that a node lacks as the checkpoint has it; a fault that changes the
        node's parameters may give it these attributes.
    like: a plan of the same graph that has been checked already. Where this one has the same settings, results are
        taken over from it. anew: the only places whose settings may differ from those of `like` (None: any may).
    on_whole: the nodes that read no partial sums.
    written: the settings as given; mixtures are made of these. `settings` are those in effect: they differ from
        `written` only where a stage of a pipeline ends (`moeparity.plan.borders`).
    """

    graph: Graph
    dtype: str
    settings: Mapping[Place, Setting]
    written: Mapping[Place, Setting] = field(init=False, repr=False, compare=False)
    regions: Mapping[Place, Region] = field(default_factory=dict)
    faults: Mapping[str, tuple[Planted, ...]] = field(default_factory=dict)
    dormant: Mapping[Place, Setting] = field(default_factory=dict, repr=False, compare=False)
    phases: tuple[Case, ...] = (FORWARD,)
    others: Mapping[Case, BoundGraph] = field(default_factory=dict)
    like: InitVar[BoundGraph | None] = None
    anew: InitVar[Collection[Place] | None] = None
    choices_elsewhere: ChoicesTold = field(init=False)
    partials: Partials = field(init=False)
    on_whole: frozenset[str] = field(init=False, repr=False, compare=False)
    _active: dict[str, Mapping[str, Value]] = field(init=False, repr=False, compare=False, default_factory=dict)
    _as_run: dict[str, tuple[str, Node]] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self, like: BoundGraph | None, anew: Collection[Place] | None) -> None:
        """Raise SpecError where an op cannot run with these values, or with the partial sums it would read."""
        object.__setattr__(self, "written", self.settings)
        if like is None or anew is None or not like.is_one_stage or any(name == STAGE for _, name in anew):
            # A border may change settings at any place, so all have to be compared with `like` again.
            anew = None
            object.__setattr__(self, "settings", in_effect(self.settings))
        replacements = self.replaced()
        self._plant()
        earlier_plan = None
        if like is not None and not replacements and not like.replaced():
            otherwise = self._set_otherwise(like, self.settings if anew is None else anew)
            earlier_plan = EarlierPlan(
                otherwise=otherwise, choices_elsewhere=like.choices_elsewhere, partials=like.partials
            )
        values = NodeValues(self.graph, self._values)
        object.__setattr__(self, "choices_elsewhere", choices_told(self.graph, values, earlier_plan))
        object.__setattr__(
            self, "partials", partials(self.graph, values, replacements, self.choices_elsewhere, earlier_plan)
        )
        for phase, phase_plan in self.others.items():
            self._refuse_other_partials(phase, phase_plan)
        same_nodes = self._same_nodes(like, earlier_plan)
        if like is not None and same_nodes:
            self._active.update({name: active for name, active in like.all_active.items() if name in same_nodes})
        for node in self.graph.nodes:
            if node.name not in same_nodes and node.name not in replacements and node.op.refuses:
                self._refuse(node)

    @property
    def is_one_stage(self) -> bool:
        """Whether no border between stages changes what is set."""
        return self.settings is self.written

    def _refuse(self, node: Node) -> None:
        """Raise SpecError where a node's op cannot run with the node's settings."""
        as_run, makers = self.as_run(node), self.graph.makers
        shapes = {port: ref.shape for port, ref in as_run.weights.items()} | sizes(as_run, makers, self.partials)
        message = {"message": str(self.message_dtype(node))}
        assert node.op.refuses is not None
        refusal = node.op.refuses(shapes, {**self.told_to(node), **self.active(node), **message})
        if refusal is not None:
            raise self.refusal(node, *refusal)

    def refusal(self, node: Node, attribute: str, reason: str) -> RefusedError:
        """The error to raise where a node's op cannot run with the node's settings."""
        return RefusedError(attribute, reason, node=node.name, origin=self.origin(node, attribute))

    def _plant(self) -> None:
        """Keep a rewritten node for every node at which a fault is planted."""
        for node in self.graph.nodes if self.faults else ():
            text = str(self.settings[node.name, FAULT].value)
            if text:
                self._as_run[node.name] = (node.computation, applied(self.graph, node, self.faults[text]))

    def as_run(self, node: Node) -> Node:
        """A node of the graph as this plan runs it: with the parameters, weights and edits of the faults there.

        A node whose parameters the caller has already replaced is returned as it is.
        """
        computation, rewritten = self._as_run.get(node.name, ("", node))
        return rewritten if node.computation == computation else node

    @property
    def nodes_as_run(self) -> tuple[Node, ...]:
        """All nodes as this plan runs them."""
        return tuple(map(self.as_run, self.graph.nodes))

    def _refuse_other_partials(self, phase: Case, phase_plan: BoundGraph) -> None:
        """Raise SpecError where a value has another number of partial sums in another phase: later steps read what
        earlier ones wrote.
        """
        for node in self.graph.nodes:
            count, other_count = (plan.partials[node.values[0]] for plan in (self, phase_plan))
            if count != other_count:
                places = (place for place in self.settings if place[0] == node.name)
                rules = (plan.settings[place].rule for place in places for plan in (phase_plan, self))
                origin = next((f"{rule.where} ({rule.label}): " for rule in rules if rule and rule.cases), "")
                raise SpecError(
                    f"{origin}{node.values[0]} is {_sums(count)} in {self.phases[0]} and {_sums(other_count)} in "
                    f"{phase}. Whether and over how many ranks a value is left in partial sums must be one choice in "
                    "all phases: leave `phase` out there."
                )

    def at_phase(self, phase: Case) -> BoundGraph:
        """The plan in one of its phases: itself where the settings are the same.

        Raises ValueError for a phase that it was not bound for.
        """
        if phase not in self.phases:
            raise ValueError(f"the plan was bound for {listed(self.phases)}, and is asked for {phase}")
        return self.others.get(phase, self)

    def at(self, sizes: Sizes) -> BoundGraph:
        """The plan for a step of these sizes. Raises ValueError where it was bound for none such."""
        return self.at_phase(case_of(self.phases, sizes) or sizes.phase)

    @property
    def distinct(self) -> tuple[BoundGraph, ...]:
        """This plan, and those of other phases, each once."""
        return tuple({id(plan): plan for plan in (self, *self.others.values())}.values())

    def _set_otherwise(self, like: BoundGraph, places: Collection[Place]) -> frozenset[str]:
        """The nodes with another setting than in `like`; `places` are the only ones that may differ."""
        # Most settings are the very same ones.
        pairs = ((node, self.settings[node, name], like.settings[node, name]) for node, name in places)
        changed = frozenset(node for node, new, old in pairs if new is not old and new.value != old.value)
        # A fault may bring dormant settings into effect, so its nodes count as changed.
        return changed | self._as_run.keys() if self.faults and self.dormant != like.dormant else changed

    def _same_nodes(self, like: BoundGraph | None, earlier_plan: EarlierPlan | None) -> frozenset[str]:
        """The nodes whose settings are those of `like` and that read no partial sums; none where anything else differs.
        Sets `on_whole`.
        """
        is_alike = (
            earlier_plan is not None
            and self.choices_elsewhere == earlier_plan.choices_elsewhere
            and self.partials == earlier_plan.partials
        )
        if like is not None and earlier_plan is not None and is_alike:
            object.__setattr__(self, "on_whole", like.on_whole)
            return self.on_whole - earlier_plan.otherwise
        # What reads partial sums also depends on their dtype, a choice of the node that makes them: these are never
        # taken over.
        on_whole = (n.name for n in self.graph.nodes if all(self.partials[value] == 1 for value in n.inputs))
        object.__setattr__(self, "on_whole", frozenset(on_whole))
        return frozenset()

    def _values(self, node: Node) -> dict[str, Value]:
        """The value of each attribute of a node as it is run; of attributes that only a fault adds, what the profile
        says.
        """
        return {attribute.name: self.setting(node, attribute).value for attribute in self.as_run(node).attributes}

    def setting(self, node: Node, attribute: Attribute) -> Setting:
        """The setting of an attribute of a node as it is run; of an attribute that only a fault adds, the profile's."""
        place = (node.name, attribute.name)
        stated = self.settings.get(place) or self.dormant.get(place)
        return Setting(value=attribute.default, rule=None) if stated is None else stated

    def origin(self, node: Node, name: str) -> str:
        """Where the value of one of a node's attributes, or its fault, was set."""
        if name == FAULT:
            return self.settings[node.name, FAULT].origin
        return next(self.setting(node, declared).origin for declared in node.op.attributes if declared.name == name)

    def dtype_of(self, node: str) -> str:
        """The dtype a node runs in: the variant's own, or the other side's in a mixture."""
        return str(self.settings[node, DTYPE].value)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Every dtype that some node runs in."""
        return tuple(dict.fromkeys(self.dtype_of(node.name) for node in self.graph.nodes))

    def resolved(self, node: str, value: Value) -> Value:
        """`model` becomes the dtype the node runs in."""
        return self.dtype_of(node) if value == MODEL else value

    def active(self, node: Node) -> Mapping[str, Value]:
        """The attributes that take effect on a node, with their values resolved."""
        if node.name not in self._active:
            self._active[node.name] = self._active_values(node)
        return self._active[node.name]

    @property
    def all_active(self) -> Mapping[str, Mapping[str, Value]]:
        """By node, the attributes that take effect on it."""
        if len(self._active) < len(self.graph.nodes):
            self._active.update({node.name: self.active(node) for node in self.graph.nodes})
        return self._active

    def _active_values(self, node: Node) -> dict[str, Value]:
        choices = self.choices(node)
        return {
            a.name: choices[a.name]
            for a in self.as_run(node).attributes
            if holds(a.when, choices) and self._met(a, node, choices)
        }

    def choices(self, node: Node) -> dict[str, Value]:
        """Everything that conditions on a node may name: the choices of other nodes it depends on, and its own
        attributes with their values resolved, whether in effect or not.
        """
        dtype = self.dtype_of(node.name)
        values = {name: dtype if value == MODEL else value for name, value in self._values(node).items()}
        return {**self.told_to(node), **values}

    def message_dtype(self, node: Node) -> str | None:
        """The dtype of the partial sums that a node's first input consists of; None where that input is whole."""
        if self.partials[node.inputs[0]] == 1:
            return None
        maker = self.graph.makers[node.inputs[0]]
        active = self.active(maker)
        if "partial" in active or "output" in active:
            return stored_name(str(active.get("partial", active.get("output"))))
        return self.message_dtype(maker)

    @property
    def messages(self) -> Iterator[tuple[str, str]]:
        """The nodes that add up partial sums, and the dtypes of these."""
        for node in self.graph.nodes:
            dtype = self.message_dtype(node) if node.op.reduces else None
            if dtype is not None:
                yield node.name, dtype

    def told_to(self, node: Node) -> Mapping[str, Value]:
        """The choices of other nodes that this node's kernel is passed, by name."""
        return self.choices_elsewhere.get(node.name, {})

    def _met(self, attribute: Attribute, node: Node, choices: Mapping[str, Value]) -> bool:
        """Whether the attribute's `needs` is met: several pieces, partial sums at this node, or no partial sums."""
        if attribute.needs == "always":
            return True
        if attribute.needs == "pieces":
            return node.op.pieces(choices) > 1
        reads = inputs_read(node, choices)
        inputs = (value for value, reads_it in zip(node.inputs, reads, strict=True) if reads_it)
        most = max(self.partials[value] for value in (*node.values, *inputs))
        return (most > 1) == (attribute.needs == "partials")

    def edges(self, node: Node) -> dict[str, tuple[str, Value]]:
        """Consumers that read the node's result in another rounding than the stored one: consumer -> (site, dtype)."""
        roundings = {}
        for site, consumer in edges_of(self.graph, node):
            value = self.settings[node.name, f"{site}{EDGE}{consumer}"].value
            if value != STORED:
                roundings[consumer] = (site, self.resolved(node.name, value))
        return roundings

    def read_inputs(self, node: Node) -> tuple[str | None, ...]:
        """The node's input values; None in place of an input that is not read under these settings."""
        region = self.region(node.name)
        if region is not None:
            return region.inputs
        if not node.op.reads:
            return node.inputs
        reads = inputs_read(node, {**self.told_to(node), **self.active(node)})
        return tuple(value if reads_it else None for value, reads_it in zip(node.inputs, reads, strict=True))

    def region(self, node: str) -> Region | None:
        """The region (a user's function) whose last node this is, if one is in force."""
        if not self.regions:
            return None
        return self.regions.get((node, str(self.settings[node, IMPL].value)))

    def replaced(self) -> dict[str, Region]:
        """Every node whose own kernel is not run, with the region that is run instead."""
        # A region in force is named by the setting of its closing node, so walking the known ones is enough.
        active = [region for (end, _), region in self.regions.items() if self.region(end) is region]
        return {node: region for region in active for node in region.nodes}

    def sees_rows(self, node: Node) -> bool:
        """Whether a token's result at a node may depend on which other tokens are computed with it.

        Always assumed of a user's function.
        """
        as_run = self.as_run(node)
        edited = any(edit.verb == "capacity" for edit in as_run.edits)
        return node.name in self.replaced() or edited or node.op.sees_rows(self.active(node), as_run.params)


def _sums(count: int) -> str:
    return "whole" if count == 1 else f"in {count} partial sums"
