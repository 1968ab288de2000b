"""What is broken is refused with its place, and every `raise` of the readers has a file that causes it."""

from __future__ import annotations

import ast
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

import moeparity.logs
from moeparity import logs
from moeparity.errors import LogError
from tests.logs.broken import FILES, FIXTURES, LINES, OTHERS, write

FOLDER = Path(moeparity.logs.__file__).parent
READING = ("chunks.py", "join.py", "opening.py", "record.py")
SAMPLED = FIXTURES / "sglang/generate.jsonl"
Refusal = tuple[str, set[tuple[str, int]]]


def _lines(name: str, folder: Path) -> None:
    case = LINES[name]
    path = write(case, folder)
    if case.role == "trainer":
        list(logs.open([SAMPLED], trainer=[path]))
    else:
        list(logs.open([path], **case.options))


def _run(name: str, folder: Path) -> None:
    if name in LINES:
        _lines(name, folder)
    elif name in FILES:
        list(logs.open([FILES[name][0](folder)]))
    else:
        OTHERS[name][0](folder)


@pytest.fixture(scope="module")
def refusal(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Refusal]:
    """The message of a case and the places of the readers it passed; each case is run once."""
    refusals: dict[str, Refusal] = {}

    def once(name: str) -> Refusal:
        if name not in refusals:
            with pytest.raises(LogError) as caught:
                _run(name, tmp_path_factory.mktemp("broken"))
            chain = [caught.value, *([caught.value.__context__] if caught.value.__context__ else [])]
            frames = [frame for error in chain for frame in traceback.extract_tb(error.__traceback__)]
            refusals[name] = str(caught.value), {(Path(each.filename).name, each.lineno or 0) for each in frames}
        return refusals[name]

    return once


SAYS = {
    **{name: case.says for name, case in LINES.items()},
    **{name: says for name, (_, says) in FILES.items()},
    **{name: says for name, (_, says) in OTHERS.items()},
}


@pytest.mark.parametrize("name", SAYS)
def test_broken(name: str, refusal: Callable[[str], Refusal]) -> None:
    message, _ = refusal(name)
    assert SAYS[name] in message
    assert "\n" not in message


def test_every_refusal_has_a_case(refusal: Callable[[str], Refusal]) -> None:
    passed = {place for name in SAYS for place in refusal(name)[1]}
    raises = set()
    for path in (*FOLDER.glob("formats/*.py"), *(FOLDER / name for name in READING)):
        # What turns sequences into columns is tested with the metrics.
        nodes = [] if path.name == "chunks.py" else ast.walk(ast.parse(path.read_text("utf-8")))
        raises |= {(path.name, node.lineno) for node in nodes if isinstance(node, ast.Raise) and node.exc is not None}
    assert raises - passed == set()
