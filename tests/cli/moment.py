"""The console script with a signal at a certain moment, after a line of code: for tests/cli/test_interruption.py.

Arguments: the line, the moment's module, function, signal and when, and the command's own.
"""

from __future__ import annotations

import sys

from tests.hostile.moments import Moment, signal_at


def main() -> None:
    """The line, and the command."""
    line, module, name, number, when = sys.argv[1:6]
    del sys.argv[1:6]
    exec(line, {})  # noqa: S102
    signal_at(Moment(module, name, when), int(number))
    from moeparity.cli import main as run

    run()
