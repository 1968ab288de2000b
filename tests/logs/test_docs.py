"""docs/logs.md says of the formats what the code says, and its conversions give back what was in the trainer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from moeparity import logs
from moeparity.errors import LogError
from moeparity.logs.formats.own import KEYS
from tests.logs.truth import TRUTHS

PAGE = (Path(__file__).parents[2] / "docs" / "logs.md").read_text("utf-8")


@pytest.fixture(scope="module")
def code() -> dict[str, Any]:
    blocks: dict[str, Any] = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)), blocks)  # noqa: S102
    return blocks


def test_a_slime_dump_of_arrays_is_refused_and_then_plain(code: dict[str, Any], tmp_path: Path) -> None:
    folder = Path(__file__).parent / "fixtures" / "slime"
    dump = torch.load(folder / "rollout_7.pt", weights_only=True)
    dump["samples"][0]["multimodal_inputs"] = {"image": Path("x.png")}
    torch.save(dump, tmp_path / "a.pt")
    code["plain_slime"](tmp_path / "a.pt", tmp_path / "b.pt")
    with pytest.raises(LogError, match="To unpickle the rest could run any code"):
        logs.open([tmp_path / "a.pt"])
    check_joined = logs.open([tmp_path / "b.pt"], trainer=[folder / "train_7.pt"])
    assert [sequence.token_ids.tolist() for sequence in check_joined] == [truth.ids for truth in TRUTHS]


def test_the_page_lists_every_format_with_its_fixture() -> None:
    rows = dict(re.findall(r"^\| `([\w-]+)` \|.*\| ([^|]+) \|$", PAGE.split("## Joining")[0], re.MULTILINE))
    assert rows == {name: format_.fixture for name, format_ in logs.FORMATS.items()}


def test_the_page_lists_every_key_and_its_example_is_read(tmp_path: Path) -> None:
    table = PAGE.split("## moeparity's own format")[1].split("## From a running")[0]
    listed = {key for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for key in re.findall(r"`(\w+)`", row)}
    assert listed == set(KEYS)
    (tmp_path / "a.jsonl").write_text(re.findall(r"```jsonl\n(.*?)```", table, re.DOTALL)[0])
    (sequence,) = logs.open([tmp_path / "a.jsonl"])
    assert (sequence.id, sequence.prompt, int(sequence.mask.sum())) == ("7/0", 2, 2)
