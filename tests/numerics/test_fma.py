"""Fused multiply-adds and exact sums against fractions rounded once."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moeparity.numerics.bits import same_bits
from moeparity.numerics.fma import addcmul_is_fma, exact_sum, fma, fma_by_round_to_odd
from tests.numerics import scalar
from tests.numerics.scalar import BF16, DTYPES, FP32, FP64, any_number, number, same_numbers, tensor

DTYPE = st.sampled_from(DTYPES)
TIE = 1 + 2.0**-12  # its square lies between two fp32 numbers


@settings(max_examples=200)
@given(data=st.data())
def test_both_ways_of_an_fma(data: st.DataObject) -> None:
    value = (
        number(FP32, exponents=60) | number(FP32, exponents=3) | st.sampled_from([TIE, -TIE, 2.0**-80, 2.0**-149, -0.0])
    )
    triples = data.draw(st.lists(st.tuples(value, value, value), min_size=1, max_size=9))
    a, b, c = (tensor(list(column), FP32) for column in zip(*triples, strict=True))
    expected = tensor([scalar.fma(*triple, FP32) for triple in triples], FP32)
    assert same_bits(fma_by_round_to_odd(a, b, c), expected)
    assert same_bits(fma(a, b, c), expected)
    assert same_bits(fma(a.expand(2, -1), b, c[:1].expand(2, 1))[1], fma_by_round_to_odd(a, b, c[:1]))


@settings(max_examples=100)
@given(data=st.data())
def test_an_fma_of_cancelling_numbers(data: st.DataObject) -> None:
    pairs = data.draw(st.lists(st.tuples(number(FP32, exponents=20), number(FP32, exponents=20)), min_size=1))
    a, b = (tensor(list(column), FP32) for column in zip(*pairs, strict=True))
    products = a * b
    expected = tensor([scalar.fma(x, y, -z, FP32) for (x, y), z in zip(pairs, products.tolist(), strict=True)], FP32)
    assert same_bits(fma(a, b, -products), expected)
    assert same_bits(fma_by_round_to_odd(a, b, -products), expected)


@settings(max_examples=100)
@given(data=st.data())
def test_an_fma_in_fp64(data: st.DataObject) -> None:
    value = number(FP64, exponents=200)
    triples = data.draw(st.lists(st.tuples(value, value, value), min_size=1, max_size=5))
    a, b, c = (tensor(list(column), FP64) for column in zip(*triples, strict=True))
    assert same_bits(fma(a, b, c), tensor([scalar.fma(*triple, FP64, FP64) for triple in triples], FP64))
    assert same_bits(fma(a, b, -(a * b)), tensor([scalar.fma(x, y, -(x * y), FP64, FP64) for x, y, _ in triples], FP64))


@settings(max_examples=200)
@given(data=st.data(), dtype=DTYPE)
def test_an_exact_sum(data: st.DataObject, dtype: torch.dtype) -> None:
    count = data.draw(st.integers(1, 9))
    term = any_number(dtype) | number(dtype, exponents=30)
    rows = data.draw(st.lists(st.lists(term, min_size=count, max_size=count), min_size=1, max_size=4))
    terms = tensor([x for row in rows for x in row], dtype).view(len(rows), count).unbind(1)
    assert same_numbers(exact_sum(terms), tensor([scalar.total(row, FP32) for row in rows], FP32))


@settings(max_examples=200)
@given(data=st.data())
def test_an_exact_sum_in_fp64(data: st.DataObject) -> None:
    terms = data.draw(st.lists(number(FP64, exponents=200) | number(FP64, exponents=2), min_size=1, max_size=9))
    terms += data.draw(st.sampled_from([[], [-terms[0]], [-x for x in terms[:-1]]]))
    result = exact_sum([tensor([x], FP64) for x in terms])
    assert same_bits(result, tensor([scalar.total(terms, FP64, FP64)], FP64))


def test_ties_that_one_crumb_breaks() -> None:
    # 1 + 2^-24 is a tie; 2^-100 is far below what fp64 keeps beside it.
    for crumb, expected in ((2.0**-100, 1 + 2.0**-23), (-(2.0**-100), 1.0), (0.0, 1.0)):
        terms = [torch.tensor(x) for x in (1.0, crumb, 2.0**-24)]
        assert exact_sum(terms).item() == expected
    a = torch.tensor(TIE)
    assert fma(a, a, torch.tensor(2.0**-80)).item() == scalar.nearest(Fraction(TIE) ** 2 + Fraction(2) ** -80, FP32)
    assert fma(a, a, torch.tensor(2.0**-80)).item() != (a * a + 2.0**-80).item()
    assert fma(a, a, torch.tensor(2.0**-80)).item() != (a.double() * a.double() + 2.0**-80).float().item()


def test_infinities_and_zeros() -> None:
    inf, unit, zero = (torch.tensor(x) for x in (math.inf, 1.0, -0.0))
    assert fma_by_round_to_odd(inf, unit, unit).item() == math.inf
    assert fma_by_round_to_odd(inf, unit, -inf).isnan().item()
    assert same_bits(fma_by_round_to_odd(zero, unit, zero), zero)
    assert same_bits(exact_sum([zero, zero]), zero)
    assert same_bits(exact_sum([unit, zero, -unit]), torch.tensor(0.0))
    huge = torch.tensor(3e38)
    assert fma_by_round_to_odd(huge, unit, huge).item() == math.inf
    assert fma_by_round_to_odd(huge, torch.tensor(2.0), -huge).item() == huge.item()


def test_sixteen_bit_operands_are_widened_first() -> None:
    a, b, c = (torch.tensor(x, dtype=BF16) for x in (1.0078125, 1.0078125, 2.0**-30))
    result = fma(a, b, c)
    assert (result.dtype, result.item()) == (FP32, scalar.fma(a.item(), b.item(), c.item(), FP32))


@pytest.mark.parametrize("wrong", ["two roundings", "plain fp64"])
def test_the_self_test_sees_an_addcmul_that_is_no_fma(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    def addcmul(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a * b + c if wrong == "two roundings" else (a.double() * b.double() + c.double()).float()

    monkeypatch.setattr(torch, "addcmul", addcmul)
    addcmul_is_fma.cache_clear()
    try:
        assert not addcmul_is_fma("cpu")
        a = torch.tensor(TIE)
        crumb = torch.tensor(2.0**-80)
        assert same_bits(fma(a, a, crumb), fma_by_round_to_odd(a, a, crumb)), "the other way is taken"
    finally:
        addcmul_is_fma.cache_clear()
