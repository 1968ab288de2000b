"""The command line. Installed as `moeparity.cli`; thin, and torch-free until a command computes."""

from __future__ import annotations

if __name__ != "moeparity.cli":
    raise ImportError("import this package as moeparity.cli; `cli` is only where its source lies")

__all__ = ["main"]


def main() -> None:
    """The console script. The commands are imported inside, so that a signal during imports leaves no traceback."""
    from moeparity.cli.signals import ignore_signals, listen
    from moeparity.cli.streams import fill_closed

    listen()
    fill_closed()
    from moeparity.cli.commands import main as run

    try:
        run()
    finally:
        ignore_signals()
