"""What an attention mask says of keys: as [b, S], or as the [b, 1, t, S] of a static cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

BY_KEY, BY_QUERY = 2, 4
"""Axes of a mask that says which keys are padding, and of one that says of each query which keys it sees."""


@dataclass(frozen=True, slots=True)
class KeyMask:
    """Which keys of a forward pass are no padding, bool [b, keys]: those of earlier tokens, then its own.

    visible: if each query has a mask of its own, bool [b, t, places]; places behind the keys are of a cache that is
    longer than what it holds.
    """

    keys: Tensor
    visible: Tensor | None = None

    def is_causal(self, expected_keys: Tensor) -> bool:
        """Whether the mask is causal: each query sees the expected keys up to its own token, and no others.

        expected_keys: the keys of the query's own sequence without padding, bool [b, 1, keys] or [b, t, keys].
        """
        if self.visible is None:
            return True
        keys, length = self.keys.shape[1], self.visible.shape[1]
        expected = torch.zeros_like(self.visible)
        causal = torch.ones(length, keys, dtype=torch.bool).tril(keys - length)
        expected[..., :keys] = causal & expected_keys
        own_keys = self.keys[:, -length:]
        return torch.equal(self.visible[own_keys], expected[own_keys])


def key_mask(mask: Tensor, size: Sequence[int]) -> KeyMask | None:
    """A recorded mask, over b sequences with t tokens each; None if its shape is that of no such mask."""
    sequences, length = size
    if mask.dim() <= BY_KEY:
        mask = mask.reshape(-1, mask.shape[-1]).bool()
        return KeyMask(mask) if len(mask) == sequences and mask.shape[1] >= length else None
    if mask.dim() != BY_QUERY or mask.shape[:3] != (sequences, 1, length):
        return None
    visible = (mask if mask.dtype == torch.bool else mask == 0)[:, 0]
    last_keys = visible[:, -1].any(0).nonzero().flatten().tolist()
    keys = max(length, max(last_keys, default=-1) + 1)
    # A token that is no padding sees itself; what padding sees says nothing.
    own_keys = visible[:, :, keys - length : keys].diagonal(dim1=1, dim2=2)
    earlier = (visible[..., : keys - length] & own_keys[..., None]).any(1)
    return KeyMask(torch.cat([earlier, own_keys], dim=1), visible)
