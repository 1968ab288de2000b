"""Every instruction that is known, one idea a file; importing this fills `moeparity.ptx.table.DECLARATIONS`."""

from moeparity.ptx.instructions import (
    atomics,
    barriers,
    bits,
    convert,
    floats,
    integers,
    matrices,
    memory,
    moves,
    packed,
    predicates,
    refused,
    tensor_cores,
    warp_groups,
    warps,
)

__all__ = [
    "atomics",
    "barriers",
    "bits",
    "convert",
    "floats",
    "integers",
    "matrices",
    "memory",
    "moves",
    "packed",
    "predicates",
    "refused",
    "tensor_cores",
    "warp_groups",
    "warps",
]
