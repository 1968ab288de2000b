"""Warnings about tokens, and metrics by class of token; plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassMetrics:
    """Candidate against reference on the tokens of one class: k3 and mean |delta| in nats per scored token (NaN if none
    is scored); set_flips: of `token_layers`, how many have another expert set.
    """

    name: str
    scored_tokens: int
    k3: float
    mean_abs_delta: float
    token_layers: int
    set_flips: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OfTokens:
    """Warnings about the tokens, and metrics by class of token."""

    warnings: tuple[str, ...]
    classes: tuple[ClassMetrics, ...]
