"""Quantised weights as they lie in a checkpoint: which tensors make one, and the numbers that they stand for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from moeparity.errors import CheckpointError, Where, listed
from moeparity.inputs.weights.codes import numbers, packed_shape, powers, unpacked_shape
from moeparity.inputs.weights.formats import BITS, FORMATS, Block, Format
from moeparity.inputs.weights.quantisation import Quantisation, Rule, names
from moeparity.inputs.weights.source import Entry, Packed
from moeparity.plan.edits import ScaleVerb

Shape = tuple[int, ...]
Edits = Sequence[tuple[ScaleVerb, float]]
"""What a fault does to scales, each with its number."""

_OF_ACTIVATIONS = (".input_scale", ".input_global_scale", ".output_scale")
_OF_CACHES = (".k_scale", ".v_scale", ".q_scale", ".kv_scale")
_AT_ONCE = 1 << 20
"""Stored numbers that are multiplied out at once."""
LEVELS: Final[frozenset[ScaleVerb]] = frozenset(
    ("blocks_twice", "blocks_inverted", "tensor_inverted", "tensor_missing")
)
"""What a fault does to one of two levels of scales."""
_BY_ROW = {"values", "scales", "second", "shape"}
"""The tensors of a weight of which a part of the rows needs a part, or all as it is."""


def paired(stored: Mapping[str, Entry], stated: Quantisation) -> tuple[dict[str, Entry], tuple[str, ...]]:
    """The tensors as a graph knows them, quantised weights with their format; and the names of static scales of
    activations and caches, which make no weight. Raises CheckpointError for a weight that config.json doesn't describe
    so, and for scales that do not fit.
    """
    packed = {name: form for name, entry in stored.items() if (form := _form(stored, name, entry, stated)) is not None}
    entries, parts = {}, set()
    for name, form in packed.items():
        prefix = name.removesuffix(form.values)
        entries[prefix + form.weight] = _entry(stored, prefix, form, stated)
        parts |= {prefix + ending for ending in form.names.values()}
    others, beside = without_scales(stored)
    plain = {name: entry for name, entry in others.items() if name not in parts}
    _refuse_codes(plain)
    return {**plain, **entries}, beside


def without_scales(stored: Mapping[str, Entry]) -> tuple[dict[str, Entry], tuple[str, ...]]:
    """The tensors without the static scales of activations and caches, and the names of these."""
    beside = tuple(name for name in stored if name.endswith((*_OF_ACTIVATIONS, *_OF_CACHES)))
    return {name: entry for name, entry in stored.items() if name not in beside}, beside


def _refuse_codes(plain: Mapping[str, Entry]) -> None:
    """Raises CheckpointError for codes that belong to no weight."""
    for name, entry in plain.items():
        forms = [form for form in FORMATS.values() if entry.dtype == form.stored and name.endswith(form.values)]
        if entry.dtype in {form.stored for form in FORMATS.values()}:
            needs = "; ".join(f"{form.name} needs {name.removesuffix(form.values)}{form.scales}" for form in forms)
            raise CheckpointError(
                f"{Where(entry.file)}: {name} is {entry.dtype} {list(entry.shape)}, which is no weight by itself: "
                f"{needs or 'no format of `moeparity show formats` has such a tensor'}. Give the checkpoint it was "
                "made from, if the format is another."
            )


def _form(stored: Mapping[str, Entry], name: str, entry: Entry, stated: Quantisation) -> Format | None:
    """The format that a tensor holds the codes of: one that config.json speaks of, if several look like it."""
    fitting = [form for form in FORMATS.values() if _looks_like(stored, name, entry, form)]
    spoken_of = {form for rule in stated.rules for form in rule.formats}
    return next((form for form in fitting if form.name in spoken_of), next(iter(fitting), None))


def _looks_like(stored: Mapping[str, Entry], name: str, entry: Entry, form: Format) -> bool:
    scales = stored.get(name.removesuffix(form.values) + form.scales)
    return (
        name.endswith(form.values) and entry.dtype == form.stored
        and scales is not None and scales.dtype in form.scale_dtypes
    )  # fmt: skip


def _entry(stored: Mapping[str, Entry], prefix: str, form: Format, stated: Quantisation) -> Entry:
    """The weight that some tensors make."""
    values = stored[prefix + form.values]
    # config.json speaks of modules by their names in the file.
    rule = _rule(Where(values.file), values.piece.name if values.piece else prefix + form.values, form, stated)
    tensors = {role: prefix + ending for role, ending in form.names.items() if prefix + ending in stored}
    shape = unpacked_shape(values.shape, form)
    scales = stored[tensors["scales"]]
    block = _block(tensors, form, shape, scales, rule.block, stated.where)
    _check_beside(stored, prefix, form, shape, rule)
    turned = form.input_major or form.transposed
    return Entry(
        file=values.file,
        dtype=values.dtype,
        shape=(*shape[:-2], shape[-1], shape[-2]) if turned else shape,
        packed=Packed(form=form, tensors=tensors, block=block, bytes=sum(stored[t].bytes for t in tensors.values())),
    )


def _rule(where: Where, stored_name: str, form: Format, stated: Quantisation) -> Rule:
    """What config.json says of a weight. Raises CheckpointError if that is something else."""
    module = stored_name.removesuffix(form.values).removesuffix(".")
    rule = stated.rule(module, form.name)
    if rule is None:
        formats = listed(dict.fromkeys(each for rule in stated.rules for each in rule.formats))
        raise CheckpointError(
            f"{where}: {stored_name} lies there as {form.name}; the quantization_config of {stated.where} says "
            f"{formats}, and nothing of that for {module}. Do config.json and weights belong together?"
        )
    if names(stated.skipped, module):
        raise CheckpointError(
            f"{where}: {stored_name} is quantised ({form.name}); the quantization_config of {stated.where} lists "
            f"{module} among the modules that are not. Which of them is right?"
        )
    return rule


def _block(
    tensors: Mapping[str, str], form: Format, shape: Shape, scales: Entry, stated: Block | None, config: Where
) -> Block:
    """Rows and columns that share a scale: as config.json says, else such that the blocks are equal."""
    counts, values = as_matrix(scales.shape), tensors["values"]
    complaint = f"{Where(scales.file)}: {tensors['scales']} is {scales.dtype} {list(scales.shape)}"
    if len(shape) < 2 or counts[:-2] != shape[:-2] or 0 in counts:
        raise CheckpointError(f"{complaint}; expected scales of {values}, {list(shape)}, a matrix of numbers.")
    if stated is not None:
        block = tuple(side or size for side, size in zip(stated, shape[-2:], strict=True))
        expected = tuple(-(-size // side) for size, side in zip(shape[-2:], block, strict=True))
        if counts[-2:] != expected:
            raise CheckpointError(
                f"{complaint}; expected {[*shape[:-2], *expected]}, one for each {block[0]} x {block[1]} numbers of "
                f"{values}, {list(shape)}, as {config} says."
            )
        return block[0], block[1]
    if any(size % count for count, size in zip(counts[-2:], shape[-2:], strict=True)):
        raise CheckpointError(
            f"{complaint}, which are no blocks of one size for {values}, {list(shape)}. Which blocks they are "
            f"is said in quantization_config of {config} as `weight_block_size`."
        )
    return shape[-2] // counts[-2], shape[-1] // counts[-1]


def as_matrix(shape: Shape) -> Shape:
    """The shape of scales with an axis for rows and one for columns: one scale, or one for each row, may have less."""
    return (*shape, *(1,) * (2 - len(shape)))


def _check_beside(stored: Mapping[str, Entry], prefix: str, form: Format, shape: Shape, rule: Rule) -> None:
    """Raises CheckpointError unless zero points, indices and the scale of the whole tensor are as they must be."""
    counts = as_matrix(stored[prefix + form.scales].shape)
    expected: dict[str, Shape] = {}
    if form.zeros and rule.zeros is not False:
        expected[form.zeros] = packed_shape(counts, form.zero_packing, BITS[form.code])
    if form.index and prefix + form.index in stored:
        expected[form.index] = (shape[0],)
    if form.second:
        expected[form.second] = ()
    for ending, each in expected.items():
        entry = stored.get(prefix + ending)
        if entry is None or entry.shape not in (each, each or (1,)):
            present = "missing" if entry is None else f"{entry.dtype} {list(entry.shape)}"
            raise CheckpointError(
                f"{Where(stored[prefix + form.values].file)}: {prefix}{ending} is {present}; {form.name} needs it as "
                f"{list(each)}, beside {prefix}{form.values}, {list(shape)}."
            )


def by_matrix(stored: Mapping[str, Tensor], packed: Packed) -> Iterator[dict[str, Tensor]]:
    """The tensors of each matrix of a quantised weight by role, codes as [rows, columns]: one, or one for each expert
    of a stack.
    """
    values = stored["values"].flatten(-2) if stored["values"].dim() == 4 else stored["values"]
    if values.dim() == 2:
        yield {**stored, "values": values}
    else:
        yield from ({"values": v, "scales": s} for v, s in zip(values, stored["scales"], strict=True))


def unpacked(stored: Mapping[str, Tensor], packed: Packed, edits: Edits = ()) -> Tensor:
    """The numbers of a weight [..., outputs, inputs], or [experts, inputs, outputs] of mxfp4, in the dtype of its
    product, of its tensors by role. One expert of a stack after another, since only the result has room for all. edits:
    what a fault does to its scales.
    """
    matrices = (_matrix(each, packed, edits) for each in by_matrix(stored, packed))
    if stored["values"].dim() == 2:
        weight = next(matrices)
        return weight.mT.contiguous() if packed.form.input_major else weight
    return _stacked(matrices, len(stored["values"]), transposed=packed.form.transposed)


GRIDS: Mapping[str, str] = {
    "e4m3": "fp8_e4m3", "int8": "int8", "int4": "int4", "uint4": "int4", "e2m1": "fp4_e2m1",
}  # fmt: skip
"""Codes that ops take as they are -> the grid that they call it."""


def on_grid(packed: Packed) -> str | None:
    """The grid whose codes a weight is held as, without a second scale, and without zero points but in 4 bits; None
    for any other.
    """
    grid = GRIDS.get(packed.form.code)
    return None if packed.form.second or ("zeros" in packed.tensors and grid != "int4") else grid


def scales_by_row(scales: Tensor, packed: Packed, shape: Shape, edits: Edits = ()) -> Tensor:
    """The scales of a weight [.., rows, columns] of `shape`, fp32 [.., rows, groups of columns]; as `unpacked` has
    them.
    """
    by_block = factors(scales, None, divides=False).float()
    if by_block.dim() > 2:
        return torch.stack([scales_by_row(each, packed, shape[1:], edits) for each in by_block])
    for verb, number in (each for each in edits if each[0] not in LEVELS):
        by_block, _ = _edited(by_block, packed.block, verb, number)
    by_block = by_block.mT if packed.form.input_major else by_block
    return by_block[torch.arange(shape[1 if packed.form.transposed else 0]) // packed.by_output[0]]


def _stacked(matrices: Iterator[Tensor], count: int, *, transposed: bool) -> Tensor:
    stack = torch.empty(0)
    for place, matrix in enumerate(matrices):
        turned = matrix.mT if transposed else matrix
        stack = stack if place else torch.empty((count, *turned.shape), dtype=turned.dtype)
        stack[place].copy_(turned)
    return stack


def _matrix(stored: Mapping[str, Tensor], packed: Packed, edits: Edits) -> Tensor:
    """The numbers of one matrix, as it is stored, rows by columns. A large one is made some rows at a time, so that
    only the result has room for all.
    """
    values, high = stored["values"], packed.block[0]
    rows = max(1, _AT_ONCE // (values.shape[1] * high)) * high
    if edits or len(values) <= rows or not stored.keys() <= _BY_ROW or packed.form.packing == "words down":
        return _rows_of(stored, packed, edits)
    result = torch.empty(0)
    for first in range(0, len(values), rows):
        of_scales = stored["scales"].view(as_matrix(tuple(stored["scales"].shape)))
        of_scales = of_scales[first // high : -(-(first + rows) // high)]
        some = _rows_of({**stored, "values": values[first : first + rows], "scales": of_scales}, packed, ())
        result = result if first else torch.empty((len(values), some.shape[1]), dtype=some.dtype)
        result[first : first + rows] = some
    return result


def _rows_of(stored: Mapping[str, Tensor], packed: Packed, edits: Edits) -> Tensor:
    """The numbers of some rows of a matrix."""
    stored, packed, edits = _with_levels(stored, packed, edits)
    form, block = packed.form, packed.block
    codes, zeros, scales = codes_and_scales(stored, packed)
    codes = codes if zeros is None else codes - zeros
    for verb, number in edits:
        scales, block = _edited(scales, block, verb, number)
    dtype = scales.dtype if form.product == "scales" else torch.float32
    product = _times(codes.to(dtype), scales.to(dtype), block, stored.get("index"))
    return product.bfloat16() if form.product == "bf16" else product


def _with_levels(
    stored: Mapping[str, Tensor], packed: Packed, edits: Edits
) -> tuple[Mapping[str, Tensor], Packed, Edits]:
    """Tensors and their format once a fault has changed scales of blocks, or that of the tensor, alone, if there is
    one; and what is left of its edits.
    """
    levels = [verb for verb, _ in edits if verb in LEVELS and "second" in stored]
    for verb in levels:
        if verb == "tensor_inverted":
            packed = replace(packed, form=replace(packed.form, second_divides=not packed.form.second_divides))
        elif verb == "tensor_missing":
            stored = {**stored, "second": torch.ones_like(stored["second"])}
        else:
            scales = factors(stored["scales"], None, divides=False)
            stored = {**stored, "scales": CHANGED_SCALES["twice" if verb == "blocks_twice" else "inverted"](scales)}
    return stored, packed, [each for each in edits if each[0] not in LEVELS]


def codes_and_scales(stored: Mapping[str, Tensor], packed: Packed) -> tuple[Tensor, Tensor | None, Tensor]:
    """One matrix of a quantised weight, as it is stored: what its codes stand for, its zero points, both [rows,
    columns], and its scales [rows of blocks, columns of blocks], each in the dtype of `numbers` and `factors`.
    """
    form, codes = packed.form, numbers(stored["values"], packed.form)
    scales = factors(stored["scales"], stored.get("second"), divides=form.second_divides)
    if "zeros" not in stored:
        return codes, None, scales
    zeros = numbers_of_zeros(stored["zeros"], form)[: scales.shape[0], : scales.shape[-1]]
    return codes, spread(zeros, packed.block, tuple(codes.shape), stored.get("index")), scales


def _times(codes: Tensor, scales: Tensor, block: Block, index: Tensor | None) -> Tensor:
    """Each number times its scale; where blocks are whole, without a scale in memory for each number."""
    (rows, columns), (high, wide) = codes.shape, block
    if index is not None or (len(scales) * high, scales.shape[1] * wide) != (rows, columns):
        return codes * spread(scales, block, (rows, columns), index)
    blocks = codes.view(rows // high, high, columns // wide, wide)
    return (blocks * scales.view(len(blocks), 1, -1, 1)).view(rows, columns)


def _edited(scales: Tensor, block: Block, verb: ScaleVerb, number: float) -> tuple[Tensor, Block]:
    """Scales and the block that each is taken for, once a fault has changed them."""
    if verb == "block":
        size = int(number)
        return scales, (1 if block[0] == 1 else size, 1 if block[1] == 1 else size)
    if verb == "times":
        return scales * number, block
    return CHANGED_SCALES[verb](scales), block


CHANGED_SCALES: Mapping[ScaleVerb, Callable[[Tensor], Tensor]] = {
    "transposed": lambda scales: scales.mT.contiguous().view(scales.shape),
    "shifted": lambda scales: scales.flatten().roll(-1).view(scales.shape),
    "twice": lambda scales: scales * scales,
    "inverted": torch.reciprocal,
    "missing": torch.ones_like,
}
"""Scales [rows of blocks, columns of blocks] -> what a fault makes of them."""


def factors(scales: Tensor, second: Tensor | None, *, divides: bool) -> Tensor:
    """What codes are multiplied by [rows of blocks, columns of blocks]: stored scales, or exponents of 2 in bytes, and
    a scale of the whole tensor.
    """
    each = scales.view(as_matrix(tuple(scales.shape)))
    each = powers(each) if each.dtype == torch.uint8 else each
    each = each.float() if each.element_size() == 1 else each
    if second is None:
        return each
    return each.float() / second.float() if divides else each.float() * second.float()


def numbers_of_zeros(zeros: Tensor, form: Format) -> Tensor:
    """Zero points, int16 [rows of blocks, columns of blocks], as whole numbers on the scale of the codes."""
    return numbers(zeros, replace(form, packing=form.zero_packing)) + form.zero_offset


def spread(blocks: Tensor, block: Block, shape: Shape, index: Tensor | None = None) -> Tensor:
    """The value of each number's block [rows, columns]; where blocks end before the numbers do, that of the last.
    index: the block of each row, if blocks do not follow one another.
    """
    (rows, columns), (high, wide) = shape, block
    down = torch.arange(rows) // high if index is None else index.long()
    across = torch.arange(columns) // wide
    return blocks[down.clamp(max=len(blocks) - 1)][:, across.clamp(max=blocks.shape[1] - 1)]
