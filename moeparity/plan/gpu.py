"""A side's `gpu` as rules: on whose tensor cores its GEMMs are added up, and what its profile states of that GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any, Final

from moeparity.errors import SpecError, Where
from moeparity.numerics.tensor_core.gemm_orders import TensorCoreOrder
from moeparity.ops.linear import ORDER, SPLITS
from moeparity.ops.mla import KV_B_ORDER, MLA_EXPAND
from moeparity.ops.registry import OPS
from moeparity.plan.engine_profile import Profile
from moeparity.plan.gemm_plans import planned_for
from moeparity.plan.graph import Graph
from moeparity.plan.latest import Latest
from moeparity.plan.rule import Rule
from moeparity.plan.spec import variant_schema

GPU: Final = "gpu"
"""The name of these rules in reports: `placement gpu`."""

PLANNED: Final = {
    **dict.fromkeys(("linear", "gate", "lm_head"), (ORDER.name, SPLITS.name)),
    MLA_EXPAND.name: (KV_B_ORDER,),
}
"""Ops that call cuBLAS for one GEMM without others beside it, and what of theirs its plan says."""

_ASSUMED: Final = "inferred: what no profile states of a GPU: one chain over K, and FlashAttention 2's forward"

Choice = tuple[str, str]
"""An op and an attribute of it."""

_LATEST: Final[Latest[Profile]] = Latest(64)


def on_gpu(profile: Profile, gpu: str | None) -> Profile:
    """A profile with what its files state of a GPU, each file's above its other rules: profiles that extend it override
    that. Orders of tensor cores are not among it: `gpu_rules` has these.
    """
    if gpu is None or not profile.on_gpus:
        return profile
    return _LATEST.of((profile,), gpu, lambda: replace(profile, layers=tuple(_layers(profile, gpu))))


def _layers(profile: Profile, gpu: str) -> Iterator[tuple[Rule, ...]]:
    """The layers in their order, two for each file or flag, and a third behind the last of each file."""
    pairs = list(zip(profile.layers[::2], profile.layers[1::2], strict=True))
    last = {rule.profile: depth for depth, pair in enumerate(pairs) for layer in pair for rule in layer}
    for depth, pair in enumerate(pairs):
        yield from pair
        statements = (rule for rule in _of(profile, gpu) if last.get(rule.profile, len(pairs) - 1) == depth)
        yield tuple(rule for stated in statements for choice, rule in _apart(stated) if not _on_tensor_cores(choice))


def gpu_rules(graph: Graph, variant: variant_schema.Variant, profile: Profile, where: Where) -> tuple[Rule, ...]:
    """The orders of all GEMMs on a variant's GPU: of the ops in `PLANNED`, what its file of plans says; else what the
    profile states of that GPU; else one chain over K. The recipe's `set:` overrides all of them.

    Kernels that compute the GEMMs of all experts at once give the bits of one GEMM after the other there, since no tile
    has an effect on the order, so these are computed one after the other. Raises SpecError if the profile's own orders
    are those of CPUs.
    """
    if variant.gpu is None:
        return ()
    at = Where(where.path, variant.line_of(GPU) or where.line)
    if profile.machine is not None:
        raise SpecError(
            f"{at}: gpu: profile {profile.name} speaks of CPUs (`machine:`), and {variant.gpu} is a GPU. Leave `gpu` "
            "out, or name a profile of an engine on GPUs."
        )
    chosen = _planned(variant, where)
    chosen += [(choice, rule) for choice, rule in _stated(graph, profile, variant.gpu) if choice not in dict(chosen)]
    order = str(TensorCoreOrder(variant.gpu))
    cores = ((choice, order) for choice in _choices() if _is_assumed(choice))
    # Kernels of all experts at once: the form whose sums are the same, one after the other.
    alike = (
        ((op.name, a.name), form)
        for op in OPS.values()
        if op.role.gemm
        for a in op.attributes
        for form in set(a.same_sums.values())
    )
    assumed = (_rule(at, choice, value) for choice, value in chain(cores, alike) if choice not in dict(chosen))
    return (*(rule for _, rule in chosen), *assumed)


def _planned(variant: variant_schema.Variant, where: Where) -> list[tuple[Choice, Rule]]:
    """The rules of a variant's file of plans, if it has one."""
    if variant.plans is None or variant.gpu is None:
        return []
    at = Where(where.path, variant.line_of("plans") or where.line)
    order, evidence = planned_for(variant.plans, variant.gpu, at)
    values: dict[str, str | int] = {ORDER.name: str(order), KV_B_ORDER: str(order), SPLITS.name: 1}
    choices = [(op, name) for op, names in PLANNED.items() for name in names]
    return [(choice, replace(_rule(at, choice, values[choice[1]]), evidence=evidence)) for choice in choices]


def _stated(graph: Graph, profile: Profile, gpu: str) -> Iterator[tuple[Choice, Rule]]:
    """The orders of tensor cores that a profile states; what it states itself stands for what it extends."""
    owners: dict[Choice, str | None] = {}
    for stated in (rule for rule in _of(profile, gpu) if rule.holds_of(graph.model_type, graph.sizes)):
        for choice, rule in _apart(stated):
            if _on_tensor_cores(choice) and owners.setdefault(choice, stated.profile) == stated.profile:
                yield choice, rule


def _of(profile: Profile, gpu: str) -> Iterator[Rule]:
    return (rule for name, rule in profile.on_gpus if name == gpu)


def _apart(stated: Rule) -> Iterator[tuple[Choice, Rule]]:
    """The values of a profile's rule, each as a rule of its own, for the same models and cases."""
    for name, value in stated.values:
        choice = str(stated.op), name
        yield choice, replace(stated, op=None, **_selected(choice), values=((name, value),))


def _choices() -> Iterator[Choice]:
    return ((op.name, attribute.name) for op in OPS.values() for attribute in op.attributes)


def _on_tensor_cores(choice: Choice) -> bool:
    attribute = OPS[choice[0]].attribute(choice[1])
    return attribute is not None and attribute.tensor_cores


def _is_assumed(choice: Choice) -> bool:
    """Whether tensor cores are assumed where nothing is stated: not for what depends on another order."""
    attribute = OPS[choice[0]].attribute(choice[1])
    return attribute is not None and attribute.tensor_cores and ORDER.name not in attribute.when


def _rule(at: Where, choice: Choice, value: str | float) -> Rule:
    """A rule of one value for all nodes of an op."""
    return Rule(**_selected(choice), values=((choice[1], value),), where=at, evidence=_ASSUMED)


def _selected(choice: Choice) -> dict[str, Any]:
    """What makes a rule one of a GPU, and of an op."""
    return {"placement": GPU, "without": tuple(op for op in OPS if op != choice[0])}
