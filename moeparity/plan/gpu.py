"""A side's `gpu` as rules: on whose tensor cores its GEMMs are added up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from moeparity.errors import SpecError, Where
from moeparity.numerics.tensor_core.gemm_orders import TensorCoreOrder
from moeparity.ops.linear import ORDER
from moeparity.ops.registry import OPS
from moeparity.plan.engine_profile import Profile
from moeparity.plan.gemm_plans import planned_for
from moeparity.plan.rule import BY_RECIPE, Rule
from moeparity.plan.spec import variant_schema

GPU: Final = "gpu"
"""The name of these rules in reports: `placement gpu`."""


PLANNED: Final = ("linear", "gate", "lm_head")
"""Ops that call cuBLAS for one GEMM without others beside it."""


def gpu_rules(variant: variant_schema.Variant, profile: Profile, where: Where) -> tuple[Rule, ...]:
    """The orders of all GEMMs on a variant's GPU: one chain over K, unless the recipe's `set:` says something else; of
    the ops in `PLANNED`, what its file of plans says.

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
    order = str(TensorCoreOrder(variant.gpu))
    planned = _planned(variant, where)
    names = dict.fromkeys(a.name for op in OPS.values() for a in op.attributes if a.tensor_cores)
    unplanned = {name: [op.name for op in OPS.values() if _has(op.name, name)] for name in names}
    if planned:
        unplanned[ORDER.name] = [op for op in unplanned[ORDER.name] if op not in PLANNED]
    rules = [*planned, *(_rule(at, name, order, ops) for name, ops in unplanned.items())]
    for op in OPS.values():
        if op.gemm:
            rules += [_rule(at, a.name, form, [op.name]) for a in op.attributes for form in set(a.same_sums.values())]
    return tuple(rules)


def _planned(variant: variant_schema.Variant, where: Where) -> list[Rule]:
    """The rule of a variant's file of plans, if it has one."""
    if variant.plans is None or variant.gpu is None:
        return []
    at = Where(where.path, variant.line_of("plans") or where.line)
    return [_rule(at, ORDER.name, str(planned_for(variant.plans, variant.gpu, at)), PLANNED)]


def _has(op: str, name: str) -> bool:
    attribute = OPS[op].attribute(name)
    return attribute is not None and attribute.tensor_cores


def _rule(at: Where, name: str, value: str, ops: Sequence[str]) -> Rule:
    """A rule of one value for all nodes of some ops."""
    others = tuple(op for op in OPS if op not in ops)
    return Rule(placement=GPU, without=others, values=((name, value),), where=at, evidence=BY_RECIPE)
