"""A new user: a copy of the repository, a new virtual environment, and the README's own commands, nothing else."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
SESSION = re.search(r"<!-- session: (.*?) -->\n```\n(.*?)```", README, re.DOTALL)
OWN = re.search(r"<!-- own checkpoint -->\n```\n(.*?)```", README, re.DOTALL)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a clone holds."""
    folder = tmp_path_factory.mktemp("new-user") / "clone"
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True)
    for name in listed.stdout.decode().splitlines():
        if (ROOT / name).is_file() and not name.startswith("tests/"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def shell(checkout: Path) -> dict[str, str]:
    """The variables of a shell with a new environment activated.

    What the project depends on is lent from this one, from all of its site directories, so that torch is not installed
    again, nor pip; the project itself is not: an editable install is a .pth file, which only a site directory of its
    own would read.
    """
    environment = checkout.parent / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    pip = environment / "bin" / "pip"
    pip.write_text(
        f"#!{environment / 'bin' / 'python'}\nfrom pip._internal.cli.main import main\nraise SystemExit(main())\n"
    )
    pip.chmod(0o755)
    (site,) = environment.glob("lib/python*/site-packages")
    lent = [folder for folder in sys.path if Path(folder).name == "site-packages"]
    (site / "lent.pth").write_text("\n".join(lent) + "\n", "utf-8")
    path = f"{environment / 'bin'}:{os.environ['PATH']}"
    no_gpu = {"CUDA_VISIBLE_DEVICES": ""}
    return {**os.environ, "PATH": path, "VIRTUAL_ENV": str(environment), "OMP_NUM_THREADS": "1", **no_gpu}


def run(command: str, folder: Path, shell: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", command], cwd=folder, env=shell, capture_output=True, text=True, check=False)


def skeleton(text: str) -> list[str]:
    """The first cell of every line without its numbers: effects, digits and the machine vary from host to host."""
    words, section = [], ""
    for line in text.splitlines():
        # Whom these name, and in which order, is a matter of effects.
        if line.startswith(" " * 8) and section.startswith(("blame", "to set")):
            continue
        section = line if line and not line.startswith(" ") else section
        is_told = section not in {"In words", "Cost"} and not line.startswith("machine") and not line.startswith("  - ")
        if is_told or line == section:
            words.append(re.sub(r"[-+]?\d[\d.,e+%-]*", "#", re.split(r"\s{2,}", line.strip())[0]))
    return words


def test_a_new_user_with_the_readme_only(checkout: Path, shell: dict[str, str], qwen3_moe: Path) -> None:
    absent = run("python -c 'import moeparity'", checkout.parent, shell)
    assert "No module named 'moeparity'" in absent.stderr
    install = "pip install -e . && moeparity bisect recipes/quickstart.yaml"
    assert install in README
    done = run(install, checkout, shell)
    assert done.returncode == 1, done.stdout + done.stderr
    assert SESSION is not None
    command, session = SESSION.groups()
    assert install.endswith(command)
    # What pip has to say comes first.
    printed = skeleton(done.stdout[done.stdout.index(session.partition(" ")[0]) :])
    recorded, _, _ = session.partition("\n[...]")
    assert printed[: len(skeleton(recorded))] == skeleton(recorded)
    assert {"Run", "On request (-v for all of them)", "--section toggles", "--section words"} <= set(printed)
    assert OWN is not None
    shutil.copytree(qwen3_moe, checkout.parent / "mine")
    config = checkout.parent / "mine" / "config.json"
    # bf16 GEMMs are slow where the processor has none.
    config.write_text(json.dumps({**json.loads(config.read_text("utf-8")), "dtype": "float32"}), "utf-8")
    init, bisect = OWN[1].replace("path/to/checkpoint", "mine").splitlines()
    written = run(init, checkout.parent, shell)
    assert written.returncode == 0, written.stderr
    run_done = run(bisect, checkout.parent, shell)
    assert run_done.returncode in {0, 1, 3}, run_done.stderr
    assert "starts" in run_done.stdout
    assert run_done.stderr == ""
