"""Launch files as people write them, of ten frameworks, held to results that were checked; none silently wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, ListConfig, OmegaConf

from moeparity.errors import SpecError
from moeparity.profiles.launch import read
from moeparity.profiles.launch.reading.nested import of_yaml
from moeparity.profiles.launch.show import warning_line
from moeparity.profiles.launch.source import NULL, Unresolved
from tests.profiles.launch.expected import EXPECTED, Expected

FILES = Path(__file__).parent / "files"
ACTOR, ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."


def test_every_file_has_an_expected_result() -> None:
    there = {str(file.relative_to(FILES)) for file in FILES.rglob("*") if file.is_file()}
    assert there == set(EXPECTED)
    read_files = {name: expected for name, expected in EXPECTED.items() if not expected.refused}
    assert len(read_files) >= 30
    assert len({expected.engine for expected in read_files.values()}) >= 8


@pytest.mark.parametrize(("name", "expected"), EXPECTED.items(), ids=list(EXPECTED))
def test_a_launch_file_comes_to_what_it_says(name: str, expected: Expected) -> None:
    if expected.refused:
        with pytest.raises(SpecError) as refusal:
            read(FILES / name)
        assert expected.refused in str(refusal.value)
        return
    launch = read(FILES / name)
    assert launch.engine == expected.engine
    assert {side.role: (side.variant, *side.further) for side in launch.sides} == expected.sides
    settings = {setting.name: setting for setting in launch.settings}
    assert {key: settings[key].value for key in expected.stated} == dict(expected.stated)
    unresolved = {key: s.value for key, s in settings.items() if s.value.startswith("unresolved: ")}
    assert set(unresolved) == set(expected.open)
    for key, text in expected.open.items():
        assert text in unresolved[key]
    if expected.values:
        assert {key: value for side in launch.sides for key, value in side.sets.items()} == dict(expected.values)
    warnings = "\n".join(map(warning_line, launch.warnings))
    assert [text for text in expected.warned if text not in warnings] == [], warnings
    assert [text for text in expected.silent if text in warnings] == [], warnings
    notes = "\n".join(note.says for note in launch.notes)
    assert all(note in notes for note in expected.notes), notes


@pytest.mark.parametrize(
    ("name", "option", "where"),
    [
        ("vllm/serve.sh", "moe_backend", "vllm/serve.sh:15"),
        ("vllm/serve.sh", "hf_overrides", "vllm/serve.sh:10"),
        ("vllm/deployment.yaml", "all2all_backend", "vllm/deployment.yaml:22"),
        ("vllm/with-config.sh", "logprobs_mode", "vllm/server.yaml:3"),
        ("sglang/launch.sh", "deepep_mode", "sglang/launch.sh:8"),
        ("sglang/heredoc.sh", "tp_size", "sglang/heredoc.sh:4"),
        ("verl/fsdp.sh", f"{ACTOR}strategy", "verl/fsdp.sh:1"),
        ("verl/fsdp.sh", f"{ROLLOUT}temperature", "verl/fsdp.sh:5"),
        ("verl/megatron.sh", f"{ROLLOUT}enforce_eager", "verl/megatron.sh:16"),
        ("slime/run.sh", "moe_router_dtype", "slime/models/moe.sh:6"),
        ("slime/run.sh", "sequence_parallel", "slime/run.sh:15"),
        ("nemo-rl/override.yaml", "policy.precision", "nemo-rl/base.yaml:2"),
        ("nemo-rl/run.sh", "policy.megatron_cfg.apply_rope_fusion", "nemo-rl/run.sh:3"),
        ("prime-rl/run.sh", "trainer.model.ep", "prime-rl/rl.toml:9"),
        ("trl/server-and-trainer.sh", "attn_implementation", "trl/grpo.yaml:4"),
    ],
)
def test_an_option_names_the_line_it_stands_on(name: str, option: str, where: str) -> None:
    setting = next(setting for setting in read(FILES / name).settings if setting.name == option)
    assert setting.where.endswith(f"/{where}")


def flat(config: DictConfig) -> dict[str, object]:
    """Leaves by dotted names, as OmegaConf has them."""
    leaves: dict[str, object] = {}

    def walk(node: object, prefix: str) -> None:
        if isinstance(node, dict) and node:
            for key, value in node.items():
                walk(value, f"{prefix}{key}.")
        else:
            leaves[prefix[:-1]] = NULL if node is None else node

    walk(OmegaConf.to_container(config, resolve=True), "")
    return leaves


def inherited(path: Path) -> DictConfig:
    """NeMo-RL's `load_config_with_inheritance`, in its own words: parents first, then the file over them."""
    config = OmegaConf.load(path)
    assert isinstance(config, DictConfig)
    parents = config.pop("defaults", [])
    base = OmegaConf.create({})
    for parent in parents if isinstance(parents, ListConfig) else [parents] if parents else []:
        base = merged(base, inherited(path.parent / str(parent)))
    return merged(base, config)


def merged(base: DictConfig, config: DictConfig) -> DictConfig:
    def replaced(below: DictConfig, over: DictConfig) -> None:
        for key in list(over):
            if not OmegaConf.is_interpolation(over, str(key)) and isinstance(over[key], DictConfig):
                if over[key].pop("_override_", False):
                    below.pop(key, None)
                elif isinstance(below.get(key), DictConfig):
                    replaced(below[key], over[key])

    replaced(base, config)
    joined = OmegaConf.merge(base, config)
    assert isinstance(joined, DictConfig)
    return joined


@pytest.mark.parametrize("name", ["base", "megatron", "override"])
def test_chains_of_defaults_are_those_of_omegaconf(name: str) -> None:
    path = FILES / "nemo-rl" / f"{name}.yaml"
    entries, notes = of_yaml(path)
    read_leaves = {entry.name: entry.value for entry in entries if not isinstance(entry.value, dict)}
    assert read_leaves == flat(inherited(path))
    assert not notes


def test_lists_of_defaults_are_those_of_hydra(tmp_path: Path) -> None:
    files = {
        "main.yaml": "defaults:\n  - engine: dp\n  - actor@roles.actor: ${engine}_actor\n  - shared\n  - _self_\n"
        "roles: {actor: {ranks: 4}}\nrollout: {ranks: '${roles.actor.ranks}'}\n",
        "engine/dp.yaml": "name: dp\n",
        "actor/dp_actor.yaml": "defaults:\n  - common\n  - _self_\nstrategy: fsdp\nranks: 1\n",
        "actor/common.yaml": "strategy: none\nlr: 1e-6\n",
        "shared.yaml": "logger: [console]\nroles: {actor: {strategy: fsdp2}}\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    with initialize_config_dir(str(tmp_path), version_base=None):
        true = flat(compose("main"))
    entries, notes = of_yaml(tmp_path / "main.yaml")
    assert {entry.name: entry.value for entry in entries if not isinstance(entry.value, dict)} == true
    assert not notes


@pytest.mark.parametrize(
    ("text", "key", "reason"),
    [
        ("a: ${b}\nb: ${a}\n", "a", "${b}"),
        ("a: ${not.there}\n", "a", "${not.there}"),
        ("a: ${oc.env:HOME}\n", "a", "${oc.env:HOME}"),
        ("a: x${b}\nb: ${oc.env:HOME}\n", "a", "x${b}"),
        ("a: ${mul:2,3}\n", "a", "${mul:2,3}"),
        ("a: '${'\n", "a", "${"),
        ("a: ${b.${c}}\nb: {d: 1}\nc: d\n", "a", "${b.${c}}"),
        ("".join(f"a{i}: ${{a{i + 1}}}${{a{i + 1}}}\n" for i in range(40)) + "a40: xxxx\n", "a0", "${a1}${a1}"),
        ("".join(f"a{i}: ${{a{i + 1}}}\n" for i in range(400)) + "a400: x\n", "a0", "${a1}"),
    ],
)
def test_a_reference_that_leads_nowhere_is_unresolved(text: str, key: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(text, "utf-8")
    entries, _ = of_yaml(tmp_path / "a.yaml")
    value = next(entry.value for entry in entries if entry.name == key)
    assert value == Unresolved(reason)


def test_what_is_not_resolved_is_printed_at_the_top(tmp_path: Path) -> None:
    launch = read(FILES / "slime" / "no-model.sh")
    data = json.loads(launch.to_json())["found"]
    assert [note["says"][:20] for note in data["notes"]] == ["`source models/not-t", "`${MODEL_ARGS[@]}`: "]
    assert all(note["where"].endswith((".sh:1", ".sh:2")) for note in data["notes"])


def test_references_see_what_the_command_line_sets(tmp_path: Path) -> None:
    (tmp_path / "grpo.yaml").write_text(
        "policy: {megatron_cfg: {enabled: true, tensor_model_parallel_size: 8}, generation: {vllm_cfg: "
        "{tensor_parallel_size: '${policy.megatron_cfg.tensor_model_parallel_size}'}}}\n",
        "utf-8",
    )
    tensor = "policy.generation.vllm_cfg.tensor_parallel_size"
    for words, value in {
        "": "8",
        "policy.megatron_cfg.tensor_model_parallel_size=2": "2",
        "policy.megatron_cfg.tensor_model_parallel_size=$TP": "unresolved: ${policy.megatron_cfg.tensor_model",
        f"{tensor}='${{policy.megatron_cfg.tensor_model_parallel_size}}'": "8",
        f"{tensor}='${{oc.env:TP}}'": "unresolved: ${oc.env:TP}",
    }.items():
        (tmp_path / "run.sh").write_text(f"python run_grpo.py --config grpo.yaml {words}\n", "utf-8")
        settings = {setting.name: setting.value for setting in read(tmp_path / "run.sh").settings}
        assert settings[tensor].startswith(value), words


def test_a_configuration_may_merge_anchors(tmp_path: Path) -> None:
    """As OmegaConf reads it: NeMo-RL's distillation gives its teacher the policy's settings so."""
    text = (
        "policy: &policy\n  model_name: Qwen/Qwen3-8B\n  dtensor_cfg: &cfg {enabled: true, tensor_parallel_size: 2}\n"
        "teacher:\n  <<: *policy\n  dtensor_cfg: {<<: *cfg, tensor_parallel_size: 4}\n"
    )
    (tmp_path / "distil.yaml").write_text(text, "utf-8")
    entries, _ = of_yaml(tmp_path / "distil.yaml")
    loaded = OmegaConf.load(tmp_path / "distil.yaml")
    assert isinstance(loaded, DictConfig)
    assert {entry.name: entry.value for entry in entries if not isinstance(entry.value, dict)} == flat(loaded)
    settings = {setting.name: setting.value for setting in read(tmp_path / "distil.yaml").settings if setting.given}
    assert settings == {"policy.dtensor_cfg.enabled": "true", "policy.dtensor_cfg.tensor_parallel_size": "2"}


NOTHING = (
    ("policy.generation.top_k", "policy: {generation: {top_k: %s}}", "5"),
    ("policy.generation.trtllm_cfg.moe_expert_parallel_size",
     "policy: {generation: {backend: trtllm, trtllm_cfg: {moe_expert_parallel_size: %s}}}", "2"),
    ("policy.megatron_cfg.moe_router_dtype", "policy: {megatron_cfg: {enabled: true, moe_router_dtype: %s}}", "fp32"),
    ("policy.megatron_cfg.expert_tensor_parallel_size",
     "policy: {megatron_cfg: {enabled: true, expert_tensor_parallel_size: %s}}", "2"),
    ("policy.dtensor_cfg.custom_parallel_plan", "policy: {dtensor_cfg: {custom_parallel_plan: %s}}", "mine"),
    ("policy.generation.vllm_cfg.enforce_eager", "policy: {generation: {vllm_cfg: {enforce_eager: %s}}}", "true"),
)  # fmt: skip


@pytest.mark.parametrize(("name", "text", "some"), NOTHING)
def test_a_null_is_nothing_wherever_it_stands(name: str, text: str, some: str, tmp_path: Path) -> None:
    """In a file, in a file that a script names, over a value of another file, and on the command line."""

    def implied(file: str) -> tuple[list[str], list[str], dict[str, str]]:
        launch = read(tmp_path / file)
        settings = {setting.name: setting.value for setting in launch.settings if setting.name == name}
        return [side.variant for side in launch.sides], [w.name for w in launch.warnings if w.name], settings

    (tmp_path / "base.yaml").write_text(text % some, "utf-8")
    (tmp_path / "null.yaml").write_text(text % "null", "utf-8")
    (tmp_path / "over.yaml").write_text("defaults: base.yaml\n" + text % "null", "utf-8")
    (tmp_path / "run.sh").write_text("python run.py --config null.yaml\n", "utf-8")
    (tmp_path / "command.sh").write_text(f"python run.py --config base.yaml {name}=null\n", "utf-8")
    nothing = implied("null.yaml")
    assert name not in nothing[1]
    assert implied("base.yaml") != nothing
    assert implied("over.yaml") == implied("run.sh") == implied("command.sh") == nothing


def test_a_null_of_a_server_s_configuration_is_no_bare_flag(tmp_path: Path) -> None:
    (tmp_path / "server.yaml").write_text("enforce_eager: null\nquantization: ~\ntensor-parallel-size: 2\n", "utf-8")
    (tmp_path / "serve.sh").write_text("vllm serve Qwen/Qwen3-30B-A3B --config server.yaml\n", "utf-8")
    launch = read(tmp_path / "serve.sh")
    assert launch.sides[0].variant == "{profile: vllm-allreduce-norm, placement: {tensor: 2}}"
    assert not launch.warnings


VERL = "python -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen3-30B-A3B "
SKYRL = "python -m skyrl.train.entrypoints.main_base trainer.policy.model.path=Qwen/Qwen3-30B-A3B "
KWARGS = f"+{ROLLOUT}engine_kwargs.vllm"
INIT = "generator.inference_engine.engine_init_kwargs"


@pytest.mark.parametrize(
    ("command", "profile", "warned"),
    [
        (f"{VERL} {KWARGS}.compilation_config.mode=0", "vllm-eager", ()),
        (f"{VERL} '{KWARGS}={{compilation_config: {{mode: 0}}, kv_cache_dtype: int8}}'", "vllm-eager", ("kv_cache",)),
        (f"{VERL} '{KWARGS}={{compilation_config:{{mode:0}}}}'", "vllm-eager", ()),
        (f"{VERL} '{KWARGS}.compilation_config={{cudagraph_mode: NONE, mode: 0}}'", "vllm-eager", ()),
        (f"{VERL} {KWARGS}.compilation_config.pass_config.fuse_allreduce_rms=False", "vllm", ()),
        (f"{VERL} {KWARGS}.compilation_config.mode=3", "vllm-allreduce-norm", ()),
        (f"""{SKYRL} {INIT}='{{"enforce_eager": true, "quantization": "fp8"}}'""", "vllm-eager", ("quantization",)),
        (f"{SKYRL} {INIT}.compilation_config.mode=0", "vllm-eager", ()),
        (f"{SKYRL} {INIT}.tensor_parallel_size=4", "vllm-allreduce-norm", ()),
    ],
)
def test_mappings_of_the_command_line_are_read_key_by_key(
    command: str, profile: str, warned: tuple[str, ...], tmp_path: Path
) -> None:
    ranks = f"{ROLLOUT}tensor_model_parallel_size=2" if "verl" in command else f"{INIT}.tensor_parallel_size=2"
    (tmp_path / "run.sh").write_text(f"{command} {ranks}\n", "utf-8")
    launch = read(tmp_path / "run.sh")
    assert launch.sides[1].profile == profile
    assert not launch.ignored
    names = [warning.name for warning in launch.warnings if warning.role == "rollout"]
    assert len(names) == len(warned)
    assert all(part in name for part, name in zip(warned, names, strict=True))


def test_a_key_of_the_command_line_lies_over_the_file_s_mapping(tmp_path: Path) -> None:
    nested = "{vllm: {compilation_config: {mode: 3, pass_config: {fuse_allreduce_rms: false}}}}"
    text = f"actor_rollout_ref: {{rollout: {{name: vllm, engine_kwargs: {nested}}}}}\n"
    (tmp_path / "ppo.yaml").write_text(text, "utf-8")
    (tmp_path / "run.sh").write_text(f"{VERL} --config-path=. --config-name=ppo {KWARGS}.compilation_config.mode=0\n")
    settings = {setting.name: setting.value for setting in read(tmp_path / "run.sh").settings}
    merged = '{"mode": "0", "pass_config": {"fuse_allreduce_rms": false}}'
    assert settings[f"{ROLLOUT}engine_kwargs.vllm.compilation_config"] == merged


def test_what_vllm_is_given_last_counts_with_skyrl(tmp_path: Path) -> None:
    engine = "generator.inference_engine."
    words = f"{engine}enforce_eager=true {INIT}.enforce_eager=false {engine}tensor_parallel_size=2 {INIT}.dtype=half"
    (tmp_path / "run.sh").write_text(f"{SKYRL} {words}\n", "utf-8")
    launch = read(tmp_path / "run.sh")
    assert launch.sides[1].variant == "{profile: vllm-allreduce-norm, placement: {tensor: 2}, dtype: fp16}"


def test_what_something_else_must_give_is_unresolved(tmp_path: Path) -> None:
    (tmp_path / "ppo.yaml").write_text("actor_rollout_ref:\n  rollout:\n    name: ???\n", "utf-8")
    settings = {setting.name: setting.value for setting in read(tmp_path / "ppo.yaml").settings}
    assert settings[f"{ROLLOUT}name"] == "unresolved: ???"


def test_a_compose_file_may_merge_anchors(tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text(
        "x-base: &base {image: 'vllm/vllm-openai:v0.33.0', command: --model other -tp 8}\n"
        "x-env: &env {VLLM_BATCH_INVARIANT: '1', VLLM_USE_V2_MODEL_RUNNER: '1'}\n"
        "services:\n  server:\n    command: --model m -tp 2\n    <<: [*base]\n"
        "    environment:\n      <<: *env\n      VLLM_USE_V2_MODEL_RUNNER: '0'\n",
        "utf-8",
    )
    launch = read(tmp_path / "compose.yaml")
    settings = {setting.name: setting.value for setting in launch.settings if setting.given}
    environment = {"VLLM_BATCH_INVARIANT": "true", "VLLM_USE_V2_MODEL_RUNNER": "false"}
    assert settings == {"tensor_parallel_size": "2", **environment}
    (tmp_path / "compose.yaml").write_text("services: {a: {<<: 3, image: b}}\n", "utf-8")
    with pytest.raises(SpecError, match="is given what is no mapping"):
        read(tmp_path / "compose.yaml")
