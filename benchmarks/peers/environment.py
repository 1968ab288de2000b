"""The peers' environment: made with pip outside the repository, and the commands that run in it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shlex
import subprocess
import sys
import time
import venv
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHOWN = ("torch", "transformers", "sglang", "mindstudio-probe")

# What SGLang's dumper imports of the serving engine at its top; none of it is called in a run of one process.
STAND_INS = {
    "__init__.py": "",
    "srt/__init__.py": "",
    "srt/managers/__init__.py": "",
    "srt/managers/io_struct.py": "sock_recv = sock_send = wrap_as_pickle = None\n",
    "srt/runtime_context.py": "get_parallel = get_server_args = get_serving = None\n",
    "srt/utils.py": "def get_device():\n    return 'cpu'\n",
}


@dataclass(frozen=True, slots=True)
class Ran:
    """A command that ended: as it would be typed, its exit code, seconds, and stdout with stderr."""

    line: str
    code: int
    seconds: float
    output: str


@dataclass(slots=True)
class Session:
    """Runs the commands of one tool and keeps them; `variables` are added to the environment and to the line."""

    variables: dict[str, str] = field(default_factory=dict)
    ran: list[Ran] = field(default_factory=list)

    def run(self, command: list[str], **variables: str) -> Ran:
        """Run one command in the repository's root; the caller looks at the exit code."""
        extra = {**self.variables, **variables}
        line = " ".join([*(f"{key}={shlex.quote(value)}" for key, value in extra.items()), shlex.join(command)])
        print(f"$ {line}", flush=True)
        started = time.perf_counter()
        done = subprocess.run(  # noqa: S603 - commands made in this package
            command,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", **extra},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        self.ran.append(Ran(line, done.returncode, time.perf_counter() - started, done.stdout))
        return self.ran[-1]

    def must(self, command: list[str], **variables: str) -> Ran:
        """Run one command; raises `ToolFailedError` unless it exits with 0."""
        ran = self.run(command, **variables)
        if ran.code:
            raise ToolFailedError(ran)
        return ran

    @property
    def seconds(self) -> float:
        """Wall time of all commands."""
        return sum(ran.seconds for ran in self.ran)


class ToolFailedError(Exception):
    """A tool's command ended with another exit code than 0 where it had to succeed."""

    def __init__(self, ran: Ran) -> None:
        last = [line for line in ran.output.splitlines() if line.strip()][-1:] or ["no output"]
        super().__init__(f"exit {ran.code}: {last[0].strip()[:160]}")


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment with the peers in it, and the errors of those that could not be installed."""

    folder: Path
    errors: dict[str, str]

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(self.folder / "bin" / "python")

    @property
    def shim(self) -> Path:
        """The folder that stands in for `import sglang`."""
        return self.folder / "shim"

    def tool(self, name: str) -> str:
        """A command it installed."""
        return str(self.folder / "bin" / name)

    def versions(self) -> dict[str, str]:
        """Versions of torch, transformers and the peers."""
        listed = Session().must([self.python, "-m", "pip", "list", "--format", "json", "--disable-pip-version-check"])
        packages = json.loads(listed.output[listed.output.index("[") : listed.output.rindex("]") + 1])
        return {each["name"]: each["version"] for each in packages if each["name"] in SHOWN}


def pip_commands() -> dict[str, list[str]]:
    """Arguments of `pip install`, in order, by what they install. torch and transformers as they run here."""
    return {
        "torch": [f"torch=={_running('torch')}", "numpy"],
        "transformers": [f"transformers=={_running('transformers')}", "safetensors"],
        "sglang": ["--no-deps", "sglang==0.5.23"],
        "what sglang's comparator imports": ["pydantic", "polars", "rich", "pyzmq", "matplotlib"],
        "msprobe": ["mindstudio-probe"],
    }


def prepare(folder: Path) -> Environment:
    """Make the environment unless it is there; a peer that does not install is noted, not hidden."""
    errors = {}
    if not (folder / "bin" / "python").exists():
        print(f"$ {sys.executable} -m venv {folder}", flush=True)
        venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    for name, arguments in pip_commands().items():
        try:
            Session().must([python, "-m", "pip", "install", "--quiet", *arguments])
        except ToolFailedError as error:
            errors[name] = f"pip install {shlex.join(arguments)}: {error}"
    environment = Environment(folder, errors)
    _stand_in(environment)
    return environment


def _stand_in(environment: Environment) -> None:
    """`import sglang` needs the whole engine; its debug_utils do not."""
    package = environment.shim / "sglang"
    for path, text in STAND_INS.items():
        (package / path).parent.mkdir(parents=True, exist_ok=True)
        (package / path).write_text(text, "utf-8")
    installed = next(environment.folder.glob("lib/python*/site-packages/sglang/srt/debug_utils"), None)
    link = package / "srt" / "debug_utils"
    if installed is not None and not link.exists():
        link.symlink_to(installed)


def _running(package: str) -> str:
    return importlib.metadata.version(package).partition("+")[0]


def bytes_in(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
