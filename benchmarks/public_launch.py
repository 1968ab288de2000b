"""What becomes of other people's launch files: `python -m benchmarks.public_launch FOLDER...`.

Each FOLDER is a checkout of a framework. Every script, YAML and TOML file in it is read as by `moeparity show launch`.
A line for each folder says how many give sides, as files of which programs (those of another framework are a mistake),
and how many are refused: since they start nothing that is known here (which most files of a repository don't), are of a
framework that is known and not read, or for another reason. Exits with 1 if any ends in a traceback.
"""

from __future__ import annotations

import argparse
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from moeparity.errors import MoeparityError
from moeparity.profiles.launch import read

_SUFFIXES = (".sh", ".yaml", ".yml", ".toml")
_UNKNOWN = "whose configuration this is cannot be told"
_UNREAD = "which are not read: state the sides by hand"


def main() -> int:
    """Read all files of the folders that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--refused", action="store_true", help="print every file that is refused, with its reason")
    options = parser.parse_args()
    failed = 0
    for folder in options.folders:
        outcomes, engines, start = Counter[str](), Counter[str](), time.perf_counter()
        for path in _files(folder):
            kind, reason = _outcome(path)
            outcomes[kind] += 1
            if kind == "read":
                engines[reason] += 1
            if kind == "failed" or (options.refused and kind != "read"):
                print(f"{kind}: {path}: {reason}", flush=True)
        failed += outcomes["failed"]
        counts = ", ".join(f"{outcomes[kind]} {kind}" for kind in ("read", "unknown", "unread", "refused", "failed"))
        counts += "".join(f"; {number} as {engine}" for engine, number in engines.most_common())
        print(f"{folder}: {outcomes.total()} files: {counts}; {time.perf_counter() - start:.0f} s", flush=True)
    return int(failed > 0)


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.suffix in _SUFFIXES and path.is_file() and "/." not in f"/{path.relative_to(folder)}":
            yield path


def _outcome(path: Path) -> tuple[str, str]:
    """What comes of one file, and why; of one that is read, the programs whose file it is."""
    try:
        engine = read(path).engine
    except MoeparityError as error:
        kind = "unknown" if _UNKNOWN in str(error) else "unread" if _UNREAD in str(error) else "refused"
        return kind, next(iter(str(error).splitlines()), "")
    except Exception:  # noqa: BLE001  what this script looks for
        return "failed", traceback.format_exc()
    return "read", engine


if __name__ == "__main__":
    raise SystemExit(main())
