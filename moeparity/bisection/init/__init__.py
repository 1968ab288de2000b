"""A recipe that runs at once, written for a checkpoint."""

from __future__ import annotations

from moeparity.bisection.init.recipe import Starter, write_starter

__all__ = ["Starter", "write_starter"]
