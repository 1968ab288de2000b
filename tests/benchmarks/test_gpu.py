"""The GPU's page, on a CPU: every part measures, differences and refusals are rows, what is done is not run again."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import equality, forward, kernel_orders, lockstep, page, part, streaming, surroundings
from benchmarks.gpu.budget import Budget
from benchmarks.gpu.first_difference import find
from benchmarks.gpu.sections import SECTIONS, Result, number
from moeparity.engine.forward import forward as run_forward
from moeparity.errors import MoeparityError
from moeparity.inputs.model import open_model
from moeparity.ops.norm.launches import Launch
from moeparity.output.json import plain
from tests.checkpoint_factory import make_small
from tests.command import ROOT
from tests.hf.reference import reference

CPU = torch.device("cpu")
PARTS = tuple(gpu.SECONDS)


def measured(name: str, **fields: Any) -> Result:
    return {
        "part": name,
        "date": "2026-11-22",
        "seconds": 1.0,
        "tiny": False,
        "machine": {"device": "NVIDIA H100"},
        "settings": {"CUBLAS_WORKSPACE_CONFIG": "not set"},
        "not_run": [],
        **fields,
    }


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["benchmarks.gpu", *arguments])
    return gpu.main()


def in_this_process(part_name: str, folder: Path, device: str, tiny: bool) -> None:
    part.write(part_name, folder, device, Budget.of(60), tiny=tiny)


# The first difference


@pytest.mark.parametrize("name", ["qwen3_moe", "mixtral", "gpt_oss", "deepseek_v3", "olmoe_clip", "qwen2_moe", "llama"])
def test_what_modules_show_is_what_nodes_hold(request: pytest.FixtureRequest, name: str) -> None:
    """Where all bits are equal no pair may differ: none is of two things. Linears read and write, so half is shown."""
    model = open_model(request.getfixturevalue(name), device="cpu", residency="resident")
    sides = equality.Sides(model=model, profile="hf-eager", dtype="bf16", case=equality.CASES[3])
    difference = find(model, sides.ours(("**",)), "hf-eager", torch.bfloat16, sides.ids, sides.case.mask)
    assert difference.node is None
    assert 2 * difference.compared > len(model.graph.nodes)


@pytest.mark.parametrize(
    ("setting", "value", "node", "or_before"),
    [
        # Of another dtype than transformers gives: not comparable, so it stays among what nothing shows.
        (
            "rotary:output",
            "fp32",
            "layers[0].attention.attend",
            ("rotary", "layers[0].attention.rope", "layers[0].attention.cache"),
        ),
        ("layers[1].attention.norm:normalized", "fp32", "layers[1].attention.norm", ()),
        (
            "layers[1].attention.rope:products",
            "fp32",
            "layers[1].attention.attend",
            ("layers[1].attention.rope", "layers[1].attention.cache"),
        ),
        ("layers[1].moe.router:scores", "bf16", "layers[1].moe.router", ("layers[1].moe.gate",)),
        (
            "layers[1].moe.experts:activation",
            "fp32",
            "layers[1].moe.residual",
            ("layers[1].moe.experts", "layers[1].moe.combine", "layers[1].moe.reduce"),
        ),
    ],
)
def test_a_planted_choice_is_found(
    qwen3_moe: Path, setting: str, value: str, node: str, or_before: tuple[str, ...]
) -> None:
    model = open_model(qwen3_moe, device="cpu", residency="resident")
    sides = equality.Sides(model=model, profile="hf-eager", dtype="bf16", case=equality.CASES[2])
    ours = run_forward(model, sides.ids, settings={setting: value}, save=["**"])
    difference = find(model, ours, "hf-eager", torch.bfloat16, sides.ids, None)
    assert (difference.node, difference.or_before) == (node, or_before)
    assert difference.share > 0


# Each part


def test_other_bits_and_refusals_are_rows(qwen3_moe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One case differs, one is refused; no exception ends the part, and the page says both."""
    settings = {"layers[1].attention.norm:normalized": "fp32"}

    def refusing(*arguments: Any, **options: Any) -> Any:
        if options["mask"] is not None:
            raise RuntimeError("CUDA error: | no kernel\nfor this device")
        return reference(*arguments, **options)

    monkeypatch.setattr(equality, "forward", partial(run_forward, settings=settings))
    monkeypatch.setattr(equality, "reference", refusing)
    row = equality.compared("qwen3_moe", qwen3_moe, "hf-eager", "bf16", CPU, equality.CASES[1:4])
    assert [difference.case for difference in row.different] == ["2x5", "3x19"]
    assert row.different[0].first.node == "layers[1].attention.norm"
    assert row.different[1].first is None
    assert "logits" in row.different[0].where
    assert row.different[0].repeatable == {"ours": True, "transformers": True}
    assert row.refused == {"3x19, padded left": "RuntimeError: CUDA error: | no kernel"}
    assert row.equal == 0
    result = measured("equality", rows=[plain(row)], cases=["2x5", "3x19", "3x19, padded left"])
    text = "\n".join(page.blocks({"equality": result}, PARTS, {}))
    assert "0 of 1 rows" in text
    assert "| qwen3_moe | qwen3_moe | 2 of 3 differ, 1 of 3 refused |" in text
    assert "layers[1].attention.norm (rms_norm)" in text
    assert "CUDA error: \\| no kernel" in text
    assert list(page.wrongs(result)) == [
        "1 of 1 rows have other bits than transformers",
        "1 of 1 rows could not be compared in every case",
    ]


def test_a_checkpoint_that_cannot_be_made_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(name: str, folder: Path) -> Path:
        raise MoeparityError(f"{name}: no")

    monkeypatch.setattr(equality, "make_small", failing)
    result = equality.measure(CPU, Budget.of(60), tiny=True)
    assert {row.model for row in result["rows"]} == {"llama_dynamic", "qwen3_moe", "deepseek_v3"}
    assert all(row.refused == {"all": f"MoeparityError: {row.model}: no"} for row in result["rows"])


def test_bits_of_the_models_are_equal_here(monkeypatch: pytest.MonkeyPatch) -> None:
    result = equality.measure(CPU, Budget.of(60), tiny=True)
    assert [(row.equal, row.different, row.refused) for row in result["rows"]] == [(3, (), {})] * 6
    assert result["not_run"] == []
    assert not list(page.wrongs(measured("equality", **plain(result))))


def test_what_there_is_no_time_for_is_told() -> None:
    result = equality.measure(CPU, Budget.of(0), tiny=True)
    assert result["rows"] == []
    assert len(result["not_run"]) == 6
    text = "\n".join(page.blocks({"equality": measured("equality", **plain(result))}, PARTS, {}))
    assert "**Not run**, its time was over: llama_dynamic, hf-eager, bf16; llama_dynamic, hf-default, bf16" in text
    assert "- equality: 6 not run for want of time" in text


def test_weights_are_streamed_once(tmp_path: Path) -> None:
    result = streaming.measure(CPU, Budget.of(60), tiny=True)
    make_small("qwen3_moe", tmp_path)
    with safetensors.safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert result["read"] == sum(file.get_tensor(key).nbytes for key in file.keys())  # noqa: SIM118
    assert result["repeats"] == streaming.REPEATS
    assert result["memory"]["taken"] > 0


def test_lockstep_does_less_than_separate_forwards() -> None:
    result = lockstep.measure(CPU, Budget.of(60), tiny=True)
    late, early = result["rows"]
    assert late.variants == early.variants == 14
    assert late.evaluations < early.evaluations < early.naive
    assert late.naive == early.naive
    assert result["transformers"] > 0


def test_a_forward_has_the_bits_of_transformers() -> None:
    result = forward.measure(CPU, Budget.of(60), tiny=True)
    assert [(row.profile, row.same) for row in result["rows"]] == [("hf-eager", True), ("hf-default", True)]


def test_orders_stated_of_kernels_are_held_to_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU sums are added in other orders, and it shows; what adds as stated has no other bits."""
    monkeypatch.setattr(kernel_orders, "SHAPES", ((64, 4096), (3, 96)))
    rows = kernel_orders.kernel_rows(CPU)
    assert {row.order for row in rows if row.share > 0} == set(kernel_orders.KERNELS)
    _, _, stated = kernel_orders.KERNELS["torch.cuda_mean"]
    alike = ("", lambda x: stated(x, Launch(hidden=x.shape[1], rows=len(x), dtype="fp32")), stated)
    monkeypatch.setattr(kernel_orders, "KERNELS", {"torch.cuda_mean": alike})
    assert [row.share for row in kernel_orders.kernel_rows(CPU)] == [0.0, 0.0]


# The command


def test_all_parts_have_a_section_and_end_within_eight_minutes() -> None:
    assert gpu.SECONDS.keys() == SECTIONS.keys()
    assert sum(gpu.SECONDS.values()) < 8 * 60
    assert all(seconds > gpu.ENDING for seconds in gpu.SECONDS.values())


def test_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert call(monkeypatch, "--out", str(tmp_path / "gpu")) == 2
    (line,) = capsys.readouterr().out.splitlines()
    assert "no usable CUDA GPU" in line
    assert not (tmp_path / "gpu").exists()


def test_a_folder_that_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    assert call(monkeypatch, "--out", str(tmp_path / "file"), "--device", "cpu", "--tiny") == 2
    (line,) = capsys.readouterr().out.splitlines()
    assert "cannot be made: File exists" in line


def test_missing_packages_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in {"pydantic", "yaml"} else real(name))
    assert call(monkeypatch, "--out", str(tmp_path / "gpu")) == 2
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("benchmarks.gpu: missing: 'pyyaml>=6.0' 'pydantic>=2.9'.")


def test_finished_parts_are_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first run loses one part; the second runs that one only, and the page loses its complaint."""
    parts_run = []

    def run(part_name: str, folder: Path, device: str, tiny: bool) -> str | None:
        parts_run.append(part_name)
        if part_name == "lockstep" and len(parts_run) == 2:
            return "ended with code 139: Segmentation fault"
        in_this_process(part_name, folder, device, tiny)
        return None

    monkeypatch.setattr(gpu, "run", run)
    arguments = ("--out", str(tmp_path), "--device", "cpu", "--tiny", "--only", "sums", "--only", "lockstep")
    assert call(monkeypatch, *arguments) == 1
    assert "lockstep: ended with code 139: Segmentation fault" in capsys.readouterr().out
    assert "**Not measured**: ended with code 139: Segmentation fault." in (tmp_path / "gpu.md").read_text("utf-8")
    first = (tmp_path / "sums.json").read_bytes()
    assert call(monkeypatch, *arguments) == 1, "three parts were never asked for"
    assert parts_run == ["sums", "lockstep", "lockstep"]
    assert (tmp_path / "sums.json").read_bytes() == first
    text = (tmp_path / "gpu.md").read_text("utf-8")
    assert "Segmentation" not in text
    assert "- equality: not measured" in text
    assert "kernel calls" in text


def test_a_part_in_a_process_of_its_own(tmp_path: Path) -> None:
    assert gpu.run("sums", tmp_path, "cpu", tiny=True) is None
    result = json.loads((tmp_path / "sums.json").read_text("utf-8"))
    assert all(row["same_as_cpu"] for row in result["rows"])


def test_a_part_that_fails_says_how(tmp_path: Path) -> None:
    assert "ended with code 1: RuntimeError: " in str(gpu.run("sums", tmp_path, "abacus", tiny=True))
    assert not (tmp_path / "sums.json").exists()
    assert "Traceback" in (tmp_path / "sums.log").read_text("utf-8")


def test_a_part_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gpu.SECONDS, "sums", 0)
    assert "ended after its 0 s" in str(gpu.run("sums", tmp_path, "cpu", tiny=True))
    assert not (tmp_path / "sums.json").exists()


def test_a_checkout_that_is_not_installed() -> None:
    """Without `site` no installation is seen, editable or not."""
    libraries = [str(Path(str(module.__file__)).parents[1]) for module in (torch, pytest)]
    code = f"""
import sys
sys.path[:0] = {[str(ROOT), *libraries]!r}
import importlib.util
import moeparity
assert importlib.util.find_spec('moeparity.graphs') is None
from benchmarks.gpu.checkout import find_mapped_folders
find_mapped_folders()
from moeparity.documents.checked import shipped
print(*shipped('models'))
"""
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {"qwen3_moe", "gpt_oss"} <= set(done.stdout.split())


# The page


def test_settings_that_decide_bits_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    environment = surroundings.settings()
    assert environment["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert environment["torch.backends.cudnn.deterministic"] == "True"
    assert environment["torch.backends.cuda.matmul.allow_tf32"] in {"True", "False"}
    assert environment["NVIDIA_TF32_OVERRIDE"] == "not set"
    monkeypatch.setattr(surroundings, "SWITCHES", ("backends.cuda.of_another_version",))
    assert surroundings.settings()["torch.backends.cuda.of_another_version"] == "not told (AttributeError)"


def test_parts_from_two_machines_are_told_apart() -> None:
    elsewhere = measured("streaming", machine={"device": "NVIDIA H200"})
    parts = {"sums": measured("sums"), "streaming": elsewhere}
    assert page.common(parts, "machine") == [("device (sums)", "NVIDIA H100"), ("device (streaming)", "NVIDIA H200")]
    assert page.common(parts, "settings") == [("CUBLAS_WORKSPACE_CONFIG", "not set")]


def test_numbers_that_are_not_finite_stay_words() -> None:
    assert (number("nan"), number(12345.6), number(0.5)) == ("nan", "1.23e+04", "0.5")


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"rows": [{"order": "fold_hi", "dtype": "fp32", "same_as_cpu": False}]}, "fold_hi, fp32: other bits than on"),
        ({"rows": [{"profile": "hf-default", "same": False}]}, "hf-default: other bits than transformers"),
        (
            {"kernels": [{"order": "torch.cuda_mean", "share": 0.0}, {"order": "torch.cuda_mean", "share": 1e-9}]},
            "torch.cuda_mean: torch's kernel gives other bits",
        ),
        ({"holds": False}, "a bisection took more memory than its bound"),
    ],
)
def test_what_is_not_as_it_should_be_is_told(fields: dict[str, Any], wrong: str) -> None:
    (complaint,) = page.wrongs(measured("sums", **fields))
    assert complaint.startswith(wrong)


def test_sums_on_a_gpu_have_a_second_table() -> None:
    kernels = [{"order": "torch.cuda_mean", "kernel": "(x * x).mean(-1)", "rows": 3, "hidden": 96, "share": 0.25}]
    result = measured("sums", shape=[256, 96], rows=[], native={}, kernels=kernels)
    text = "\n".join(page.blocks({"sums": result}, PARTS, {}))
    assert "| `torch.cuda_mean` | `(x * x).mean(-1)` | 3 x 96 | 0.25 |" in text
