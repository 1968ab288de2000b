"""Hooks write what a trainer holds as a log that is read back, and change nothing of its step."""

from __future__ import annotations

import ast
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from moeparity import logs
from moeparity.hooks import areal, batch
from moeparity.hooks.commands import COMMANDS
from tests.command import inside
from tests.engines import live
from tests.logs.truth import STEP, TRUTHS

VERL, TRL = live.FOLDER / "verl" / "verl", live.FOLDER / "trl" / "trl"
PROGRAM = """
import sys, types, torch
source = open(sys.argv[1], encoding="utf-8").read()
metrics = types.ModuleType("verl.utils.debug.metrics"); metrics.__file__ = sys.argv[1]
class DataProto: pass
protocol = types.ModuleType("verl.protocol"); protocol.DataProto = DataProto
for name in ("verl", "verl.utils", "verl.utils.debug"):
    sys.modules[name] = types.ModuleType(name); sys.modules[name].__path__ = []
sys.modules |= {"verl.utils.debug.metrics": metrics, "verl.protocol": protocol}
exec(compile(source, sys.argv[1], "exec"), metrics.__dict__)
before = set(sys.modules)
if sys.argv[3] == "hook":
    import moeparity.hooks.verl
    print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
data = DataProto()
data.batch, data.meta_info = torch.load(sys.argv[2]), {"global_steps": 7, "temperature": 1.0}
print(metrics.calculate_debug_metrics(data))
"""


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


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(batch.FOLDER, str(tmp_path / "batch"))
    monkeypatch.setattr(batch, "_written", {})
    return tmp_path / "batch"


def imported(name: str, monkeypatch: pytest.MonkeyPatch, **modules: Any) -> Any:
    """A hook, imported beside modules that stand for its framework's."""
    for module, content in modules.items():
        monkeypatch.setitem(sys.modules, module.replace("__", "."), content)
    monkeypatch.delitem(sys.modules, f"moeparity.hooks.{name}", raising=False)
    return importlib.import_module(f"moeparity.hooks.{name}")


def of_verl(*, prompts: bool) -> dict[str, torch.Tensor]:
    columns = responses()
    whole = {
        "prompts": block("ids", 0, at_left=True, prompt=True),
        "attention_mask": torch.cat(
            [attended(at_left=True, prompt=True), attended(at_left=False, prompt=False)], 1
        ).long(),
    }
    return {
        **(whole if prompts else {}),
        "responses": block("ids", 0, at_left=False, prompt=False),
        "response_mask": columns["mask"],
        "rollout_log_probs": columns["rollout"],
        "old_log_probs": columns["trainer"],
    }


@pytest.mark.live
def test_verls_trainer_computes_the_same_and_a_batch_is_written(tmp_path: Path) -> None:
    """Its own `calculate_debug_metrics`; nothing heavy is imported."""
    live.need(("verl",))
    source = VERL / "utils" / "debug" / "metrics.py"
    torch.save(of_verl(prompts=True), tmp_path / "batch.pt")
    with_and_without = []
    for hook in ("hook", "none"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(source), str(tmp_path / "batch.pt"), hook],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "MOEPARITY_BATCH": str(tmp_path / hook)},
        )
        assert (done.returncode, done.stderr) == (0, "")
        with_and_without.append(done.stdout.splitlines())
    assert with_and_without[0][0].split() == ["moeparity"]
    assert with_and_without[0][1:] == with_and_without[1]
    (written,) = (tmp_path / "hook").iterdir()
    assert written.name.startswith("verl-7-")
    check(written)


def test_without_prompts_the_responses_stand_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = SimpleNamespace(calculate_debug_metrics=lambda data: len(data.batch))
    imported("verl", monkeypatch, verl__utils__debug__metrics=metrics)
    assert metrics.calculate_debug_metrics(SimpleNamespace(batch=of_verl(prompts=False), meta_info={})) == 4
    (written,) = folder.iterdir()
    read = list(logs.open([written]))
    assert [sequence.prompt for sequence in read] == [0, 0, 0]
    assert [sequence.token_ids.tolist() for sequence in read] == [truth.ids[truth.prompt :] for truth in TRUTHS]


def test_routes_stay_with_their_tokens(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[B, P + T, 2 layers, 3 experts]: pads of the prompt stand before, those of the response behind."""
    data = of_verl(prompts=True)
    token = data["attention_mask"].cumsum(1) - 1
    data["routed_experts"] = torch.stack([token * 7 + expert for expert in range(6)], -1).unflatten(-1, (2, 3))
    metrics = SimpleNamespace(calculate_debug_metrics=lambda _: None)
    imported("verl", monkeypatch, verl__utils__debug__metrics=metrics)
    metrics.calculate_debug_metrics(SimpleNamespace(batch=data, meta_info={"global_steps": STEP}))
    (written,) = folder.iterdir()
    check(written)
    for line, truth in zip(written.read_text().splitlines(), TRUTHS, strict=True):
        routes = json.loads(line)["routed_experts"]
        assert routes == [
            [[t * 7 + e for e in half] for half in (range(3), range(3, 6))] for t in range(len(truth.ids))
        ]


def test_trl(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = responses()
    outputs = {
        "prompt_ids": block("ids", 0, at_left=True, prompt=True),
        "prompt_mask": attended(at_left=True, prompt=True).long(),
        "completion_ids": block("ids", 0, at_left=False, prompt=False),
        "completion_mask": attended(at_left=False, prompt=False).long(),
        "tool_mask": columns["mask"],
        "sampling_per_token_logps": columns["rollout"],
        "old_per_token_logps": columns["trainer"],
    }

    class Trainer:
        state, temperature = SimpleNamespace(global_step=STEP), 1.0

        def _generate_and_score_completions(self, inputs: dict[str, Any]) -> dict[str, Any]:
            return {**outputs, **inputs}

    imported("trl", monkeypatch, trl__trainer__grpo_trainer=SimpleNamespace(GRPOTrainer=Trainer))
    assert Trainer()._generate_and_score_completions({"more": 1}) == {**outputs, "more": 1}
    Trainer()._generate_and_score_completions({})
    (written,) = folder.iterdir()
    check(written)


@pytest.mark.live
def test_the_hooks_fit_the_frameworks_own_code() -> None:
    """Names of functions, their parameters and the keys that are read, in verl 0.9.1 and TRL 1.16.0."""
    live.need(("verl", "trl"))
    metrics = ast.parse((VERL / "utils" / "debug" / "metrics.py").read_text("utf-8"))
    (function,) = (n for n in metrics.body if getattr(n, "name", "") == "calculate_debug_metrics")
    assert isinstance(function, ast.FunctionDef)
    assert [argument.arg for argument in function.args.args] == ["data"]
    package = (VERL / "__init__.py").read_text("utf-8")
    assert "VERL_USE_EXTERNAL_MODULES" in package
    # The second trainer takes the function by name: the hook has to come before it.
    by_name = "from verl.utils.debug.metrics import calculate_debug_metrics"
    assert by_name in (VERL / "trainer" / "ppo" / "v1" / "trainer_base.py").read_text("utf-8")
    assert by_name in (VERL / "trainer" / "ppo" / "ray_trainer.py").read_text("utf-8")
    trainer = (TRL / "trainer" / "grpo_trainer.py").read_text("utf-8")
    (method,) = (
        n
        for n in ast.walk(ast.parse(trainer))
        if isinstance(n, ast.FunctionDef) and n.name == "_generate_and_score_completions"
    )
    assert [argument.arg for argument in method.args.args] == ["self", "inputs"]
    text = ast.unparse(method)
    for key in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "tool_mask"):
        assert f"'{key}'" in text
    for key in ("old_per_token_logps", "sampling_per_token_logps"):
        assert f"output['{key}'] = {key}" in text


def test_areal(tmp_path: Path) -> None:
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
    (tmp_path / "a.jsonl").write_text("".join(areal.lines(data, STEP)))
    check(tmp_path / "a.jsonl")
    assert [s.versions.tolist() for s in logs.open([tmp_path / "a.jsonl"])] == [truth.versions for truth in TRUTHS]


def test_a_hook_that_fails_says_so_and_the_trainer_goes_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = SimpleNamespace(calculate_debug_metrics=lambda _: "as before")
    imported("verl", monkeypatch, verl__utils__debug__metrics=metrics)
    assert metrics.calculate_debug_metrics(SimpleNamespace(batch={"responses": torch.zeros(1, 2)}, meta_info={})) == (
        "as before"
    )
    assert "was not written" in capsys.readouterr().err
    assert [path.suffix for path in folder.iterdir()] in ([], [".partial"])


def test_nothing_is_written_without_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(batch.FOLDER, raising=False)
    assert batch.dump("verl", 0, lambda: ["never read"]) is None


@pytest.mark.parametrize("framework", COMMANDS)
def test_the_command_prints_what_to_add(framework: str) -> None:
    done = inside("capture", "--hook", framework)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == list(COMMANDS[framework])


@pytest.mark.parametrize(
    ("arguments", "words"), [(("--hook", "vrel"), "'vrel' is none of verl, trl"), ((), "there is nothing to run")]
)
def test_what_is_wrong_is_said(arguments: tuple[str, ...], words: str) -> None:
    done = inside("capture", *arguments)
    assert done.returncode == 2
    assert words in " ".join(done.stderr.split())
