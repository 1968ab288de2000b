"""`moeparity init` with launch files: one recipe from a server's, a trainer's and a checkpoint."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from moeparity.bisection.init import write_starter
from moeparity.bisection.prepare import prepare
from moeparity.errors import MoeparityError
from moeparity.plan.spec import reader
from tests.command import ROOT, alone, inside

QUICKSTART = ROOT / "checkpoints/quickstart"
ADAPTER = ROOT / "checkpoints/quickstart-lora"
SGLANG = (
    "python -m sglang.launch_server --model-path Qwen/Qwen3-30B-A3B --tp 2 \\\n  --mem-fraction-static 0.8 --foo 1\n"
)
VLLM = "vllm serve Qwen/Qwen3-30B-A3B -tp 2 --quantization fp8\n"
NEMO_RL = """\
policy:
  model_name: Qwen/Qwen3-30B-A3B
  precision: bfloat16
  dtensor_cfg: {enabled: false}
  megatron_cfg:
    enabled: true
    tensor_model_parallel_size: 2
    sequence_parallel: true
    expert_model_parallel_size: 2
    moe_router_dtype: fp64
    apply_rope_fusion: false
  generation: {backend: vllm, temperature: 0.7, vllm_cfg: {tensor_parallel_size: 2}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "server.sh").write_text(SGLANG, "utf-8")
    (tmp_path / "vllm.sh").write_text(VLLM, "utf-8")
    (tmp_path / "train.yaml").write_text(NEMO_RL, "utf-8")
    return tmp_path


def test_a_profile_is_not_written_over_a_launch_file(folder: Path) -> None:
    launch = (folder / "train.yaml").rename(folder / "r.trainer.yaml")
    with pytest.raises(MoeparityError, match=r"r\.trainer\.yaml: this run reads that file, and would write over it"):
        write_starter(QUICKSTART, folder / "r.yaml", server=folder / "server.sh", trainer=launch, force=True)
    assert launch.read_text("utf-8") == NEMO_RL


def test_both_sides_are_what_the_launch_files_start(folder: Path) -> None:
    starter = write_starter(QUICKSTART, folder / "r.yaml", server=folder / "server.sh", trainer=folder / "train.yaml")
    recipe = reader.read_recipe(starter.recipe)
    assert (recipe.reference.profile, str(recipe.reference.placement)) == ("./r.trainer.yaml", "tensor 2, sequence")
    assert (recipe.candidate.profile, str(recipe.candidate.placement)) == ("./r.server.yaml", "tensor 2")
    assert reader.read_profile(folder / "r.trainer.yaml").extends == "megatron-permute-fusion"
    assert recipe.tokens.sample is not None
    assert recipe.tokens.sample.temperature == 0.7
    assert tuple(starter.sides.profiles) == (folder / "r.trainer.yaml", folder / "r.server.yaml")
    assert not starter.sides.obstacle


def test_what_profiles_on_top_and_single_values_say_is_in_the_plan(folder: Path) -> None:
    starter = write_starter(QUICKSTART, folder / "r.yaml", server=folder / "server.sh", trainer=folder / "train.yaml")
    study = prepare(starter.recipe, device="cpu")
    values = [
        study.reference.plan.settings[place].value
        for place in (
            ("layers[0].moe.gate", "output"),
            ("layers[0].attention.rope", "products"),
            ("log_probs", "temperature"),
        )
    ]
    assert values == ["fp64", "model", 0.7]
    assert study.candidate.plan.settings["log_probs", "temperature"].value == 0.7


def test_every_value_taken_or_left_is_a_comment_with_its_line(folder: Path) -> None:
    starter = write_starter(QUICKSTART, folder / "r.yaml", server=folder / "server.sh", trainer=folder / "train.yaml")
    text = " ".join(line.strip(" #") for line in starter.recipe.read_text("utf-8").splitlines())
    for line in (
        "train.yaml:3: policy.precision bfloat16: dtype bf16",
        "train.yaml:7: policy.megatron_cfg.tensor_model_parallel_size 2: placement tensor 2",
        "train.yaml:10: policy.megatron_cfg.moe_router_dtype fp64: with Megatron-LM: gate:inputs",
        "train.yaml:2: policy.model_name is left out: it names the model",
        "server.sh:1: tp_size 2: placement tensor 2",
        "server.sh:2: mem_fraction_static is left out: it changes no log-probability",
        "server.sh:2: foo is left out: it was not looked at",
    ):
        assert line in text


def test_warnings_stand_at_the_top_and_are_printed(folder: Path) -> None:
    done = inside("init", QUICKSTART, "--server", "vllm.sh", "--trainer", "train.yaml", cwd=folder)
    assert done.returncode == 0, done.stderr
    words = " ".join(done.stdout.split())
    assert "warning: no profile covers it: server: quantization fp8: weights, and activations" in words
    assert "(vllm.sh:1)" in words
    top = (folder / "recipe.yaml").read_text("utf-8").partition("kind: recipe")[0]
    assert (
        "# WARNING: these options decide numerics, and no profile covers them; nothing is put in their place:\n" in top
    )
    assert "quantization fp8" in top
    # The checkpoint is a small one of the same class.
    assert (
        "warning: not this checkpoint's model: vllm.sh runs Qwen/Qwen3-30B-A3B: by its name it has 30 billion" in words
    )
    assert "# WARNING: not this checkpoint's model: vllm.sh runs Qwen/Qwen3-30B-A3B" in top


def test_one_file_that_starts_both_is_enough(folder: Path) -> None:
    starter = write_starter(QUICKSTART, folder / "r.yaml", trainer=folder / "train.yaml")
    recipe = reader.read_recipe(starter.recipe)
    assert recipe.candidate.profile == "./r.server.yaml"
    assert reader.read_profile(folder / "r.server.yaml").extends == "vllm-allreduce-norm"


@pytest.mark.parametrize(
    ("option", "text", "candidate"),
    [("server", SGLANG, "tensor 2"), ("trainer", "torchrun pretrain_gpt.py --bf16\n", "")],
)
def test_a_side_alone_is_held_to_eager_attention(option: str, text: str, candidate: str, folder: Path) -> None:
    (folder / "alone.sh").write_text(text, "utf-8")
    done = inside("init", QUICKSTART, f"--{option}", "alone.sh", cwd=folder)
    assert done.returncode == 0, done.stderr
    recipe = reader.read_recipe(folder / "recipe.yaml")
    assert (recipe.reference.profile, recipe.reference.dtype) == ("hf-eager", "bf16")
    assert str(recipe.candidate.placement) == candidate
    assert recipe.candidate.profile != "hf-eager"
    prepare(folder / "recipe.yaml", device="cpu")


def test_a_server_is_no_trainer(folder: Path) -> None:
    with pytest.raises(
        MoeparityError, match=r"server\.sh: a trainer is needed, .* Give the launch file of one with --tr"
    ):
        write_starter(QUICKSTART, folder / "r.yaml", trainer=folder / "server.sh")
    assert not (folder / "r.yaml").exists()


def test_experts_that_are_not_cut_are_so_in_the_recipe(folder: Path) -> None:
    (folder / "train.sh").write_text(
        "torchrun pretrain_gpt.py --bf16 --tensor-model-parallel-size 2 --sequence-parallel "
        "--expert-tensor-parallel-size 1\n",
        "utf-8",
    )
    done = inside("init", QUICKSTART, "--server", "server.sh", "--trainer", "train.sh", cwd=folder)
    assert "**.experts:tensor" not in done.stdout
    recipe = reader.read_recipe(folder / "recipe.yaml")
    assert dict(recipe.reference.set) == {"**.experts:tensor": 1}
    plan = prepare(folder / "recipe.yaml", device="cpu").reference.plan
    assert plan.settings["layers[0].moe.experts", "tensor"].value == 1
    assert plan.settings["layers[0].attention.q_proj", "tensor"].value == 2


def test_each_value_credits_the_file_that_it_comes_from(folder: Path) -> None:
    (folder / "serve.sh").write_text(
        "VLLM_USE_V2_MODEL_RUNNER=0 \\\n  vllm serve m -tp 2 \\\n  --logprobs-mode processed_logprobs "
        '--hf-overrides \'{"head_dtype": "float32"}\'\n',
        "utf-8",
    )
    write_starter(QUICKSTART, folder / "r.yaml", server=folder / "serve.sh", trainer=folder / "train.yaml")
    rules = reader.read_profile(folder / "r.server.yaml").rules
    sources = {name: rule.evidence.source for rule in rules for name in rule.set if rule.op == "log_probs"}
    assert "serve.sh:1: VLLM_USE_V2_MODEL_RUNNER" in sources["form"]
    assert "train.yaml:12: policy.generation.temperature" in sources["temperature"]
    text = (folder / "r.server.yaml").read_text("utf-8")
    assert "# From vllm-fp32-head, by " in text
    assert "serve.sh:3: hf_overrides.\n" in text
    recipe = " ".join(line.strip(" #") for line in (folder / "r.yaml").read_text("utf-8").splitlines())
    assert "dtype bf16: by the checkpoint" in recipe
    assert "train.yaml:3: policy.precision" in recipe
    assert "gate:output: by " in recipe


def test_a_checkpoint_is_no_recipe() -> None:
    done = inside("bisect", QUICKSTART)
    assert done.returncode == 2
    assert "is a checkpoint" in " ".join(done.stderr.split())
    assert "run `moeparity init " in " ".join(done.stderr.split())


def test_what_does_not_run_says_why(folder: Path) -> None:
    """Eight heads do not divide by 16 ranks."""
    (folder / "wide.sh").write_text("vllm serve m -tp 16\n", "utf-8")
    done = inside("init", QUICKSTART, "--server", "wide.sh", "--trainer", "train.yaml", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "It does not run: candidate: " in done.stdout
    assert "# It does not run: candidate: " in (folder / "recipe.yaml").read_text("utf-8")


def test_the_files_beside_are_overwritten_only_by_force(folder: Path) -> None:
    (folder / "r.trainer.yaml").write_text("mine", "utf-8")
    with pytest.raises(MoeparityError, match=r"r\.trainer\.yaml: is there already"):
        write_starter(QUICKSTART, folder / "r.yaml", server=folder / "server.sh", trainer=folder / "train.yaml")
    assert not (folder / "r.yaml").exists()


def test_three_commands_lead_to_an_answer(folder: Path) -> None:
    """A stranger's path, as docs/launch.md has it, in processes of their own: one layer and few prompts."""
    model = Path(shutil.copytree(QUICKSTART, folder / "model"))
    config = json.loads((model / "config.json").read_text("utf-8"))
    (model / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}), "utf-8")
    (model / "model.safetensors").unlink()
    (folder / "train.yaml").write_text(NEMO_RL.replace("0.7", "1.0"), "utf-8")
    written = alone("init", "model", "--server", "server.sh", "--trainer", "train.yaml", cwd=folder)
    assert written.returncode == 0, written.stderr
    shown = alone("show", "plan", "recipe.yaml", cwd=folder)
    assert shown.returncode == 0, shown.stderr
    few = (folder / "recipe.tokens.jsonl").read_text("utf-8").splitlines()[:4]
    (folder / "recipe.tokens.jsonl").write_text("\n".join(few), "utf-8")
    answer = alone("bisect", "recipe.yaml", "--device", "cpu", "--json", "report.json", cwd=folder)
    assert answer.returncode in (0, 1, 3), answer.stderr
    report = json.loads((folder / "report.json").read_text("utf-8"))
    assert report["roots"], answer.stdout
    assert answer.stdout.splitlines()[0].split()[0] in ("PASS", "FAIL", "INCONCLUSIVE")


LORA = "vllm serve Qwen/Qwen3-30B-A3B --enable-lora --lora-modules sql=/adapters/sql --max-lora-rank 16\n"
VERL = (
    "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen3-30B-A3B "
    "actor_rollout_ref.model.lora_rank=32 actor_rollout_ref.actor.strategy=fsdp actor_rollout_ref.rollout.name=vllm\n"
)


@pytest.mark.parametrize("server", [LORA, "vllm serve Qwen/Qwen3-30B-A3B\n"])
def test_an_adapter_that_launch_files_start_is_in_the_recipe(tmp_path: Path, server: str) -> None:
    """It is no gap of a profile then; a server that starts none is told how to have it merged, in lines that bind."""
    (tmp_path / "server.sh").write_text(server, "utf-8")
    (tmp_path / "train.sh").write_text(VERL, "utf-8")
    launches = tmp_path / "server.sh", tmp_path / "train.sh"
    starter = write_starter(QUICKSTART, tmp_path / "r.yaml", adapter=ADAPTER, server=launches[0], trainer=launches[1])
    text = starter.recipe.read_text("utf-8")
    assert [line for line in starter.sides.warnings if "adapter" in line] == []
    assert not starter.sides.lacks_adapter
    study = prepare(starter.recipe, device="cpu")
    assert study.model.adapter is not None
    assert ("starts no adapter" in text) == (server != LORA)
    if server != LORA:
        words = " ".join(line.strip().removeprefix("#").strip() for line in text.splitlines())
        merged = words.partition("add `")[2].partition("`")[0]
        beside = text.replace("  profile: vllm\n", f"  profile: vllm\n  {merged}\n", 1)
        starter.recipe.write_text(beside, "utf-8")
        settings = prepare(starter.recipe, device="cpu").candidate.plan.settings
        values = {str(setting.value) for (_, attribute), setting in settings.items() if attribute == "adapter"}
        assert values == {"merged"}


def test_an_adapter_that_was_not_given_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "server.sh").write_text(LORA, "utf-8")
    done = inside("init", QUICKSTART, "--server", tmp_path / "server.sh", "--out", tmp_path / "r.yaml")
    assert "give its folder with --adapter" in done.stdout
    assert "enable_lora" in done.stdout


def test_an_adapter_beside_no_weights_is_an_error(tmp_path: Path) -> None:
    shutil.copy(QUICKSTART / "config.json", tmp_path / "config.json")
    done = inside("init", tmp_path, "--adapter", ADAPTER, "--out", tmp_path / "r.yaml")
    assert (done.returncode, "holds no weights" in done.stderr) == (2, True)
