"""PTX kernels run without a GPU: bit for bit but for approximate instructions, which are named (docs/ptx.md)."""

from moeparity.ptx.launch_arguments import Struct
from moeparity.ptx.module import Module, Run, load
from moeparity.ptx.syntax import PtxError
from moeparity.ptx.table import UnknownInstruction

__all__ = ["Module", "PtxError", "Run", "Struct", "UnknownInstruction", "load"]
