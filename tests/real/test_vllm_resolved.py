"""Commands of `vllm serve`, read as they stand and as a real vLLM 0.32.0 resolved them: both by the same rules."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from moeparity.hooks.files import VARIABLE
from moeparity.profiles.launch import read
from moeparity.profiles.launch.report import Launch
from tests.engines.live import ROOT, run_in
from tests.real.served import VARIABLES, installed

pytestmark = pytest.mark.live
MODEL = str(ROOT / "checkpoints/quickstart")
COMMANDS = (
    "--dtype bfloat16",
    "--dtype float16 --enforce-eager",
    "-tp 2",
    "-tp 2 --enable-expert-parallel",
    "-tp 2 -dp 2 --enable-expert-parallel",
    """--hf-overrides '{"head_dtype": "float32"}'""",
    "--logprobs-mode processed_logprobs",
    "-O0",
    "--no-enable-prefix-caching --no-enable-chunked-prefill",
    "--kv-cache-dtype fp8",
    """--compilation-config '{"mode": 0}'""",
    "-pp 2",
    "--max-num-seqs 17 --max-num-batched-tokens 1234",
    "--generation-config vllm --seed 3",
)


@pytest.fixture(scope="module")
def resolved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By command, what the plugin wrote of it."""
    folder = tmp_path_factory.mktemp("resolved")
    path = folder / "path"
    path.mkdir()
    commands = [[MODEL, *shlex.split(command)] for command in COMMANDS]
    torch.save({"path": [installed(path)], "commands": commands}, folder / "cases.pt")
    variables = VARIABLES | {VARIABLE: str(folder / "out")}
    program = ROOT / "tests/real/vllm_resolving.py"
    run_in("vllm-cpu", program, [str(folder / "cases.pt"), str(folder / "answers.pt")], variables)
    names = torch.load(folder / "answers.pt")
    assert not (folder / "out/errors.jsonl").exists()
    assert None not in names
    return {command: folder / "out" / name for command, name in zip(COMMANDS, names, strict=True)}


def on_a_gpu(file: Path, folder: Path) -> Path:
    """The same on a GPU, whose rules launch files go by: of all that differs the device and the model runner count."""
    fields = json.loads(file.read_text())
    fields["config"]["device_config"]["device_type"] = "cuda"
    fields["runner"] = 2
    (folder / file.name).write_text(json.dumps(fields, indent=1))
    return folder / file.name


def verdict(launch: Launch) -> tuple[object, ...]:
    """The side but for its dtype, which a launch file leaves to the checkpoint, and warnings but for the release."""
    (side,) = launch.sides
    warnings = [(warning.name, warning.says) for warning in launch.warnings if not warning.value.startswith("vLLM ")]
    return replace(side, dtype=None, origins={}), warnings, [decision.says for decision in launch.decisions]


@pytest.mark.parametrize("command", COMMANDS)
def test_both_ways_come_to_the_same(command: str, resolved: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "serve.sh").write_text(f"vllm serve {MODEL} {command}\n")
    script, engine = read(tmp_path / "serve.sh"), read(on_a_gpu(resolved[command], tmp_path))
    assert verdict(engine) == verdict(script)
    assert (script.resolved_by, engine.resolved_by) == ("", "vLLM 0.32.0")
    assert engine.sides[0].dtype == ("fp16" if "float16" in command and "bfloat16" not in command else "bf16")
    assert all(key.name.startswith("VLLM_") for key in engine.ignored), engine.ignored


def test_it_tells_what_a_script_leaves_open(resolved: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "serve.sh").write_text('vllm serve "$MODEL" -tp "$TP"\n')
    script, engine = read(tmp_path / "serve.sh"), read(on_a_gpu(resolved["-tp 2"], tmp_path))
    ranks = [{s.name: s.value for s in launch.settings}["tensor_parallel_size"] for launch in (script, engine)]
    assert ranks == ["unresolved: $TP", "2"]


def test_its_line_names_the_value(resolved: dict[str, Path]) -> None:
    file = resolved["-tp 2"]
    (setting,) = (s for s in read(file).settings if s.name == "tensor_parallel_size")
    name, line = setting.where.rsplit(":", 1)
    assert Path(name).name == file.name
    assert file.read_text().splitlines()[int(line) - 1].strip() == '"tensor_parallel_size": 2,'
