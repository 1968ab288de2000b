"""docs/logs.md says of the formats what the code says, and its conversions give back what was in the trainer."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from moeparity import logs
from moeparity.errors import LogError
from moeparity.logs.formats.own import KEYS
from tests.logs.truth import STEP, TRUTHS

PAGE = (Path(__file__).parents[2] / "docs" / "logs.md").read_text("utf-8")


@pytest.fixture(scope="module")
def code() -> dict[str, Any]:
    blocks: dict[str, Any] = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)), blocks)  # noqa: S102
    return blocks


def block(key: str, fill: Any, *, at_left: bool, prompt: bool) -> torch.Tensor:
    """[3, T] of the prompts or of the responses, padded as trainers pad."""
    rows = [getattr(t, key)[: t.prompt] if prompt else getattr(t, key)[t.prompt :] for t in TRUTHS]
    width = max(map(len, rows)) + 1
    pads = [[fill] * (width - len(row)) for row in rows]
    return torch.tensor([[*pad, *row] if at_left else [*row, *pad] for row, pad in zip(rows, pads, strict=True)])


def attended(*, at_left: bool, prompt: bool) -> torch.Tensor:
    return block("ids", -1, at_left=at_left, prompt=prompt) >= 0


def responses() -> dict[str, torch.Tensor]:
    mask = block("mask", False, at_left=False, prompt=False).long()
    # What is not scored holds zeros, as trainers write.
    values = {key: block(key, 0.0, at_left=False, prompt=False) * mask for key in ("rollout", "trainer")}
    return {"mask": mask, **values}


def check(path: Path) -> None:
    for sequence, truth in zip(logs.open([path]), TRUTHS, strict=True):
        mask = torch.tensor(truth.mask)
        assert (sequence.token_ids.tolist(), sequence.prompt, sequence.step) == (truth.ids, truth.prompt, STEP)
        assert sequence.mask.equal(mask)
        for values, written in ((sequence.rollout, truth.rollout), (sequence.trainer, truth.trainer)):
            assert values is not None
            assert values[mask].equal(torch.tensor(written).double()[mask])


def test_verl(code: dict[str, Any], tmp_path: Path) -> None:
    columns = responses()
    batch = {
        "prompts": block("ids", 0, at_left=True, prompt=True),
        "responses": block("ids", 0, at_left=False, prompt=False),
        "attention_mask": torch.cat(
            [attended(at_left=True, prompt=True), attended(at_left=False, prompt=False)], 1
        ).long(),
        "response_mask": columns["mask"],
        "rollout_log_probs": columns["rollout"],
        "old_log_probs": columns["trainer"],
    }
    code["write_verl"](SimpleNamespace(batch=batch), tmp_path / "a.jsonl", STEP)
    check(tmp_path / "a.jsonl")


def test_trl(code: dict[str, Any], tmp_path: Path) -> None:
    columns = responses()
    inputs = {
        "prompt_ids": block("ids", 0, at_left=True, prompt=True),
        "prompt_mask": attended(at_left=True, prompt=True).long(),
        "completion_ids": block("ids", 0, at_left=False, prompt=False),
        "completion_mask": attended(at_left=False, prompt=False).long(),
        "tool_mask": columns["mask"],
        "sampling_per_token_logps": columns["rollout"],
        "old_per_token_logps": columns["trainer"],
    }
    code["write_trl"](inputs, tmp_path / "a.jsonl", STEP)
    check(tmp_path / "a.jsonl")


def test_areal(code: dict[str, Any], tmp_path: Path) -> None:
    width = max(len(truth.ids) for truth in TRUTHS) + 2

    def whole(key: str, fill: Any) -> torch.Tensor:
        return torch.tensor([[*getattr(t, key), *[fill] * (width - len(t.ids))] for t in TRUTHS])

    data = {
        "input_ids": whole("ids", 0),
        "attention_mask": whole("ids", -1) >= 0,
        "loss_mask": whole("mask", False).long(),
        "logprobs": whole("rollout", 0.0).nan_to_num(0.0),
        "prox_logp": whole("trainer", 0.0).nan_to_num(0.0).roll(-1, -1),
        "versions": whole("versions", -1),
    }
    code["write_areal"](data, tmp_path / "a.jsonl", STEP)
    check(tmp_path / "a.jsonl")
    assert [s.versions.tolist() for s in logs.open([tmp_path / "a.jsonl"])] == [truth.versions for truth in TRUTHS]


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
    table = PAGE.split("## moeparity's own format")[1].split("## Conversions")[0]
    listed = {key for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for key in re.findall(r"`(\w+)`", row)}
    assert listed == set(KEYS)
    (tmp_path / "a.jsonl").write_text(re.findall(r"```jsonl\n(.*?)```", table, re.DOTALL)[0])
    (sequence,) = logs.open([tmp_path / "a.jsonl"])
    assert (sequence.id, sequence.prompt, int(sequence.mask.sum())) == ("7/0", 2, 2)
