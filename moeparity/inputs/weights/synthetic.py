"""Weights made from a seed, for users who have a config.json and no weights.

Matrices are normal with the standard deviation `initializer_range`, and so are attention sinks and the bias of a
router's GEMM; norm weights are 1 and other biases 0, as transformers 5.23.0 initialises a model
(`PreTrainedModel._init_weights`), except that an embedding's padding row is not set to 0. The numbers are not
transformers': each tensor has a random stream of its own, so it does not matter which tensors are made or in which
order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch

from moeparity.errors import CheckpointError, shown
from moeparity.inputs.weights.source import Entry
from moeparity.numerics.dtypes import torch_dtype
from moeparity.plan.config import UNDECLARED_DTYPE, Config
from moeparity.plan.graph import Graph, Node, WeightRef

_CHUNK = 1 << 22
"""Elements drawn at once: 16 MiB in fp32, for tensors of any size."""
_NAMES = {"bf16": "BF16", "fp16": "F16", "fp32": "F32"}


class Synthetic:
    """The tensors that a graph names, made anew whenever one is asked for. Raises CheckpointError for a bad
    config.json.

    They have the config's dtype, fp32 if it says none; those that the graph keeps in fp32 are fp32. Equal seeds give
    equal bits on the same machine, but not on all machines, since torch's normal draws use vectorised logarithms.
    """

    def __init__(self, config: Config, graph: Graph, seed: int) -> None:
        self.seed, self.handed_out = seed, 0
        self.dtype = config.dtype or UNDECLARED_DTYPE
        self.std = _standard_deviation(config)
        self.entries: dict[str, Entry] = {}
        self._constant: dict[str, float] = {}
        for node in graph.nodes:
            initial = {port.name: port.initial for port in node.op.weights}
            for port, name, ref in _tensors(node):
                dtype = "F32" if ref.keep_fp32 else _NAMES[self.dtype]
                self.entries[name] = Entry(file=config.path, dtype=dtype, shape=ref.stored)
                value = initial[port]
                if value is not None:
                    self._constant[name] = value

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor, freshly allocated."""
        entry = self.entries[name]
        dtype = torch.float32 if entry.dtype == "F32" else torch_dtype(self.dtype)
        if name in self._constant:
            constant = torch.full(entry.shape, self._constant[name], dtype=dtype)
            self.handed_out += constant.nbytes
            return constant
        generator = torch.Generator().manual_seed(_stream(self.seed, name))
        tensor = torch.empty(entry.shape, dtype=dtype)
        for part in torch.split(tensor.view(-1), _CHUNK):
            part.copy_(torch.empty(part.shape).normal_(0.0, self.std, generator=generator))
            self.handed_out += part.nbytes
        return tensor


def _tensors(node: Node) -> Iterator[tuple[str, str, WeightRef]]:
    for port, ref in node.weights.items():
        for name in ref.names:
            yield port, name, ref


def _stream(seed: int, name: str) -> int:
    """The seed of one tensor's generator, 63 bits. Python's own hash() would differ between processes."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "little") >> 1


def _standard_deviation(config: Config) -> float:
    value = config.get("initializer_range", 0.02)
    if type(value) not in {int, float} or not 0 < value < 1e3:
        raise CheckpointError(
            f"{config.where('initializer_range')}: initializer_range is {shown(value)}; expected a number above 0, the "
            "standard deviation of synthetic weights."
        )
    return float(value)
