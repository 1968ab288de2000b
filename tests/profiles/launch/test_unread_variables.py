"""A variable that a file may set in a way that cannot be read is no default; bash itself says which ones it sets."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from moeparity.profiles.launch import read

BASH = shutil.which("bash")
SERVE = "vllm serve Qwen/Qwen3-30B-A3B -tp 2"
ENGINE = "\nfrom vllm import LLM\nllm = LLM('Qwen/Qwen3-30B-A3B', tensor_parallel_size=2)\n"
NAME = "VLLM_BATCH_INVARIANT"

SCRIPTS = (
    f"set -a; . ./.env; set +a; {SERVE}",
    f"set -o allexport; source .env; {SERVE}",
    f"source <(sed 's/^/export /' .env); {SERVE}",
    f"F=.env; [ -f $F ] && export $(grep -v '^#' $F | xargs); {SERVE}",
    f"export $(cat .env); {SERVE}",
    f"export OTHER=2 $(< .env); {SERVE}",
    f'readarray -t A < .env; export "${{A[@]}}"; {SERVE}',
    f'while read -r l; do export "$l"; done < .env; {SERVE}',
    f'while IFS="=" read -r k v; do export "$k"="$v"; done < .env; {SERVE}',
    f'eval "$(sed "s/^/export /" .env)"; {SERVE}',
    f'load() {{ export "$1"; }}; load "$(cat .env)"; {SERVE}',
    f"env $(cat .env | xargs) {SERVE}",
    f"env OTHER=2 $(cat .env) {SERVE}",
    f"for v in {NAME} VLLM_USE_V2_MODEL_RUNNER; do export $v=1; done; {SERVE}",
    f'n={NAME}; export "$n=1"; {SERVE}',
    f"n={NAME}; export ${{n}}=1; {SERVE}",
    f"read -r {NAME} <<< 1; export {NAME}; {SERVE}",
    f"printf -v {NAME} %d 1; declare -gx {NAME}; {SERVE}",
    f"declare -xr {NAME}=1; {SERVE}",
    f'A=({NAME}=1 OTHER=2); env "${{A[@]}}" {SERVE}',
    f'A=({NAME}=1); export "${{A[@]}}"; {SERVE}',
    f"f() {{ local -x {NAME}=1; {SERVE}; }}; f",
)  # fmt: skip
UNSET = (
    f"export {NAME}=1; unset {NAME}; {SERVE}",
    f"export {NAME}=1; n={NAME}; unset $n; {SERVE}",
    f"export -f {NAME}; {SERVE}",
)


def handed_on(script: str, folder: Path) -> bool:
    """Whether bash hands the variable to the server, with a file beside that sets it."""
    assert BASH is not None
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    (bin_folder / "vllm").write_text(f'#!/bin/sh\necho "${NAME}"\n', "utf-8")
    (bin_folder / "vllm").chmod(0o755)
    (folder / ".env").write_text(f"{NAME}=1\n", "utf-8")
    environment = {"PATH": f"{bin_folder}:{os.environ['PATH']}"}
    done = subprocess.run(
        [BASH, "--norc", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() == "1"


def is_default(text: str, folder: Path, name: str = "run.sh") -> bool:
    """Whether the variable is shown as one that nothing sets."""
    (folder / name).write_text(f"{text}\n", "utf-8")
    (setting,) = [setting for setting in read(folder / name).settings if setting.name == NAME]
    return not setting.given


@pytest.mark.skipif(BASH is None, reason="bash is not installed")
@pytest.mark.parametrize("script", SCRIPTS)
def test_what_bash_may_set_is_no_default(script: str, tmp_path: Path) -> None:
    assert not is_default(script, tmp_path)
    assert handed_on(script, tmp_path)


@pytest.mark.skipif(BASH is None, reason="bash is not installed")
@pytest.mark.parametrize("script", UNSET)
def test_what_bash_does_not_set_is_one(script: str, tmp_path: Path) -> None:
    assert is_default(script, tmp_path)
    assert not handed_on(script, tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        "source .venv/bin/activate",
        'source "$HOME/miniconda3/etc/profile.d/conda.sh"; conda activate x',
        'eval "$(conda shell.bash hook)"',
    ],
)
def test_a_shell_s_own_scripts_leave_the_defaults(line: str, tmp_path: Path) -> None:
    assert is_default(f"{line}; {SERVE}", tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        "dotenv run -- {}",
        "docker run --gpus all $OPTIONS vllm/vllm-openai:v0.33.0 --model Qwen/Qwen3-30B-A3B",
        "docker run $ENVIRONMENT $MOUNTS vllm/vllm-openai --model Qwen/Qwen3-30B-A3B",
        "sudo $VARIABLES {}",
    ],
)
def test_launchers_that_set_variables_leave_no_default(line: str, tmp_path: Path) -> None:
    assert not is_default(line.format(SERVE), tmp_path)


def test_a_job_is_given_what_it_is_submitted_with(tmp_path: Path) -> None:
    text = f"#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --export=ALL,{NAME}=1,A=2\n{SERVE}\n"
    (tmp_path / "job.sh").write_text(text, "utf-8")
    (setting,) = [setting for setting in read(tmp_path / "job.sh").settings if setting.name == NAME]
    assert (setting.value, setting.where) == ("true", f"{tmp_path / 'job.sh'}:3")


@pytest.mark.parametrize(
    "text",
    [
        "import ray, yaml\nray.init(**yaml.safe_load(open('ray.yaml')))",
        "import ray\nray.init(**{'runtime_env': load()})",
        "import ray\n@ray.remote(**options)\nclass A: ...",
        "import ray\nray.init(runtime_env='cluster.yaml')",
        "import modal\nimage = modal.Image.debian_slim().env({'VLLM_BATCH_INVARIANT': '1'})",
        "import modal\nV = {'VLLM_BATCH_INVARIANT': '1'}\nimage = modal.Image.debian_slim().pip_install('x').env(V)",
        "import modal\nimage = modal.Image.debian_slim().env(load())",
        "import modal\n@app.function(secrets=[modal.Secret.from_name('x')])\ndef f(): ...",
        "def test(monkeypatch):\n    monkeypatch.setenv('VLLM_BATCH_INVARIANT', '1')",
        "import os\ndef test(monkeypatch):\n    monkeypatch.setitem(os.environ, 'VLLM_BATCH_INVARIANT', '1')",
        "import os, mock\n@mock.patch.dict(os.environ, {'VLLM_BATCH_INVARIANT': '1'})\ndef f(): ...",
        "from unittest.mock import patch\nwith patch.dict('os.environ', VLLM_BATCH_INVARIANT='1'): pass",
        "exec(open('env.py').read())",
        "import vllm.envs as envs\nenvs.VLLM_BATCH_INVARIANT = True",
    ],
)
def test_what_python_may_set_is_no_default(text: str, tmp_path: Path) -> None:
    assert not is_default(text + ENGINE, tmp_path, "serve.py")


@pytest.mark.parametrize(
    "text",
    [
        "import ray\nray.init(**{'address': 'auto'})",
        "import ray\nray.init(runtime_env=None)",
        "import environ\nkey = environ.Env().env('KEY')",
        "import ray\nray.init(**dict(address='auto'))",
    ],
)
def test_what_sets_no_variable_leaves_the_defaults(text: str, tmp_path: Path) -> None:
    assert is_default(text + ENGINE, tmp_path, "serve.py")


LOADED = "from transformers import AutoModelForCausalLM as M\nfrom peft import LoraConfig, PeftModel, get_peft_model\n"
TRAINED = "\nfrom trl import GRPOConfig, GRPOTrainer\nGRPOTrainer(model=model, args=GRPOConfig(use_vllm=True){})\n"


@pytest.mark.parametrize(
    ("text", "more", "dtype", "adapter"),
    [
        ("model = M.from_pretrained('Qwen/Qwen3-8B', torch_dtype=torch.bfloat16)", "", "bfloat16", ""),
        (
            "model = M.from_pretrained('Qwen/Qwen3-8B', dtype='bfloat16')\nmodel = get_peft_model(model, LoraConfig())",
            *("", "bfloat16", "true"),
        ),
        (
            "base = M.from_pretrained('Qwen/Qwen3-8B', dtype='float32')\nmodel = PeftModel.from_pretrained(base, 'a')",
            *("", "float32", "true"),
        ),
        (
            "model = M.from_pretrained('Qwen/Qwen3-8B')\nmodel = model.to('cuda').to(torch.bfloat16).eval()",
            *("", "bfloat16", ""),
        ),
        ("model = M.from_pretrained('Qwen/Qwen3-8B', dtype='auto').half()", "", "float16", ""),
        ("model = M.from_pretrained('Qwen/Qwen3-8B')", "", "unresolved: not said where it is loaded", ""),
        (
            "model, _ = unsloth.FastModel.from_pretrained(model_name='Qwen/Qwen3-8B')",
            *("", "unresolved: not said where it is loaded", ""),
        ),
        ("model = load()", "", "unresolved: load()", "unresolved: load()"),
        ("model = Trainer().model", "", "unresolved: Trainer().model", "unresolved: Trainer().model"),
        ("a = parser.parse_args()\nmodel = a.model", "", "float32", ""),
        ("model = 'Qwen/Qwen3-8B'", ", peft_config=LoraConfig()", "float32", "true"),
        ("model = 'Qwen/Qwen3-8B'", ", peft_config=get_peft_config(a)", "float32", "unresolved: get_peft_config(a)"),
        ("model = 'Qwen/Qwen3-8B'", ", peft_config=None", "float32", ""),
    ],
)
def test_a_model_is_followed_to_where_it_is_loaded(
    text: str, more: str, dtype: str, adapter: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(f"import torch, unsloth\n{LOADED}{text}{TRAINED.format(more)}", "utf-8")
    settings = {setting.name: setting.value for setting in read(tmp_path / "train.py").settings}
    assert settings["dtype"].startswith(dtype)
    assert settings.get("use_peft", "") == adapter


def test_what_a_model_is_loaded_with_is_a_warning(tmp_path: Path) -> None:
    text = "model = M.from_pretrained('m', dtype='auto', quantization_config=c, device_map='auto', revision='x')"
    (tmp_path / "train.py").write_text(f"{LOADED}{text}{TRAINED.format(', quantization_config=q')}", "utf-8")
    warnings = {warning.name: warning.says for warning in read(tmp_path / "train.py").warnings}
    assert warnings["model_init_kwargs"] == "the model is loaded with quantization_config"
    assert warnings["quantization_config"] == "GEMMs of quantised weights"
