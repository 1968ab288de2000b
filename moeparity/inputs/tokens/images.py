"""Images among tokens: what a vision tower gave for them, where it stands, and what positions it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Self

import torch
from torch import Tensor

from moeparity.errors import TokensError, Where, counted, listed
from moeparity.numerics.bits import int_view
from moeparity.ops.images import IMAGES
from moeparity.plan.graph import Graph

KEYS = ("image_grid_thw", "image_embeds", "deepstack_embeds")
"""Tensors of a token file, as transformers calls them: the patches of each image in time, height and width; what its
vision tower gave for each image token, in the order of the tokens; and what it gave for each of the first layers.
"""
LABELS = ("text", "image")
"""Classes of tokens where a file with images has none of its own."""

_FIRST_IMAGE = -(1 << 40)
"""Stands for an image in place of a token id; below it come the others."""
Grid = tuple[int, int, int]
"""Patches in time, height and width."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """The images of some sequences, laid out by token.

    mask: bool [B, T], true at image tokens.
    embeds: [B, T, parts * hidden] in the dtype of the file: what stands in place of an image token's embedding, then
        what is added to it behind each of the first layers; zeros at text.
    shifts: int64 [B, T, 3]: how far a token's positions in time, height and width are from the number of real tokens
        before it in its sequence. What stands behind an image is moved by it, since an image takes up as many positions
        as its longer side has tokens.
    grids: the images of each sequence, in order.
    merge: how many patches of height, and of width, are one token.
    hidden: the width of the model.
    """

    mask: Tensor
    embeds: Tensor
    shifts: Tensor
    grids: tuple[tuple[Grid, ...], ...]
    merge: int
    hidden: int

    def to(self, device: torch.device) -> Self:
        """The same on a device."""
        mask, embeds, shifts = (tensor.to(device) for tensor in (self.mask, self.embeds, self.shifts))
        return replace(self, mask=mask, embeds=embeds, shifts=shifts)

    def told_apart(self, ids: Tensor) -> Tensor:
        """The ids [B, T] with a negative number at each image token, equal where embeddings and positions are."""
        shown = torch.cat((int_view(self.embeds[self.mask]).long(), self.shifts[self.mask]), -1)
        _, codes = torch.unique(shown, dim=0, return_inverse=True)
        apart = ids.clone()
        apart[self.mask] = _FIRST_IMAGE - codes
        return apart

    def of_rows(self, rows: Sequence[int]) -> Self:
        """Those of some sequences."""
        mask, embeds, shifts = (tensor[list(rows)] for tensor in (self.mask, self.embeds, self.shifts))
        return replace(self, mask=mask, embeds=embeds, shifts=shifts, grids=tuple(self.grids[row] for row in rows))

    def of_columns(self, count: int) -> Self:
        """Those in the first columns, none of which cuts an image, or with text in further ones."""
        mask, embeds, shifts = (_of_columns(block, count) for block in (self.mask, self.embeds, self.shifts))
        columns = torch.arange(count)
        moved = torch.tensor([sum(_moved(grid, self.merge) for grid in grids) for grids in self.grids])
        behind = columns > torch.where(mask, columns, -1).amax(1, keepdim=True)
        shifts = torch.where(behind[..., None], moved[:, None, None], shifts)
        return replace(self, mask=mask, embeds=embeds, shifts=shifts)

    def tensors(self) -> dict[str, Tensor]:
        """What a token file holds of them, by name."""
        parts = torch.split(self.embeds[self.mask], self.hidden, dim=-1)
        grids = torch.tensor([grid for of_sequence in self.grids for grid in of_sequence])
        deepstack = {"deepstack_embeds": torch.stack(parts[1:])} if parts[1:] else {}
        return {"image_grid_thw": grids, "image_embeds": parts[0], **deepstack}


def laid_out(
    tensors: Mapping[str, Tensor], ids: Tensor, real: Tensor, fields: Mapping[str, Any], where: Where
) -> Images:
    """The images of a token file, or of one call, laid out by token.

    tensors: under the names of `KEYS`. ids int64, real bool [B, T]: the tokens, of which those of images are known by
    the `image_token_id` of config.json, whose `fields` are as `Config` has them. Raises TokensError for a model that
    takes no images, for tensors of other shapes, and for images that do not fit the tokens.
    """
    if "deepstack_layers" not in fields or fields["image_token_id"] is None:
        model = fields["model_type"]
        raise TokensError(
            f"{where}: holds {listed(tensors)}, and the graph of {model} takes no images. Leave them out."
        )
    for key in KEYS[:2]:
        if key not in tensors:
            raise TokensError(f"{where}: holds {listed(tensors)} and no {key!r}; expected both of {listed(KEYS[:2])}.")
    mask = ids == fields["image_token_id"]
    if bool((mask & ~real).any()):
        raise TokensError(f"{where}: padding holds {fields['image_token_id']}, the image_token_id. Pad with another.")
    grids = _grids(tensors["image_grid_thw"], fields["spatial_merge_size"], where)
    of_sequences = _of_sequences(grids, mask, fields["spatial_merge_size"], where)
    return Images(
        mask=mask,
        embeds=_embeds(tensors, mask, fields, where),
        shifts=_shifts(of_sequences, mask, real, fields["spatial_merge_size"]),
        grids=of_sequences,
        merge=fields["spatial_merge_size"],
        hidden=fields["hidden_size"],
    )


def refuse_images(images: Images | None, ids: Tensor, graph: Graph, where: Where, advice: str = "") -> None:
    """Raises TokensError, with the advice, for tokens of images or videos of which nothing says what a tower gave."""
    if not any(IMAGES in node.inputs for node in graph.nodes):
        return
    for field in ("image_token_id", "video_token_id"):
        token = -1 if graph.config.get(field) is None else graph.config[field]
        alone = ids == token if images is None else (ids == token) & ~images.mask.to(ids.device)
        if bool(alone.any()):
            row = int(alone.any(1).int().argmax())
            is_video = field.startswith("video")
            way_out = advice or ("Videos are not read." if is_video else f"Add {listed(KEYS)} to the tokens.")
            raise TokensError(
                f"{where}: sequence {row} holds {token}, the {field} of config.json, and nothing says what the vision "
                f"tower gave for it. {way_out}"
            )


def _grids(tensor: Tensor, merge: int, where: Where) -> list[Grid]:
    if tensor.dtype not in {torch.int64, torch.int32} or tensor.dim() != 2 or tensor.shape[1] != 3 or not len(tensor):
        raise TokensError(
            f"{where}: image_grid_thw is {_name(tensor)} {list(tensor.shape)}; expected whole numbers [images, 3]."
        )
    grids: list[Grid] = [(time, height, width) for time, height, width in tensor.tolist()]
    for number, (time, height, width) in enumerate(grids):
        if time < 1 or height < 1 or width < 1 or height % merge or width % merge:
            raise TokensError(
                f"{where}: image_grid_thw gives image {number} {time} x {height} x {width} patches; expected a height "
                f"and a width that are multiples of spatial_merge_size, which is {merge}."
            )
    return grids


def _of_sequences(grids: Sequence[Grid], mask: Tensor, merge: int, where: Where) -> tuple[tuple[Grid, ...], ...]:
    """The images of each sequence: a run of image tokens is one image."""
    runs = [[len(list(run)) for is_image, run in groupby(row) if is_image] for row in mask.tolist()]
    if sum(map(len, runs)) != len(grids):
        raise TokensError(
            f"{where}: image_grid_thw has {counted(len(grids), 'image')}, and the tokens have "
            f"{counted(sum(map(len, runs)), 'run')} of image tokens; expected as many, with text between two images."
        )
    numbered = iter(enumerate(grids))
    of_sequences: list[tuple[Grid, ...]] = []
    for row, lengths in enumerate(runs):
        of_row = [next(numbered) for _ in lengths]
        for length, (number, grid) in zip(lengths, of_row, strict=True):
            if length != _tokens_of(grid, merge):
                raise TokensError(
                    f"{where}: sequence {row} has a run of {counted(length, 'image token')} for image {number}; "
                    f"image_grid_thw {list(grid)} has {_tokens_of(grid, merge)}."
                )
        of_sequences.append(tuple(grid for _, grid in of_row))
    return tuple(of_sequences)


def _embeds(tensors: Mapping[str, Tensor], mask: Tensor, fields: Mapping[str, Any], where: Where) -> Tensor:
    """[B, T, parts * hidden], zeros at text."""
    count, layers, hidden = int(mask.sum()), fields["deepstack_layers"], fields["hidden_size"]
    first, further = tensors["image_embeds"], tensors.get("deepstack_embeds")
    _check("image_embeds", first, [count, hidden], "[image tokens, hidden_size]", where)
    parts = [first]
    if layers or further is not None:
        if further is None:
            raise TokensError(
                f"{where}: holds no 'deepstack_embeds', and the model adds some behind {counted(layers, 'layer')}; "
                "expected floats [layers, image tokens, hidden_size]."
            )
        expected = "[layers, image tokens, hidden_size], as many layers as deepstack_visual_indexes"
        _check("deepstack_embeds", further, [layers, count, hidden], expected, where)
        parts += further.to(first.dtype).unbind()
    embeds = first.new_zeros(*mask.shape, hidden * len(parts))
    embeds[mask] = torch.cat(parts, -1)
    return embeds


def _check(key: str, tensor: Tensor, shape: list[int], says: str, where: Where) -> None:
    if not tensor.is_floating_point() or list(tensor.shape) != shape:
        raise TokensError(
            f"{where}: {key} is {_name(tensor)} {list(tensor.shape)}; expected floats {shape}, which are {says}."
        )


def _shifts(of_sequences: Sequence[Sequence[Grid]], mask: Tensor, real: Tensor, merge: int) -> Tensor:
    """int64 [B, T, 3], as get_rope_index of transformers' Qwen3VLMoeModel has positions."""
    shifts = torch.zeros(*mask.shape, 3, dtype=torch.int64)
    for row, grids in enumerate(of_sequences):
        starts = (mask[row] & ~torch.cat((mask[row, :1] & False, mask[row, :-1]))).nonzero().flatten().tolist()
        moved = 0
        for start, grid in zip(starts, grids, strict=True):
            end = start + _tokens_of(grid, merge)
            axes = (torch.arange(size) for size in (grid[0], grid[1] // merge, grid[2] // merge))
            places = torch.stack([axis.flatten() for axis in torch.meshgrid(*axes, indexing="ij")], -1)
            shifts[row, start:end] = moved + places - torch.arange(end - start)[:, None]
            moved += _moved(grid, merge)
            shifts[row, end:] = moved
    return shifts.masked_fill(~real[..., None], 0)


def _tokens_of(grid: Grid, merge: int) -> int:
    time, height, width = grid
    return time * (height // merge) * (width // merge)


def _moved(grid: Grid, merge: int) -> int:
    """By how much an image moves the positions of what stands behind it."""
    return max(grid[1:]) // merge - _tokens_of(grid, merge)


def _of_columns(block: Tensor, count: int) -> Tensor:
    """The first columns of [B, T, ..], with zeros in those that it has not got."""
    first = block[:, :count]
    return torch.cat((first, first.new_zeros(len(first), count - first.shape[1], *first.shape[2:])), 1)


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
