"""Embeddings of images in a model's stream: in place of those of tokens, and added behind its first layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from moeparity.ops.attribute import site
from moeparity.ops.declaration import Op, Parameter, Role, Tokens, row_by_row
from moeparity.ops.memory import Memory, Shapes

IMAGES, IMAGE_MASK = "images", "image_mask"
"""The inputs that hold what a vision tower gave, and which tokens are those of images."""


def _as_first(weights: Shapes, params: Mapping[str, Any], inputs: Sequence[int]) -> Sequence[int]:
    return inputs[:1]


_PART = Parameter(
    name="part",
    type=int,
    required=False,
    default=0,
    says="which of the embeddings that lie side by side: 0 is that of the tower's last layer, then come those that "
    "deepstack adds, in their order",
)

PLACE_IMAGES = Op(
    name="place_images",
    says="The embedding of an image where image_mask is true, x elsewhere: x [B, T, hidden], image_mask [B, T], "
    "images [B, T, parts * hidden], or of no width where there are no images -> [B, T, hidden].",
    inputs=("x", IMAGE_MASK, IMAGES),
    parameters=(_PART,),
    attributes=(site("output", "the image's embedding is rounded to this dtype"),),
    tokens=Tokens(sees_rows=row_by_row),
    role=Role(family="embedding"),
    memory=Memory(widths=_as_first),
    kernel="images:place_images",
    source="transformers 5.23.0, Qwen3VLMoeModel.forward, masked_scatter",
)

ADD_IMAGES = Op(
    name="add_images",
    says="x plus the embedding of an image where image_mask is true, x itself elsewhere (deepstack): x [B, T, "
    "hidden], image_mask [B, T], images [B, T, parts * hidden], or of no width -> [B, T, hidden].",
    inputs=("x", IMAGE_MASK, IMAGES),
    parameters=(_PART,),
    attributes=(
        site("image", "the image's embedding is rounded to this dtype before it is added"),
        site("output", "the sum is rounded to this dtype"),
    ),
    tokens=Tokens(sees_rows=row_by_row),
    memory=Memory(widths=_as_first),
    kernel="images:add_images",
    source="transformers 5.23.0, Qwen3VLMoeTextModel._deepstack_process",
)
