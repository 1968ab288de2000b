"""Files of what an engine resolved, in place of launch files: `resolved/` has one that vLLM 0.32.0 wrote on a CPU of
`vllm serve Qwen/Qwen3-30B-A3B -tp 2 --enable-expert-parallel`; tests change single values of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from moeparity.errors import SpecError
from moeparity.profiles.launch import read, vllm_resolved
from moeparity.profiles.launch.report import Launch
from tests.command import inside

FOLDER = Path(__file__).parent / "resolved"
QUICKSTART = Path(__file__).parents[3] / "checkpoints/quickstart"
Change = Callable[[dict[str, Any]], object]
OF_THIS_CPU = vllm_resolved._of_this_cpu()


def on_a_gpu(fields: dict[str, Any]) -> None:
    fields["config"]["device_config"]["device_type"] = "cuda"
    fields["runner"] = 2


def changed(folder: Path, *changes: Change, worker: Change | None = None) -> Path:
    """The file, changed, in a folder; its worker's lies beside it where that is changed."""
    fields = json.loads((FOLDER / "vllm-1.json").read_text())
    for change in changes:
        change(fields)
    (folder / "vllm-2.json").write_text(json.dumps(fields, indent=1))
    if worker is not None:
        of_worker = json.loads((FOLDER / "vllm-1.worker-0.json").read_text())
        worker(of_worker)
        (folder / "vllm-2.worker-0.json").write_text(json.dumps(of_worker, indent=1))
    return folder / "vllm-2.json"


def value(launch: Launch, name: str) -> tuple[str, str]:
    setting = next(setting for setting in launch.settings if setting.name == name)
    return setting.value, setting.where


def test_a_cpu_has_its_own_profile_and_says_what_was_not_read() -> None:
    launch = read(FOLDER / "vllm-1.json")
    assert launch.resolved_by == "vLLM 0.32.0"
    assert re.fullmatch(r"as vLLM 0.32.0 resolved its arguments itself, by \S*vllm-1.json", launch.basis)
    assert [side.variant for side in launch.sides] == [
        f"{{profile: {OF_THIS_CPU}, placement: {{tensor: 2, expert: 2}}, dtype: bf16}}"
    ]
    says = [warning.says for warning in launch.warnings]
    assert any(
        "is compiled" in text and "experts cut over ranks, and this one lays them on ranks as wholes" in text
        for text in says
    )
    assert any("read from vllm 0.33.0" in text for text in says)


@pytest.mark.parametrize(
    ("flags", "profile"),
    [
        ("fma avx2 avx512f avx512_bf16", "vllm-cpu"),
        ("fma avx2 avx512f avx512_vnni", "vllm-cpu-avx512"),
        ("fma avx2", "vllm-cpu-avx2"),
        (None, "vllm-cpu"),
    ],
)
def test_the_profile_is_that_of_the_library_that_this_cpu_has(
    flags: str | None, profile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = tmp_path / "cpuinfo"
    if flags is not None:
        cpu.write_text(f"model name : one\nflags : {flags}\n")
    monkeypatch.setattr(vllm_resolved, "_CPU", cpu)
    assert [side.variant.partition(",")[0] for side in read(FOLDER / "vllm-1.json").sides] == [f"{{profile: {profile}"]


def test_a_gpu_goes_by_the_rules_of_launch_files(tmp_path: Path) -> None:
    launch = read(changed(tmp_path, on_a_gpu))
    (tmp_path / "serve.sh").write_text("vllm serve Qwen/Qwen3-30B-A3B -tp 2 --enable-expert-parallel --dtype bfloat16")
    script = read(tmp_path / "serve.sh")
    assert [(side.variant, side.further, side.sets) for side in launch.sides] == [
        (side.variant, side.further, side.sets) for side in script.sides
    ]
    assert [decision.says for decision in launch.decisions] == [decision.says for decision in script.decisions]
    assert launch.unstated == script.unstated


def test_what_only_the_loaded_model_tells(tmp_path: Path) -> None:
    """A backend that was chosen when the weights came, by the worker's file beside it."""
    launch = read(changed(tmp_path, on_a_gpu, worker=lambda _: None))
    assert value(launch, "attention_backend") == ("FLASH_ATTN", f"{tmp_path / 'vllm-2.worker-0.json'}:6")
    assert value(launch, "moe_backend")[0] == "triton"
    assert any("worker 0 runs 48 x FLASH_ATTN: FlashAttentionImpl" in note.says for note in launch.notes)
    several = {"FLASH_ATTN: FlashAttentionImpl": 4, "FLEX_ATTENTION: FlexAttentionImpl": 4}
    mixed = read(changed(tmp_path, on_a_gpu, worker=lambda worker: worker.update(attention=several)))
    assert value(mixed, "attention_backend")[0] == "auto"


@pytest.mark.parametrize(
    ("change", "name", "shown"),
    [
        (lambda f: f["config"]["model_config"].update(dtype="float16"), "dtype", "float16"),
        (lambda f: f["config"]["kernel_config"].update(moe_backend="marlin"), "moe_backend", "marlin"),
        (lambda f: f["config"]["kernel_config"].update(moe_backend="new"), "moe_backend", "unresolved: new"),
        (lambda f: f["environment"].update(VLLM_BATCH_INVARIANT="1"), "VLLM_BATCH_INVARIANT", "true"),
        (lambda f: f["config"].update(optimization_level=0), "optimization_level", "0"),
        (lambda f: f["config"].update(lora_config={"max_loras": 1}), "enable_lora", "true"),
    ],
)
def test_a_value_that_differs_from_the_default_is_told(change: Change, name: str, shown: str, tmp_path: Path) -> None:
    def not_default(fields: dict[str, Any]) -> None:
        fields["defaults"]["kernel_config"] = []

    shown_value, where = value(read(changed(tmp_path, on_a_gpu, change, not_default)), name)
    assert shown_value == shown
    path, line = where.rsplit(":", 1)
    assert re.search("moe_backend|dtype|VLLM_|optimization|lora", Path(path).read_text().splitlines()[int(line) - 1])


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("vllm-1.worker-0.json", "It is a worker's: give the file of the engine, which lies beside it."),
        (lambda f: f.update(format="moeparity.served/9"), "expected 'moeparity.served/1'"),
        (lambda f: f.pop("config"), "has no config; expected what an engine resolved."),
        (
            lambda f: f.update(engine="other"),
            "engine is 'other'; expected vllm, sglang, megatron. Give the launch file of this engine.",
        ),
    ],
)
def test_what_is_refused(file: str | Change, message: str, tmp_path: Path) -> None:
    path = FOLDER / file if isinstance(file, str) else changed(tmp_path, file)
    with pytest.raises(SpecError) as refusal:
        read(path)
    assert path.name in str(refusal.value)
    assert message in str(refusal.value)


def test_init_says_which_of_both_it_went_by(tmp_path: Path) -> None:
    (tmp_path / "serve.sh").write_text("vllm serve checkpoints/quickstart --enforce-eager\n")
    script, file = tmp_path / "serve.sh", changed(tmp_path)
    for kind in ("schedule", "tokens"):
        (tmp_path / f"vllm-2.{kind}.jsonl").touch()
    by_script = inside("init", QUICKSTART, "--server", script, "--out", tmp_path / "a.yaml").stdout
    done = inside("init", QUICKSTART, "--server", file, "--out", tmp_path / "b.yaml")
    by_engine = done.stdout
    assert f"server: as {script} starts it" in " ".join(by_script.split())
    if torch.cpu.get_capabilities().get("amx_tile"):
        assert "does not hold here: this CPU has amx_tile" in done.stderr, "no profile states a vLLM on such a CPU"
        return
    resolved = f"as vLLM 0.32.0 resolved its arguments itself, by {file}"
    assert f"server: {resolved}" in " ".join(by_engine.split())
    words = " ".join((tmp_path / "a.yaml").read_text().replace("#", "").split())
    assert f"The server: vLLM 0.33.0, as {script} starts it." in words
    recipe = (tmp_path / "b.yaml").read_text()
    assert f"The server: vLLM, {resolved}." in " ".join(recipe.replace("#", "").split())
    assert f"  profile: {OF_THIS_CPU}\n" in recipe
    steps = tmp_path / "vllm-2.schedule.jsonl"
    assert f"replace `micro_batch` by `schedule: {{file: {steps}}}`" in " ".join(recipe.replace("#", "").split())
