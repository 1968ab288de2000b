"""A file of cuBLASLt's plans as an order of GEMMs."""

from __future__ import annotations

from collections.abc import Iterator

from moeparity.errors import SpecError, Where, listed
from moeparity.numerics.tensor_core.gemm_plans import KNOWN, GemmPlan, plan_of
from moeparity.numerics.tensor_core.instructions import architecture_of
from moeparity.numerics.tensor_core.planned_order import PlannedOrder, Run
from moeparity.plan.spec import reader
from moeparity.plan.spec.gemm_plans_schema import PlannedGemm, PlansFile


def planned_for(name: str, gpu: str, where: Where) -> PlannedOrder:
    """The order that a side's file of plans writes for its GPU.

    Raises SpecError for a file of another GPU, or of a version of cuBLASLt whose numbers are not known.
    """
    path = reader.find_file(name, where, "plans")
    file = reader.read(path, PlansFile)
    if file.gpu != gpu:
        raise SpecError(
            f"{where}: plans {name!r} are those of {file.device} ({file.gpu}), and this side's gpu is {gpu}. Ask for "
            f"plans on that GPU (`moeparity kernel plans`), or say `gpu: {file.gpu}`."
        )
    versions = KNOWN.get(architecture_of(gpu), ())
    if tuple(map(int, file.library.split(".")[:2])) not in versions:
        words = listed(f"{major}.{minor}" for major, minor in versions) or "no version"
        raise SpecError(
            f"{where}: plans {name!r} are those of cuBLASLt {file.library}; what its numbers stand for on {gpu} is "
            f"known for {words}. Ask that version, or leave `plans` out: then every GEMM is one chain."
        )
    return PlannedOrder(gpu, {(of.n, of.k, of.inputs, of.output): tuple(_runs(of)) for of in file.gemms})


def _runs(of: PlannedGemm) -> Iterator[Run]:
    """The plans of a shape, neighbours that are alike in one run."""
    run: Run | None = None
    for text in of.plans:
        rows, _, words = text.partition(":")
        first, _, last = rows.partition("-")
        numbers = tuple(map(int, words.split()))
        plan: GemmPlan | int = plan_of(numbers, of.k) or numbers[0]
        if run is not None and run[1] + 1 == int(first) and run[2] == plan:
            run = (run[0], int(last or first), plan)
            continue
        if run is not None:
            yield run
        run = (int(first), int(last or first), plan)
    if run is not None:
        yield run
