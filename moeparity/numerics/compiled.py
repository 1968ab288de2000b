"""Compiles functions of tensors by torch's Inductor, if that keeps every bit and is faster.

A compiler may drop the rounding between two steps, contract a product into a sum, or take `x + 0` for `x`. So a
compiled function is first compared with the original, on data whose sums are rounding residue only, and on signed zeros
and infinities. If bits differ, if nothing can be compiled (no C++ compiler), or if it is not faster, the original
function runs from then on, and `families` says so.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from moeparity.numerics.bits import same_bits

Executor = Literal["auto", "eager", "compiled"]
"""`auto`: compiled once a family has done so much work that compiling pays, if it then is faster. `compiled`: at once
and whether faster or not, but only with equal bits. `eager`: never.
"""

Function = Callable[..., torch.Tensor]

PER_STEP = 1 << 26
"""A family is compiled after it has added up so many elements eagerly for each step of its graph. That takes about as
long as compiling (0.1 s a step), so no run takes more than twice as long as it could.
"""

LARGEST = 128
"""A graph with more steps is not compiled, since a compiler's time and memory grow faster than the graph."""

SUMS = 1024
"""The self-test makes at least so many sums."""

LEAST_FASTER = 1.1
"""A compiled function has to be faster by this factor; smaller differences are within the noise of timing."""

_OPTIONS: dict[str, str | bool | int] = {
    "emulate_precision_casts": True,  # without it the rounding between two 16-bit steps is left out
    "cpp.enable_floating_point_contract_flag": "off",
    "cpp.enable_unsafe_math_opt_flag": False,
    "compile_threads": 1,  # no pool of processes that outlives the sum
}


@dataclass(slots=True)
class Family:
    """Sums of one order, shape and dtypes, which share a compiled function.

    elements: how many were added so far. function: what was compiled. why_eager: why it will not be used, None while
    that is open. faster: by which factor it was faster than eager on the self-test's data.
    """

    name: str
    steps: int
    elements: int = 0
    function: Function | None = None
    why_eager: str | None = None
    faster: float | None = None

    def __str__(self) -> str:
        if self.why_eager is not None:
            return f"{self.name}: eager, {self.why_eager}"
        times = "" if self.faster is None else f", {self.faster:.1f} times as quick as eager"
        return f"{self.name}: {'eager so far' if self.function is None else 'compiled'}{times}"


_FAMILIES: dict[Hashable, Family] = {}


def families() -> tuple[Family, ...]:
    """All families so far that may be compiled sooner or later."""
    return tuple(_FAMILIES.values())


def forget() -> None:
    """Forget all families and compiled functions."""
    _FAMILIES.clear()


def evaluate(
    function: Function,
    inputs: Sequence[torch.Tensor],
    *,
    identity: tuple[Hashable, ...],
    steps: int,
    axis: int | None,
    executor: Executor,
) -> torch.Tensor:
    """`function(*inputs)`, bit for bit, compiled or not.

    identity: together with the inputs' shapes, strides and dtypes it must identify the function; it starts with the
    order and the dtype to which sums are rounded. axis: the axis that is added over; None: the inputs are added. Inputs
    without dimensions are constants. A result with a NaN is computed eagerly, since its payload depends on the order of
    an addition's operands, which compilers change.
    """
    if executor == "eager" or not all(map(_compilable, inputs)):
        return function(*inputs)
    layout = tuple((x.shape, x.stride(), x.dtype) for x in inputs)
    key = (identity, layout, axis, torch.get_num_threads())
    family = _FAMILIES.get(key)
    if family is None:
        family = _FAMILIES[key] = Family(_name(identity, inputs), steps)
    family.elements += sum(x.numel() for x in inputs)
    is_due = executor == "compiled" or family.elements >= PER_STEP * steps
    if is_due and family.function is None and family.why_eager is None:
        _settle(family, function, inputs, axis)
    if family.function is None or (executor == "auto" and family.why_eager is not None) or not is_due:
        return function(*inputs)
    result = family.function(*inputs)
    # A NaN makes the sum NaN, and a sum takes a fifth of the time of a check of each element.
    return function(*inputs) if result.sum().isnan() else result


def _compilable(x: torch.Tensor) -> bool:
    """Whether it is on CPU, needs no gradient, and has no element in several places."""
    separate = all(stride or size == 1 for size, stride in zip(x.shape, x.stride(), strict=True))
    return x.device.type == "cpu" and not x.requires_grad and separate and x.numel() > 0


def _name(identity: tuple[Hashable, ...], inputs: Sequence[torch.Tensor]) -> str:
    large = [x for x in inputs if x.ndim]
    dtypes = [str(dtype).removeprefix("torch.") for dtype in (large[0].dtype, identity[1])]
    return f"{identity[0]} over {len(large)} x {dtypes[0]} {list(large[0].shape)}, each add rounded to {dtypes[1]}"


def _settle(family: Family, function: Function, inputs: Sequence[torch.Tensor], axis: int | None) -> None:
    """Compile, compare and time; afterwards `family` knows whether the compiled function is used."""
    if family.steps > LARGEST:
        family.why_eager = f"{family.steps} steps, more than {LARGEST}"
        return
    try:
        compiled = compiled_by_inductor(function, inputs)
        for probe in probes(inputs, axis):
            if not _agree(function(*probe), compiled(*probe)):
                family.why_eager = "other bits when compiled"
                return
    except Exception as error:  # noqa: BLE001 - a compiler fails in ways of its own, and none of them is the user's
        family.why_eager = f"it cannot be compiled here: {type(error).__name__}"
        return
    family.function = compiled
    family.faster = _faster(function, compiled, next(probes(inputs, axis)))
    if family.faster < LEAST_FASTER:
        family.why_eager = f"{family.faster:.1f} times as quick when compiled"


def compiled_by_inductor(function: Function, inputs: Sequence[torch.Tensor]) -> Function:
    """`function` traced on `inputs` and compiled for their shapes; raises any exception if that fails."""
    # Imported late: it takes seconds, and most runs never need it.
    from torch import _inductor as inductor
    from torch.fx.experimental.proxy_tensor import make_fx

    with warnings.catch_warnings(), _quiet(), torch.inference_mode(mode=False), torch.no_grad():
        warnings.simplefilter("ignore")
        plain: list[torch.Tensor | int | torch.SymInt | None] = [x.clone() if x.is_inference() else x for x in inputs]
        graph = make_fx(function)(*plain)
        artifact = inductor.compile(graph, plain, options=_OPTIONS)

    def run(*tensors: torch.Tensor) -> torch.Tensor:
        result = artifact(*tensors)
        return result if isinstance(result, torch.Tensor) else result[0]

    run(*inputs)
    return run


class _quiet:  # noqa: N801 - used as a function
    """Keeps Inductor's log of a failed compilation from being written, since the family reports it."""

    def __enter__(self) -> None:
        self.logger = logging.getLogger("torch._inductor")
        self.level = self.logger.level
        self.logger.setLevel(logging.CRITICAL)

    def __exit__(self, *_: object) -> None:
        self.logger.setLevel(self.level)


def probes(inputs: Sequence[torch.Tensor], axis: int | None) -> Iterator[list[torch.Tensor]]:
    """Data like `inputs` that show a wrong step: sums that cancel, only -0, and both with infinities in between.

    The numbers to be added are pairs r, -r of widely spread exponents in random order, so that the sum is rounding
    residue and shows its order even when rounded to 16 bits. Both numbers of a pair have the same second factor. With
    few sums more draws are made, since many a wrong order is right for most of them.
    """
    generator = torch.Generator().manual_seed(0)
    like = [x for x in inputs if x.ndim]
    shape, at = (torch.Size((len(like), *like[0].shape)), 0) if axis is None else (like[0].shape, axis)

    def copies(values: torch.Tensor, times: torch.Tensor) -> list[torch.Tensor]:
        data = iter(values.unbind() if axis is None else (values, times))
        return [x if not x.ndim else torch.empty_like(x).copy_(next(data)) for x in inputs]

    for _ in range(max(1, min(64, SUMS * shape[at] // shape.numel()))):
        pairs, twice = _pairs(shape, at, like[0].dtype, generator)
        yield copies(pairs, twice)
        chance = torch.rand(shape, generator=generator)
        infinite = torch.where(chance < 0.5 / shape[at], torch.inf, pairs)
        yield copies(torch.where(chance > 0.8, -0.0, infinite), twice)
    yield copies(torch.full(shape, -0.0), torch.ones(shape))


def _pairs(
    shape: torch.Size, axis: int, dtype: torch.dtype, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers that cancel along `axis` (a single one is 0), and factors for them."""
    half = list(shape)
    half[axis] //= 2
    low, high = (-14, 5) if dtype == torch.float16 else (-24, 24)

    def numbers() -> torch.Tensor:
        exponents = torch.randint(low, high + 1, half, generator=generator)
        return torch.ldexp(torch.rand(half, generator=generator) - 0.5, exponents).to(dtype)

    r, t = numbers(), numbers()
    single = torch.zeros_like(r.narrow(axis, 0, 1)) if shape[axis] > 1 else torch.zeros(shape)
    odd = [single] if shape[axis] % 2 else []
    places = torch.rand(shape, generator=generator).argsort(axis)
    return torch.cat([r, -r, *odd], axis).gather(axis, places), torch.cat([t, t, *odd], axis).gather(axis, places)


def _agree(reference: torch.Tensor, candidate: torch.Tensor) -> bool:
    """Whether bits are equal; any NaN equals any NaN."""
    same_places = torch.equal(reference.isnan(), candidate.isnan())
    return same_places and same_bits(*(torch.where(x.isnan(), 0.0, x).to(x.dtype) for x in (reference, candidate)))


def _faster(function: Function, compiled: Function, inputs: Sequence[torch.Tensor]) -> float:
    """By which factor `compiled` is faster: the best of seven calls each, in turn."""
    best = [float("inf"), float("inf")]
    for _ in range(7):
        for i, call in enumerate((function, compiled)):
            start = time.perf_counter()
            call(*inputs)
            best[i] = min(best[i], time.perf_counter() - start)
    return best[0] / best[1]
