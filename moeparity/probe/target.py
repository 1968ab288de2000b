"""The user's function: which kinds there are, how to find it, and how to call it so that its mistakes are reported."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from moeparity import user_code
from moeparity.errors import MoeparityError, did_you_mean, listed
from moeparity.numerics.dtypes import name_of
from moeparity.ptx import PtxError


@dataclass(frozen=True, slots=True)
class CallableKind:
    """How a callable of one kind is called.

    names: of its parameters; the kind is recognised by them if the user does not name it. signed: its values may have
    any sign, so that probes can cancel; other kinds add squares or exponentials.
    """

    name: str
    call: str
    adds: str
    names: tuple[tuple[str, ...], ...]
    m: int = 64
    width: int = 1
    signed: bool = True
    products: bool = False


KINDS = {
    kind.name: kind
    for kind in (
        CallableKind("sum", "f(x [M, n]) -> [M]", "each row of x (a mean is a sum that is scaled)", (("x",),)),
        CallableKind(
            "dot",
            "f(a [n], b [n]) -> one number",
            "the products of a and b",
            (("a", "b"), ("x", "y")),
            m=1,
            products=True,
        ),
        CallableKind(
            "linear",
            "f(x [M, n], weight [N, n]) -> [M, N]",
            "for each output the n products of a row of x and a row of weight",
            (("x", "weight"), ("x", "w"), ("input", "weight")),
            m=8,
            width=512,
            products=True,
        ),
        CallableKind(
            "combine",
            "f(rows [M, n, H], weights [M, n]) -> [M, H]",
            "for each output the n weighted rows of a token",
            (("rows", "weights"), ("rows", "scores")),
            m=4,
            width=512,
            products=True,
        ),
        CallableKind(
            "rms_norm",
            "f(x [M, n], weight [n], eps) -> [M, n]",
            "the squares of a row of x",
            (("x", "weight", "eps"), ("x", "w", "eps")),
            signed=False,
            products=True,
        ),
        CallableKind("softmax", "f(x [M, n]) -> [M, n]", "the exponentials of a row of x", (("x",),), signed=False),
        CallableKind(
            "all_reduce",
            "f(x [E]) -> [E], or in place, in each of n processes",
            "for each element the values of the n processes",
            (("x",),),
            m=1,
            width=1000,
        ),
    )
}


def kind_of(parameters: tuple[str, ...]) -> str | None:
    """The kind whose parameters have these names; None unless exactly one kind has."""
    names = [kind.name for kind in KINDS.values() if parameters in kind.names]
    return names[0] if len(names) == 1 else None


@dataclass(frozen=True, slots=True)
class Function:
    """A user's function, under the name by which the user asked for it, and its kind.

    race: for n, rows and width, whether its bits depend on which of its threads go first, in words, "" if not.
    rests_on: on what its runs so far rest, in lines. Both are for compiled kernels only. scatters: whether an
    all-reduce is made of a reduce-scatter.
    """

    name: str
    call: Callable[..., Any]
    kind: CallableKind
    race: Callable[[int, int, int], str] = lambda n, m, width: ""  # noqa: ARG005
    rests_on: Callable[[], tuple[str, ...]] = tuple
    scatters: bool = False

    def __call__(self, *arguments: torch.Tensor | float, shape: tuple[int, ...]) -> torch.Tensor:
        """The function's result for `arguments`, a float tensor of `shape`; if it returns nothing, what it wrote in
        place.

        Raises MoeparityError for any exception and any wrong result.
        """
        try:
            with torch.no_grad():
                out = self.call(*arguments)
        except PtxError as error:
            raise MoeparityError(f"{self.description(arguments)}: {error}") from None
        except user_code.CAUGHT as error:
            raise MoeparityError(
                f"{self.description(arguments)} raised {user_code.error_line(error, __file__)}."
            ) from None
        if out is None and self.kind.name == "all_reduce":
            out = arguments[0]
        if not isinstance(out, torch.Tensor):
            raise MoeparityError(
                f"{self.description(arguments)} returned {type(out).__name__}; expected a tensor {list(shape)}."
            )
        if tuple(out.shape) != shape or name_of(out.dtype) is None:
            raise MoeparityError(
                f"{self.description(arguments)} returned {out.dtype} {list(out.shape)}; expected floats {list(shape)}, "
                f"as {self.kind.name} is {self.kind.call}. Is it of another kind? Give --kind."
            )
        return out.detach().cpu()

    def description(self, arguments: tuple[torch.Tensor | float, ...]) -> str:
        """The call, as a message names it."""
        values = (
            f"{name_of(value.dtype)} {list(value.shape)}" if isinstance(value, torch.Tensor) else f"{value:.3g}"
            for value in arguments
        )
        return f"{self.name} called as {self.kind.name} with {', '.join(values)}"


def load(text: str, folder: Path, kind: str | None) -> Function:
    """The function that `text` names as MODULE:FUNCTION; modules in `folder` are found as well.

    kind None: it is recognised by the names of the parameters. Raises MoeparityError if there is no such module or
    function, if importing it fails, or if the kind can't be recognised.
    """
    if not all(text.partition(":")[::2]):
        raise MoeparityError(f"{text}: expected MODULE:FUNCTION, as in `kernels:my_sum` for my_sum in ./kernels.py.")
    if kind is not None and kind not in KINDS:
        raise MoeparityError(f"--kind {kind}: expected one of {listed(KINDS)}.{did_you_mean(kind, KINDS)}")
    function = user_code.load(text, folder, text)
    return Function(text, function, KINDS[kind or _kind(text, function)])


def _kind(text: str, function: Callable[..., Any]) -> str:
    try:
        parameters = tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        parameters = ()
    kind = kind_of(parameters)
    if parameters == ("x",):
        return _of_one(function)
    if kind is None:
        state = f"its parameters are ({', '.join(parameters)})" if parameters else "its parameters have no names"
        raise MoeparityError(f"{text}: what it adds up cannot be told: {state}. Give --kind: one of {listed(KINDS)}.")
    return kind


def _of_one(function: Callable[..., Any]) -> str:
    """The kind of f(x): an all-reduce if torchrun has started this process, else by the result of a call."""
    if "LOCAL_RANK" in os.environ:
        return "all_reduce"
    try:
        shape = tuple(function(torch.zeros(3, 8)).shape)
    except user_code.CAUGHT:  # it is called, and told of, again
        return "sum"
    return "softmax" if shape == (3, 8) else "sum"
