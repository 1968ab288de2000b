"""Engines' kernels in the interpreter held to what an H200 wrote on the same arguments (tests/recorded/h200)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from moeparity import ptx
from tests.recorded.files import H200, count_of_others
from tests.recorded.launches import Kept, read

LAUNCHES = list(read(H200 / "launches.safetensors"))


def ran(launch: Kept, approximations: Mapping[str, Any]) -> tuple[ptx.Run, int]:
    """What the launch was, and how many numbers of its arrays are other bits than the GPU's."""
    args = copy.deepcopy(list(launch.args))
    run = ptx.load(launch.text, approximations=approximations).launch(launch.kernel, args=args, **launch.shape)
    different = 0
    for place, argument in enumerate(args):
        if isinstance(argument, torch.Tensor):
            theirs = launch.written.get(place, launch.args[place])
            assert isinstance(theirs, torch.Tensor)
            different += count_of_others(argument, theirs)
    return run, different


@pytest.mark.parametrize("launch", LAUNCHES, ids=lambda launch: launch.name)
def test_a_kernel_writes_what_the_gpu_wrote(launch: Kept) -> None:
    """All bits; where a result rests on tanh, of which there is no table, many are others."""
    run, different = ran(launch, {})
    if "tanh.approx.f32" in run.assumed:
        assert different > 100
    else:
        assert (different, run.assumed) == (0, ())


def test_correctly_rounded_some_numbers_are_others() -> None:
    """So the launches tell tables from rounding to nearest."""
    rested = [launch for launch in LAUNCHES if "ex2.approx" in launch.text or "div.full" in launch.text]
    rounding = {"ex2.approx.f32": lambda x: np.exp2(x.astype(np.float64)).astype(np.float32), "div.full.f32": np.divide}
    assert sum(ran(launch, rounding)[1] > 0 for launch in rested) >= 10
