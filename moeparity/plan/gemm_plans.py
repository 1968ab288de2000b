"""A file of cuBLASLt's plans as an order of GEMMs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from moeparity.documents.checked import read
from moeparity.errors import SpecError, Where, listed
from moeparity.numerics.collectives.declaration import Level
from moeparity.numerics.tensor_core.gemm_plans import HOPPER, KNOWN, is_held, plan_for
from moeparity.numerics.tensor_core.instructions import architecture_of
from moeparity.numerics.tensor_core.planned_order import PlannedOrder, Run
from moeparity.plan.spec import reader
from moeparity.plan.spec.gemm_plans_schema import PlannedGemm, PlansFile

PLANS_OF: Final = "plans of "
"""How the source of such an order begins."""


def planned_for(name: str, gpu: str, where: Where) -> tuple[PlannedOrder, str]:
    """The order that a side's file of plans writes for its GPU, and how sure that order is: the level and the source.

    Raises SpecError for a file of another GPU, or of a version of cuBLASLt whose numbers are not known.
    """
    path = reader.find_file(name, where, "plans")
    file = read(path, PlansFile)
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
    order = PlannedOrder(gpu, {(of.n, of.k, of.inputs, of.output): tuple(_runs(of, gpu)) for of in file.gemms})
    return order, f"{_level(file)}: {PLANS_OF}cuBLASLt {file.library} on {file.device}, {path.name}"


def _level(file: PlansFile) -> Level:
    """`verified: vectors` where an H200 computed GEMMs by all of these algorithms; else they are read (bitequiv)."""
    recorded = all(is_held(numbers) for of in file.gemms for _, numbers in _numbers(of))
    return "verified: vectors" if recorded and architecture_of(file.gpu) == HOPPER else "read"


def _numbers(of: PlannedGemm) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Rows, and the integers of their plan."""
    for text in of.plans:
        rows, _, words = text.partition(":")
        yield rows, tuple(map(int, words.split()))


def _runs(of: PlannedGemm, gpu: str) -> Iterator[Run]:
    """The plans of a shape, neighbours that are alike in one run."""
    run: Run | None = None
    for rows, numbers in _numbers(of):
        first, _, last = rows.partition("-")
        plan = plan_for(numbers, (int(last or first), of.n, of.k), architecture_of(gpu)) or numbers[0]
        if run is not None and run[1] + 1 == int(first) and run[2] == plan:
            run = (run[0], int(last or first), plan)
            continue
        if run is not None:
            yield run
        run = (int(first), int(last or first), plan)
    if run is not None:
        yield run
