"""The kinds of callables that can be probed, and how each is called. No torch here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """How a callable of one kind is called.

    names: of its parameters, from which the kind is told where the user does not say. `signed`: its values may have any
    sign, so that probes can cancel; the others add squares or exponentials.
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
        Kind("sum", "f(x [M, n]) -> [M]", "each row of x (a mean is a sum that is scaled)", (("x",),)),
        Kind(
            "dot",
            "f(a [n], b [n]) -> one number",
            "the products of a and b",
            (("a", "b"), ("x", "y")),
            m=1,
            products=True,
        ),
        Kind(
            "linear",
            "f(x [M, n], weight [N, n]) -> [M, N]",
            "for each output the n products of a row of x and a row of weight",
            (("x", "weight"), ("x", "w"), ("input", "weight")),
            m=8,
            width=512,
            products=True,
        ),
        Kind(
            "combine",
            "f(rows [M, n, H], weights [M, n]) -> [M, H]",
            "for each output the n weighted rows of a token",
            (("rows", "weights"), ("rows", "scores")),
            m=4,
            width=512,
            products=True,
        ),
        Kind(
            "rms_norm",
            "f(x [M, n], weight [n], eps) -> [M, n]",
            "the squares of a row of x",
            (("x", "weight", "eps"), ("x", "w", "eps")),
            signed=False,
        ),
        Kind("softmax", "f(x [M, n]) -> [M, n]", "the exponentials of a row of x", (("x",),), signed=False),
        Kind(
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
    """The kind whose parameters have these names; None where no one kind has."""
    names = [kind.name for kind in KINDS.values() if parameters in kind.names]
    return names[0] if len(names) == 1 else None
