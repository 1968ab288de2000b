"""A LoRA adapter in the evidence: what peft does with it, and what a program does wrong, named by the command."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.adapters import ATTENTION, EXPERTS, make_adapter, quiet
from tests.command import inside
from tests.doctor.programs import Patch, command, log, scored, tokens, two_layers

PROMPT = 4


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return two_layers(tmp_path_factory.mktemp("adapted") / "base", experts=8, top_k=3)


@pytest.fixture(scope="module")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapted") / "lora"
    return make_adapter(base, folder, r=2, lora_alpha=3, target_modules=ATTENTION, target_parameters=EXPERTS)


@pytest.fixture(scope="module")
def before(adapter: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The adapter of the step before."""
    return _changed(adapter, tmp_path_factory.mktemp("adapted") / "previous", _drifted)


@pytest.fixture(scope="module")
def ids() -> Tensor:
    return tokens(16, 32)


@pytest.fixture(scope="module")
def right(base: Path, adapter: Path, ids: Tensor) -> Tensor:
    return scored(base, ids, 1, patch=_with(adapter))


def _drifted(name: str, matrix: Tensor) -> Tensor:
    draw = torch.Generator().manual_seed(len(name))
    return matrix * (1 + 0.2 * torch.randn(matrix.shape, generator=draw))


def _exchanged_rows(name: str, matrix: Tensor) -> Tensor:
    """The rows of one layer's A in reverse, under a B as it was: no fault of docs/faults.md."""
    return matrix.flip(0) if name.endswith("layers.1.self_attn.v_proj.lora_A.weight") else matrix


def _changed(adapter: Path, folder: Path, change: Callable[[str, Tensor], Tensor]) -> Path:
    shutil.copytree(adapter, folder)
    file = folder / "adapter_model.safetensors"
    tensors = {name: change(name, matrix).contiguous() for name, matrix in load_file(file).items()}
    save_file(tensors, file, metadata={"format": "pt"})
    return folder


def _with(adapter: Path, *, times: float = 1.0, left_out: str = "-", merged: bool = False) -> Patch:
    """A model with the adapter, as peft loads it; `times` as strong, without it at modules that have `left_out` in
    their names.
    """

    def patch(model: torch.nn.Module) -> None:
        with quiet():
            adapted = PeftModel.from_pretrained(model, adapter)
        for name, module in adapted.named_modules():
            if isinstance(scaling := getattr(module, "scaling", None), dict):
                factor = 0.0 if left_out in name else times
                module.scaling = {key: factor * value for key, value in scaling.items()}
        if merged:
            adapted.merge_and_unload()

    return patch


def _answer(
    name: str, folder: Path, ids: Tensor, sides: tuple[Tensor, Tensor], base: Path, adapter: Path, before: Path
) -> tuple[str, list[str], str | None]:
    """The answer, the causes, and the side."""
    path = log(folder / f"{name}.jsonl", ids, *sides, prompt=PROMPT)
    arguments = (path, adapter, "--checkpoint", base, "--previous", before, "--sampler", "hf-eager")
    of = command(*arguments, out=folder / "out.json")
    return of["answer"], of["blame"]["named"], of["explanations"][0]["party"]


def test_a_server_that_merged_the_adapter_is_noise(
    base: Path, adapter: Path, before: Path, ids: Tensor, right: Tensor, tmp_path: Path
) -> None:
    sides = scored(base, ids, 8, patch=_with(adapter, merged=True)), right
    assert _answer("merged", tmp_path, ids, sides, base, adapter, before)[0] == "noise"


@pytest.mark.parametrize(
    ("of_sampler", "of_trainer", "cause"),
    [
        (None, None, "stale adapter"),
        ({"left_out": "experts"}, None, "adapter-missing of routed experts of all layers"),
        (None, {"left_out": "layers.1."}, "adapter-missing of layer 1"),
        ({"times": 2.0}, None, "adapter-twice"),
        ({"times": 4.0}, None, "adapter-counted-by-ranks(times=4.0)"),
    ],
)
def test_a_mistake_with_the_adapter_is_named_at_its_side(
    of_sampler: dict[str, Any] | None,
    of_trainer: dict[str, Any] | None,
    cause: str,
    base: Path,
    adapter: Path,
    before: Path,
    ids: Tensor,
    right: Tensor,
    tmp_path: Path,
) -> None:
    party, of = ("trainer", of_trainer) if of_trainer else ("sampler", of_sampler)
    patch = _with(before) if of is None else _with(adapter, **of)
    wrong = scored(base, ids, 8, patch=patch)
    sides = (wrong, right) if party == "sampler" else (right, wrong)
    assert _answer("wrong", tmp_path, ids, sides, base, adapter, before) == ("named", [cause], party)


def test_an_adapter_whose_rows_are_exchanged_gets_no_name(
    base: Path, adapter: Path, before: Path, ids: Tensor, right: Tensor, tmp_path: Path
) -> None:
    wrong = _changed(adapter, tmp_path / "wrong", _exchanged_rows)
    sides = scored(base, ids, 8, patch=_with(wrong)), right
    assert _answer("rows", tmp_path, ids, sides, base, adapter, before)[1] == []


def test_what_is_no_adapter_before_an_update_is_an_error(
    base: Path, adapter: Path, before: Path, ids: Tensor, right: Tensor, tmp_path: Path
) -> None:
    path = log(tmp_path / "log.jsonl", ids, right, right, prompt=PROMPT)
    was_to_have = "as the one that both sides were to have"
    for arguments, says in (
        ((path, base, "--adapter", adapter, "--previous", adapter), f"with the same folder {was_to_have}"),
        ((path, base, "--previous", before), f"with no other adapter {was_to_have}"),
        ((path, base, adapter, _changed(adapter, tmp_path / "third", _drifted)), "2 adapters"),
    ):
        done = inside("doctor", *arguments, "--device", "cpu")
        assert (done.returncode, says in done.stderr) == (2, True), done.stderr
