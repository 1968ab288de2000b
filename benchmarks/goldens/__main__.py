"""Freeze what the commands say, or hold them to what was frozen."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from difflib import unified_diff
from html import unescape
from pathlib import Path
from typing import Any

from benchmarks.goldens.cases import PROGRAMS, Case, cases
from tests.command import ROOT

_SUFFIX = {"--json": ".json", "--html": ".html", "--markdown": ".md"}
_COST = frozenset({"digest", "cost", "provenance", "schema"})
"""What a report says of its own run."""
_MOST = 12
"""Differences of a file that are printed."""
_TIMES = re.compile(r"\b\d+(\.\d+)? (s|min|hours|MB|GB|kB|ms)\b")


def main() -> None:
    """Read the command line; exit code 1 where something is not the same."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.goldens", description=__doc__)
    parser.add_argument("act", choices=["freeze", "compare"])
    parser.add_argument("folder", type=Path, help="what is frozen lies in FOLDER/before, what is held to it in after")
    parser.add_argument("--only", default="", help="cases whose names begin so")
    options = parser.parse_args()
    traces = _traces(options.folder.resolve() / "traces")
    wanted = [case for case in cases(traces) if case.name.startswith(options.only)]
    place = options.folder.resolve() / ("before" if options.act == "freeze" else "after")
    differing = []
    for case in wanted:
        _run(case, place / case.name)
        if options.act == "compare":
            differences = list(_differences(place.parent / "before" / case.name, place / case.name))
            differing += [case.name] * bool(differences)
            print(f"{case.name}: {'same' if not differences else ''}", *differences, sep="\n  ", flush=True)
    print(f"{len(wanted)} cases, {len(differing)} differ: {', '.join(differing) or 'none'}")
    sys.exit(bool(differing))


def _traces(folder: Path) -> Path:
    """The programs' traces, those that are not there yet made now."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in PROGRAMS:
        if not (folder / f"{name}.yaml").exists():
            program = [sys.executable, "-m", "benchmarks.goldens.programs", name, str(folder / name)]
            subprocess.run(program, cwd=ROOT, check=True, env=_environment())  # noqa: S603
    return folder


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100", "HF_HUB_OFFLINE": "1"}


def _run(case: Case, folder: Path) -> None:
    if (folder / "exit").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    files = [word for option in case.writes for word in (option, str(folder / f"report{_SUFFIX[option]}"))]
    command = [sys.executable, "-m", "moeparity.cli", *case.words, *files]
    done = subprocess.run(  # noqa: S603
        command, cwd=ROOT, capture_output=True, text=True, check=False, env=_environment()
    )
    (folder / "out").write_text(done.stdout, "utf-8")
    (folder / "error").write_text(done.stderr, "utf-8")
    (folder / "exit").write_text(str(done.returncode), "utf-8")


def _differences(before: Path, after: Path) -> list[str]:
    """What is not the same, in lines."""
    differences = []
    for file in sorted({path.name for path in (*before.iterdir(), *after.iterdir())}):
        pair = [path / file for path in (before, after)]
        if not all(path.exists() for path in pair):
            differences.append(f"{file}: in one of both only")
            continue
        texts = [path.read_text("utf-8").replace(str(path.parent), "FOLDER") for path in pair]
        differences += _of_json(*texts) if file.endswith(".json") else _of_text(file, *texts)
    return differences


def _of_json(before: str, after: str) -> list[str]:
    flat = [dict(_flat(json.loads(text))) for text in (before, after)]
    paths = [path for path in dict.fromkeys((*flat[0], *flat[1])) if flat[0].get(path, "-") != flat[1].get(path, "-")]
    return [f"json {path}: {flat[0].get(path, '-')!r} -> {flat[1].get(path, '-')!r}"[:200] for path in paths[:_MOST]]


def _flat(value: Any, path: str = "") -> Any:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key not in _COST:
                yield from _flat(item, f"{path}.{key}")
    elif isinstance(value, list):
        yield f"{path}.length", len(value)
        for index, item in enumerate(value):
            yield from _flat(item, f"{path}[{index}]")
    else:
        yield path, value


def _of_text(file: str, before: str, after: str) -> list[str]:
    if file.endswith(".html"):
        # Sections may change places; what they say may not.
        ours, theirs = (Counter(_lines(_words(text))) for text in (before, after))
        gone, new = sorted((ours - theirs).elements()), sorted((theirs - ours).elements())
        differences = [*(f"-{line}" for line in gone), *(f"+{line}" for line in new)]
    else:
        lines = unified_diff(_lines(before), _lines(after), n=0, lineterm="")
        differences = [line for line in lines if line[:2] not in ("--", "++", "@@")]
    return [f"{file} {line}"[:200] for line in differences[:_MOST]]


def _lines(text: str) -> list[str]:
    """Lines with words in them, without how long anything took."""
    return [_TIMES.sub("TIME", " ".join(line.split())) for line in text.splitlines() if line.strip()]


def _words(page: str) -> str:
    """What a page shows, a line for each element, and what its scripts draw."""
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    body = re.sub(r"<(style|script)\b.*?</\1>", "", page, flags=re.DOTALL)
    text = unescape(re.sub(r"<[^>]+>", "\n", body))
    drawn = json.loads(data[1]) if data else {}
    return "\n".join(
        [text, *(f"{name}: {json.dumps(drawn[name], sort_keys=True)[:100_000]}" for name in sorted(drawn))]
    )


if __name__ == "__main__":
    main()
