"""SGLang's rotary embedding with cos and sin as its cache has them: which product goes into an fma."""

from __future__ import annotations

import pytest

from tests.engines.cuda import sglang
from tests.engines.cuda.compared import BF16
from tests.verified import record


@pytest.mark.live
@pytest.mark.parametrize("pairs", [False, True])
def test_the_product_with_cos_is_contracted(pairs: bool) -> None:
    compared = sglang.rope(40, 8, 2, pairs=pairs, exact=False)
    assert compared.differ == 0
    assert (compared.control or 0) > 150
    assert compared.verified["rope"]["contraction"] == "cos"
    against = f"{compared.version} {compared.kernel}"
    record("rope", compared.verified["rope"], against, operands=BF16, how="ptx", compiled=compared.compiled)
