"""Token files: the sequences both variants are run on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from moeparity.errors import TokensError, Where, did_you_mean, listed

KEYS = ("input_ids", "loss_mask", "attention_mask")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSet:
    """input_ids [B, T] int64 and loss_mask [B, T] bool: the tokens whose log-probabilities count."""

    input_ids: torch.Tensor
    loss_mask: torch.Tensor


def read_tokens(path: Path, *, scored: bool = True) -> TokenSet:
    """Read a safetensors file with `input_ids` [B, T] and, optionally, `loss_mask` [B, T] (default: all tokens).

    Raises TokensError for unknown tensors, other shapes, masks that are not 0/1, an attention mask with a 0 (padding is
    not supported yet) and, where tokens are to be `scored`, a loss mask that keeps none.
    """
    where = Where(path)
    tensors = _load(path)
    for key in tensors:
        if key not in KEYS:
            raise TokensError(
                f"{where}: unknown tensor {key!r}; expected one of {listed(KEYS)}.{did_you_mean(key, KEYS)}"
            )
    if "input_ids" not in tensors:
        raise TokensError(f"{where}: holds no 'input_ids'; expected int64 [sequences, tokens].")
    ids = tensors["input_ids"]
    if ids.dtype != torch.int64 or ids.dim() != 2 or ids.numel() == 0:
        dtype = str(ids.dtype).removeprefix("torch.")
        raise TokensError(
            f"{where}: input_ids is {dtype} {list(ids.shape)}; expected int64 [sequences, tokens], not empty."
        )
    mask = _mask(where, tensors, "loss_mask", ids)
    if not bool(_mask(where, tensors, "attention_mask", ids).all()):
        raise TokensError(
            f"{where}: attention_mask holds a 0, and padded sequences are not supported yet. Give equal lengths."
        )
    if scored and not bool(mask[:, 1:].any()):
        raise TokensError(
            f"{where}: no token to score: "
            + ("loss_mask keeps none" if "loss_mask" in tensors else "the sequences hold none")
            + " after the first position, which has no logits before it."
        )
    return TokenSet(input_ids=ids, loss_mask=mask)


def _load(path: Path) -> dict[str, torch.Tensor]:
    where = Where(path)
    if not path.exists():
        raise TokensError(f"{where}: no such token file. Check the path.")
    try:
        tensors: dict[str, torch.Tensor] = load_file(path)
    except OSError as error:
        reason = "it is a folder" if path.is_dir() else error.strerror or error
        raise TokensError(f"{where}: cannot be read: {reason}. Expected a safetensors file with input_ids.") from None
    except SafetensorError as error:
        reason = str(error).splitlines()[0].removeprefix("Error while deserializing header: ")
        raise TokensError(
            f"{where}: not a whole safetensors file ({reason[:200]}). Write it with safetensors.torch.save_file."
        ) from None
    return tensors


def _mask(where: Where, tensors: dict[str, torch.Tensor], key: str, ids: torch.Tensor) -> torch.Tensor:
    mask = tensors.get(key)
    if mask is None:
        return torch.ones_like(ids, dtype=torch.bool)
    if mask.shape != ids.shape:
        raise TokensError(f"{where}: {key} is {list(mask.shape)}; expected {list(ids.shape)}, as input_ids.")
    # One-byte and smaller floats can't even be compared.
    if mask.dtype.itemsize == 1 and mask.dtype not in {torch.bool, torch.uint8, torch.int8}:
        raise TokensError(f"{where}: {key} is {str(mask.dtype).removeprefix('torch.')}; expected bool or int64.")
    if not bool(((mask == 0) | (mask == 1)).all()):
        raise TokensError(f"{where}: {key} holds values other than 0 and 1.")
    return mask.to(torch.bool)
