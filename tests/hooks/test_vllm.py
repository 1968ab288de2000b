"""The plugin without an engine: what it imports, and that it neither raises nor changes what it wraps."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from moeparity.hooks import files, vllm
from tests.engines.live import ROOT

HEAVY = """
import sys
before = set(sys.modules)
from moeparity.hooks.vllm import register
register()
names = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(names - set(sys.stdlib_module_names) - {"moeparity"}))
"""
MODULE = """
class Scheduler:
    def update_from_output(self, scheduled, ran):
        return {"scheduled": scheduled, "ran": ran}
    def shutdown(self):
        return "down"
    def reset_prefix_cache(self):
        return True
"""


@pytest.mark.parametrize("variable", ["", "out"])
def test_it_imports_what_comes_with_python(variable: str, tmp_path: Path) -> None:
    environment = {**os.environ, files.VARIABLE: str(tmp_path / variable) if variable else "", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-S", "-c", HEAVY]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
    assert (tmp_path / "out").exists() == bool(variable)


def test_what_it_cannot_follow_is_noted_and_the_engine_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(files.VARIABLE, str(tmp_path))
    module = ModuleType("vllm.v1.core.sched.scheduler")
    exec(MODULE, module.__dict__)  # noqa: S102
    vllm._patch(module)
    scheduler = module.Scheduler()
    assert scheduler.update_from_output("step", "output") == {"scheduled": "step", "ran": "output"}
    assert (scheduler.reset_prefix_cache(), scheduler.shutdown()) == (True, "down")
    notes = [json.loads(line) for line in (tmp_path / "errors.jsonl").read_text().splitlines()]
    assert [note["doing"] for note in notes] == ["update_from_output", "reset_prefix_cache", "shutdown"]
    assert all("AttributeError" in note["error"] for note in notes)


def test_a_method_is_wrapped_once_and_another_release_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(files.VARIABLE, str(tmp_path))
    module = ModuleType("vllm.v1.core.sched.scheduler")
    exec(MODULE, module.__dict__)  # noqa: S102
    vllm._patch(module)
    wrapped = module.Scheduler.shutdown
    vllm._patch(module)
    assert module.Scheduler.shutdown is wrapped
    vllm._patch(ModuleType("vllm.v1.engine.core"))
    assert "look at vllm.v1.engine.core" in (tmp_path / "errors.jsonl").read_text()


def test_a_module_that_is_imported_later_is_wrapped_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(files.VARIABLE, str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", sys.meta_path[:])
    monkeypatch.setattr(vllm, "_PATCHES", {"later_module": lambda module: setattr(module, "LOOKED", True)})
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "later_module.py").write_text("VALUE = 1\n")
    vllm.register()
    vllm.register()
    assert sum(type(finder).__name__ == "_AfterImport" for finder in sys.meta_path) == 1
    module = importlib.import_module("later_module")
    monkeypatch.delitem(sys.modules, "later_module")
    assert (module.VALUE, module.LOOKED) == (1, True)


def test_secrets_stay_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VLLM_API_KEY", "VLLM_TOKEN", "VLLM_PORT"):
        monkeypatch.setenv(name, "1")
    assert files.environment(["VLLM_"]) == {"VLLM_PORT": "1"}
