"""One variant's plan: a graph with a setting for every place of it, and what follows from these settings."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import product
from types import MappingProxyType
from typing import Any, Final

from moeparity.errors import SpecError, listed
from moeparity.numerics.dtypes import MODEL, stored_name
from moeparity.ops.attribute import Attribute, RefusedError, Value, holds
from moeparity.ops.placement import STAGE
from moeparity.plan.borders import in_effect
from moeparity.plan.faults.fault import Planted
from moeparity.plan.graph import Graph, Node
from moeparity.plan.partials import (
    ChoicesTold,
    EarlierPlan,
    NodeValues,
    Partials,
    held_otherwise,
    implied,
    inputs_read,
    sizes,
)
from moeparity.plan.region import Region
from moeparity.plan.schedule.cases import Case, Sizes, case_of
from moeparity.plan.schedule.steps import FORWARD
from moeparity.plan.set_graph import SetGraph
from moeparity.plan.setting import Place, Setting

_NOTHING: Final[Mapping[Any, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(SetGraph):
    """One variant's plan: a graph with a setting for every place, and what these settings imply along its edges.

    phases: those it was bound for, cut into cases where rules depend on numbers of rows or keys. `settings` and all
        methods speak of the first of them.
    others: the plans of the phases that have other settings than the first.
    written: the settings as given; mixtures are made of these. `settings` are those in effect: they differ from
        `written` only where a stage of a pipeline ends (`moeparity.plan.borders`).
    on_whole: the nodes that read no partial sums.
    """

    written: Mapping[Place, Setting] = field(repr=False, compare=False)
    phases: tuple[Case, ...]
    others: Mapping[Case, Plan]
    choices_elsewhere: ChoicesTold
    partials: Partials
    on_whole: frozenset[str] = field(repr=False, compare=False)
    _active: dict[str, Mapping[str, Value]] = field(repr=False, compare=False)

    @classmethod
    def bound(
        cls,
        graph: Graph,
        dtype: str,
        settings: Mapping[Place, Setting],
        *,
        regions: Mapping[Place, Region] = _NOTHING,
        faults: Mapping[str, tuple[Planted, ...]] = _NOTHING,
        dormant: Mapping[Place, Setting] = _NOTHING,
        phases: tuple[Case, ...] = (FORWARD,),
        others: Mapping[Case, Plan] = _NOTHING,
        like: Plan | None = None,
        anew: Collection[Place] | None = None,
    ) -> Plan:
        """The plan of these settings, as given.

        like: a plan of the same graph that has been checked already. Where this one has the same settings, results are
            taken over from it. anew: the only places whose settings may differ from those of `like` (None: any may).

        Raises SpecError where an op cannot run with these values, or with the partial sums it would read.
        """
        written = settings
        if like is None or anew is None or not like.is_one_stage or any(name == STAGE for _, name in anew):
            # A border may change settings at any place, so all have to be compared with `like` again.
            anew, settings = None, in_effect(written)
        base = SetGraph.of(graph, dtype, settings, regions, faults, dormant)
        replaced, earlier_plan = base.replaced(), None
        if like is not None and not replaced and not like.replaced():
            otherwise = base.set_otherwise(like, settings if anew is None else anew)
            earlier_plan = EarlierPlan(otherwise, like.choices_elsewhere, like.partials, like.on_whole)
        implications = implied(graph, NodeValues(graph, base.values), replaced, earlier_plan)
        taken_over = {} if like is None or not implications.same_nodes else like.all_active
        plan = cls(
            **{part.name: getattr(base, part.name) for part in fields(SetGraph)},
            written=written,
            phases=phases,
            others=others,
            choices_elsewhere=implications.choices_elsewhere,
            partials=implications.partials,
            on_whole=implications.on_whole,
            _active={name: active for name, active in taken_over.items() if name in implications.same_nodes},
        )
        plan._refuse_misfits(implications.same_nodes | replaced.keys())
        return plan

    @property
    def is_one_stage(self) -> bool:
        """Whether no border between stages changes what is set."""
        return self.settings is self.written

    def _refuse_misfits(self, fitting_nodes: Collection[str]) -> None:
        """Raise SpecError where phases differ in partial sums, or where an op cannot run; `fitting_nodes` can."""
        for phase, phase_plan in self.others.items():
            self._refuse_other_partials(phase, phase_plan)
        for node in self.graph.nodes:
            if node.name not in fitting_nodes and node.op.refusals.values:
                self._refuse(node)

    def _refuse(self, node: Node) -> None:
        """Raise SpecError where a node's op cannot run with the node's settings."""
        as_run, makers = self.as_run(node), self.graph.makers
        shapes = {port: ref.shape for port, ref in as_run.weights.items()} | sizes(as_run, makers, self.partials)
        message = {"message": str(self.message_dtype(node))}
        assert node.op.refusals.values is not None
        refusal = node.op.refusals.values(shapes, {**self.told_to(node), **self.active(node), **message})
        if refusal is not None:
            raise self.refusal(node, *refusal)

    def refusal(self, node: Node, attribute: str, reason: str) -> RefusedError:
        """The error to raise where a node's op cannot run with the node's settings."""
        return RefusedError(attribute, reason, node=node.name, origin=self.origin(node, attribute))

    def _refuse_other_partials(self, phase: Case, phase_plan: Plan) -> None:
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

    def at_phase(self, phase: Case) -> Plan:
        """The plan in one of its phases: itself where the settings are the same.

        Raises ValueError for a phase that it was not bound for.
        """
        if phase not in self.phases:
            raise ValueError(f"the plan was bound for {listed(self.phases)}, and is asked for {phase}")
        return self.others.get(phase, self)

    def at(self, sizes: Sizes) -> Plan:
        """The plan for a step of these sizes. Raises ValueError where it was bound for none such."""
        return self.at_phase(case_of(self.phases, sizes) or sizes.phase)

    @property
    def distinct(self) -> tuple[Plan, ...]:
        """This plan, and those of other phases, each once."""
        return tuple({id(plan): plan for plan in (self, *self.others.values())}.values())

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
        values = {name: dtype if value == MODEL else value for name, value in self.values(node).items()}
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
            dtype = self.message_dtype(node) if node.op.role.reduces else None
            if dtype is not None:
                yield node.name, dtype

    def held_otherwise(self, plan: Plan) -> frozenset[str]:
        """The nodes whose values hold other things under `plan`, another of the same graph, in some phase of either."""
        pairs = product(self.distinct, plan.distinct)
        return frozenset().union(
            *(held_otherwise(self.graph, a.choices_elsewhere, b.choices_elsewhere) for a, b in pairs)
        )

    def told_to(self, node: Node) -> Mapping[str, Value]:
        """The choices of other nodes that this node's kernel is passed, by name."""
        return self.choices_elsewhere.get(node.name, {})

    def _met(self, attribute: Attribute, node: Node, choices: Mapping[str, Value]) -> bool:
        """Whether the attribute's `needs` is met: several pieces, partial sums at this node, or no partial sums."""
        if attribute.needs == "always":
            return True
        if attribute.needs == "pieces":
            return node.op.cut.pieces(choices) > 1
        reads = inputs_read(node, choices)
        inputs = (value for value, reads_it in zip(node.inputs, reads, strict=True) if reads_it)
        most = max(self.partials[value] for value in (*node.values, *inputs))
        return (most > 1) == (attribute.needs == "partials")

    def read_inputs(self, node: Node) -> tuple[str | None, ...]:
        """The node's input values; None in place of an input that is not read under these settings."""
        region = self.region(node.name)
        if region is not None:
            return region.inputs
        if not node.op.reads:
            return node.inputs
        reads = inputs_read(node, {**self.told_to(node), **self.active(node)})
        return tuple(value if reads_it else None for value, reads_it in zip(node.inputs, reads, strict=True))

    def sees_rows(self, node: Node) -> bool:
        """Whether a token's bits at a node may depend on which other tokens are computed with it. Of a user's function
        this is always assumed.
        """
        as_run = self.as_run(node)
        edited = any(edit.verb == "capacity" for edit in as_run.edits)
        return node.name in self.replaced() or edited or node.op.tokens.sees_rows(self.active(node), as_run.params)


def _sums(count: int) -> str:
    return "whole" if count == 1 else f"in {count} partial sums"
