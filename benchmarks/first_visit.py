"""A first visitor's path, timed: clone, install into a fresh environment, the README's first commands, the page open.

`python -m benchmarks.first_visit` needs git, pip's registry, Chromium and playwright. The commands are read from the
README: the wheel of torch for a machine without a GPU, then the line of `Install`; what is not from there is the page,
which the last of them is asked for. Nothing is taken from pip's cache.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from playwright.sync_api import sync_playwright

from moeparity.inputs.machine import cpu_name

ROOT = Path(__file__).parents[1]
PAGE = "report.html"


@dataclass(frozen=True, slots=True)
class Stop:
    """A step of the way: what a visitor types, and the seconds that it took."""

    words: str
    seconds: float


def install_commands(readme: str) -> tuple[str, ...]:
    """The commands under `Install`, in the order in which they are typed: that of torch's CPU wheel first.

    Raises ValueError where the README has no such block.
    """
    section = readme.split("\n## Install\n", 1)[-1].split("\n## ", 1)[0]
    blocks = re.findall(r"^```\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    lines = [command.strip() for block in blocks for line in block.splitlines() for command in line.split("&&")]
    torch = [line for line in lines if line.startswith("pip install 'torch")]
    rest = [line for line in lines if line not in torch]
    if not torch or not any(line.startswith("moeparity bisect") for line in rest):
        raise ValueError("README.md: no `pip install 'torch...` and `moeparity bisect` under Install")
    return (*torch, *rest)


def visit(source: Path, folder: Path) -> Iterator[Stop]:
    """The way of a visitor who clones `source` into an empty folder; raises CalledProcessError where it breaks off."""
    clone, environment = folder / "moeparity", folder / "venv"
    variables = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    variables |= {"PATH": f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}", "PIP_NO_CACHE_DIR": "1"}

    def typed(words: str, where: Path, right: tuple[int, ...] = (0,)) -> Stop:
        return _timed(words, lambda: _run(words, where, variables, right))

    yield typed(f"git clone {source} {clone.name}", folder)
    yield typed(f"{sys.executable} -m venv {environment.name}", folder)
    for words in install_commands((clone / "README.md").read_text("utf-8")):
        is_bisection = words.startswith("moeparity bisect")
        yield typed(f"{words} --html {PAGE}" if is_bisection else words, clone, (0, 1) if is_bisection else (0,))
    yield _timed(f"open {PAGE}", lambda: _open(clone / PAGE))


def _timed(words: str, act: Callable[[], object]) -> Stop:
    begun = time.perf_counter()
    act()
    return Stop(words, time.perf_counter() - begun)


def _run(words: str, where: Path, variables: Mapping[str, str], right: tuple[int, ...]) -> None:
    done = subprocess.run(words, shell=True, cwd=where, env=variables, capture_output=True, text=True, check=False)  # noqa: S602
    if done.returncode not in right:
        raise subprocess.CalledProcessError(done.returncode, words, done.stdout, done.stderr)


def _open(page: Path) -> None:
    """Start Chromium, and wait until every plot of the page is drawn."""
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        raise FileNotFoundError("no browser; apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_page()
        tab.goto(page.as_uri())
        tab.wait_for_function("document.documentElement.dataset.ready !== undefined")
        browser.close()


def main() -> None:
    """Go the way once, and print it as a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, default=ROOT, help="what is cloned; by default this repository")
    source = parser.parse_args().source
    total = 0.0
    print("| a visitor types | seconds |\n|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for stop in visit(source.absolute(), Path(folder)):
            total += stop.seconds
            words = stop.words.replace(str(source.absolute()), "URL").replace(sys.executable, "python3")
            print(f"| `{words}` | {stop.seconds:.1f} |", flush=True)
    print(f"| in all | {total:.1f} |\n\n{cpu_name()}, {os.cpu_count()} cores, {date.today()}.")


if __name__ == "__main__":
    main()
