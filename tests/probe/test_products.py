"""What becomes of products and squares before they are added: found by replay, and pasted, it gives the kernel's bits.

The kernels are written with plain torch; only an fma goes through `moeparity.numerics.fma`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import yaml

from moeparity.numerics.dtypes import torch_dtype
from moeparity.numerics.fma import fma
from moeparity.numerics.orders import parse
from moeparity.ops.registry import OPS
from moeparity.probe import show
from moeparity.probe.calls import Setup
from moeparity.probe.certify import Claim, certify
from moeparity.probe.find import Result, probe
from moeparity.probe.fragment import fragment
from moeparity.probe.target import KINDS, Function
from tests.ops.plain import assert_bits
from tests.printed import printed
from tests.probe import kernels

K, WIDTH = 6, 48
Combine = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def combine(product: str, accumulate: str, output: str) -> Combine:
    """The slots one after the other, each product rounded to `product`, or contracted where that is `fma`."""

    def call(rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        dtype = torch_dtype(accumulate)
        total = torch.zeros(rows.shape[0], rows.shape[2], dtype=dtype)
        for k in range(rows.shape[1]):
            row, weight = rows[:, k].float(), weights[:, k, None].float()
            if product == "fma":
                total = fma(row, weight, total.float()).to(dtype)
            else:
                total = (total.float() + (row * weight).to(torch_dtype(product)).float()).to(dtype)
        return total.to(torch_dtype(output))

    return call


def probed(call: Callable[..., torch.Tensor], kind: str, n: int, dtype: str, m: int = 4) -> Result:
    return probe(Function("f", call, KINDS[kind]), [Setup(n=n, dtype=torch_dtype(dtype), m=m, width=WIDTH)])


CASES = [
    ("bf16", "bf16", "fp32", "bf16", "rounded"),
    ("bf16", "bf16", "fp32", "fp32", "rounded"),
    ("bf16", "bf16", "bf16", "bf16", "rounded"),
    ("bf16", "fp16", "fp32", "bf16", "rounded"),
    ("bf16", "fp32", "fp32", "bf16", "exact"),
    ("bf16", "fp32", "bf16", "bf16", "contracted"),
    ("fp16", "fp16", "fp32", "fp16", "rounded"),
    ("fp16", "fp32", "fp32", "fp16", "exact"),
    ("fp32", "fp32", "fp32", "bf16", "rounded"),
    ("fp32", "bf16", "fp32", "fp32", "rounded"),
    ("fp32", "bf16", "fp32", "bf16", "rounded"),
    ("fp32", "fma", "fp32", "fp32", "contracted"),
    ("fp32", "fma", "fp32", "bf16", "contracted"),
]


@pytest.mark.parametrize(("dtype", "product", "accumulate", "output", "products"), CASES)
def test_a_combine_is_found_and_its_fragment_gives_its_bits(
    dtype: str, product: str, accumulate: str, output: str, products: str
) -> None:
    """Arguments, products, additions and sum in every dtype that engines combine in."""
    call = combine(product, accumulate, output)
    result = probed(call, "combine", K, dtype)
    (tree,) = result.trees.values()
    assert tree.replays, tree
    assert tree.products == products
    assert tree.product == (product if products == "rounded" else "")
    (rule,) = yaml.safe_load(fragment(result))["rules"]
    values = {a.name: a.default for a in OPS["combine"].attributes} | rule["set"] | {"scaling": "weights"}
    sites = {a.name for a in OPS["combine"].attributes if a.kind == "rounding" and a.name in rule["set"]}
    at = {name: torch_dtype(value) if name in sites else value for name, value in values.items()}
    draw = torch.Generator().manual_seed(5)
    rows = torch.randn(3, K, 40, generator=draw).to(torch_dtype(dtype))
    weights = torch.rand(3, K, generator=draw).to(torch_dtype(dtype))
    ours = OPS["combine"].load()(rows[None], None, weights[None], w={}, p={}, at=at)
    assert_bits(ours[0], call(rows, weights))


def test_products_are_spoken_of_only_where_sums_came_out_again() -> None:
    """Products rounded to 12 bits are of no dtype: neither exact, nor rounded, nor contracted is said of them."""
    result = probed(kernels.combine_in_12_bits, "combine", K, "bf16")
    assert all(tree.order is not None and tree.equal < tree.replayed for tree in result.trees.values())
    assert result.unknown == [
        f"{name} replays {tree.equal} of {tree.replayed} sums only" for name, tree in result.trees.items()
    ]
    text = " ".join(printed(show.probed(result)).split())
    assert "fma" not in text
    assert "no order can be set, since A replays" in text


def norm(order: str, square: str) -> Callable[..., torch.Tensor]:
    """Lanes of four, folded; squares rounded to `square`, or contracted."""
    lanes = {"lanes(4) | fold_hi": 4}[order]

    def call(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        parts = x.float().unflatten(-1, (-1, lanes))
        total = parts[:, 0].square() if square == "fma" else parts[:, 0].square().to(torch_dtype(square)).float()
        for i in range(1, parts.shape[1]):
            part = parts[:, i]
            total = fma(part, part, total) if square == "fma" else total + part.square().to(torch_dtype(square)).float()
        total = (total[:, 0] + total[:, 2]) + (total[:, 1] + total[:, 3])
        return (x.float() * torch.rsqrt(total / x.shape[-1] + eps)[:, None] * weight.float()).to(x.dtype)

    return call


@pytest.mark.parametrize(("dtype", "square"), [("fp32", "fma"), ("fp32", "fp32"), ("bf16", "bf16"), ("bf16", "fp32")])
def test_squares_of_a_norm_are_found_and_held_to(dtype: str, square: str) -> None:
    """Contracted squares are an order with fma, which `certify` takes for a norm, and tells from one without."""
    order, n = "lanes(4) | fold_hi", 64
    call = norm(order, square)
    (tree,) = probed(call, "rms_norm", n, dtype, m=16).trees.values()
    assert tree.replays, tree
    stated = "lanes(4, fma) | fold_hi" if square == "fma" else order
    assert str(tree.order) == str(parse(stated))
    assert dict(tree.sites)["square"] == ("fp32" if square == "fma" else square)
    function, setups = Function("f", call, KINDS["rms_norm"]), [Setup(n=n, dtype=torch_dtype(dtype), m=16, width=1)]

    def holds(order: str, product: str | None) -> bool:
        return all(v.holds for v in certify(function, setups, Claim(text=order, order=order, product=product)))

    assert holds(stated, None)
    assert holds(stated, "" if square == "fma" else square)
    if square == "fma":
        assert not holds(order, "")
    if dtype == "fp32" and square == "fp32":
        assert not holds("lanes(4, fma) | fold_hi", None)
    if square == "bf16":
        assert not holds(order, "fp32")


def test_elements_that_torch_adds_otherwise_are_classes_of_their_own_behind_rounded_products() -> None:
    """torch's sum over a middle axis goes another way in a row's last elements; six bf16 products seldom show it."""

    def call(rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return (rows * weights[..., None]).float().sum(1).to(rows.dtype)

    result = probed(call, "combine", K, "bf16")
    assert result.unknown == []
    draw = torch.Generator().manual_seed(1)
    rows = torch.randn(64, K, WIDTH, generator=draw) * 2.0 ** torch.randint(-20, 20, (64, K, WIDTH), generator=draw)
    out = rows.sum(1)
    for k in range(1, K):
        rows[:, 0] += rows[:, k]
    others = (out != rows[:, 0]).any(0).nonzero().flatten().tolist()
    ((_, places, _),) = result.places
    not_sequential = [p for p in places if "sequential" not in str(result.trees[p.name].order)]
    assert sorted({position % WIDTH for place in not_sequential for position in place.positions}) == others


@pytest.mark.parametrize("product", ["bf16", "fp32"])
def test_certify_holds_a_combine_to_what_its_products_are_rounded_to(product: str) -> None:
    function = Function("f", combine(product, "fp32", "bf16"), KINDS["combine"])
    setups = [Setup(n=K, dtype=torch.bfloat16, m=4, width=WIDTH)]
    for stated in ("bf16", "fp32", None):
        claim = Claim(text="node", order="sequential(zero)", product=stated)
        assert all(v.holds for v in certify(function, setups, claim)) == (stated in {product, None})
