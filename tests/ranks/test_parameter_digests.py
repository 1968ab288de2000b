"""Shards that are no shards, replicas that are none, and weights that change."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from moeparity.errors import RankError
from moeparity.ranks import Guard, WeightLayout
from moeparity.ranks.parameter_digests import bits_of, changed, misplaced, parameter_digests


def model(seed: int = 0) -> nn.Module:
    """Parameters, a buffer and an adapter."""
    torch.manual_seed(seed)
    layer = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    layer.register_module("lora_a", nn.Linear(4, 2, bias=False))
    return layer


def records(
    *modules: nn.Module, sharded: tuple[str, ...] = (), replicated: tuple[str, ...] = ()
) -> dict[int, dict[str, str]]:
    """What ranks with these modules tell each other."""
    return {
        rank: bits_of(parameter_digests([module], rank, sharded=sharded, replicated=replicated))
        for rank, module in enumerate(modules)
    }


def test_parameters_buffers_and_adapters_are_held() -> None:
    names = set(parameter_digests([model()], 0))
    assert {"0.weight", "0.bias", "1.running_mean", "1.num_batches_tracked", "lora_a.weight"} <= names


def test_a_single_bit_anywhere_changes_the_digest_of_that_tensor_only() -> None:
    first, second = model(), model()
    second.get_parameter("lora_a.weight").data.view(torch.int32)[1, 3] ^= 1
    second.get_buffer("1.running_mean").data.view(torch.int32)[2] ^= 1
    names = changed(parameter_digests([first], 0), parameter_digests([second], 0))
    assert names == ["lora_a.weight", "1.running_mean"]


def test_identical_shards_are_refused_unless_they_are_one_number() -> None:
    same = records(model(), model(), sharded=("0.*", "1.*"))
    words = misplaced(same)
    assert words is not None
    assert words.startswith("weights.0.weight: ranks 0-1 have the same bits ")
    assert "The same shard was loaded twice, or it is no shard" in words
    apart = records(model(0), model(1), sharded=("0.*", "1.*"))
    assert misplaced(apart) is None, "the norm's zeros and ones are constant, whatever the rank"


def test_replicas_that_differ_are_refused_and_what_nobody_declared_is_not_compared() -> None:
    words = misplaced(records(model(0), model(0), model(1), replicated=("lora_a.*",)))
    assert words is not None
    assert words.startswith("weights.lora_a.weight: ranks 0-1 ")
    assert words.endswith("; every rank holds all of it")
    assert misplaced(records(model(0), model(1))) is None


def test_megatrons_mark_says_what_is_a_shard() -> None:
    first, second = model(), model()
    for module in (first, second):
        module.get_parameter("0.weight").tensor_model_parallel = True  # type: ignore[attr-defined]
    words = misplaced(records(first, second))
    assert words is not None
    assert words.startswith("weights.0.weight: ranks 0-1 have the same bits")


def test_fingerprints_to_keep_need_a_folder() -> None:
    with pytest.raises(RankError, match=r"weights=: expected a folder too"):
        Guard(model(), weights=WeightLayout())
