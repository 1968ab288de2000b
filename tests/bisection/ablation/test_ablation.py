"""`moeparity sweep --from A --to B` as a user runs it: each setting alone and put back, and an order to set them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import moeparity
from moeparity.bisection.ablation.run import ablate
from moeparity.bisection.options import Options
from tests.command import ROOT, alone
from tests.test_reports import refused

QUICKSTART = ROOT / "checkpoints/quickstart"
REQUEST = """--override-generation-config '{"temperature": 0.5}'"""
FILES = {
    "v0.sh": f"pip install vllm==0.8.5\nVLLM_USE_V1=0 vllm serve m {REQUEST}\n",
    "now.sh": f"pip install vllm==0.18.1\nvllm serve m {REQUEST}\n",
    "compiled.sh": f"vllm serve m --logprobs-mode processed_logprobs {REQUEST}\n",
    "eager.sh": f"vllm serve m --enforce-eager --max-num-seqs 7 {REQUEST}\n",
    "sglang.sh": "python -m sglang.launch_server --model-path m\n",
    "train.yaml": "policy:\n  precision: bfloat16\n  dtensor_cfg: {enabled: true}\n",
}
TOKENS = {"input_ids": [[1, 5, 9, 2, 7, 3, 8, 4], [6, 2, 2, 9, 1, 1, 3, 5], [9, 8, 7, 6, 5, 4, 3, 2]]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    for name, text in FILES.items():
        (folder / name).write_text(text, "utf-8")
    rows = [{"input_ids": ids, "mask": [0] * 3 + [1] * 5} for ids in TOKENS["input_ids"]]
    (folder / "tokens.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    (folder / "recipe.yaml").write_text(recipe("hf-eager", "hf-eager"), "utf-8")
    return folder


def recipe(reference: str, candidate: str) -> str:
    return (
        f"kind: recipe\ncheckpoint: {QUICKSTART}\ntokens: {{file: tokens.jsonl, sampled_from: candidate}}\n"
        f"reference: {{profile: {reference}}}\ncandidate: {{profile: {candidate}}}\n"
        "gate: {metric: k3, below: 1e-4}\nfloor: false\n"
    )


def swept(folder: Path, first: str, second: str) -> dict[str, Any]:
    done = alone(
        *("sweep", folder / "recipe.yaml", "--from", folder / first, "--to", folder / second),
        *("--device", "cpu", "--json", folder / "out.json", "--html", folder / "out.html"),
    )
    assert done.returncode == 0, done.stderr
    written = json.loads((folder / "out.json").read_text("utf-8"))
    assert refused("ablation", written) == []
    assert "<html" in (folder / "out.html").read_text("utf-8")
    return {**written, "screen": done.stdout}


@pytest.fixture(scope="module")
def releases(folder: Path) -> dict[str, Any]:
    return swept(folder, "v0.sh", "now.sh")


def by_name(written: dict[str, Any]) -> dict[str, Any]:
    return {setting["name"]: setting for setting in written["settings"]}


def test_unset_defaults_are_named_as_what_they_are_in_each_release(releases: dict[str, Any]) -> None:
    mode = by_name(releases)["logprobs_mode"]
    assert (mode["first"], mode["second"], mode["tier"]) == ("processed_logprobs", "raw_logprobs", "semantics")
    assert (mode["first_where"], mode["second_where"]) == ("default of vLLM V0 0.8.5", "default of vLLM 0.18.1")
    assert "default of vLLM V0 0.8.5 -> default of vLLM 0.18.1" in releases["screen"]


def test_the_semantic_setting_leads_the_order_and_the_releases_kernels_stay(releases: dict[str, Any]) -> None:
    assert [step["cure"] for step in releases["order"]] == ["logprobs_mode processed_logprobs"]
    assert releases["order"][0]["left"] == releases["left"] == releases["tiers"]["inference path"] > 0
    kernels = [s for s in releases["settings"] if not s["option"] and s["alone"] is not None]
    assert {"op rope:products", "op rms_norm:normalized"} <= {setting["name"] for setting in kernels}
    assert not any(setting["cure"] for setting in kernels)
    assert "no flag for" in releases["screen"]


def test_negative_results_are_told(releases: dict[str, Any]) -> None:
    settings = by_name(releases)
    assert settings["enable_chunked_prefill"]["effect"] == "no effect"
    assert settings["enable_chunked_prefill"]["alone"] == 0
    assert settings["async_scheduling"]["effect"] == "no effect"
    assert settings["async_scheduling"]["alone"] is None
    assert "put alone and put back, no bit changes on these tokens" in " ".join(releases["screen"].split())


def test_each_setting_alone_is_the_launch_file_with_it(folder: Path) -> None:
    """Read anew with one option of the other file, as a user would restart it."""
    whole = ablate(folder / "recipe.yaml", folder / "compiled.sh", folder / "eager.sh", device="cpu")
    settings = {setting.name: setting for setting in whole.settings}
    assert {"enforce_eager", "logprobs_mode", "max_num_seqs"} <= settings.keys()
    for name, text in (
        ("enforce_eager", FILES["compiled.sh"].replace("vllm serve m", "vllm serve m --enforce-eager")),
        ("logprobs_mode", FILES["compiled.sh"].replace("processed_logprobs", "raw_logprobs")),
    ):
        (folder / "alone.sh").write_text(text, "utf-8")
        restarted = ablate(folder / "recipe.yaml", folder / "compiled.sh", folder / "alone.sh", device="cpu")
        assert [setting.name for setting in restarted.settings] == [name]
        assert restarted.kl == settings[name].alone
        assert restarted.kl > 0
        assert restarted.left == 0


def test_all_of_them_is_a_bisection_of_both_profiles(folder: Path) -> None:
    """Two engines: no option is another one's, so each choice is a row, and all together are the other engine."""
    (folder / "plain.sh").write_text("vllm serve m\n", "utf-8")
    whole = ablate(folder / "recipe.yaml", folder / "plain.sh", folder / "sglang.sh", device="cpu")
    schedule = "schedule: {rule: RULE, decode: {from: prompt}, prefix: {block: BLOCK}}"
    text = recipe("vllm", "sglang").splitlines()
    text[3] = f"reference: {{profile: vllm, {schedule}}}".replace("RULE", "vllm-v1").replace("BLOCK", "16")
    text[4] = f"candidate: {{profile: sglang, {schedule}}}".replace("RULE", "sglang").replace("BLOCK", "1")
    (folder / "both.yaml").write_text("\n".join(text), "utf-8")
    report = moeparity.bisect(folder / "both.yaml", device="cpu", options=Options(attribution=False))
    assert whole.kl == report.metrics.kl > 0
    assert not any(setting.option for setting in whole.settings)


def test_equal_files_differ_in_nothing(folder: Path) -> None:
    whole = ablate(folder / "recipe.yaml", folder / "now.sh", folder / "now.sh", device="cpu")
    assert (whole.settings, whole.order, whole.kl, whole.exact) == ((), (), 0, True)


def test_options_of_the_objective_are_a_tier_that_is_not_put(folder: Path) -> None:
    (folder / "corrected.yaml").write_text(
        FILES["train.yaml"] + "loss_fn: {use_importance_sampling_correction: true}\n", "utf-8"
    )
    whole = ablate(folder / "recipe.yaml", folder / "train.yaml", folder / "corrected.yaml", device="cpu")
    (objective,) = [setting for setting in whole.settings if setting.tier == "objective"]
    assert (objective.first, objective.second, objective.effect) == ("unset", "True", "not put")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--from", "v0.sh"), "--to is missing: two launch configurations are compared. Give both files."),
        (("--to", "v0.sh"), "--from is missing: two launch configurations are compared. Give both files."),
        (("--from", "v0.sh", "--to", "now.sh", "--over", "dtype=fp32"), "--over is of a sweep over values"),
        (("--from", "v0.sh", "--to", "now.sh", "--role", "critic"), "--role critic: expected server or trainer."),
        (("--from", "v0.sh", "--to", "now.sh", "--role", "trainer"), "v0.sh: --role trainer: it starts no trainer."),
        (("--from", "v0.sh", "--to", "lost.sh"), "lost.sh: "),
        ((), "recipe.yaml: nothing is to be swept. Give values with --over"),
    ],
)
def test_one_sentence_for_what_cannot_be_compared(arguments: tuple[str, ...], sentence: str, folder: Path) -> None:
    done = alone("sweep", "recipe.yaml", *arguments, "--device", "cpu", cwd=folder)
    assert done.returncode == 2
    assert sentence in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
