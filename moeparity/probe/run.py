"""Runs `moeparity kernel probe` and `certify`: from the options of the command line to the report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from moeparity.errors import MoeparityError, did_you_mean, listed
from moeparity.numerics.collectives.registry import COLLECTIVES
from moeparity.numerics.dtypes import CHECKPOINT_NAMES, CUT_NAMES, FLOAT_NAMES, torch_dtype
from moeparity.numerics.orders import NATIVE, OrderError, parse
from moeparity.ops.norm.launches import SM_COUNT
from moeparity.ops.norm.reductions import RULES
from moeparity.ops.norm.rms_norm import MEAN_SQUARE
from moeparity.output.blocks import Document
from moeparity.probe.calls import Setup
from moeparity.probe.certify import Claim, certify, coverage
from moeparity.probe.collective import collective
from moeparity.probe.find import probe
from moeparity.probe.fragment import fragment
from moeparity.probe.kernels.callable import function_of
from moeparity.probe.kernels.launch import is_kernel_file, open_kernel
from moeparity.probe.live_all_reduce import first_rank, join, process_groups
from moeparity.probe.show import certified, probed
from moeparity.probe.target import Function, load

LARGEST_COUNT, LARGEST_SUM = 256, 1 << 16


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """The options as they were given; "" and None stand for the kind's defaults. Either `target` or `collective` is
    given.
    """

    target: str | None
    n: int | None
    kind: str | None
    dtype: str | None
    m: str = ""
    width: str = ""
    threads: str = ""
    alignment: str = ""
    collective: str | None = None

    @property
    def name(self) -> str:
        """What is probed, as the user named it."""
        return self.target or f"--collective {self.collective}"


def run(request: ProbeRequest, folder: Path) -> tuple[Document | None, str, list[str]]:
    """The report, the YAML fragment, and what has no order that replays; if there is any, there is no fragment.

    Only the first process of a job has report and fragment. Raises MoeparityError for a user's mistake.
    """
    with process_groups():
        result = probe(*prepare(request, folder))
    if not first_rank():
        return None, "", result.unknown
    return probed(result), "" if result.unknown else fragment(result), result.unknown


def prepare(request: ProbeRequest, folder: Path) -> tuple[Function, list[Setup]]:
    """The function, and a setup for every combination of rows, threads and alignment."""
    function, dtype = _target(request, folder)
    if dtype not in CHECKPOINT_NAMES:
        near = did_you_mean(dtype, CHECKPOINT_NAMES)
        raise MoeparityError(f"--dtype {dtype}: expected one of {listed(CHECKPOINT_NAMES)}.{near}")
    rows = numbers("--m", request.m, least=1)
    threads = numbers("--threads", request.threads, least=1)
    offsets = numbers("--alignment", request.alignment, least=0)
    widths = numbers("--positions", request.width, least=1)
    if function.kind.name == "all_reduce":
        on_gpu = request.collective is not None and torch.cuda.is_available()
        request = replace(request, n=join(request.n, on_gpu=on_gpu))
    if request.n is None:
        raise MoeparityError(f"{request.name}: how many values does it add up? Give --n.")
    if not 2 <= request.n <= LARGEST_SUM:
        raise MoeparityError(f"--n {request.n}: expected 2 to {LARGEST_SUM} values in a sum.")
    kind = function.kind
    if kind.name == "dot" and rows:
        raise MoeparityError(f"--m {request.m}: dot has one result, {kind.call}. Leave --m out.")
    first = Setup(n=request.n, dtype=torch_dtype(dtype), m=kind.m, width=kind.width)
    counts: list[int | None] = [*threads] or [None]
    return function, [
        replace(first, m=m, width=width, threads=count, offset=offset)
        for m in rows or [kind.m]
        for width in widths or [kind.width]
        for count in counts
        for offset in offsets or [0]
    ]


def _target(request: ProbeRequest, folder: Path) -> tuple[Function, str]:
    """The function, or the kernel that a file describes as one; and the dtype of its arguments."""
    if request.target is None:
        return collective(request.collective or ""), request.dtype or "fp32"
    if not is_kernel_file(request.target):
        return load(request.target, folder, request.kind), request.dtype or "fp32"
    for option, word in (
        ("--kind", request.kind),
        ("--dtype", request.dtype),
        ("--alignment", request.alignment),
    ):
        if word:
            raise MoeparityError(f"{option} {word}: {request.target} says what its kernel takes. Leave the option out.")
    kernel = open_kernel(folder / request.target)
    return function_of(kernel, request.target), kernel.file.dtype


def numbers(option: str, text: str, *, least: int) -> list[int]:
    """`1,2,4:8` -> 1, 2, 4, 5, 6, 7, 8. Raises MoeparityError for anything else, and for more than MOST numbers."""
    values: list[int] = []
    for part in filter(None, text.split(",")):
        first, colon, last = part.partition(":")
        try:
            a, b = int(first), int(last) if colon else int(first)
        except ValueError:
            a, b = 1, 0
        if not least <= a <= b or b - a >= LARGEST_COUNT:
            raise MoeparityError(f"{option} {text}: {part!r}; expected whole numbers from {least}, as in 1,2,4:8.")
        values += range(a, b + 1)
    if len(values) > LARGEST_COUNT:
        raise MoeparityError(f"{option} {text}: {len(values)} numbers; expected at most {LARGEST_COUNT}.")
    return list(dict.fromkeys(values))


def run_certify(request: ProbeRequest, folder: Path, claim: Claim) -> tuple[Document | None, bool]:
    """The report, which only the first process has, and whether all of it holds.

    Raises MoeparityError for a user's mistake.
    """
    with process_groups():
        function, setups = prepare(request, folder)
        verdicts = certify(function, setups, claim)
        report = certified(function, claim, verdicts, coverage(function, setups, verdicts))
    holds = all(verdict.holds for verdict in verdicts)
    return report if first_rank() else None, holds


def read_claim(text: str, accumulate: str | None, node: Mapping[str, str] | None) -> Claim:
    """What `--against` names: an order written out, a launch rule, a collective, or a node's attributes. Raises
    MoeparityError.
    """
    if accumulate is not None and accumulate not in FLOAT_NAMES:
        raise MoeparityError(f"--accumulate {accumulate}: expected one of {listed(FLOAT_NAMES)}.")
    if node is not None:
        return _claim_of_node(text, accumulate, node)
    if text in COLLECTIVES:
        return Claim(text=text, collective=_collective(text, text))
    try:
        order = text if text in RULES else str(parse(text))
    except OrderError as error:
        near = did_you_mean(text, [*COLLECTIVES, *RULES])
        raise MoeparityError(f"--against {text}: no order: {error}{near}") from None
    return Claim(text=text, order=order, accumulate=accumulate or "fp32")


def _claim_of_node(text: str, accumulate: str | None, node: Mapping[str, str]) -> Claim:
    """What a node's attributes in effect say of its sum."""
    if node.get("collective", "none") != "none":
        return Claim(text=text, collective=_collective(text, node["collective"]))
    statistic = node.get("statistic", MEAN_SQUARE)
    if statistic != MEAN_SQUARE:
        raise MoeparityError(
            f"--against {text}: its statistic is {statistic}, which is more than one sum of squares in one order."
        )
    if "order" not in node:
        raise MoeparityError(f"--against {text}: this node adds nothing up in an order that can be set.")
    if node["order"] == NATIVE:
        raise MoeparityError(
            f"--against {text}: its order is {NATIVE}, torch's own kernel, of which nothing is claimed. Set an "
            "order in the profile, or give one here."
        )
    return Claim(
        text=text,
        order=node["order"],
        accumulate=accumulate or node.get("accumulate") or "fp32",
        product=node.get("weighted", node.get("square", "")),
        sm_count=int(node.get("sm_count", SM_COUNT)),
        ranks=int(node.get("tensor", 1)),
        cut=node.get("output") in CUT_NAMES,
    )


def _collective(text: str, name: str) -> str:
    if name not in COLLECTIVES or COLLECTIVES[name].scatters:
        raise MoeparityError(
            f"--against {text}: {name} is no all-reduce of one algorithm; name one: {listed(_all_reduces())}."
        )
    return name


def _all_reduces() -> list[str]:
    return [name for name, collective in COLLECTIVES.items() if not collective.scatters]
