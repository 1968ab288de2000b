"""The examples of docs/schedules.md are what is made."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from moeparity.errors import Where
from moeparity.plan.schedule.make import refuse_unfit, schedule
from moeparity.plan.schedule.recorded import _KEYS
from moeparity.plan.schedule.settings import PARTS, WHOLE, settings
from moeparity.plan.schedule.steps import Schedule
from moeparity.plan.schedule.token_grid import TokenGrid
from moeparity.plan.spec import reader
from moeparity.plan.spec.scheduling import MOST_SEQUENCES, TOKEN_BUDGET, Decode, Scheduling
from moeparity.plan.spec.variant_schema import Variant
from tests.command import ROOT
from tests.plan.schedule.grids import HERE, grid, listing, make, written

PAGE = (ROOT / "docs" / "schedules.md").read_text("utf-8")
TWO = grid((2, 4), (3, 6))
LISTS = re.findall(r"^```jsonl\n(.*?)```$", PAGE, re.MULTILINE | re.DOTALL)
EXAMPLES = re.findall(r"^```yaml\n(.*)\n# (.*)\n```$", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("fields", "trace"), EXAMPLES, ids=[fields for fields, _ in EXAMPLES])
def test_examples(fields: str, trace: str) -> None:
    by = written(yaml.safe_load(fields), 2)
    refuse_unfit(by, TWO, HERE)
    assert " | ".join(listing(schedule(by, TWO, HERE))) == trace


def test_the_sides_of_the_example() -> None:
    block = next(
        block for block in re.findall(r"^```yaml\n(.*?)```$", PAGE, re.MULTILINE | re.DOTALL) if "profile" in block
    )
    sides = {name: Variant.model_validate(fields) for name, fields in yaml.safe_load(block).items()}
    decode = Decode.model_validate({"from": "prompt"})
    assert sides["candidate"].schedule == Scheduling(rule="vllm-v1", prefill="whole", decode=decode)


def test_the_recorded_list_is_the_second_example(tmp_path: Path) -> None:
    lines, _ = LISTS
    assert all(set(json.loads(line)) <= set(_KEYS) for line in lines.splitlines())
    of = _of_list(lines, tmp_path, grid((2, 4), (2, 5)))
    assert listing(of) == ["prefill 0:0-2 1:0-2", "decode 0:2-3 1:2-3", "decode 1:3-4 +3"]


def test_sequences_scored_alone_are_a_list_or_a_rule(tmp_path: Path) -> None:
    """As the page says of a record without padding: one after the other, none with pads."""
    _, lines = LISTS
    alone = grid((5, 6), (12, 13))
    by_rule = make({"rule": "vllm-v1", "sequences": 1}, alone)
    assert listing(_of_list(lines, tmp_path, alone)) == listing(by_rule) == ["prefill 0:0-6", "prefill 1:0-13"]


def _of_list(lines: str, folder: Path, tokens: TokenGrid) -> Schedule:
    (folder / "batches.jsonl").write_text(lines, "utf-8")
    by = settings(reader.read_scheduling({"file": "batches.jsonl"}, HERE), None, 2, Where(folder / "recipe.yaml"))
    return schedule(by, tokens, HERE)


def test_every_key_part_and_default_is_told() -> None:
    keys = {*Scheduling.model_fields, *_KEYS, *PARTS, WHOLE} - {"decode"}
    assert not [key for key in keys if f"`{key}`" not in PAGE]
    for field in Decode.model_fields.values():
        assert field.alias is None or f"`decode.{field.alias}`" in PAGE
    numbers = {*TOKEN_BUDGET.values(), *MOST_SEQUENCES.values()} - {None}
    assert not [number for number in numbers if f"{number:,}" not in PAGE]
