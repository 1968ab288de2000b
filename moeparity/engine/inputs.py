"""What a pass is given from outside, and what nodes read of it (`SOURCES`)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from moeparity.engine.grid import Grid
from moeparity.errors import SpecError
from moeparity.inputs.tokens.images import Images
from moeparity.ops.images import IMAGE_MASK
from moeparity.plan.schedule.steps import MicroBatches, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Tokens int64 [B, T], which of them are real (bool [B, T]), and the images among them, on one device."""

    tokens: torch.Tensor
    mask: torch.Tensor
    images: Images | None

    def source(self, name: str, grid: Grid, of: Schedule | MicroBatches) -> torch.Tensor:
        """One of `SOURCES` as a schedule has it, [B, T, ..]."""
        if name in ("tokens", "mask"):
            return self.tokens if name == "tokens" else self.mask
        if name == "positions":
            return grid.positions(of, self.mask)
        if name == "grid_positions":
            return self._grid_positions(grid, of)
        if self.images is None:
            return torch.zeros_like(self.mask) if name == IMAGE_MASK else self.tokens.new_zeros(*self.tokens.shape, 0)
        return self.images.mask if name == IMAGE_MASK else self.images.embeds

    def _grid_positions(self, grid: Grid, of: Schedule | MicroBatches) -> torch.Tensor:
        """Positions in time, height and width, int64 [B, T, 3].

        In steps without images all three are those that the schedule counts. In a step with an image, as transformers
        has it, the real tokens of all its sequences are counted, and those of padding have 0. Raises SpecError where
        they run on in a pack.
        """
        positions = grid.positions(of, self.mask)[..., None].repeat(1, 1, 3)
        if self.images is None:
            return positions
        if grid.schedules[of].positions == "running":
            raise SpecError(
                "schedule: positions run on from one sequence of a pack to the next, and sequences hold images, whose "
                "positions have three axes. Set `positions: reset`."
            )
        counted = (self.mask.long().cumsum(-1) - 1)[..., None] + self.images.shifts
        counted = counted.masked_fill(~self.mask[..., None], 0)
        has_images = self.images.mask.any(1).tolist()
        for step in grid.schedules[of].steps:
            if any(has_images[span.sequence] for span in step.spans):
                places = grid.batch(step.spans, step.shape).index.to(positions.device)
                positions.flatten(0, 1)[places] = counted.flatten(0, 1)[places]
        return positions
