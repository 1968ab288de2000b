"""The command line. Installed as `moeparity.cli`; thin, and torch-free until a command computes."""

from __future__ import annotations

if __name__ != "moeparity.cli":
    raise ImportError("import this package as moeparity.cli; `cli` is only where its source lies")

from moeparity.cli.main import main

__all__ = ["main"]
