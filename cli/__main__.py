"""`python -m moeparity.cli`."""

from __future__ import annotations

from moeparity.cli import main

main()
