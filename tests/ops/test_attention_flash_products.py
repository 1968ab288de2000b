"""Flash attention whose products are added in orders written out, and rescaled late, as vLLM's on CPUs: bit for bit
against one number at a time, of data with full mantissas.
"""

from __future__ import annotations

import pytest
import torch

from moeparity.ops.kernels.attention import attention
from tests.ops.flash_by_hand import DTYPES, PLAIN, SINKS, SITES, TOKENS, WIDTH, check, dense
from tests.ops.plain import BF16

ORDERS = ("sequential(fma)", "sequential", "reverse")


@pytest.mark.parametrize("scale_on", ["scores", "query"])
@pytest.mark.parametrize("scores_order", ORDERS)
@pytest.mark.parametrize("values_order", ORDERS)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_orders_of_both_products(scale_on: str, scores_order: str, values_order: str, dtype: str) -> None:
    at = PLAIN | {"scale_on": scale_on, "scores_order": scores_order, "values_order": values_order}
    for kv_order in ("ascending", "descending"):
        check(at | {"kv_order": kv_order, "probabilities": "fp32"}, data=dense(DTYPES[dtype], seed=3))


@pytest.mark.parametrize("exponential", ["exp2_fma", "exp2", "exp", "triton", "u20"])
@pytest.mark.parametrize("rescale_above", [0, 1, 2])
@pytest.mark.parametrize("contraction", ["none", "sum"])
@pytest.mark.parametrize("kv_block", [2, 3, 64])
def test_lazy_rescaling(exponential: str, rescale_above: int, contraction: str, kv_block: int) -> None:
    chosen = {"exponential": exponential, "rescale_above": rescale_above, "contraction": contraction}
    check(PLAIN | chosen | {"kv_block": kv_block, "kv_order": "ascending", "probabilities": "fp32"})


@pytest.mark.parametrize("sink", ["start", "end"])
@pytest.mark.parametrize("splits", [1, 2])
def test_a_cpus_attention_whole(sink: str, splits: int) -> None:
    """vLLM's of CPUs: all that it chooses together, with what it has beside (sinks, splits of keys for threads)."""
    at = PLAIN | {"scale_on": "query", "scores_order": "sequential(fma)", "values_order": "sequential(fma)"}
    at |= {"kv_order": "ascending", "exponential": "u20", "rescale_above": 1, "contraction": "sum"}
    at |= {"probabilities": "fp32", "output": "bf16", "sink": sink, "splits": splits, "kv_block": 2}
    check(at, data=dense(BF16, seed=5))
    if splits == 1 or sink == "start":
        check(at, data=dense(BF16, seed=6), sinks=SINKS.to(BF16))


def test_a_scale_that_is_a_power_of_two_may_stand_on_either() -> None:
    q, k, v = dense(BF16, seed=4)
    mask = torch.ones(2, TOKENS, dtype=torch.bool)
    at = PLAIN | {site: DTYPES[PLAIN[site]] for site in SITES} | {"exponential": "exp"}
    for softmax_scale, same in ((WIDTH**0.5 / 4, True), (1.0, False)):
        p = {"window": None, "softmax_scale": softmax_scale}
        scores, query = (
            attention(q, k, v.transpose(1, 2), mask, w={}, p=p, at=at | {"scale_on": on}) for on in ("scores", "query")
        )
        assert torch.equal(scores, query) == same
