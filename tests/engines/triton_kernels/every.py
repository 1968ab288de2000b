"""All cases, by how they are run and by name."""

from __future__ import annotations

from tests.engines.triton_kernels import attention, by_inductor, delta, gemms, moe, rows, tensorrt_llm, trees
from tests.engines.triton_kernels.case import Case

CASES: dict[str, dict[str, Case]] = {
    "interpreter": {case.name: case for module in (rows, gemms, moe, attention) for case in module.cases()}
    | {case.name: case for module in (tensorrt_llm, delta) for case in module.cases("interpreter")},
    "ptx": {case.name: case for module in (trees, by_inductor) for case in module.cases()}
    | {case.name: case for module in (tensorrt_llm, delta) for case in module.cases("ptx")},
}
"""By how they are run."""
