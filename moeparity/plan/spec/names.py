"""Words that the files and the command line share."""

from __future__ import annotations

from typing import Literal

Side = Literal["candidate", "reference"]

By = Literal["rule", "attribute", "node", "layer", "block"]
"""How differences are bundled into toggles."""
