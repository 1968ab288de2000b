"""Callables that add in a stated order, through the one executor of orders."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch

from moeparity.numerics.dtypes import torch_dtype
from moeparity.numerics.orders import parse, tree
from moeparity.numerics.summation import sum_axis
from moeparity.probe.calls import Setup
from moeparity.probe.find import Result, Tree, probe
from moeparity.probe.shape import Shape, shape_of
from moeparity.probe.target import KINDS, Function


def planted(order: str, *, kind: str = "sum", accumulate: str = "fp32") -> Function:
    """A sum, a dot product or a GEMM that adds in `order` and rounds its sum to the dtype of its arguments."""
    parsed, dtype = parse(order), torch_dtype(accumulate)

    def total(x: torch.Tensor) -> torch.Tensor:
        return sum_axis(x, parsed, -1, accumulate=dtype, executor="eager").to(x.dtype)

    def products(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return sum_axis(a, parsed, -1, accumulate=dtype, times=b, executor="eager").to(a.dtype)

    def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return products(x[:, None].expand(-1, len(weight), -1), weight[None].expand(len(x), -1, -1))

    calls: dict[str, Callable[..., torch.Tensor]] = {"sum": total, "dot": products, "linear": linear}
    return Function(order, calls[kind], KINDS[kind])


def probed_tree(order: str, n: int, *, kind: str = "sum", accumulate: str = "fp32", dtype: str = "fp32") -> Tree:
    """The one tree that a probe of a planted order finds."""
    m, width = {"sum": (64, 1), "dot": (1, 1), "linear": (1, 64)}[kind]
    setup = Setup(n=n, dtype=torch_dtype(dtype), m=m, width=width)
    whole: Result = probe(planted(order, kind=kind, accumulate=accumulate), [setup])
    (tree_,) = whole.trees.values()
    return tree_


def shape(order: str, n: int) -> Shape:
    return shape_of(tree(parse(order), n), n)


def random_order(seed: int) -> tuple[str, int]:
    """An order of one to three levels of any form, and a number of leaves."""
    draw = random.Random(seed)  # noqa: S311
    return drawn_order(draw, draw.choice([2, 3, 5, 17, 64, 100, 129, 255]))


def drawn_order(draw: random.Random, n: int) -> tuple[str, int]:
    """An order of one to three levels of any form over n leaves, and n."""
    levels = []
    for _ in range(draw.randint(0, 2)):
        k = draw.choice([2, 3, 4, 8, 16])
        levels.append(
            draw.choice(
                [
                    f"lanes({k})",
                    f"blocks({k})",
                    f"threads({k}, vector={draw.choice([2, 4])})",
                    f"fold_hi({k})",
                    f"fold_lo({k})",
                ]
            )
        )
    last = [
        "sequential",
        "reverse",
        "fold_hi",
        "fold_lo",
        "fold_hi(skip)",
        "sequential(zero)",
        f"unordered({draw.randrange(100)})",
    ]
    if not levels and n < 70:
        last += ["fused(4)", "fused(3, zero)"]
    if not levels:
        last += ["cascade", "cascade(halves)", "cascade(lanes=1)", "sequential(kahan)"]
        last += [f"rotate({draw.randrange(n)}, -1)", f"rotate({draw.randrange(n)}, 1)"]
    return " | ".join([*levels, draw.choice(last)]), n
