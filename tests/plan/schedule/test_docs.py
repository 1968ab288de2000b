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
from moeparity.plan.spec import reader
from moeparity.plan.spec.scheduling import MOST_SEQUENCES, TOKEN_BUDGET, Decode, Scheduling
from moeparity.plan.spec.variant_schema import Variant
from tests.command import ROOT
from tests.plan.schedule.grids import HERE, grid, told, written

PAGE = (ROOT / "docs" / "schedules.md").read_text("utf-8")
TWO = grid((2, 4), (3, 6))
EXAMPLES = re.findall(r"^```yaml\n(.*)\n# (.*)\n```$", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("fields", "trace"), EXAMPLES, ids=[fields for fields, _ in EXAMPLES])
def test_examples(fields: str, trace: str) -> None:
    by = written(yaml.safe_load(fields), 2)
    refuse_unfit(by, TWO, HERE)
    assert " | ".join(told(schedule(by, TWO, HERE))) == trace


def test_the_sides_of_the_example() -> None:
    block = next(
        block for block in re.findall(r"^```yaml\n(.*?)```$", PAGE, re.MULTILINE | re.DOTALL) if "profile" in block
    )
    sides = {name: Variant.model_validate(fields) for name, fields in yaml.safe_load(block).items()}
    assert sides["candidate"].schedule == Scheduling(rule="vllm-v1", decode=Decode.model_validate({"from": "prompt"}))


def test_the_recorded_list_is_the_second_example(tmp_path: Path) -> None:
    (lines,) = re.findall(r"^```jsonl\n(.*?)```$", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "batches.jsonl").write_text(lines, "utf-8")
    assert all(set(json.loads(line)) <= set(_KEYS) for line in lines.splitlines())
    by = settings(reader.read_scheduling({"file": "batches.jsonl"}, HERE), None, 2, Where(tmp_path / "recipe.yaml"))
    of = schedule(by, grid((2, 4), (2, 5)), HERE)
    assert told(of) == ["prefill 0:0-2 1:0-2", "decode 0:2-3 1:2-3", "decode 1:3-4 +3"]


def test_every_key_part_and_default_is_told() -> None:
    keys = {*Scheduling.model_fields, *_KEYS, *PARTS, WHOLE} - {"decode"}
    assert not [key for key in keys if f"`{key}`" not in PAGE]
    for field in Decode.model_fields.values():
        assert field.alias is None or f"`decode.{field.alias}`" in PAGE
    numbers = {*TOKEN_BUDGET.values(), *MOST_SEQUENCES.values()} - {None}
    assert not [number for number in numbers if f"{number:,}" not in PAGE]
