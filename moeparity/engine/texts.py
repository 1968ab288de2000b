"""Which tokens stand before those of a batch, for ops whose values depend on the text so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from moeparity.engine.batch import Batch
from moeparity.ops.kernels.text import SamplingRequest, Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """The text of each sequence.

    tokens: int64 [B, T]. mask: bool [B, T], true on real tokens. prompts: how many tokens of each sequence are prompt;
    empty if that is not known. requests: what the request of each asks for; empty if that is not known.
    """

    tokens: torch.Tensor
    mask: torch.Tensor
    prompts: Sequence[int]
    requests: Sequence[SamplingRequest] = ()

    def before(self, batch: Batch, padding: int) -> Text:
        """The text up to each token of a batch, that one included; nothing stands before its rows of padding."""
        length = self.tokens.shape[1]
        places = batch.index.to(self.tokens.device)
        sequences, columns = places // length, places % length
        standing = self.mask[sequences] & (torch.arange(length, device=places.device) <= columns[:, None])
        output = None
        if self.prompts:
            number = self.mask.cumsum(-1) - 1
            prompts = torch.tensor(self.prompts, device=places.device)
            output = standing & (number >= prompts[:, None])[sequences]
        ids, before = (_as_batch(x, batch, padding) for x in (self.tokens[sequences], standing))
        return Text(
            ids=ids,
            before=before,
            output=None if output is None else _as_batch(output, batch, padding),
            sequences=_as_batch(sequences[:, None], batch, padding).squeeze(-1),
            requests=self.requests,
        )


def _as_batch(rows: torch.Tensor, batch: Batch, padding: int) -> torch.Tensor:
    """[n, T] -> [b, t, T], with rows of zeros after each sequence's."""
    return F.pad(rows.view(*batch.size, -1), (0, 0, 0, padding))
