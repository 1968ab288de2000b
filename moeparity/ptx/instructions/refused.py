"""What is known and refused by name: instructions of tensor cores other than `mma` and `wgmma`, and machinery around
them.
"""

from __future__ import annotations

from moeparity.ptx.table import DECLARATIONS, Declaration, Opcode, Operation, UnknownInstruction

_TENSOR = ("wmma", "tcgen05", "movmatrix")
_OTHER = {
    "tex": "textures are not built",
    "tld4": "textures are not built",
    "suld": "surfaces are not built",
    "sust": "surfaces are not built",
    "multimem": "multicast memory is not built",
}


def _tensor(opcode: Opcode) -> Operation:
    raise UnknownInstruction(
        f"Line {opcode.statement.line}: `{opcode.text}` runs on tensor cores. Of their instructions `mma` of "
        "16-bit numbers and `wgmma` are built."
    )


def _refuse(opcode: Opcode) -> Operation:
    raise UnknownInstruction(f"Line {opcode.statement.line}: `{opcode.text}` is refused: {_OTHER[opcode.root]}.")


for _root in _TENSOR:
    DECLARATIONS[_root] = Declaration(None, _tensor)
for _root in _OTHER:
    DECLARATIONS[_root] = Declaration(None, _refuse)
