"""Writes the tables of docs/placement.md anew: `python scripts/placement_tables.py`, about four minutes."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "placement.md"
COLLECTIVES = "nccl.ring,nccl.tree,gloo.all_reduce,flashinfer.one_shot,flashinfer.one_shot_fp32,vllm.one_stage"
COMMANDS = tuple(
    f"moeparity sweep recipes/{recipe}.yaml --over {' --over '.join(over)}"
    for recipe, *over in (
        ("tensor-parallel", "both.profile=hf-eager,tp-invariant", "placement.tensor=1,2,4,8"),
        ("tensor-parallel", "'**.experts:tensor=1'", "'**.o_proj:parallel=row,column'", "placement.tensor=2,4,8"),
        ("all-reduce", f"'**.reduce:collective={COLLECTIVES},vllm.two_stage'"),
        ("all-reduce", "'**.reduce:collective=nccl.ring,nccl.tree'", "'**.reduce:channels=1,2,4'"),
    )
)
BLOCK = re.compile(r"^```\n(?:\$ moeparity sweep|TABLE).*?^```", flags=re.MULTILINE | re.DOTALL)


def main() -> None:
    """Run each command and put what it prints into the page's blocks, in their order."""
    tables = iter([f"```\n$ {command}\n{printed(command)}\n```" for command in COMMANDS])
    page = BLOCK.sub(lambda _: next(tables), PAGE.read_text())
    today = datetime.now(UTC).date().isoformat()
    PAGE.write_text(re.sub(r"\d{4}-\d\d-\d\d(?=, written by)", today, page))


def printed(command: str) -> str:
    """The table of a sweep, without its heading."""
    arguments = [sys.executable, "-m", "moeparity.cli", *shlex.split(command)[1:], "--device", "cpu"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "118"}
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)  # noqa: S603
    if done.returncode == 2 or not done.stdout:
        sys.exit(f"{command}\n{done.stderr}{done.stdout}")
    _, _, table = done.stdout.partition("\n\n")
    return "\n".join(line.rstrip() for line in table.partition("\n\nk3 in nats")[0].splitlines())


if __name__ == "__main__":
    main()
