"""`moeparity init`: writes a recipe for a checkpoint that can be run at once."""

from __future__ import annotations

from moeparity.bisection.init.recipe import Starter, write_starter

__all__ = ["Starter", "write_starter"]
