"""The node `rms_norm` with `rsqrt: approx` has the bits of engines' norms on a GPU whose instructions are an H200's."""

from __future__ import annotations

import pytest

from moeparity.numerics.bits import same_bits
from tests.engines.cuda.compared import BF16
from tests.engines.cuda.roots import Root, roots
from tests.verified import record

OTHERS = {"rsqrt": "ieee", "mean": "reciprocal"}


@pytest.mark.live
@pytest.mark.parametrize("root", list(roots()), ids=lambda root: f"{root.engine} {root.hidden}")
def test_a_node_has_the_kernels_root(root: Root) -> None:
    theirs = root.run(root.rows)
    assert same_bits(root.by_node(), theirs)
    for name in root.attributes:
        assert not same_bits(root.by_node(**{name: OTHERS[name]}), theirs)
    at = {"rsqrt": "approx", "mean": root.mean}
    values = {name: at[name] for name in root.attributes} | {"statistic": "mean_square"}
    record("rms_norm", values, root.against, operands=BF16, blind=("statistic",), how="ptx", compiled=root.compiled)
