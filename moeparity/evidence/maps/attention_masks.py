"""What a program's attention mask says of padding: as [b, S], or as the [b, 1, t, S] of a static cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from moeparity.evidence.maps.forwards import Forward
from moeparity.evidence.maps.module_map import ModuleMap
from moeparity.evidence.trace.reader import RankTrace

BY_KEY, BY_QUERY = 2, 4
"""Axes of a mask that says which keys are padding, and of one that says of each query which keys it sees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyMask:
    """Which tokens are no padding, as one forward says it.

    own_mask: of the forward's own tokens, bool [b, t]. keys: how many keys its last token sees, its own and earlier
    ones. before: of earlier tokens, bool [b, keys - t]; None if the forward does not say. visible: if each query has a
    mask of its own, bool [b, t, places]. unknown: why nothing is known; empty if something is.
    """

    own_mask: Tensor
    keys: int
    before: Tensor | None = None
    visible: Tensor | None = None
    unknown: str = ""

    def is_causal(self, expected_keys: Tensor) -> bool:
        """Whether each query sees every token up to itself of those it should, and nothing else.

        expected_keys: which those are, no padding and no other sequences, bool [b, 1, keys] or [b, t, keys].
        """
        if self.visible is None:
            return True
        length = self.own_mask.shape[1]
        expected = torch.zeros_like(self.visible)
        causal = torch.ones(length, self.keys, dtype=torch.bool).tril(self.keys - length)
        expected[..., : self.keys] = causal & expected_keys
        return torch.equal(self.visible[self.own_mask], expected[self.own_mask])


def key_mask(trace: RankTrace, module_map: ModuleMap, way: Forward) -> KeyMask | None:
    """What is said of a forward's tokens at the first place that says something; None where nothing does."""
    sequences, length = way.ids.shape
    unkept = None
    for place in module_map.mask:
        calls = way.calls.get(place.module, ())
        value = way.value(place, trace.contents.values)
        if value is None:
            if any(slot.startswith(f"{name}.") for call in calls for slot in call.inputs for name in place.slots):
                unkept = unkept or _unknown(way, "it has an attention mask for each kind of layer.")
            continue
        tensor = trace.tensor(value)
        if tensor is None:
            unkept = unkept or _unknown(way, f"its attention mask, {place}, was not kept whole.")
            continue
        if tensor.dim() == BY_KEY and tensor.shape[0] == sequences and tensor.shape[1] >= length:
            mask = tensor.bool()
            return KeyMask(own_mask=mask[:, -length:], keys=mask.shape[1], before=mask[:, :-length])
        if tensor.dim() == BY_QUERY and tensor.shape[:3] == (sequences, 1, length):
            return _by_query(tensor if tensor.dtype == torch.bool else tensor == 0)
        return _unknown(way, f"its attention mask has the shape {list(tensor.shape)}.")
    return unkept


def _by_query(mask: Tensor) -> KeyMask:
    """Of a mask [b, 1, t, places] bool: a token that is no padding sees itself."""
    visible = mask[:, 0]
    length = visible.shape[1]
    keys = _keys(visible)
    own_mask = visible[:, :, keys - length : keys].diagonal(dim1=1, dim2=2)
    return KeyMask(own_mask=own_mask, keys=keys, visible=visible)


def _keys(visible: Tensor) -> int:
    """How many places the last token sees that sees the most."""
    places = visible[:, -1].any(0).nonzero().flatten().tolist()
    return max(visible.shape[1], max(places, default=-1) + 1)


def _unknown(way: Forward, reason: str) -> KeyMask:
    return KeyMask(own_mask=torch.ones_like(way.ids, dtype=torch.bool), keys=way.ids.shape[1], unknown=reason)
