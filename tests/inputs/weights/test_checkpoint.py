"""Checkpoints on disk: one file or several, every readable dtype, mapped and not copied."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from moeparity.inputs.weights.checkpoint import Checkpoint
from moeparity.inputs.weights.fit import check, check_values, file_dtype
from moeparity.numerics.bits import same_bits
from moeparity.plan.config import Config
from moeparity.plan.expand import expand
from tests.errors.base import BASE, WEIGHTS, copy, rewrite, shapes, shard, weights


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return copy(tmp_path / "checkpoint")


def checked_checkpoint(folder: Path) -> Checkpoint:
    checkpoint = Checkpoint(folder)
    graph = expand(Config(checkpoint.config_path))
    check(checkpoint, graph)
    check_values(checkpoint, graph)
    return checkpoint


def test_the_base_is_what_its_code_makes() -> None:
    file_weights, code_weights = load_file(BASE / WEIGHTS), weights()
    assert file_weights.keys() == code_weights.keys()
    assert all(same_bits(file_weights[name], code_weights[name]) for name in code_weights)


def test_a_single_file(folder: Path) -> None:
    checkpoint = checked_checkpoint(folder)
    assert {name: entry.shape for name, entry in checkpoint.entries.items()} == shapes()
    assert {entry.dtype for entry in checkpoint.entries.values()} == {"BF16"}
    expected = load_file(folder / WEIGHTS)
    assert all(same_bits(checkpoint.tensor(name), expected[name]) for name in expected)


def test_shards_hold_the_same(folder: Path) -> None:
    single = load_file(folder / WEIGHTS)
    checkpoint = checked_checkpoint(shard(folder))
    assert len({entry.file for entry in checkpoint.entries.values()}) == 2
    assert all(same_bits(checkpoint.tensor(name), single[name]) for name in single)


def test_shards_may_be_symbolic_links_as_in_the_hubs_cache(folder: Path, tmp_path: Path) -> None:
    shard(folder)
    (tmp_path / "blobs").mkdir()
    for file in folder.glob("model-*.safetensors"):
        blob = file.rename(tmp_path / "blobs" / file.stem)
        file.symlink_to(blob)
    assert len(checked_checkpoint(folder).entries) == len(shapes())


@pytest.mark.parametrize(
    ("dtype", "name"), [(torch.bfloat16, "bf16"), (torch.float16, "fp16"), (torch.float32, "fp32")]
)
def test_dtypes(folder: Path, dtype: torch.dtype, name: str) -> None:
    save_file({key: tensor.to(dtype) for key, tensor in weights().items()}, folder / WEIGHTS)
    checkpoint = checked_checkpoint(folder)
    assert file_dtype(checkpoint) == name
    assert checkpoint.tensor("model.norm.weight").dtype == dtype


def test_the_dtype_of_a_file_is_that_of_most_tensors(folder: Path) -> None:
    rewrite(folder, {"model.norm.weight": torch.ones(16)})
    assert file_dtype(checked_checkpoint(folder)) == "bf16"


def test_tensors_are_views_of_the_mapped_file(folder: Path) -> None:
    """One mapping holds all tensors at the distances they have in the file, and it is the file that is mapped."""
    checkpoint = Checkpoint(folder)
    raw = (folder / WEIGHTS).read_bytes()
    starts = {raw.find(_bytes(checkpoint.tensor(name))) - checkpoint.tensor(name).data_ptr() for name in shapes()}
    assert len(starts) == 1
    (start,) = starts
    assert -start % mmap.PAGESIZE == 0
    maps = Path("/proc/self/maps")
    if maps.exists():
        mapped = [line.split("-")[0] for line in maps.read_text("utf-8").splitlines() if str(folder / WEIGHTS) in line]
        assert -start in {int(at, 16) for at in mapped}


def test_a_stored_but_tied_head_is_no_extra_tensor(tmp_path: Path) -> None:
    assert checked_checkpoint(copy(tmp_path / "tied", config={"tie_word_embeddings": True})).entries["lm_head.weight"]


def test_inverse_frequencies_of_old_checkpoints_are_passed_over(folder: Path) -> None:
    checked_checkpoint(rewrite(folder, {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}))


def _bytes(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().view(torch.uint8).numpy().data)
