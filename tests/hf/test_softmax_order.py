"""transformers' logits with the softmax of attention written out, in the order that was found by probing."""

from __future__ import annotations

import pytest
import torch

from moeparity.engine.forward import forward
from tests.hf.compare import DTYPES, LIVE, assert_is, opened, tokens
from tests.hf.reference import reference
from tests.small_models import Shallow
from tests.verified import record_plan

LANES = {"AVX2": 8, "AVX512": 16, "AVX512_BF16": 16}
"""fp32 lanes of a register, by what ATen chose for this processor."""


@pytest.mark.parametrize("shape", [(3, 5), (3, 17), (2, 65)], ids=str)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("name", ["qwen3_moe", "deepseek_v3"])
def test_hf_eager_with_the_order_of_its_denominators_stated(
    shallow: Shallow, name: str, dtype: str, shape: tuple[int, int]
) -> None:
    model = opened(shallow(name))
    ids, lanes = tokens(model.vocab_size, shape), LANES[torch.backends.cpu.get_cpu_capability()]
    order = f"lanes({lanes}) | fold_hi" if shape[1] >= lanes else "sequential"
    written = {"softmax": "reciprocal", "exp": "sleef", "denominator": order}
    settings = {f"layers[*].attention.attend:{attribute}": value for attribute, value in written.items()}
    truth = reference(model.folder, "hf-eager", DTYPES[dtype], ids)
    assert_is(model, forward(model, ids, dtype=dtype, settings=settings), truth)
    record_plan(model, LIVE, profile="hf-eager", dtype=dtype, settings=settings)
