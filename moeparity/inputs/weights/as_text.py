"""Tensors of a checkpoint under the names that a graph of its text model uses: a prefix left out, stacks taken apart.

As transformers 5 does when it loads one (conversion_mapping.py, `qwen3_5_text`, `qwen3_vl_moe`); no number is copied.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from moeparity.inputs.weights.source import Entry, Piece
from moeparity.plan.graph import Graph, Node, WeightRef

TOWERS = {
    "model.language_model.": "model.",
    "language_model.model.blocks.": "model.layers.",
    "language_model.": "",
}
"""How names of a text model beside a vision tower begin -> how they begin there alone. The third is Kimi K2.5 on the
hub, of which transformers 5.23.0 saves the layers as `blocks`, since it takes back a rename of the tower's there too.
"""


INPUTS_FIRST = ("qwen3_vl_moe",)
"""model_type of models whose stacks on the hub have inputs before outputs. A stack that is as large both ways is taken
with outputs first, as transformers takes it.
"""
DENSE = re.compile(r"(model\.layers\.\d+\.)block_sparse_moe(\.(gate|up|down)_proj\.weight)")
"""A dense layer of Kimi Linear as transformers 5 saves it, as if it were one of experts; the hub has `mlp`."""


def without_tower(entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """Entries by the names that they have in the text model alone, and on the hub."""
    renamed = {}
    for name, entry in entries.items():
        tower = next((tower for tower in TOWERS if name.startswith(tower)), "")
        plain = DENSE.sub(r"\1mlp\2", TOWERS.get(tower, "") + name.removeprefix(tower))
        renamed[plain] = entry if plain == name else replace(entry, piece=Piece(name=name))
    return renamed


def taken_apart(entries: Mapping[str, Entry], graph: Graph) -> dict[str, Entry]:
    """Entries with one for each expert's matrix, where the graph takes them and the file has them in one stack: gate
    and up of shape [experts, 2 * width, hidden], gate first, under `experts.gate_up_proj`, and `experts.down_proj`; or
    where all experts' rows lie below one another in one matrix (DBRX), of which a stack is a view. Of models in
    `INPUTS_FIRST` the last two axes may be exchanged.
    """
    apart = dict(entries)
    for node in graph.nodes:
        for ref in node.weights.values():
            if (parts := _of_matrix(apart, ref)) is not None:
                del apart[_matrix(ref)]
                apart |= parts
        for stack, refs in _stacks(node).items():
            name = f"{refs[0].names[0].rpartition('.0.')[0]}.{stack}_proj"
            rows, *columns = refs[0].shape
            whole, shape = apart.get(name), (refs[0].count, rows * len(refs), *columns)
            exchanged = (shape[0], *reversed(shape[1:])) if graph.model_type in INPUTS_FIRST else shape
            if whole is not None and whole.shape in (shape, exchanged) and whole.packed is None:
                del apart[name]
                apart |= dict(_matrices(whole, name, refs, transposed=whole.shape != shape))
    return apart


def _matrix(ref: WeightRef) -> str:
    """The name of a matrix of all experts, of which a weight is made."""
    return ref.names[0].removesuffix(".0")


def _of_matrix(entries: Mapping[str, Entry], ref: WeightRef) -> dict[str, Entry] | None:
    """The entries of a weight of each expert whose rows lie below one another in one matrix; None where they don't."""
    whole, (rows, *columns) = entries.get(_matrix(ref)), ref.stored[-2:]
    if not ref.each or whole is None or whole.packed is not None or whole.shape != (ref.count * rows, *columns):
        return None
    if ref.stacked is not None:
        return {ref.names[0]: replace(whole, shape=ref.stored)}
    ends = ((expert * rows, (expert + 1) * rows) for expert in range(ref.count))
    parts = (replace(whole, shape=ref.shape, piece=Piece(name=_matrix(ref), rows=of_expert)) for of_expert in ends)
    return dict(zip(ref.names, parts, strict=True))


def _stacks(node: Node) -> dict[str, list[WeightRef]]:
    """Weights of a node with one tensor for each expert, by the name of the stack that they share."""
    stacks: dict[str, list[WeightRef]] = {}
    for port in node.op.weights:
        ref = node.weights.get(port.name)
        if port.stack is not None and ref is not None and ref.each and ref.stacked is None:
            stacks.setdefault(port.stack, []).append(ref)
    return stacks


def _matrices(whole: Entry, name: str, refs: list[WeightRef], *, transposed: bool) -> Iterable[tuple[str, Entry]]:
    stored = whole.piece.name if whole.piece else name
    for part, ref in enumerate(refs):
        rows = ref.shape[0]
        for expert, matrix in enumerate(ref.names):
            of_part = part * rows, (part + 1) * rows
            piece = Piece(name=stored, expert=expert, transposed=transposed, rows=of_part)
            yield matrix, replace(whole, shape=ref.shape, piece=piece)
