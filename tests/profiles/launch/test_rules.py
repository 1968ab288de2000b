"""What engines decide from several options or from the model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moeparity.errors import SpecError
from moeparity.profiles.launch import read
from moeparity.profiles.launch.architecture import model_of
from moeparity.profiles.launch.report import Launch

_ROUTER, _PERMUTED, _SWIGLU = "megatron-router-fp32", "megatron-permute-fusion", "megatron-unfused-swiglu"
VERL = "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen3-30B-A3B "
ACTOR, ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."


def launch(folder: Path, text: str, name: str = "launch.sh") -> Launch:
    (folder / name).write_text(text, "utf-8")
    return read(folder / name)


def sglang(folder: Path, text: str) -> tuple[str, list[str]]:
    launch_read = launch(folder, f"python -m sglang.launch_server {text}")
    return launch_read.sides[0].variant, [warning.says for warning in launch_read.warnings]


@pytest.mark.parametrize(
    ("model", "fused"),
    [
        ("Qwen/Qwen3-30B-A3B", True),
        ("Qwen/Qwen3-235B-A22B-Thinking-2507", True),
        ("zai-org/GLM-4.5-Air", True),
        ("openai/gpt-oss-20b", True),
        ("Qwen/Qwen3-8B", False),
        ("mistralai/Mixtral-8x7B-v0.1", False),
    ],
)
def test_sglang_fuses_the_all_reduce_for_some_models(tmp_path: Path, model: str, fused: bool) -> None:
    variant, _ = sglang(tmp_path, f"--model-path {model} --tp 8")
    assert variant == f"{{profile: {'sglang-allreduce-norm' if fused else 'sglang'}, placement: {{tensor: 8}}}}"


@pytest.mark.parametrize(
    "against",
    [
        "--enforce-disable-flashinfer-allreduce-fusion",
        "--nnodes 2",
        "--moe-a2a-backend deepep --ep-size 8",
        "--enable-dp-attention --dp 2",
        "--enable-deterministic-inference",
    ],
)
def test_what_keeps_sglang_from_fusing(tmp_path: Path, against: str) -> None:
    launch_read = launch(tmp_path, f"python -m sglang.launch_server --model-path Qwen/Qwen3-30B-A3B --tp 8 {against}")
    assert "sglang-allreduce-norm" not in (launch_read.sides[0].profile, *launch_read.sides[0].further)


def test_a_model_that_is_not_known_is_said_to_be(tmp_path: Path) -> None:
    variant, warnings = sglang(tmp_path, "--model-path mine/my-moe --tp 8")
    assert variant == "{profile: sglang, placement: {tensor: 8}}"
    (warning,) = warnings
    assert warning == (
        "whether all-reduce, add and norm run in one kernel (sglang-allreduce-norm) goes by the architecture, which is "
        "not known: no config.json is here, and its name is none known here"
    )
    assert launch(tmp_path, "python -m sglang.launch_server --model-path $MODEL --tp 2").model.architecture is None


def test_a_config_beside_the_launch_file_decides(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    config = {"architectures": ["Qwen3MoeForCausalLM"], "quantization_config": {"quant_method": "fp8"}}
    (tmp_path / "mine/config.json").write_text(json.dumps(config), "utf-8")
    variant, (warning,) = sglang(tmp_path, "--model-path mine --tp 2")
    assert variant == "{profile: sglang-allreduce-norm, placement: {tensor: 2}}"
    assert warning.startswith("the weights of mine are stored as fp8")


@pytest.mark.parametrize("text", ["{", "[1]", "", '{"architectures": 3}', '{"architectures": [null]}'])
def test_a_config_that_says_nothing_leaves_the_model_unknown(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text, "utf-8")
    assert model_of(str(tmp_path), tmp_path).architecture is None


@pytest.mark.parametrize(
    ("name", "architecture", "quantised"),
    [
        ("deepseek-ai/DeepSeek-V3", "DeepseekV3ForCausalLM", "fp8"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "Qwen2ForCausalLM", ""),
        ("unsloth/DeepSeek-V3-bf16", "DeepseekV3ForCausalLM", ""),
        ("Qwen/Qwen3-30B-A3B-FP8", "Qwen3MoeForCausalLM", "fp8"),
        ("openai/gpt-oss-120b", "GptOssForCausalLM", "MXFP4"),
        ("Qwen/Qwen2.5-1.5B-Instruct", "Qwen2ForCausalLM", ""),
        ("someone/else", None, ""),
    ],
)
def test_names_on_the_hub(tmp_path: Path, name: str, architecture: str | None, quantised: str) -> None:
    model = model_of(name, tmp_path)
    assert (model.architecture, model.quantised) == (architecture, quantised)


@pytest.mark.parametrize(
    ("options", "variant", "says"),
    [
        (
            "--tp 8 --dp 4 --enable-dp-attention --moe-a2a-backend deepep",
            "tensor: 2, expert: 8, attention: 4, gathered: experts",
            "rows are gathered",
        ),
        (
            "--tp 8 --dp 8 --enable-dp-attention --ep-size 8",
            "expert: 8, attention: 8, gathered: mlp",
            "rows are gathered",
        ),
        ("--tp 8 --dp 2 --enable-dp-attention", "tensor: 4, attention: 2, gathered: mlp", "rows are gathered"),
        ("--tp 8 --ep-size 2", "tensor: 8, expert: 2", "each expert cut over 4, and attention over 8"),
        ("--tp 8 --ep-size 8", "tensor: 8, expert: 8", ""),
        ("--tp 8 --dp 2", "tensor: 8", ""),
    ],
)
def test_over_how_many_ranks_sglang_cuts_attention_and_experts(
    tmp_path: Path, options: str, variant: str, says: str
) -> None:
    variant_text, warnings = sglang(tmp_path, f"--model-path Qwen/Qwen3-30B-A3B {options}")
    assert f"placement: {{{variant}}}" in variant_text
    assert bool(warnings) == bool(says)
    assert not says or any(says in warning for warning in warnings)


def test_vllms_experts_and_data_parallel(tmp_path: Path) -> None:
    alone = launch(tmp_path, "vllm serve m -tp 4 --enable-expert-parallel --all2all-backend deepep_low_latency")
    assert (alone.sides[0].placement, alone.sides[0].further) == ({"tensor": 4, "expert": 4}, ())
    launch_read = launch(
        tmp_path, "vllm serve m -tp 4 -dp 2 --enable-expert-parallel --all2all-backend deepep_low_latency"
    )
    assert launch_read.sides[0].placement == {"tensor": 4, "expert": 8, "attention": 2, "gathered": "experts"}
    assert launch_read.sides[0].further == ("deepep-low-latency",)
    in_fp8 = launch(
        tmp_path,
        "vllm serve m -tp 4 -dp 2 --enable-expert-parallel --all2all-backend deepep_low_latency "
        "--quantization fp8_per_block",
    )
    assert {"vllm-fp8-blocks", "deepep-low-latency-fp8"} <= {*in_fp8.sides[0].further}
    assert "deepep-low-latency" not in in_fp8.sides[0].further
    cut = launch(tmp_path, "vllm serve m -tp 4 --data-parallel-size 2")
    assert cut.sides[0].placement == {"tensor": 4, "attention": 2, "gathered": "experts"}
    assert "reduce-scattered by NCCL to the groups" in cut.warnings[0].says


def test_a_compilation_config_that_keeps_vllm_from_fusing(tmp_path: Path) -> None:
    text = "vllm serve m -tp 2 --compilation-config '{}'"
    assert launch(tmp_path, text.format('{"pass_config": {"fuse_allreduce_rms": false}}')).sides[0].profile == "vllm"
    assert launch(tmp_path, text.format('{"mode": 0}')).sides[0].profile == "vllm-eager"
    (warning,) = launch(tmp_path, text.format('{"custom_ops": ["all"]}')).warnings
    assert warning.says.startswith("custom_ops of the compilation config")


@pytest.mark.parametrize(
    ("dispatcher", "placement", "further"),
    [
        ("alltoall", {"tensor": 4, "sequence": True}, ()),
        ("allgather", {"tensor": 4, "sequence": True, "expert": 8}, ()),
        ("flex", {"tensor": 4, "sequence": True, "expert": 8}, ("deepep-normal",)),
    ],
)
def test_which_dispatchers_of_megatron_make_partial_sums(
    tmp_path: Path, dispatcher: str, placement: dict[str, int], further: tuple[str, ...]
) -> None:
    fields = f"+{ACTOR}megatron.override_transformer_config."
    text = (
        f"{VERL} model_engine=megatron {ACTOR}megatron.tensor_model_parallel_size=4 "
        f"{ACTOR}megatron.expert_model_parallel_size=8 {fields}moe_token_dispatcher_type={dispatcher} "
        f"{fields}apply_rope_fusion=True {ACTOR}megatron.vanilla_mbridge=True"
    )
    trainer = launch(tmp_path, text).sides[0]
    assert (trainer.profile, dict(trainer.placement), trainer.further) == ("megatron", placement, further)


def test_verls_rollouts_decide_as_the_servers_do(tmp_path: Path) -> None:
    text = f"{VERL} {ROLLOUT}name=sglang {ROLLOUT}tensor_model_parallel_size=4"
    assert launch(tmp_path, text).sides[1].profile == "sglang-allreduce-norm"
    text = f"{VERL} {ROLLOUT}tensor_model_parallel_size=4 {ROLLOUT}expert_parallel_size=4"
    assert launch(tmp_path, text).sides[1].placement == {"tensor": 4, "expert": 4}


@pytest.mark.parametrize(
    "command",
    [
        f"{VERL} {ROLLOUT}tensor_model_parallel_size=2",
        (
            "python -m skyrl.train.entrypoints.main_base trainer.policy.model.path=Qwen/Qwen3-30B-A3B "
            "generator.inference_engine.backend=vllm generator.inference_engine.tensor_parallel_size=2"
        ),
        (
            "uv run examples/run_grpo_math.py policy.model_name=Qwen/Qwen3-30B-A3B "
            "policy.generation.vllm_cfg.tensor_parallel_size=2"
        ),
        "uv run rl --model.name Qwen/Qwen3-30B-A3B --inference.parallel.tp 2",
    ],
)
def test_a_trainer_s_vllm_goes_by_the_environment(tmp_path: Path, command: str) -> None:
    """Batch-invariant, and not compiled, as `vllm serve` is by the same variable."""
    assert launch(tmp_path, command).sides[1].profile == "vllm-allreduce-norm"
    rollout = launch(tmp_path, f"export VLLM_BATCH_INVARIANT=1\n{command}").sides[1]
    assert (rollout.profile, rollout.further) == ("vllm-batch-invariant-eager", ())


@pytest.mark.parametrize(("engine", "trained"), [("dp", 0.69921875), ("megatron", 0.7)])
def test_a_temperature_is_set_on_both_sides(tmp_path: Path, engine: str, trained: float) -> None:
    trainer, rollout = launch(tmp_path, f"{VERL} model_engine={engine} {ROLLOUT}temperature=0.7").sides
    assert (trainer.sets, rollout.sets) == ({"log_probs:temperature": trained}, {"log_probs:temperature": 0.7})
    raw = launch(tmp_path, f"{VERL} {ROLLOUT}temperature=0.7 {ROLLOUT}logprobs_mode=raw_logprobs").sides[1]
    assert raw.sets == {}


@pytest.mark.parametrize(
    ("options", "profile"),
    [
        ("--config-name=ppo_megatron_trainer", "megatron"),
        ("--config-name=ppo_trainer", "verl-fsdp"),
        ("model_engine=megatron", "megatron"),
        ("model_engine=dp", "verl-fsdp"),
        (f"{ACTOR}strategy=megatron", "megatron"),
        ("", "verl-fsdp"),
    ],
)
def test_three_ways_to_say_which_trainer_verl_starts(tmp_path: Path, options: str, profile: str) -> None:
    fused = f"+{ACTOR}megatron.override_transformer_config.apply_rope_fusion=True {ACTOR}megatron.vanilla_mbridge=True"
    assert launch(tmp_path, f"{VERL} {options} {fused}").sides[0].profile == profile


def test_an_engine_of_verl_that_no_profile_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="model_engine is 'veomni'; expected one of"):
        launch(tmp_path, f"{VERL} model_engine=veomni")


@pytest.mark.parametrize(
    ("model", "more", "further", "warns"),
    [
        ("deepseek-ai/DeepSeek-V3-Base-bf16", "{vanilla}", (_ROUTER,), ""),
        ("zai-org/GLM-4.5-Air", "{vanilla}", (_ROUTER,), ""),
        ("Qwen/Qwen3-30B-A3B", "{vanilla}", (), ""),
        ("mistralai/Mixtral-8x7B-v0.1", "{vanilla}", (_SWIGLU,), ""),
        ("Qwen/Qwen3-8B", "{vanilla}", (_SWIGLU,), ""),
        ("Qwen/Qwen3-8B", "{vanilla} +{fields}bias_activation_fusion=True", (), ""),
        ("allenai/OLMoE-1B-7B-0924", "{vanilla}", None, "nobody read what it sets for OlmoeForCausalLM"),
        ("my/model", "{vanilla}", None, "mbridge goes by the model's class: no config.json is here"),
        ("zai-org/GLM-4.5-Air", "{actor}megatron.use_mbridge=False", (), ""),
        ("Qwen/Qwen3-30B-A3B", "", (_PERMUTED, _SWIGLU), ""),
        ("Qwen/Qwen3-30B-A3B", "+{fields}moe_permute_fusion=False", (_SWIGLU,), ""),
        ("zai-org/GLM-4.5-Air", "", (_ROUTER, _PERMUTED), "the shared expert's sum is added elsewhere"),
        ("Qwen/Qwen3-8B", "", None, "Megatron-Bridge goes by the model's class: nobody read what it sets"),
    ],
)
def test_what_a_bridge_sets_goes_by_the_class(
    tmp_path: Path, model: str, more: str, further: tuple[str, ...] | None, warns: str
) -> None:
    fields = f"{ACTOR}megatron.override_transformer_config."
    command = "python3 -m verl.trainer.main_ppo model_engine=megatron actor_rollout_ref.model.path="
    names = {"actor": ACTOR, "fields": fields, "vanilla": f"{ACTOR}megatron.vanilla_mbridge=True"}
    launch_read = launch(tmp_path, f"{command}{model} {more.format(**names)}")
    trainer = next(side for side in launch_read.sides if side.role == "trainer")
    parts = {trainer.profile, *trainer.further} - {"megatron"}
    assert parts == (set() if further is None else {"megatron-unfused-rope", *further})
    warnings = " ".join(warning.says for warning in launch_read.warnings if warning.role == "trainer")
    assert (warns in warnings) if warns else not warnings
    shown = {setting.name for setting in launch_read.settings if not setting.given}
    assert (f"{fields}bias_activation_fusion" in shown) == ("use_mbridge" in more)


def test_trls_server_has_a_parser_of_its_own(tmp_path: Path) -> None:
    """Its words are no mistakes of vLLM's command line, and vLLM's spellings are not its."""
    launch_read = launch(
        tmp_path, "trl vllm-serve --model Qwen/Qwen3-30B-A3B --tensor_parallel_size 4 --enforce_eager true"
    )
    assert launch_read.notes == ()
    assert launch_read.sides[0].variant == "{profile: vllm-eager, placement: {tensor: 4}}"


@pytest.mark.parametrize(
    ("ranks", "warns"),
    [
        ("--tensor-model-parallel-size 2", "partial sums are added over them before it goes home"),
        ("--tensor-model-parallel-size 2 --expert-tensor-parallel-size 1", ""),
        ("--expert-tensor-parallel-size 2", "each expert is cut over 2 ranks"),
        ("--tensor-model-parallel-size 2 --expert-tensor-parallel-size $N", "not resolved"),
        ("--expert-model-parallel-size 2", ""),
    ],
)
def test_megatrons_experts_are_cut_as_attention_is_unless_it_is_told(tmp_path: Path, ranks: str, warns: str) -> None:
    (tmp_path / "run.sh").write_text(
        f"python train.py --hf-checkpoint Qwen/Qwen3-30B-A3B --rollout-batch-size 4 {ranks}\n", "utf-8"
    )
    warnings = [warning.says for warning in read(tmp_path / "run.sh").warnings]
    assert [says for says in warnings if warns in says] == warnings
    assert len(warnings) == bool(warns)
    whole = {"**.experts:tensor": 1} if ranks.endswith("expert-tensor-parallel-size 1") else {}
    assert read(tmp_path / "run.sh").sides[0].selects == whole


def test_slimes_engine_is_cut_by_its_pipeline_stages_and_sends_rows_home(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(
        "python train.py --hf-checkpoint Qwen/Qwen3-30B-A3B --rollout-batch-size 4 --expert-model-parallel-size 4 "
        "--moe-token-dispatcher-type allgather --rollout-num-gpus-per-engine 16 --sglang-pp-size 4\n",
        "utf-8",
    )
    trainer, rollout = read(tmp_path / "run.sh").sides
    assert "expert" not in trainer.placement
    assert rollout.placement == {"tensor": 4, "pipeline": 4, "stages": "sglang"}


APART = {"attention": 2, "gathered": "experts"}


@pytest.mark.parametrize(
    ("lines", "placement", "warned"),
    [
        ("", {"tensor": 4}, False),
        ("dp = 2", {"tensor": 4, **APART}, True),
        ("[inference]\nenable_expert_parallel = true", {"tensor": 4, "expert": 4}, False),
        ("dp = 2\n[inference]\nenable_expert_parallel = true", {"tensor": 4, "expert": 8, **APART}, True),
    ],
)
def test_over_how_many_ranks_prime_rls_experts_lie(
    tmp_path: Path, lines: str, placement: dict[str, int | str], warned: bool
) -> None:
    launch_read = launch(tmp_path, f"[trainer.model]\nimpl = 'hf'\n[inference.parallel]\ntp = 4\n{lines}\n", "rl.toml")
    assert launch_read.sides[1].placement == placement
    assert any(warning.role == "rollout" for warning in launch_read.warnings) == warned


FOUR_APART = "attention: 4, gathered: experts"


@pytest.mark.parametrize(
    ("text", "variant", "warnings"),
    [
        (
            "vllm serve m --tensor-parallel-size 2 -pp 4",
            "{profile: vllm-allreduce-norm, placement: {tensor: 2, pipeline: 4, stages: vllm}}",
            0,
        ),
        (
            "VLLM_PP_LAYER_PARTITION=11,13 vllm serve m --pipeline-parallel-size 2",
            "{profile: vllm, placement: {pipeline: 2, stages: [11, 13]}}",
            0,
        ),
        (
            "VLLM_PP_LAYER_PARTITION=11,x vllm serve m -pp 2",
            "{profile: vllm, placement: {pipeline: 2, stages: vllm}}",
            1,
        ),
        ("vllm serve m --pipeline-parallel-size 1", "{profile: vllm}", 0),
        (
            "SGLANG_PP_LAYER_PARTITION=3,1,2 python -m sglang.launch_server --model-path m --pp-size 3",
            "{profile: sglang, placement: {pipeline: 3, stages: [3, 1, 2]}}",
            0,
        ),
        (
            "python -m sglang.launch_server --model-path m --pipeline-parallel-size 2",
            "{profile: sglang, placement: {pipeline: 2, stages: sglang}}",
            0,
        ),
        (
            "python pretrain_gpt.py --bf16 --pipeline-model-parallel-size 2",
            "{profile: megatron, placement: {pipeline: 2}, dtype: bf16}",
            0,
        ),
        # Both engines have a list of stages; only one heeds it where there is one stage.
        (
            "SGLANG_PP_LAYER_PARTITION=3,1,2 python -m sglang.launch_server --model-path m",
            "{profile: sglang}",
            0,
        ),
        (
            "VLLM_PP_LAYER_PARTITION=24 vllm serve m",
            "{profile: vllm, placement: {stages: [24]}}",
            0,
        ),
        (
            "VLLM_PP_LAYER_PARTITION=11,13 vllm serve m -pp $STAGES",
            "{profile: vllm, placement: {stages: [11, 13]}}",
            1,
        ),
        (
            "vllm serve Qwen/Qwen3-30B-A3B -tp 2 -pp 2 --data-parallel-size 4",
            f"{{profile: vllm-allreduce-norm, placement: {{tensor: 2, pipeline: 2, stages: vllm, {FOUR_APART}}}}}",
            1,
        ),
        (
            "python -m sglang.launch_server --model-path m --tp-size 8 --dp-size 4 --enable-dp-attention --pp-size 2",
            "{profile: sglang, placement: {tensor: 2, pipeline: 2, stages: sglang, attention: 4, gathered: mlp}}",
            1,
        ),
        # What a server says of itself when it runs: the flag adds nothing to the size.
        (
            "python -m sglang.launch_server --model-path m --tp-size 8 --attn-dp-size 4 --enable-dp-attention",
            "{profile: sglang, placement: {tensor: 2, attention: 4, gathered: mlp}}",
            1,
        ),
        # Replicas are jobs of their own.
        ("vllm serve Qwen/Qwen3-8B --data-parallel-size 4", "{profile: vllm}", 0),
        ("python -m sglang.launch_server --model-path m --tp 1 --dp-size 4", "{profile: sglang}", 0),
        # Nobody says how many layers the model has.
        (
            "python pretrain_gpt.py --bf16 --pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 1",
            "{profile: megatron, placement: {pipeline: 2}, dtype: bf16}",
            1,
        ),
    ],
)
def test_stages_of_a_pipeline_are_carried_over(tmp_path: Path, text: str, variant: str, warnings: int) -> None:
    launch_read = launch(tmp_path, f"{text}\n")
    assert launch_read.sides[0].variant == variant
    assert len(launch_read.warnings) == warnings, launch_read.warnings
    assert not launch_read.ignored


@pytest.mark.parametrize(
    ("options", "stages"),
    [
        ("--decoder-first-pipeline-num-layers 2", [2, 5, 5]),
        ("--decoder-last-pipeline-num-layers 4", [4, 4, 4]),
        ("--decoder-first-pipeline-num-layers 1 --decoder-last-pipeline-num-layers 1", [1, 10, 1]),
        ("--pipeline-model-parallel-layout 'Et*3|(tt|)*1t*7,L'", [3, 2, 7]),
        ("--pipeline-model-parallel-layout 'Et*3|t*5|t*4mL'", [3, 5, 4]),
        # The loss alone is a stage, each rank has two stages, a word that is none.
        ("--pipeline-model-parallel-layout 'Et*6|t*6|L'", None),
        ("--pipeline-model-parallel-layout 'Ett|tt|tt|tt|tt|ttL'", None),
        ("--pipeline-model-parallel-layout 'E|x|L'", None),
        # Nine are left to two stages, which Megatron-LM refuses.
        ("--decoder-first-pipeline-num-layers 3", None),
    ],
)
def test_megatrons_outer_stages(tmp_path: Path, options: str, stages: list[int] | None) -> None:
    """Twelve layers on three stages, as get_num_layers_to_build divides them."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": "qwen3_moe", "num_hidden_layers": 12}), "utf-8")
    script = tmp_path / "launch.sh"
    script.write_text(f"python pretrain_gpt.py --bf16 --pipeline-model-parallel-size 3 {options}\n", "utf-8")
    launch_read = read(script, model)
    assert launch_read.sides[0].placement.get("stages", ()) == tuple(stages or ())
    assert len(launch_read.warnings) == (stages is None)
