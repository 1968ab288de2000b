"""Every form of the log-softmax against fp32 arithmetic one number at a time, and against torch's kernels.

Exponentials and logarithms are torch's own: that they are those of one number at a time is tested first. Vocabularies
are no powers of two, and logits lie so far apart that some exponentials vanish.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from moeparity.errors import SpecError
from moeparity.ops.kernels.log_probs import log_probs
from moeparity.ops.log_probs import LOG_PROBS
from tests.numerics.scalar import FP64
from tests.ops.log_probs import COLLECTIVES, DEFAULTS, RANKS, SUMS, expected, logits
from tests.ops.plain import BF16, FP16, FP32, assert_bits, random
from tests.verified import record

TORCH = f"torch {torch.__version__}"
MASS = "it is the mass that is kept. Set a number above 0, at most 1 (1: every token is kept)."
FRACTION = "it is a fraction of the largest probability. Set a number from 0 to 1 (0: no token is left out)."
DIVISOR = "logits are divided by it. Set a number above 0 (1: no penalty)."
FORMS = ("log_softmax", "log_of_softmax", "minus_logsumexp", "shifted")


def ours(x: Tensor, **at: Any) -> Tensor:
    return log_probs(x, w={}, p={}, at=DEFAULTS | at)


def assert_expected(x: Tensor, **at: Any) -> Tensor:
    """Ours, which has the bits of the scalar loop."""
    computed = ours(x, **at)
    assert_bits(computed, expected(x, **at))
    return computed


@pytest.mark.parametrize("vocabulary", [37, 1003])
def test_what_torch_does_on_cpu(vocabulary: int) -> None:
    """Its exp and log of a number do not depend on where the number stands, nor on strides."""
    for dtype in (FP32, FP64):
        x = torch.cat([-random(vocabulary, dtype=dtype).abs() * 60, random(vocabulary, dtype=dtype, seed=1)])
        for function, values in ((torch.exp, x), (torch.log, x.abs() + 1)):
            one_by_one = torch.stack([function(value) for value in values])
            strided = torch.empty(2 * vocabulary, 3, dtype=dtype)[:, 1].copy_(values)
            assert torch.equal(function(values), one_by_one)
            assert torch.equal(function(strided), one_by_one)
            assert torch.equal(function(values[3:]), one_by_one[3:])


@pytest.mark.parametrize("dtype", [BF16, FP32, FP64])
def test_unrounded_logits_are_handed_on(dtype: torch.dtype) -> None:
    x = logits(37, dtype)
    assert ours(x, form="unrounded") is x
    over = [[[value / 0.7 for value in row] for row in rows] for rows in x.double().tolist()]
    assert torch.equal(ours(x, form="unrounded", temperature=0.7), torch.tensor(over, dtype=FP64))


@pytest.mark.parametrize("vocabulary", [37, 1003])
@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str, dtype: torch.dtype, vocabulary: int) -> None:
    assert_expected(logits(vocabulary, dtype), form=form)
    assert_expected(logits(vocabulary, dtype), form=form, temperature=0.7)


@pytest.mark.parametrize("vocabulary", [37, 1003])
@pytest.mark.parametrize("order", SUMS)
@pytest.mark.parametrize("form", ["minus_logsumexp", "shifted"])
def test_orders(form: str, order: str, vocabulary: int) -> None:
    assert_expected(logits(vocabulary, FP32), form=form, order=order)


@pytest.mark.parametrize(("vocabulary", "block"), [(37, 10), (37, 37), (37, 64), (37, 1), (1003, 100)])
@pytest.mark.parametrize("order", ["native", "reverse", "lanes(8) | fold_hi"])
@pytest.mark.parametrize("form", ["minus_logsumexp", "shifted"])
def test_blocks(form: str, order: str, vocabulary: int, block: int) -> None:
    assert_expected(logits(vocabulary, FP32), form=form, order=order, block=block)


@pytest.mark.parametrize("vocabulary", [37, 1003])
@pytest.mark.parametrize("order", ["native", "sequential"])
@pytest.mark.parametrize("ranks", RANKS)
def test_orders_of_ranks(ranks: str, order: str, vocabulary: int) -> None:
    assert_expected(logits(vocabulary, BF16), tensor=4, ranks=ranks, order=order)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_collectives(collective: str) -> None:
    at = {"tensor": 4, "collective": collective}
    assert_expected(logits(1003, BF16), order="fold_lo", temperature=1.3, scaled=BF16, **at)
    x = [logits(37, FP32, seed=seed) for seed in range(8)]
    computed = torch.stack([assert_expected(each, **at) for each in x])
    for collective_b in COLLECTIVES.keys() - {collective}:
        assert not torch.equal(computed, torch.stack([expected(each, tensor=4, collective=collective_b) for each in x]))


@pytest.mark.parametrize(("inputs", "output"), list(itertools.product([BF16, FP16, FP32, FP64], repeat=2)))
@pytest.mark.parametrize("form", FORMS)
def test_sites(form: str, inputs: torch.dtype, output: torch.dtype) -> None:
    """The `scaled` of the second is what the sum is taken of, whatever came in."""
    assert_expected(logits(37, FP32), form=form, inputs=inputs, output=output)
    for scaled, division in itertools.product([BF16, FP16, FP32, FP64], ["divide", "reciprocal", "inverse"]):
        at = {"inputs": inputs, "output": output, "scaled": scaled, "division": division}
        assert_expected(logits(37, FP32), form=form, temperature=0.7, **at)


@pytest.mark.parametrize("temperature", [0.6, 0.7, 1.3, 0.69921875, 3.0])
def test_the_reciprocal_is_another_number(temperature: float) -> None:
    x = logits(1003, FP32)
    computed = [assert_expected(x, temperature=temperature, division=name) for name in ("divide", "reciprocal")]
    assert not torch.equal(*computed)


def test_the_inverse_is_rounded_once() -> None:
    """1.1 in fp32 has another reciprocal than 1.1; the reciprocals of 0.7 are the same."""
    x, names = logits(1003, FP32), ("reciprocal", "inverse")
    first, second = ([assert_expected(x, temperature=t, division=name) for name in names] for t in (1.1, 0.7))
    assert not torch.equal(*first)
    assert torch.equal(*second)


def test_the_choices_differ() -> None:
    x = logits(1003, FP32, tokens=60)
    base = {"temperature": 0.7, "tensor": 4, "collective": "gloo.all_reduce", "order": "sequential"}
    choices: list[dict[str, Any]] = [{}, {"temperature": 0.8}, {"division": "reciprocal"}, {"tensor": 1}, {"tensor": 3}]
    choices += [{"inputs": FP16}, {"scaled": BF16}, {"output": BF16}, {"block": 100}, {"block": 100, "form": FORMS[2]}]
    choices += [{"form": form} for form in FORMS[:3]] + [{"order": order} for order in SUMS if order != "sequential"]
    choices += [{"collective": "nccl.ring"}, *({"collective": "none", "ranks": ranks} for ranks in RANKS)]
    computed = [ours(x, **(base | choice)).double() for choice in choices]
    for (i, a), (j, b) in itertools.combinations(enumerate(computed), 2):
        assert not torch.equal(a, b), (choices[i], choices[j])


@pytest.mark.parametrize("dtype", [BF16, FP16, FP32])
def test_what_underflows_is_the_least_finite_number(dtype: torch.dtype) -> None:
    """SGLang clamps to it; fp32's own would be -inf in 16 bits."""
    x = logits(1003, FP32)
    assert (x.softmax(-1).log() == -math.inf).nonzero()[:, -1].tolist() == [5] * 10
    computed = ours(x, form="log_of_softmax", output=dtype)
    assert (computed[..., 5] == torch.finfo(dtype).min).all()
    assert torch.equal(computed.clamp(min=-200.0), x.softmax(-1).log().to(dtype).clamp(min=-200.0))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("dtype", [BF16, FP16, FP32])
def test_kernels_of_torch(dtype: torch.dtype, temperature: float) -> None:
    """As engines call them; over a temperature in the logits' own dtype, and in fp32."""
    x = logits(1003, dtype, tokens=60)
    tokens = torch.randint(1003, (120,), generator=torch.Generator().manual_seed(0))
    for inner_dtype in {dtype, FP32}:
        cast = x.to(inner_dtype)
        over = cast.div(temperature) if temperature != 1 else cast
        wide = over.float()
        live = {
            "log_softmax": F.log_softmax(over, dim=-1, dtype=FP32),
            "log_of_softmax": wide.softmax(-1).log_().clamp_(min=torch.finfo(FP32).min),
            "minus_logsumexp": wide - torch.logsumexp(wide, dim=-1, keepdim=True),
        }
        for form, theirs in live.items():
            at: dict[str, Any] = {
                "form": form,
                "temperature": temperature,
                "inputs": inner_dtype,
                "scaled": inner_dtype,
            }
            assert_bits(ours(x, **at), theirs)
            record("log_probs", DEFAULTS | at, TORCH, operands=dtype)
        loss = F.cross_entropy(wide.view(120, -1), tokens, reduction="none")
        chosen = live["log_softmax"].view(120, -1).gather(-1, tokens[:, None]).squeeze(-1)
        assert_bits(-loss, chosen)


@pytest.mark.parametrize("vocabulary", [37, 1003, 32003])
def test_cascade_is_torchs_own_sum(vocabulary: int) -> None:
    x = logits(vocabulary, FP32, tokens=7)
    at: dict[str, Any] = {"form": "minus_logsumexp", "order": "cascade"}
    assert_bits(ours(x, **at), x - torch.logsumexp(x, dim=-1, keepdim=True))
    record("log_probs", DEFAULTS | at, TORCH, operands=FP32)
    assert_bits(ours(x, order="cascade"), ours(x))
    assert_bits(ours(x, order="cascade", tensor=3), ours(x, tensor=3))


def test_torchs_16_bit_kernel_on_cpu_rounds_the_sum_and_its_log() -> None:
    """As no other does, so that it is not what `output` stands for."""
    x = logits(1003, BF16, tokens=60)
    shifted = x.float() - x.float().amax(-1, keepdim=True)
    added = shifted.exp().sum(-1, keepdim=True).bfloat16().float().log().bfloat16().float()
    assert_bits(x.log_softmax(-1), (shifted - added).bfloat16())
    assert not torch.equal(x.log_softmax(-1), ours(x, form="log_softmax", inputs=BF16, output=BF16))


@pytest.mark.parametrize(
    ("values", "attribute", "message"),
    [
        ({"temperature": 0.0}, "temperature", "logits are divided by it. Set a number above 0."),
        ({"temperature": -0.7}, "temperature", "logits are divided by it. Set a number above 0."),
        ({"top_p": 0.0}, "top_p", MASS),
        ({"top_p": 1.5}, "top_p", MASS),
        ({"min_p": -0.1}, "min_p", FRACTION),
        ({"min_p": 1.1}, "min_p", FRACTION),
        ({"repetition_penalty": 0.0}, "repetition_penalty", DIVISOR),
        ({"repetition_penalty": -1.0}, "repetition_penalty", DIVISOR),
        (
            {"top_p": 0.9, "block": 64},
            "block",
            "no token of a block may be kept, and what its sum is then is not known. Set 0.",
        ),
        ({"order": "sequential(fma)"}, "order", "fma contracts products, and exponentials are none."),
        ({"ranks": "reverse(fma)"}, "ranks", "fma contracts products, and the ranks' sums are none."),
        ({"ranks": "tree(0+1+2)"}, "ranks", "tree(0+1+2) adds up 3 values, and there are 4 ranks."),
        (
            {"ranks": "lanes(2) | tree(0+1+2)"},
            "ranks",
            "lanes(2) | tree(0+1+2): tree(...) adds up 3 values, and there are 2.",
        ),
    ],
)
def test_what_cannot_be(values: dict[str, Any], attribute: str, message: str) -> None:
    assert LOG_PROBS.refusals.values is not None
    choices: dict[str, Any] = {**DEFAULTS, "temperature": 1.0, "order": "native", "ranks": "sequential"}
    del choices["tensor"], choices["collective"]
    choices |= dict.fromkeys(("inputs", "output"), "fp32")
    assert LOG_PROBS.refusals.values({}, {**choices, "tensor": 4, **values}) == (attribute, message)
    assert LOG_PROBS.refusals.values({}, {**choices, "tensor": 4}) is None


@pytest.mark.parametrize("site", ["inputs", "scaled", "output"])
def test_no_library_adds_up_in_fp64(site: str) -> None:
    assert LOG_PROBS.refusals.values is not None
    choices: dict[str, Any] = {**DEFAULTS, "temperature": 0.7, "inputs": "fp32", "scaled": "fp32", "output": "fp32"}
    del choices["collective"], choices["ranks"]
    choices["tensor"] = 2
    refused = LOG_PROBS.refusals.values({}, {**choices, "collective": "gloo.all_reduce", site: "fp64"})
    says = "gloo.all_reduce is known for bf16, fp16, fp32, and the ranks' sums are in fp64."
    assert refused == (None if site == "inputs" else ("collective", says))
    assert LOG_PROBS.refusals.values({}, {**choices, "ranks": "reverse", site: "fp64"}) is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"order": "tree(0+1+2)"},
            r"^order: tree\(0\+1\+2\): tree\(...\) adds up 3 values, and there are 37. Set another",
        ),
        (
            {"order": "blocks(9) | tree(0+1+2)", "block": 10},
            r"^order: blocks\(9\) \| tree.* adds up 3 values, and there are 2. Set another",
        ),
        ({"tensor": 20}, "^tensor: 37 logits, cut over 20 ranks, leave some without any."),
    ],
)
def test_what_a_run_refuses(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        ours(logits(37, FP32), **values)


def test_gathered_logits_are_those_of_one_rank() -> None:
    x = logits(501, FP32)
    of_one_rank, cut = ours(x), ours(x, tensor=4, parallel="vocabulary")
    assert_bits(ours(x, tensor=4, parallel="gathered"), of_one_rank)
    assert not torch.equal(of_one_rank, cut)
