"""Defects that are better shown by code than by a file: a function each, named for what it does to the base.

`checkpoint_*` turns a copy of the base checkpoint bad, `tokens_*` writes a bad token file to the path given.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.errors.base import BASE, INDEX, TOKENS, WEIGHTS, rewrite, shard

NORM = "model.norm.weight"
GATE = "model.layers.1.mlp.gate.weight"


def checkpoint_no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def checkpoint_no_weights(folder: Path) -> None:
    (folder / WEIGHTS).unlink()


def checkpoint_only_pickled_weights(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")


def checkpoint_truncated(folder: Path) -> None:
    _bytes(folder / WEIGHTS, lambda data: data[:-100])


def checkpoint_truncated_shard(folder: Path) -> None:
    shard(folder)
    _bytes(folder / "model-00002-of-00002.safetensors", lambda data: data[:1000])


def checkpoint_empty_file(folder: Path) -> None:
    _bytes(folder / WEIGHTS, lambda _: b"")


def checkpoint_header_garbage(folder: Path) -> None:
    _bytes(folder / WEIGHTS, lambda data: data[:8] + b"\xff" * 64 + data[72:])


def checkpoint_git_lfs_pointer(folder: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"
    _bytes(folder / WEIGHTS, lambda _: pointer)


def checkpoint_weights_are_a_folder(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).mkdir()


def checkpoint_missing_tensor(folder: Path) -> None:
    rewrite(folder, {GATE: None})


def checkpoint_misspelt_tensor(folder: Path) -> None:
    rewrite(folder, {NORM: None, "model.nrom.weight": torch.ones(16, dtype=torch.bfloat16)})


def checkpoint_quantised(folder: Path) -> None:
    _quantise(folder, "mxfp4", torch.uint8)


def checkpoint_quantised_otherwise(folder: Path) -> None:
    _quantise(folder, "gptq", torch.int32, bits=4)


def _quantise(folder: Path, method: str, dtype: torch.dtype, **stated: int) -> None:
    fields = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(
        json.dumps({**fields, "quantization_config": {"quant_method": method, **stated}}), "utf-8"
    )
    rewrite(folder, {GATE: None, "model.layers.1.mlp.experts.gate_up_proj_blocks": torch.ones(2, 16, dtype=dtype)})


def checkpoint_extra_tensor(folder: Path) -> None:
    rewrite(folder, {"model.layers.0.mlp.shared_expert.up_proj.weight": torch.ones(2, dtype=torch.bfloat16)})


def checkpoint_many_extra_tensors(folder: Path) -> None:
    rewrite(folder, {f"model.layers.2.self_attn.{name}.weight": torch.ones(1) for name in ("q", "k", "v", "o", "g")})


def checkpoint_wrong_shape(folder: Path) -> None:
    rewrite(folder, {GATE: torch.ones(8, 16, dtype=torch.bfloat16)})


def checkpoint_int8_tensor(folder: Path) -> None:
    rewrite(folder, {GATE: torch.ones(4, 16, dtype=torch.int8)})


def checkpoint_fp8_tensor(folder: Path) -> None:
    rewrite(folder, {GATE: torch.ones(4, 16).to(torch.float8_e4m3fn)})


def checkpoint_of_doubles(folder: Path) -> None:
    rewrite(folder, {GATE: torch.ones(4, 16, dtype=torch.float64)})


def checkpoint_fp8_blocks_of_no_size(folder: Path) -> None:
    rewrite(folder, {GATE: torch.ones(4, 16).to(torch.float8_e4m3fn), f"{GATE}_scale_inv": torch.ones(3, 2)})


def checkpoint_nan_weights(folder: Path) -> None:
    gate = load_file(folder / WEIGHTS)[GATE]
    gate[1, 2:5] = torch.nan
    rewrite(folder, {GATE: gate})


def checkpoint_infinite_weights(folder: Path) -> None:
    rewrite(folder, {NORM: torch.full((16,), torch.inf, dtype=torch.bfloat16)})


def checkpoint_index_not_json(folder: Path) -> None:
    shard(folder)
    _bytes(folder / INDEX, lambda data: data.replace(b'"weight_map":', b'"weight_map"'))


def checkpoint_index_without_weight_map(folder: Path) -> None:
    shard(folder)
    _bytes(folder / INDEX, lambda data: data.replace(b"weight_map", b"weights"))


def checkpoint_index_is_a_folder(folder: Path) -> None:
    (folder / INDEX).mkdir()


def checkpoint_index_names_a_missing_shard(folder: Path) -> None:
    shard(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()


def checkpoint_index_points_outside(folder: Path) -> None:
    shard(folder)
    (folder / "model-00001-of-00002.safetensors").rename(folder.parent / "x.safetensors")
    _bytes(folder / INDEX, lambda data: data.replace(b"model-00001-of-00002.safetensors", b"../x.safetensors"))


def checkpoint_index_points_to_an_absolute_path(folder: Path) -> None:
    shard(folder)
    _bytes(folder / INDEX, lambda data: data.replace(b"model-00001-of-00002.safetensors", b"/etc/passwd"))


def checkpoint_index_with_an_impossible_name(folder: Path) -> None:
    shard(folder)
    _bytes(folder / INDEX, lambda data: data.replace(b"model-00001-of-00002", b"x" * 300))


def checkpoint_index_names_a_tensor_its_shard_lacks(folder: Path) -> None:
    shard(folder)
    moved = json.loads((folder / INDEX).read_text("utf-8"))
    moved["weight_map"][GATE] = "model-00001-of-00002.safetensors"
    (folder / INDEX).write_text(json.dumps(moved), "utf-8")


def tokens_missing(path: Path) -> None:
    """Nothing is written."""


def tokens_a_folder(path: Path) -> None:
    path.mkdir()


def tokens_not_safetensors(path: Path) -> None:
    path.write_text('{"prompt": "Hello"}\n', "utf-8")


def tokens_truncated(path: Path) -> None:
    path.write_bytes((BASE / TOKENS).read_bytes()[:-8])


def tokens_without_input_ids(path: Path) -> None:
    save_file({"loss_mask": _ids()}, path)


def tokens_unknown_tensor(path: Path) -> None:
    save_file({"input_ids": _ids(), "lossmask": _ids()}, path)


def tokens_wrong_dtype(path: Path) -> None:
    save_file({"input_ids": _ids().to(torch.int32)}, path)


def tokens_wrong_shape(path: Path) -> None:
    save_file({"input_ids": _ids().flatten()}, path)


def tokens_empty(path: Path) -> None:
    save_file({"input_ids": _ids()[:0]}, path)


def tokens_of_one_position(path: Path) -> None:
    save_file({"input_ids": _ids()[:, :1].contiguous()}, path)


def tokens_above_the_vocabulary(path: Path) -> None:
    save_file({"input_ids": _ids() + 28}, path)


def tokens_negative(path: Path) -> None:
    save_file({"input_ids": _ids() - 1}, path)


def tokens_masked_in_the_middle(path: Path) -> None:
    save_file({"input_ids": _ids(), "attention_mask": (_ids() != 5).to(torch.int64)}, path)


def tokens_of_padding_only(path: Path) -> None:
    save_file({"input_ids": _ids(), "attention_mask": (_ids() < 4).to(torch.int64)}, path)


def tokens_real_in_one_column(path: Path) -> None:
    save_file({"input_ids": _ids(), "attention_mask": (_ids() % 4 == 3).to(torch.int64)}, path)


def tokens_loss_mask_of_wrong_shape(path: Path) -> None:
    save_file({"input_ids": _ids(), "loss_mask": torch.ones(2, 3)}, path)


def tokens_loss_mask_of_other_values(path: Path) -> None:
    save_file({"input_ids": _ids(), "loss_mask": torch.full((2, 4), 0.5)}, path)


def tokens_loss_mask_of_one_byte_floats(path: Path) -> None:
    save_file({"input_ids": _ids(), "loss_mask": torch.ones(2, 4).to(torch.float8_e4m3fn)}, path)


def tokens_loss_mask_keeps_nothing(path: Path) -> None:
    mask = torch.zeros(2, 4, dtype=torch.bool)
    mask[:, 0] = True
    save_file({"input_ids": _ids(), "loss_mask": mask}, path)


def _ids() -> torch.Tensor:
    return torch.tensor([[0, 1, 2, 3], [4, 5, 6, 7]])


def _bytes(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


CHECKPOINTS = {name.replace("_", "-"): f for name, f in list(globals().items()) if name.startswith("checkpoint_")}
TOKEN_FILES = {name.replace("_", "-"): f for name, f in list(globals().items()) if name.startswith("tokens_")}
