"""All cases, by name."""

from __future__ import annotations

from tests.engines.triton_kernels import attention, gemms, moe, rows
from tests.engines.triton_kernels.case import Case

CASES: dict[str, Case] = {case.name: case for module in (rows, gemms, moe, attention) for case in module.cases()}
