"""What decides in a launch file, by class: variables set in Python, ranks on nodes, widths, formats."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeparity.profiles.launch import read
from moeparity.profiles.launch.architecture import model_of
from moeparity.profiles.launch.report import Launch
from moeparity.profiles.launch.show import warning_line
from moeparity.profiles.launch.vllm_graphs import cut_shapes

QWEN = "Qwen/Qwen3-30B-A3B"


def launch(folder: Path, text: str, name: str = "launch.sh") -> Launch:
    (folder / name).write_text(text, "utf-8")
    return read(folder / name)


def shown(launch: Launch, name: str) -> str:
    return next(setting.value for setting in launch.settings if setting.name == name)


@pytest.mark.parametrize(
    "path",
    [
        "~/models/MODEL",
        "/mnt/$USER/models/MODEL",
        "${BASE:?}/MODEL/",
        '"$HOME"/MODEL',
        "s3://$BUCKET/models/MODEL",
        "hf://$ORG/MODEL",
        "$(cat model.txt)/MODEL",
        "'/data/MODEL'",
        "/hub/models--Qwen--MODEL/snapshots/$REVISION",
        "/hub/models--Qwen--MODEL/snapshots/0a1b2c",
    ],
)
@pytest.mark.parametrize(
    "command",
    [
        "vllm serve %s -tp 2",
        "vllm serve --model %s -tp 2",
        "vllm serve -tp 2 %s --enforce-eager",
        "python -m sglang.launch_server --tp 2 --model-path %s",
        "sglang serve %s --tp 2",
    ],
)
def test_the_end_of_a_path_names_the_model(path: str, command: str, tmp_path: Path) -> None:
    """Its architecture and how its weights are stored, whatever of the path is not known."""
    of_file = launch(tmp_path, command % path.replace("MODEL", "Qwen3-30B-A3B-FP8") + "\n")
    assert of_file.model.architecture == "Qwen3MoeForCausalLM"
    assert any(warning.value == "fp8 weights" for warning in of_file.warnings)
    assert not of_file.notes


ENGINE = f"\nfrom vllm import LLM\nllm = LLM('{QWEN}', tensor_parallel_size=2)\n"


@pytest.mark.parametrize(
    "text",
    [
        "import os\nos.environ['VLLM_BATCH_INVARIANT'] = '1'",
        "import os\nos.environ.update({'VLLM_BATCH_INVARIANT': '1'})",
        "import os\nos.environ.update(VLLM_BATCH_INVARIANT='1')",
        "import os\nos.environ |= {'VLLM_BATCH_INVARIANT': '1'}",
        "import os\nos.environ.setdefault('VLLM_BATCH_INVARIANT', '1')",
        "import os\nos.putenv('VLLM_BATCH_INVARIANT', '1')",
        "from os import environ as e\nV = dict(VLLM_BATCH_INVARIANT='1')\ne.update(V)",
        "import os as system\nsystem.environ.update({**{'VLLM_BATCH_INVARIANT': '1'}})",
        "import ray\nray.init(runtime_env={'env_vars': {'VLLM_BATCH_INVARIANT': '1'}})",
        "import ray\nE = {'env_vars': {'VLLM_BATCH_INVARIANT': '1'}}\nray.init(address='auto', runtime_env=E)",
        "import ray\n@ray.remote(runtime_env={'env_vars': {'VLLM_BATCH_INVARIANT': '1'}})\nclass A: ...",
        "from ray.runtime_env import RuntimeEnv as R\nx.init(runtime_env=R(env_vars={'VLLM_BATCH_INVARIANT': '1'}))",
    ],
)
def test_a_variable_that_python_sets_counts(text: str, tmp_path: Path) -> None:
    assert shown(launch(tmp_path, text + ENGINE, "serve.py"), "VLLM_BATCH_INVARIANT") == "true"


@pytest.mark.parametrize(
    "text",
    [
        "import os\nos.environ.update(load())",
        "import os\nos.environ.update({**load()})",
        "import os, sys\nos.environ[sys.argv[1]] = '1'",
        "import ray\nray.init(runtime_env=load())",
        "import ray\nray.init(runtime_env={'env_vars': load()})",
        "from dotenv import load_dotenv\nload_dotenv()",
        "import os\nif load():\n    os.environ['VLLM_BATCH_INVARIANT'] = '1'",
    ],
)
def test_a_variable_that_cannot_be_read_is_no_default(text: str, tmp_path: Path) -> None:
    of_file = launch(tmp_path, text + ENGINE, "serve.py")
    setting = next(s for s in of_file.settings if s.name == "VLLM_BATCH_INVARIANT")
    assert setting.value.startswith("unresolved: ")
    assert setting.where.endswith(("serve.py:2", "serve.py:3"))
    assert any(warning.name == setting.name for warning in of_file.warnings)


def test_what_is_not_read_leaves_no_plain_default(tmp_path: Path) -> None:
    of_file = launch(tmp_path, f"vllm serve {QWEN} -tp 2 ${{MORE[@]}}\n")
    assert {s.where for s in of_file.settings if not s.given} == {f"default, unless set at {tmp_path}/launch.sh:1"}


@pytest.mark.parametrize(
    ("name", "tensors"),
    [
        (QWEN, {1, 2}),
        ("Qwen/Qwen3-235B-A22B", {1, 2, 4}),
        ("Qwen/Qwen3-8B", {1, 2, 4}),
        ("meta-llama/Llama-3.1-8B", {1, 2}),
        ("mistralai/Mixtral-8x7B-v0.1", {1, 2}),
        ("allenai/OLMoE-1B-7B-0924", {1}),
        ("unsloth/DeepSeek-V3-bf16", set()),
    ],
)
def test_batch_invariance_compiles_nothing_where_a_shape_is_in_the_table(
    name: str, tensors: set[int], tmp_path: Path
) -> None:
    command = f"VLLM_BATCH_INVARIANT=1 vllm serve {name} --dtype bfloat16 -tp "
    profiles = {tensor: launch(tmp_path, f"{command}{tensor}\n").sides[0].profile for tensor in (1, 2, 4, 8)}
    assert {tensor for tensor, profile in profiles.items() if profile.endswith("-eager")} == tensors
    # The environment goes before, and fp16 has no table.
    for prefix, suffix in (("VLLM_USE_BREAKABLE_CUDAGRAPH=0 ", "1"), ("", "1 --dtype half")):
        assert launch(tmp_path, f"{prefix}{command}{suffix}\n").sides[0].profile == "vllm-batch-invariant"
    breakable = f"VLLM_USE_BREAKABLE_CUDAGRAPH=1 vllm serve {name} -tp 8\n"
    assert launch(tmp_path, breakable).sides[0].profile == "vllm-eager"


def test_unknown_widths_are_said(tmp_path: Path) -> None:
    of_file = launch(tmp_path, "VLLM_BATCH_INVARIANT=1 vllm serve my/model\n")
    assert any("the model's widths are not known here" in warning.says for warning in of_file.warnings)


def test_shapes_are_those_of_one_rank() -> None:
    qwen = model_of(QWEN, Path()).widths
    assert cut_shapes(qwen, 2) == [(2560, 2048), (2048, 2048), (6144, 2048), (2048, 3072)]


@pytest.mark.parametrize("tensor", [1, 2, 4, 6, 8, 16, 32])
@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_ranks_are_added_as_the_engine_adds_them(tensor: int, nodes: int, tmp_path: Path) -> None:
    """The custom kernels are for 2, 4, 6 and 8 ranks of one node, vLLM's fused norm for 2, 4 and 8; written apart from
    the code.
    """
    apart = tensor > 1 and (nodes > 1 or tensor > 8)
    vllm = f"vllm serve {QWEN} -tp {tensor} --nnodes {nodes}\n"
    sglang = f"python -m sglang.launch_server --model-path {QWEN} --tp {tensor} --nnodes {nodes}\n"
    for command, start, fused in (
        (vllm, "vllm", "vllm" if tensor == 6 else "vllm-allreduce-norm"),
        (sglang, "sglang", "sglang-allreduce-norm"),
    ):
        side = launch(tmp_path, command).sides[0]
        assert side.sets == ({"all_reduce:collective": "nccl.ring"} if apart else {}), command
        assert side.profile == (start if apart or tensor == 1 else fused), command


@pytest.mark.parametrize(
    ("command", "node"),
    [
        (f"VLLM_BATCH_INVARIANT=1 vllm serve {QWEN} -tp 16", 8),
        (f"VLLM_BATCH_INVARIANT=1 vllm serve {QWEN} -tp 4 --nnodes 2", 2),
        (f"sglang serve {QWEN} --tp 16 --nnodes 2 --enable-deterministic-inference", 8),
    ],
)
def test_deterministic_ranks_over_nodes_are_a_tree(command: str, node: int, tmp_path: Path) -> None:
    sets = launch(tmp_path, f"{command}\n").sides[0].sets
    assert dict(sets) == {"all_reduce:collective": "nccl.tree", "all_reduce:node": node}


def test_unresolved_nodes_are_not_one(tmp_path: Path) -> None:
    of_file = launch(tmp_path, f"sglang serve {QWEN} --tp 8 --nnodes $NODES\n")
    assert of_file.sides[0].profile == "sglang"
    assert "not known" in " ".join(map(warning_line, of_file.warnings)) or "unknown" in str(of_file.warnings)
    assert "how many nodes is not resolved" in " ".join(decision.says for decision in of_file.decisions)


@pytest.mark.parametrize(
    ("model", "warns"), [(QWEN, False), (f"{QWEN}-FP8", True), (f"{QWEN} --quantization fp8", True), ("my/own", True)]
)
def test_a_warning_of_fp8_is_for_models_in_fp8(model: str, warns: bool, tmp_path: Path) -> None:
    of_file = launch(tmp_path, f"VLLM_USE_DEEP_GEMM=0 vllm serve {model}\n")
    assert any(warning.name == "VLLM_USE_DEEP_GEMM" for warning in of_file.warnings) is warns
    hints = [key.hint for key in of_file.irrelevant if key.name == "VLLM_USE_DEEP_GEMM"]
    assert hints == ([] if warns else ["no effect: the weights are not quantised"])


@pytest.mark.parametrize(
    ("command", "names"),
    [
        (
            f"vllm serve {QWEN} --max-num-seqs 8 --max-num-batched-tokens 512",
            ("max_num_seqs", "max_num_batched_tokens"),
        ),
        (f"sglang serve {QWEN} --cuda-graph-bs-decode 1 2 4", ("cuda_graph_bs_decode",)),
        ("torchrun pretrain_gpt.py --bf16 --moe-grouped-gemm", ("moe_grouped_gemm",)),
        (
            (
                "python3 -m verl.trainer.main_ppo actor_rollout_ref.actor.use_dynamic_bsz=True trainer.nnodes=2 "
                "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=8192"
            ),
            (
                "actor_rollout_ref.actor.use_dynamic_bsz",
                "trainer.nnodes",
                "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
            ),
        ),
    ],
)
def test_what_groups_tokens_is_not_said_to_change_nothing(command: str, names: tuple[str, ...], tmp_path: Path) -> None:
    of_file = launch(tmp_path, f"{command}\n")
    assert {key.name for key in of_file.together} == {*names}
    assert not {*names} & {key.name for key in of_file.irrelevant}


def test_every_value_has_an_origin(tmp_path: Path) -> None:
    text = (
        f"VLLM_USE_V2_MODEL_RUNNER=0 vllm serve {QWEN} -tp 16 \\\n"
        '  --hf-overrides \'{"head_dtype": "float32"}\' --dtype half\n'
    )
    side = launch(tmp_path, text).sides[0]
    for name in (*side.further, *side.sets, "dtype"):
        assert name == "all_reduce:collective" or f"{tmp_path}/launch.sh:" in side.origins[name], name
    assert side.origins["all_reduce:collective"].startswith("vLLM 0.33.0, ")
