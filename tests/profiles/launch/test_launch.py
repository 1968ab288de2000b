"""Launch configurations of four engines: what they imply, what is left unset, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from moeparity.errors import SpecError, Where
from moeparity.plan.engine_profile import load_profile
from moeparity.profiles.launch import read
from moeparity.profiles.launch.options import NO_PROFILE
from moeparity.profiles.launch.programs import PROGRAMS
from moeparity.profiles.launch.report import Launch

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[2]


def launch(folder: Path, text: str, name: str = "launch.sh") -> Launch:
    (folder / name).write_text(text, "utf-8")
    return read(folder / name)


def value(launch: Launch, name: str) -> tuple[str, bool, str]:
    setting = next(setting for setting in launch.settings if setting.name == name)
    return setting.value, setting.given, setting.profile


@pytest.mark.parametrize(
    ("file", "engine", "variants", "further"),
    [
        (
            "vllm.sh",
            "vLLM",
            ["{profile: vllm-batch-invariant-eager, placement: {tensor: 4, expert: 4}}"],
            ["vllm-fp32-head"],
        ),
        ("vllm.yaml", "vLLM", ["{profile: vllm-eager, placement: {tensor: 2}}"], []),
        (
            "sglang.sh",
            "SGLang",
            ["{profile: sglang-deterministic, placement: {tensor: 8, expert: 8}}"],
            ["deepep-normal"],
        ),
        (
            "sglang.json",
            "SGLang",
            ["{profile: sglang-fp32-head, placement: {tensor: 2}}"],
            ["sglang-allreduce-norm"],
        ),
        (
            "verl.yaml",
            "verl",
            [
                "{profile: megatron-permute-fusion, placement: {tensor: 4, sequence: true}}",
                "{profile: sglang-allreduce-norm, placement: {tensor: 4}, dtype: bf16}",
            ],
            ["megatron-unfused-rope", "megatron-unfused-swiglu"],
        ),
        (
            "nemo-rl.yaml",
            "NeMo-RL",
            [
                "{profile: nemo-rl-dtensor-stable, placement: {tensor: 4}, dtype: bf16}",
                "{profile: vllm-allreduce-norm, placement: {tensor: 2}}",
            ],
            [],
        ),
    ],
)
def test_what_a_configuration_implies(file: str, engine: str, variants: list[str], further: list[str]) -> None:
    launch = read(FOLDER / file)
    assert (launch.engine, [side.variant for side in launch.sides]) == (engine, variants)
    assert [overlay for side in launch.sides for overlay in side.further] == further


def test_what_is_unset_is_shown_with_what_it_becomes() -> None:
    launch = read(FOLDER / "vllm.sh")
    assert value(launch, "tensor_parallel_size") == ("4", True, "")
    assert value(launch, "enforce_eager") == ("true", True, "vllm-eager")
    assert value(launch, "dtype") == ("auto", False, "")
    assert value(launch, "hf_overrides") == ('{"head_dtype": "float32"}', True, "vllm-fp32-head")
    assert value(launch, "VLLM_BATCH_INVARIANT") == ("true", True, "vllm-batch-invariant")
    assert value(launch, "VLLM_ALLREDUCE_USE_FLASHINFER") == ("true", False, "")
    assert {setting.where for setting in launch.settings if not setting.given} == {"default"}


def names(launch: Launch) -> tuple[str, ...]:
    """Those known to change nothing."""
    return tuple(key.name for key in launch.irrelevant)


def test_keys_that_were_not_looked_at_are_listed() -> None:
    launch = {key.name: key for key in read(FOLDER / "vllm.sh").ignored}
    assert set(launch) == {"moe_backnd"}
    assert launch["moe_backnd"].hint == "Did you mean 'moe_backend'?"
    assert launch["moe_backnd"].where.endswith("vllm.sh:7")
    assert names(read(FOLDER / "vllm.sh")) == ("gpu_memory_utilization", "CUDA_VISIBLE_DEVICES")
    assert read(FOLDER / "verl.yaml").ignored == ()
    assert names(read(FOLDER / "verl.yaml")) == (
        "actor_rollout_ref.model.path",
        "actor_rollout_ref.rollout.gpu_memory_utilization",
    )


def test_megatron_as_nemo_rl_has_it(tmp_path: Path) -> None:
    text = (
        "policy:\n  dtensor_cfg: {enabled: false}\n"
        "  megatron_cfg: {enabled: true, moe_router_dtype: fp32, apply_rope_fusion: false}\n"
    )
    trainer, rollout = launch(tmp_path, text, "grpo.yaml").sides
    assert trainer.profile == "megatron-router-fp32"
    assert trainer.further == ("megatron-permute-fusion", "megatron-unfused-rope")
    assert rollout.variant == "{profile: vllm}"


def test_overrides_of_hydra_and_short_options(tmp_path: Path) -> None:
    verl = launch(
        tmp_path,
        "python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.name=vllm \\\n"
        "  +actor_rollout_ref.rollout.tensor_model_parallel_size=1 actor_rollout_ref.ref.x=1\n",
    )
    assert [side.variant for side in verl.sides] == ["{profile: verl-fsdp}", "{profile: vllm, dtype: bf16}"]
    assert [entry.name for entry in verl.ignored] == ["actor_rollout_ref.ref.x"]
    assert (
        launch(tmp_path, "vllm serve model -tp 2 -O0").sides[0].variant
        == "{profile: vllm-eager, placement: {tensor: 2}}"
    )
    # Switched off again, and a value that stands for another one.
    assert launch(tmp_path, "vllm serve model --no-enforce-eager").sides[0].variant == "{profile: vllm}"
    pointing = launch(tmp_path, "policy: {precision: '${other}', generation: {backend: sglang}}\n", "x.yaml")
    assert [side.variant for side in pointing.sides] == ["{profile: nemo-rl-dtensor}", "{profile: sglang}"]


def test_determinism_switches_the_fused_all_reduce_off(tmp_path: Path) -> None:
    side = launch(tmp_path, "VLLM_BATCH_INVARIANT=1 vllm serve model --tensor-parallel-size 4").sides[0]
    assert (side.profile, side.further) == ("vllm-batch-invariant", ())
    text = "sglang serve model --rl-on-policy-target fsdp --flashinfer-allreduce-fusion-backend auto --tp 4"
    side = launch(tmp_path, text).sides[0]
    assert (side.profile, side.further) == ("sglang-rl-on-policy", ())


@pytest.mark.parametrize(
    ("backend", "overlay"), [("auto", "sglang-allreduce-norm"), ("mnnvl", None), ("cutedsl", None)]
)
def test_a_backend_with_another_kernel_is_no_fused_norm_of_the_profile(
    tmp_path: Path, backend: str, overlay: str | None
) -> None:
    """The profile is the trtllm backend's."""
    side = launch(tmp_path, f"sglang serve model --tp 2 --flashinfer-allreduce-fusion-backend {backend}").sides[0]
    assert side.profile == (overlay or "sglang")
    launch_read = launch(tmp_path, "VLLM_FLASHINFER_ALLREDUCE_BACKEND=trtllm vllm serve model -tp 2")
    (setting,) = [setting for setting in launch_read.settings if setting.name == "VLLM_FLASHINFER_ALLREDUCE_BACKEND"]
    assert setting.implies == "vllm-allreduce-norm-trtllm in place of vllm-allreduce-norm"


def implied(launch: Launch, name: str) -> str:
    return next(setting.implies for setting in launch.settings if setting.name == name)


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        ("vllm serve m", "logprobs_mode", "log-probabilities of logits before the temperature"),
        ("vllm serve m --logprobs-mode processed_logprobs", "logprobs_mode", "set log_probs:temperature to"),
        ("vllm serve m --logprobs-mode raw_logits", "logprobs_mode", "set log_probs:form unrounded"),
        ("vllm serve m", "VLLM_USE_V2_MODEL_RUNNER", "a kernel of its own makes log-probabilities"),
        ("VLLM_USE_V2_MODEL_RUNNER=0 vllm serve m", "VLLM_USE_V2_MODEL_RUNNER", "torch's log-softmax"),
        ("sglang serve m", "SGLANG_RETURN_ORIGINAL_LOGPROB", "set log_probs:temperature to the sampler's"),
        (
            "SGLANG_RETURN_ORIGINAL_LOGPROB=true sglang serve m",
            *("SGLANG_RETURN_ORIGINAL_LOGPROB", "log-probabilities of logits before the temperature"),
        ),
    ],
)
def test_how_a_server_makes_log_probabilities(tmp_path: Path, text: str, name: str, says: str) -> None:
    assert says in implied(launch(tmp_path, text), name)


@pytest.mark.parametrize(
    ("mode", "sets"),
    [
        ("", {"form": "log_softmax"}),
        ("--enable-deterministic-inference", {}),
        ("--rl-on-policy-target fsdp", {"inputs": "fp32", "scaled": "fp32", "output": "fp32"}),
    ],
)
def test_sglang_returns_original_log_probabilities(tmp_path: Path, mode: str, sets: dict[str, str]) -> None:
    """Of logits over no temperature, in fp32; two modes take the log-softmax anyway, one of them in bf16."""
    side = launch(tmp_path, f"SGLANG_RETURN_ORIGINAL_LOGPROB=1 sglang serve m {mode}").sides[0]
    assert side.sets == {"log_probs:temperature": 1} | {f"log_probs:{name}": value for name, value in sets.items()}
    assert not launch(tmp_path, f"sglang serve m {mode}").sides[0].sets


@pytest.mark.parametrize(("variable", "sets"), [("true", {"form": "log_softmax", "temperature": 1}), ("0", None)])
def test_a_trainer_s_sglang_divides_no_original_logits(
    tmp_path: Path, variable: str, sets: dict[str, str | float] | None
) -> None:
    command = f"python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.name=sglang {VERL}=0.5"
    trainer, rollout = launch(tmp_path, f"SGLANG_RETURN_ORIGINAL_LOGPROB={variable} {command}").sides
    assert trainer.sets == {"log_probs:temperature": 0.5}
    stated = {"temperature": 0.5} if sets is None else sets
    assert rollout.sets == {f"log_probs:{name}": value for name, value in stated.items()}


@pytest.mark.parametrize(
    ("ranks", "further", "profile", "overlays"),
    [
        (2, "", "vllm-allreduce-norm-trtllm", ()),
        # Compiled or not, its kernels add the sums outside norms.
        (2, "--enforce-eager", "vllm-eager", ("vllm-all-reduce-trtllm",)),
        (6, "", "vllm", ()),
        (1, "", "vllm", ()),
    ],
)
def test_vllm_adds_with_the_backend_that_the_environment_names(
    tmp_path: Path, ranks: int, further: str, profile: str, overlays: tuple[str, ...]
) -> None:
    command = f"VLLM_FLASHINFER_ALLREDUCE_BACKEND=trtllm vllm serve m -tp {ranks} {further}"
    side = launch(tmp_path, command).sides[0]
    assert (side.profile, side.further) == (profile, overlays)


VERL, TEMPERATURE = "actor_rollout_ref.rollout.temperature", "policy.generation.temperature"
GENERATION = "policy: {{generation: {{temperature: {}, vllm_cfg: {{logprobs_mode: raw_logprobs}}}}}}\n"


# Halfway between two bf16 stands the one with an even mantissa.
@pytest.mark.parametrize(
    ("temperature", "rounded"),
    [
        ("0.5", None),
        ("0.7", 0.69921875),
        ("1.00390625", 1.0),
        ("1.01171875", 1.015625),
        ("1e-8", 1.0011717677116394e-08),
    ],
)
def test_a_temperature_is_one_of_both_sides(tmp_path: Path, temperature: str, rounded: float | None) -> None:
    says = f"logits over it on both sides: set log_probs:temperature {float(temperature)}"
    verl = launch(tmp_path, f"python3 -m verl.trainer.main_ppo {VERL}={temperature}")
    assert implied(verl, VERL) == says + (f", and {rounded} with FSDP, which rounds it to bf16" if rounded else "")
    assert implied(launch(tmp_path, GENERATION.format(temperature), "grpo.yaml"), TEMPERATURE) == says


@pytest.mark.parametrize("temperature", ["0", "1", "1.0"])
def test_a_temperature_that_divides_by_nothing(tmp_path: Path, temperature: str) -> None:
    verl = launch(tmp_path, f"python3 -m verl.trainer.main_ppo {VERL}={temperature}")
    nemo = launch(tmp_path, GENERATION.format(temperature), "grpo.yaml")
    assert implied(verl, VERL) == implied(nemo, TEMPERATURE) == "logits are not divided"
    assert implied(nemo, "policy.generation.vllm_cfg.logprobs_mode").endswith("before the temperature")


def test_every_profile_an_option_names_is_shipped() -> None:
    names: set[str] = set()
    for program in PROGRAMS:
        names |= set(program.start.values()) - {NO_PROFILE}
        for option in program.options:
            values = [option.default, *option.choices] if option.kind == "word" else [True, False]
            values = (
                [1, 2]
                if option.kind in ("count", "number")
                else [{}, {"head_dtype": "float32"}]
                if option.kind == "mapping"
                else values
            )
            for value in values:
                implied = option.implies(value)
                names |= {name for name in (implied.profile, implied.overlay) if name}
                assert implied.says
    assert len(names) > 12
    for name in names:
        assert load_profile(name, Where(FOLDER)).engine is not None


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        (
            "a.sh",
            "vllm serve m --tensor-parallel-size four",
            "a.sh:1: tensor_parallel_size is 'four'; expected a whole",
        ),
        ("a.sh", "vllm serve m \\\n --tensor-parallel-size 0", "a.sh:2: tensor_parallel_size is '0'; expected a whole"),
        ("a.sh", "vllm serve m --dtype bf16", "a.sh:1: dtype is 'bf16'; expected one of auto, half, .*bfloat16"),
        ("a.sh", "vllm serve m --moe-backend tritn", "expected one of .* Did you mean 'triton'"),
        ("a.sh", "vllm serve m --tensor-parallel-size", "a.sh:1: tensor_parallel_size is nothing; expected a whole"),
        ("a.sh", "vllm serve m --hf-overrides head", "hf_overrides is 'head'; expected a mapping in JSON"),
        (
            "a.sh",
            "vllm serve m --served-name 'open",
            "a.sh:1: .* is no command line that can be read here",
        ),
        ("a.sh", f"python3 -m verl.trainer.main_ppo {VERL}=warm", "temperature is 'warm'; expected a number from 0"),
        ("a.sh", f"python3 -m verl.trainer.main_ppo {VERL}=-0.5", "temperature is '-0.5'; expected a number from 0"),
        ("a.sh", f"python3 -m verl.trainer.main_ppo {VERL}=1e39", "temperature is '1e39'; expected a number from 0"),
        ("a.yaml", "policy: {generation: {temperature: yes}}\n", "temperature is .*; expected a number from 0"),
        ("a.sh", "ls -l", "whose configuration this is cannot be told: it has no option of an engine known here"),
        (
            "a.yaml",
            "enforce-eager: perhaps\ntensor-parallel-size: 2\n",
            "a.yaml:1: enforce_eager is 'perhaps'; expected true",
        ),
        ("a.yaml", "dtype: auto\n", "it has no option that only one engine knows"),
        ("a.yaml", "tp: [2\n", "a.yaml:"),
        ("a.json", "{", "a.json:1: is no JSON"),
        ("a.json", "[1]", "holds a list; expected a mapping of options"),
    ],
)
def test_mistakes_are_refused(name: str, text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=says):
        launch(tmp_path, text, name)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"launch\.yaml: there is no such file"):
        read(tmp_path / "launch.yaml")
    (tmp_path / "binary.sh").write_bytes(b"\xff\xfe")
    with pytest.raises(SpecError, match=r"binary\.sh: is no text"):
        read(tmp_path / "binary.sh")


def test_the_command_prints_and_writes_it(tmp_path: Path) -> None:
    out = tmp_path / "launch.json"
    command = [
        sys.executable,
        "-m",
        "moeparity.cli",
        "show",
        "launch",
        str(FOLDER / "verl.yaml"),
        "--json",
        str(out),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160"}
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    assert process.returncode == 0, process.stderr
    assert "trainer  {profile: megatron-permute-fusion, placement: {tensor: 4, sequence: true}}" in process.stdout
    rows = [line.split() for line in process.stdout.splitlines() if line.startswith("actor_rollout_ref")]
    assert {row[-1] for row in rows if row} & {"default"}, "what is not set is marked"
    assert "Known to change no log-probability: actor_rollout_ref.model.path" in process.stdout
    data = json.loads(out.read_text("utf-8"))
    assert (data["schema"], data["found"]["engine"]) == ("moeparity.launch/1", "verl")
