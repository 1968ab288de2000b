"""What a run says that no profile covers: ops with a state, GEMMs in fewer bits."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import moeparity
from tests.checkpoint_factory import make_small
from tests.command import inside

QUICKSTART = Path(__file__).parents[3] / "checkpoints" / "quickstart"
OPS = ("attention.*_proj", "moe.experts")
RECIPE = """\
kind: recipe
checkpoint: model
tokens: {file: tokens.jsonl, sampled_from: candidate}
reference: {profile: hf-eager, dtype: bf16}
candidate: {profile: vllm, dtype: bf16}
gate: {metric: k3, below: 1e-4}
"""


def test_a_server_of_a_model_whose_states_its_profile_does_not_state(tmp_path: Path) -> None:
    """transformers' profile states them, vLLM's does not."""
    make_small("kimi_linear", tmp_path / "model")
    (tmp_path / "tokens.jsonl").write_text('{"input_ids": [1, 2, 3, 4, 5, 6], "mask": [0, 0, 1, 1, 1, 1]}\n')
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    report = moeparity.bisect(tmp_path / "recipe.yaml", device="cpu")
    assert report.reference.unstated == ()
    assert report.candidate.unstated == ("gated_delta", "short_conv")
    assert "the profile says nothing of gated_delta and short_conv" in str(report.candidate)


def test_a_run_of_quantised_weights_says_that_they_are_multiplied_out(tmp_path: Path) -> None:
    make_small("qwen3_moe", tmp_path / "whole")
    assert inside("quantise", tmp_path / "whole", "--like", "int8", "--out", tmp_path / "model").returncode == 0
    (tmp_path / "tokens.jsonl").write_text('{"input_ids": [1, 2, 3, 4, 5, 6], "mask": [0, 0, 1, 1, 1, 1]}\n')
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    done = inside("bisect", tmp_path / "recipe.yaml", "--json", tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text("utf-8"))["run"]["formats"] == ["int8"]
    says = "int8 weights multiplied out, none of its codes in a GEMM"
    assert says in " ".join(done.stdout.split())


def test_a_run_whose_server_multiplies_the_files_codes_says_so(tmp_path: Path) -> None:
    shutil.copytree(QUICKSTART, tmp_path / "whole")
    options = ("--like", "fp8-blocks", "--group", "16", "--out", tmp_path / "model")
    assert inside("quantise", tmp_path / "whole", *options).returncode == 0
    (tmp_path / "tokens.jsonl").write_text('{"input_ids": [1, 2, 3, 4, 5, 6], "mask": [0, 0, 1, 1, 1, 1]}\n')
    small = {f"layers[*].{op}:{choice}": 16 for op in OPS for choice in ("activation_group", "weight_block")}
    recipe = RECIPE.replace("{profile: vllm, dtype: bf16}", json.dumps({"profile": "vllm-fp8-blocks", "set": small}))
    (tmp_path / "recipe.yaml").write_text(recipe)
    done = inside("bisect", tmp_path / "recipe.yaml", "--json", tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text("utf-8"))["run"]["of_codes"] == ["candidate"]
    says = "fp8-blocks weights multiplied out, but where codes are in the candidate's GEMMs"
    assert says in " ".join(done.stdout.split())
