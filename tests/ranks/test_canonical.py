"""One spelling for what is the same, and never one for what is not."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np
import pytest
import torch

from moeparity.errors import RankError
from moeparity.ranks.canonical import canonical, digest, flat, manifest, named_tensors, sampled


class Action(Enum):
    """What a call is for."""

    INFER = 1
    NOOP = 2


@dataclass
class Step:
    """A user's own record."""

    level: float
    action: Action


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": [2.0, None]}, '{"a":[2.0,null],"b":1}'),
        ({"a": {"z": True, "y": Action.NOOP}}, '{"a":{"y":"Action.NOOP","z":true}}'),
        (math.nan, '"nan"'),
        (-math.inf, '"-inf"'),
        (-0.0, "-0.0"),
        ((1, 1.0, True, "1"), '[1,1.0,true,"1"]'),
        ({3, 1, 2}, "[1,2,3]"),
        (torch.bfloat16, '"bfloat16"'),
        (torch.device("cpu"), '"cpu"'),
        (np.int64(7), "7"),
        (np.float32(0.5), "0.5"),
        (torch.tensor([1, 2]), "[1,2]"),
        (Step(0.25, Action.INFER), '{"action":"Action.INFER","level":0.25}'),
    ],
)
def test_plain_values_have_one_spelling(value: object, text: str) -> None:
    assert canonical(value, "here") == text


def test_what_has_no_spelling_is_refused_by_its_place() -> None:
    with pytest.raises(RankError, match=r"envelope\.a\.b: object has no spelling that is the same on every rank"):
        flat({"a": {"b": object()}}, "envelope")
    with pytest.raises(RankError, match=r"x\[1\]: Tensor has no spelling"):
        canonical([1, torch.zeros(65)], "x")


def test_the_order_of_keys_changes_no_digest_and_a_value_does() -> None:
    first, second = flat({"a": 1, "b": {"c": 2}}, "e"), flat({"b": {"c": 2}, "a": 1}, "e")
    assert digest(first) == digest(second)
    assert digest(first) != digest(flat({"a": 1, "b": {"c": 2.0}}, "e"))


def test_a_manifest_names_shape_dtype_and_bits_of_each_tensor() -> None:
    tensor = torch.randn(3, 5, generator=torch.Generator().manual_seed(1))
    flipped = tensor.clone()
    flipped.view(torch.int32)[2, 4] ^= 1
    fields, flipped_fields = manifest({"x": tensor}, None), manifest({"x": flipped}, None)
    assert (fields["tensors.x.shape"], fields["tensors.x.dtype"]) == ("[3, 5]", "float32")
    assert [name for name in fields if fields[name] != flipped_fields[name]] == ["tensors.x.bytes"]


def test_a_sample_is_spread_to_the_last_element() -> None:
    tensor = torch.arange(1000)
    part = sampled(tensor, 80)
    assert part.tolist() == [0, 111, 222, 333, 444, 555, 666, 777, 888, 999]
    assert torch.equal(sampled(tensor, None), tensor)
    assert torch.equal(sampled(tensor, 8000), tensor)


def test_tensors_are_named_by_where_they_are() -> None:
    nest = {"batch": {"ids": torch.zeros(1), "text": "words"}, "list": [1, (torch.ones(1),)]}
    assert list(named_tensors(nest)) == ["batch.ids", "list.1.0"]
    assert list(named_tensors(torch.zeros(1))) == ["0"]
