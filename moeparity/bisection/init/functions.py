"""Semantic differences between two launched sides, and the flags that would remove them."""

from __future__ import annotations

from collections.abc import Sequence

from moeparity.errors import SpecError, Where
from moeparity.plan.engine_profile import Profile
from moeparity.plan.graph import Graph
from moeparity.plan.schedule.steps import FORWARD
from moeparity.plan.sides import bound_side, cases_of
from moeparity.plan.spec.variant_schema import Variant
from moeparity.plan.toggles import SEMANTICS, Toggle, toggles


def other_functions(
    graph: Graph, dtype: str, variants: Sequence[Variant], profiles: Sequence[Profile], where: Where
) -> tuple[str, ...]:
    """A sentence for each choice of kind `semantics` that differs between trainer and server and that a flag could
    change or that decides how log-probabilities are made. Other semantic choices, such as a router's rule for ties, are
    left to the bisection, which shows whether they have an effect. () if a side can't be bound.
    """
    try:
        cases = cases_of(graph, dtype, (FORWARD,), variants, profiles, where)
        bound = zip(variants, profiles, strict=True)
        trainer, server = (bound_side(graph, v, profile, dtype, where, phases=cases) for v, profile in bound)
        of_both = toggles(trainer, server)
    except SpecError:
        # `LaunchedSides.obstacle` tells why the recipe can't run.
        return ()
    return tuple(map(_words, (toggle for toggle in of_both if toggle.kind == SEMANTICS and _matters(toggle))))


def _matters(toggle: Toggle) -> bool:
    return toggle.has_flag or any(member.node.op.reports for member in toggle.members)


def _words(toggle: Toggle) -> str:
    flags = (("server", toggle.candidate_changed_by), ("trainer", toggle.reference_changed_by))
    cure = " or ".join(f"on the {side} set {flag}" for side, flag in flags if flag) or "no flag is known"
    return f"{toggle.name} is {toggle.reference} in the trainer, {toggle.candidate} in the server: {cure}"
