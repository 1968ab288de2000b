"""The memory of a tensor on the CPU, as numpy sees it, which torch does not hear of.

`Tensor.numpy` marks the storage: it can't be resized any more, by which FSDP frees what it has gathered.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch


def words_of(tensor: torch.Tensor) -> Any:
    """The memory of a contiguous tensor that holds elements: words of 8 bytes where it divides so, else bytes.

    It holds as long as the tensor does.
    """
    place, size = tensor.data_ptr(), tensor.nbytes
    memory = (ctypes.c_char * size).from_address(place)
    return np.frombuffer(memoryview(memory), dtype=np.dtype(np.uint8 if size % 8 or place % 8 else np.int64))
