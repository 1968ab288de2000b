"""`python -m moeparity.cli`."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

# Python looks for modules in the working directory first, and would run a `typer.py` there in place of the library.
with suppress(FileNotFoundError):  # it may be gone
    if not sys.flags.safe_path and sys.path[:1] == [os.getcwd()]:  # noqa: PTH109
        del sys.path[0]

from moeparity.cli import main

main()
