"""What programs make of weights, each form as the function that makes it anew: by its bits a tensor is told to be that.

Sources imitated: vLLM 0.32.0 (`layers/rotary_embedding/base.py`: inverse frequencies and the cache of cos and sin;
`quantization/utils/quant_utils.py` and `fp8_utils.py`: scales of tensors, rows and blocks), transformers 5.23.0 (`-exp`
of Mamba's A_log, `1 + weight` of Gemma's norms), PEFT 0.18 (merged adapters). Read, and written anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

Form = Callable[[Sequence[torch.Tensor], torch.dtype, Sequence[int]], torch.Tensor]
"""Sources, the dtype of what is made, and its sizes, to the values."""

_BLOCK = 128
_FP8_MOST, _INT8_MOST = 448.0, 127.0


@dataclass(frozen=True, slots=True)
class Making:
    """How something is made: the name of its form, of what it is made, its dtype, and sizes that its form needs."""

    form: str
    sources: tuple[str, ...]
    dtype: str
    sizes: tuple[int, ...] = ()

    def values(self, sources: Sequence[torch.Tensor]) -> torch.Tensor:
        """What is made of these sources, which may hold what those of that name hold now."""
        return FORMS[self.form](sources, getattr(torch, self.dtype), self.sizes)


def _copy(sources: Sequence[torch.Tensor], dtype: torch.dtype, _: Sequence[int]) -> torch.Tensor:
    return sources[0].detach()


def _cast(sources: Sequence[torch.Tensor], dtype: torch.dtype, _: Sequence[int]) -> torch.Tensor:
    return sources[0].detach().to(dtype)


def _pointwise(function: Callable[[torch.Tensor], torch.Tensor]) -> Form:
    return lambda sources, dtype, _: function(sources[0].detach().float()).to(dtype)


def _largest(weight: torch.Tensor, over: str) -> torch.Tensor:
    """The largest magnitude of a weight, of each of its rows or of each block of 128 by 128, fp32."""
    magnitudes = weight.detach().float().abs()
    if over == "tensor":
        return magnitudes.amax().reshape(1)
    if over == "row":
        return magnitudes.amax(-1)
    high, wide = weight.shape[-2:]
    padded = torch.nn.functional.pad(magnitudes, (0, -wide % _BLOCK, 0, -high % _BLOCK))
    tiles = padded.reshape(*weight.shape[:-2], -(-high // _BLOCK), _BLOCK, -(-wide // _BLOCK), _BLOCK)
    return tiles.amax((-1, -3))


def _scale(over: str, most: float, *, inverse: bool = False) -> Form:
    def scales(sources: Sequence[torch.Tensor], dtype: torch.dtype, _: Sequence[int]) -> torch.Tensor:
        largest = _largest(sources[0], over)
        return (most / largest if inverse else largest / most).to(dtype)

    return scales


def _quantised(over: str, most: float) -> Form:
    def values(sources: Sequence[torch.Tensor], dtype: torch.dtype, _: Sequence[int]) -> torch.Tensor:
        weight = sources[0].detach().float()
        scale = _largest(sources[0], over) / most
        if over == "row":
            scale = scale.unsqueeze(-1)
        elif over == "block":
            scale = scale.repeat_interleave(_BLOCK, -1).repeat_interleave(_BLOCK, -2)
            scale = scale[..., : weight.shape[-2], : weight.shape[-1]]
        scaled = (weight / scale).clamp(-most, most)
        return scaled.to(dtype) if dtype.is_floating_point else scaled.round().to(dtype)

    return values


def _angles(frequencies: torch.Tensor, positions: int) -> torch.Tensor:
    """The angle of each frequency at each position, fp32 [positions, frequencies]."""
    places = torch.arange(positions, dtype=torch.float32, device=frequencies.device)
    return places[:, None] * frequencies.detach().float()[None, :]


def _cos_and_sin(sources: Sequence[torch.Tensor], dtype: torch.dtype, sizes: Sequence[int]) -> torch.Tensor:
    angles = _angles(sources[0], sizes[0])
    return torch.cat((angles.cos(), angles.sin()), -1).to(dtype)


def _frequencies(sources: Sequence[torch.Tensor], dtype: torch.dtype, sizes: Sequence[int]) -> torch.Tensor:
    width = 2 * sizes[-1]
    places = torch.arange(0, width, 2, dtype=torch.float32)
    return (1.0 / (float(sources[0]) ** (places / width))).to(dtype)


def _cos_and_sin_of_base(sources: Sequence[torch.Tensor], dtype: torch.dtype, sizes: Sequence[int]) -> torch.Tensor:
    return _cos_and_sin([_frequencies(sources, torch.float32, sizes)], dtype, sizes)


def _merged(sources: Sequence[torch.Tensor], dtype: torch.dtype, _: Sequence[int]) -> torch.Tensor:
    weight, low, high, scale = (source.detach() for source in sources)
    return weight + (high @ low) * scale.item()


def _merged_at_once(sources: Sequence[torch.Tensor], dtype: torch.dtype, _: Sequence[int]) -> torch.Tensor:
    weight, low, high, scale = (source.detach() for source in sources)
    return torch.addmm(weight, high, low, alpha=scale.item())


SCALES: Mapping[str, Form] = {
    f"{'the inverse of ' if inverse else ''}absmax / {most:g} of each {over}": _scale(over, most, inverse=inverse)
    for over in ("tensor", "row", "block")
    for most in (_FP8_MOST, _INT8_MOST)
    for inverse in (False, True)
}
QUANTISED: Mapping[str, Form] = {
    f"quantised by absmax / {most:g} of each {over}": _quantised(over, most)
    for over in ("tensor", "row", "block")
    for most in (_FP8_MOST, _INT8_MOST)
}
POINTWISE: Mapping[str, Form] = {
    "-exp": _pointwise(lambda x: -x.exp()),
    "exp": _pointwise(torch.exp),
    "1 +": _pointwise(lambda x: 1.0 + x),
    "1 /": _pointwise(lambda x: 1.0 / x),
}
ROTARY: Mapping[str, Form] = {
    "cos and sin": _cos_and_sin,
    "cos and sin by base": _cos_and_sin_of_base,
    "frequencies by base": _frequencies,
}
MERGED: Mapping[str, Form] = {"merged adapter": _merged, "merged adapter at once": _merged_at_once}
FORMS: Mapping[str, Form] = {
    "copy": _copy, "cast": _cast, **POINTWISE, **SCALES, **QUANTISED, **ROTARY, **MERGED,
}  # fmt: skip
