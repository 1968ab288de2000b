"""Kernels of `place_images` and `add_images`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from moeparity.numerics import rounding


def place_images(
    x: torch.Tensor,
    image_mask: torch.Tensor,
    images: torch.Tensor,
    *,
    w: Mapping[str, torch.Tensor],
    p: Mapping[str, Any],
    at: Mapping[str, Any],
) -> torch.Tensor:
    """x [B, T, H], image_mask bool [B, T], images [B, T, parts * H] or [B, T, 0] -> [B, T, H]."""
    embedded = rounding.rounded(x, at["output"])
    if not images.shape[-1]:
        return embedded
    return torch.where(image_mask[..., None], rounding.rounded(_part(images, x, p), at["output"]), embedded)


def add_images(
    x: torch.Tensor,
    image_mask: torch.Tensor,
    images: torch.Tensor,
    *,
    w: Mapping[str, torch.Tensor],
    p: Mapping[str, Any],
    at: Mapping[str, Any],
) -> torch.Tensor:
    """x [B, T, H], image_mask bool [B, T], images [B, T, parts * H] or [B, T, 0] -> [B, T, H]."""
    alone = rounding.rounded(x, at["output"])
    if not images.shape[-1]:
        return alone
    image = rounding.rounded(_part(images, x, p), at["image"])
    # A sum with 0 would turn -0 into +0 at text.
    return torch.where(image_mask[..., None], rounding.add(x, image, at["output"]), alone)


def _part(images: torch.Tensor, x: torch.Tensor, p: Mapping[str, Any]) -> torch.Tensor:
    """The embeddings [B, T, H] of one part."""
    width = x.shape[-1]
    return images[..., p["part"] * width : (p["part"] + 1) * width]
