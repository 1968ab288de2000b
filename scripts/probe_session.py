"""Writes the sessions of docs/probe.md anew: `python scripts/probe_session.py`, about a minute."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "probe.md"
FOLDER = ROOT / "tests" / "probe"
SESSION = re.compile(r"^```\n\$ (.*?)\n.*?^```", flags=re.MULTILINE | re.DOTALL)


def main() -> None:
    """Run the command of each session again and put what it prints into the page."""
    PAGE.write_text(SESSION.sub(lambda block: f"```\n$ {block[1]}\n{printed(block[1])}\n```", PAGE.read_text()))


def printed(command: str) -> str:
    """What a command prints, run where the kernels of the tests lie."""
    name, *arguments = shlex.split(command)
    program = ["-m", "moeparity.cli"] if name == "moeparity" else ["-m", "torch.distributed.run", "--standalone"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(  # noqa: S603
        [sys.executable, *program, *arguments], cwd=FOLDER, capture_output=True, text=True, check=False, env=environment
    )
    if not done.stdout:
        sys.exit(f"{command}\n{done.stderr}")
    lines = [line if len(line) <= 118 else f"{line[:115]}..." for line in done.stdout.rstrip().splitlines()]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
