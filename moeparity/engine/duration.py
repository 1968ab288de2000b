"""Estimates how long work takes before it begins: the amounts of work, counted from shapes, times the rates of a
machine.

The amounts are for the worst case, as those of memory are: variants share nothing once their numerics have differed.
For a sum in a stated order, and for a user's function, only the work of the kernel that it replaces is counted. With
the rates of `FASTEST` the estimate is for a machine faster than most, so that little is refused that would have
finished in time. `moeparity.engine.calibration` measures the rates of this machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from moeparity.engine.liveness import Values
from moeparity.errors import MoeparityError
from moeparity.inputs.weights.checkpoint import Checkpoint
from moeparity.inputs.weights.store import WeightStore
from moeparity.limits import number
from moeparity.ops.memory import BYTES, Call
from moeparity.plan.graph import Node

HOURS = "MOEPARITY_HOURS"
"""An environment variable: how many hours a command may be estimated to take."""
_MOST_HOURS = 24.0
_REPORTED = 19
"""How many numbers of eight bytes the metrics move for each logit. Measured: AMD EPYC, torch 2.13."""

Amount = tuple[str, str]
"""What is counted, and the dtype it is counted in ("": not told apart by dtype)."""

MULTIPLY_ADDS, WEIGHT_BYTES, MOVED, CALLS = "multiply-adds", "weight bytes", "moved bytes", "calls"
MADE, DRAWN, READ = "made bytes", "drawn numbers", "read bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """How much work there is, by kind and dtype.

    multiply-adds: of GEMMs and attention.
    weight bytes: of the weights that GEMMs read, however few tokens there are.
    moved bytes: of values that go in and out of kernels, and of their scratch memory.
    calls: of kernels.
    made bytes: of weights that are stacked, cast or copied.
    drawn numbers: of synthetic weights.
    read bytes: of a checkpoint's files. No rate is measured for these: it depends on the disk.
    further_call: how much more of the same it would take to call every kernel of one variant once more.
    """

    of: Mapping[Amount, float]
    further_call: Mapping[Amount, float] = field(default_factory=dict)

    def __add__(self, other: Amounts) -> Amounts:
        """Both one after the other."""
        return Amounts(of=_sum(self.of, other.of), further_call=_sum(self.further_call, other.further_call))

    def only(self, *kinds: str) -> Amounts:
        """The amounts of these kinds."""
        return Amounts(of={key: n for key, n in self.of.items() if key[0] in kinds})

    def repeated(self, draws: int) -> Amounts:
        """With every kernel called this many times more."""
        return Amounts(of=_sum(self.of, _times(self.further_call, draws)), further_call=self.further_call)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Seconds for a unit of each amount. A dtype that was not measured has the rate of one of the same width."""

    seconds: Mapping[Amount, float]

    def seconds_of(self, amounts: Amounts) -> float:
        """The seconds that this work takes, one thing after the other."""
        return sum(n * self._unit(*key) for key, n in amounts.of.items())

    def _unit(self, amount: str, dtype: str) -> float:
        if (amount, dtype) in self.seconds:
            return self.seconds[amount, dtype]
        nearest_dtypes = [
            (abs(BYTES[of_dtype] - BYTES[dtype]), s)
            for (w, of_dtype), s in self.seconds.items()
            if w == amount and of_dtype
        ]
        return min(nearest_dtypes)[1] if dtype and nearest_dtypes else 0.0


FASTEST = {
    device: Rates(seconds={(MULTIPLY_ADDS, "bf16"): 1 / multiply_adds, (CALLS, ""): 1e-5})
    for device, multiply_adds in {"cpu": 1e12, "cuda": 2e14}.items()
}
"""By device: rates that few machines exceed."""


def amounts_of(values: Values) -> Amounts:
    """The work in a pass whose values were followed, without loading its weights."""
    of: dict[Amount, float] = {}
    of_evaluation: dict[Amount, float] = {}
    for node in values.graph.nodes:
        for i, calls in enumerate(values.calls.get(node.name, {}).values()):
            evaluation: dict[Amount, float] = {}
            for call, times in calls:
                _put(evaluation, _times(_of_call(node, call), times))
            _put(of, evaluation)
            if i == 0:
                _put(of_evaluation, evaluation)
            if node.name == values.graph.scores:
                tokens = values.sequences * values.length
                _put(of, {(MOVED, ""): 8.0 * _REPORTED * calls[0][0].outputs[0] * tokens})
    return Amounts(of=of, further_call=of_evaluation)


def amounts_of_loading(weights: WeightStore, dtypes: Sequence[str]) -> Amounts:
    """The work to load all weights of a pass in each of `dtypes`."""
    refs = weights.unread(dtypes)
    made_bytes = sum(weights.made_bytes(ref, dtypes) for ref in refs)
    unread_bytes = weights.unread_bytes(dtypes)
    if isinstance(weights.checkpoint, Checkpoint):
        return Amounts(of={(MADE, ""): made_bytes, (READ, ""): unread_bytes})
    drawn = sum(math.prod(ref.shape) * ref.count for ref in refs if len(ref.shape) > 1)
    return Amounts(of={(MADE, ""): made_bytes, (DRAWN, ""): drawn})


def _of_call(node: Node, call: Call) -> dict[Amount, float]:
    """One kernel call."""
    dtype = str(call.active.get("inputs", call.dtype))
    multiply_adds = weight_bytes = 0.0
    for ref in node.weights.values() if node.op.role.gemm or node.op.tokens.mixes else ():
        if len(ref.shape) > 1:
            elements = math.prod(ref.shape)
            chosen = call.inputs[1] if ref.each else ref.count
            # Counted are the experts that any of these tokens goes to, if all experts are equally likely.
            hit = ref.count * (1 - (1 - chosen / ref.count) ** call.tokens)
            multiply_adds += call.tokens * chosen * elements
            weight_bytes += hit * elements * BYTES[dtype]
    if node.op.tokens.state is not None:
        # Each token reads the state and adds to it.
        multiply_adds += 2 * call.tokens * call.state_numbers
    elif node.op.tokens.mixes:
        multiply_adds += 2 * call.tokens * call.length * call.outputs[0]
    # A user's function reads what its region reads, and counts as the last op of the region.
    moved = sum(n * size for n, size in zip(call.inputs, call.input_bytes, strict=False))
    moved += sum(n * size for n, size in zip(call.outputs, node.op.memory.output_bytes(call), strict=True))
    return {
        (MULTIPLY_ADDS, dtype): multiply_adds,
        (WEIGHT_BYTES, dtype): weight_bytes,
        (MOVED, ""): call.tokens * moved + node.op.scratch(call),
        (CALLS, ""): 1,
    }


def _sum(a: Mapping[Amount, float], b: Mapping[Amount, float]) -> dict[Amount, float]:
    return {key: a.get(key, 0) + b.get(key, 0) for key in (*a, *b)}


def _put(total: dict[Amount, float], more: Mapping[Amount, float]) -> None:
    for key, n in more.items():
        total[key] = total.get(key, 0) + n


def _times(of: Mapping[Amount, float], factor: float) -> dict[Amount, float]:
    return {key: n * factor for key, n in of.items()}


def require_time(seconds: float, action: str, advice: str) -> None:
    """Raises MoeparityError if the estimate for `action` is above the allowed hours."""
    most = most_hours()
    if seconds > most * 3600:
        hours = seconds / 3600
        raise MoeparityError(
            f"{action} would take at least {hours:,.0f} hours, more than {most:g} ({HOURS} raises that). {advice}"
        )


def most_hours() -> float:
    """The hours that a command may be estimated to take. Raises MoeparityError if the environment variable is not such
    a number.
    """
    return number(HOURS, _MOST_HOURS, "a number of hours above 0, or inf", infinite=True)
