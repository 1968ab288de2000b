"""Guards for live torch.distributed jobs: ranks stay in step, or the job ends with one crisp difference
(`docs/ranks.md`). `Guard` is imported, and torch with it, when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moeparity.ranks.guard import Guard

__all__ = ["Guard"]


def __getattr__(name: str) -> Any:
    if name != "Guard":
        raise AttributeError(f"module 'moeparity.ranks' has no attribute {name!r}")
    from moeparity.ranks.guard import Guard

    return Guard
