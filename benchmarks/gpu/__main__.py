"""Measures on a GPU what everywhere else is measured on a CPU, and writes one page of it.

    python -m benchmarks.gpu --out FOLDER [--only PART ...]

Needs one CUDA GPU with 24 GB, 4 GB of disk for temporary files, the packages that pyproject.toml names and
transformers; the checkout need not be installed, and nothing is fetched. Every part runs in a process of its own, so
that a GPU left in disorder spoils one part only, and is ended after its seconds: all together stay under eight minutes.
A part that is done leaves FOLDER/PART.json; a rerun does the others only. FOLDER/gpu.md is made of what is there, and
FOLDER/PART.log holds what a part printed. To measure a part again, delete its PART.json.

Exits with 0 where every part is done and nothing was other than it should be, 1 where something was or a part is
missing, 2 where nothing could be run: no GPU, a package missing, no folder.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path

from benchmarks.gpu import page

ROOT = Path(__file__).parents[2]

SECONDS: dict[str, int] = {"equality": 180, "sums": 60, "forward": 65, "lockstep": 65, "streaming": 95}
"""How long the process of each part may take, starting included."""

ENDING = 15
"""Of these, what is kept for the case that is under way when a part looks at the clock, and for writing its result."""


def main() -> int:
    """Run what is missing, write the page, judge."""
    options = _options()
    missing = absent_packages()
    if missing:
        names = " ".join(missing)
        print(f"benchmarks.gpu: missing: {names}. Install them: {Path(sys.executable).name} -m pip install {names}")
        return 2
    if options.device == "cuda" and not has_gpu():
        print("benchmarks.gpu: torch finds no usable CUDA GPU here; there is nothing to measure.")
        return 2
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        print(f"benchmarks.gpu: {options.out} cannot be made: {error.strerror}. Name another --out.")
        return 2
    failures = {}
    for part in options.only or SECONDS:
        print(f"{part}: ", end="", flush=True)
        if page.result_file(options.out, part).exists():
            print("done before")
            continue
        started = time.monotonic()
        failure = run(part, options.out, options.device, options.tiny)
        print(f"{failure or 'done'} ({time.monotonic() - started:.0f} s)")
        if failure is not None:
            failures[part] = failure
    written, sound = page.write(options.out, list(SECONDS), failures)
    print(f"page: {written}")
    return 0 if sound else 1


def absent_packages() -> list[str]:
    """Distributions this needs and Python does not find, as pyproject.toml and benchmarks/gpu name them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = [*project["dependencies"], *(x for x in project["optional-dependencies"]["test"] if "transformers" in x)]
    modules = {"pyyaml": "yaml"}
    by_text = {text: re.split(r"[^\w-]", text)[0] for text in wanted}
    # Logs and launch files alone are read with them, and none is read here.
    unused = {"orjson", "tree-sitter", "tree-sitter-bash", "omegaconf"}
    needed = ((text, modules.get(name, name)) for text, name in by_text.items() if name not in unused)
    return [f"'{text}'" for text, module in needed if importlib.util.find_spec(module) is None]


def has_gpu() -> bool:
    """Whether torch can use one."""
    import torch  # noqa: PLC0415 - only once it is known to be there

    return torch.cuda.is_available()


def run(part: str, folder: Path, device: str, tiny: bool) -> str | None:
    """Run a part in a process of its own; None once its result is written, else how it ended."""
    command = [sys.executable, "-m", "benchmarks.gpu.part", part, "--out", str(folder.resolve()), "--device", device]
    # A cold start takes its share of the part's time.
    command += ["--deadline", str(time.monotonic() + SECONDS[part] - ENDING), *(["--tiny"] if tiny else [])]
    log = folder / f"{part}.log"
    try:
        with log.open("wb") as stream:
            done = subprocess.run(  # noqa: S603
                command,
                cwd=ROOT,
                env=environment(os.environ),
                stdout=stream,
                stderr=subprocess.STDOUT,
                timeout=SECONDS[part],
                check=False,
            )
    except subprocess.TimeoutExpired:
        return f"ended after its {SECONDS[part]} s; see {log}"
    lines = log.read_text("utf-8", "replace").splitlines()
    last = lines[-1].strip() if lines else "it printed nothing"
    return None if done.returncode == 0 else f"ended with code {done.returncode}: {last}; see {log}"


def environment(shell: Mapping[str, str]) -> dict[str, str]:
    """The shell's variables; nothing is looked for on a network."""
    return {**shell, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, help="the folder of results and page")
    parser.add_argument("--only", action="append", choices=list(SECONDS), metavar="PART", help=", ".join(SECONDS))
    # For the tests, which have no GPU.
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"], help=argparse.SUPPRESS)
    parser.add_argument("--tiny", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
