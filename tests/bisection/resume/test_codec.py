"""What is written comes back the same; nothing else comes back at all."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moeparity.bisection.resume.codec import Codec, CodecError, classes_of
from moeparity.numerics.bits import same_bits


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    number: int
    any: Any = None


@dataclass(slots=True)
class Slotted:
    pairs: list[Any]
    mapping: dict[Any, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.mapping = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    first: Frozen
    many: tuple[tuple[Slotted, ...], ...]
    some: Mapping[str, Frozen] | None


class Named:
    """Stands for a graph node: compared by identity."""


KNOWN = {"layers[0].norm": Named(), "layers[1].norm": Named()}
CODEC = Codec([Frozen, Slotted], KNOWN)
DTYPES = (torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.bool)


def slotted(pairs: list[Any], mapping: dict[Any, Any]) -> Slotted:
    value = Slotted(pairs)
    value.mapping = mapping
    return value


def tensor(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    raw = torch.randint(-(2**31), 2**31, shape, generator=torch.Generator().manual_seed(seed))
    if dtype.is_floating_point:
        # Every bit pattern: NaN with payloads, infinities, -0.
        integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
        return raw.to(integers).view(dtype)
    return raw % 2 == 0 if dtype is torch.bool else raw


shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
tensors = st.builds(tensor, st.sampled_from(DTYPES), shapes, st.integers(0, 99))
keys = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(allow_nan=False),
    lambda inner: st.tuples(inner, inner) | st.builds(Frozen, number=st.integers(), any=inner),
    max_leaves=3,
)
values = st.recursive(
    keys | st.floats() | tensors | st.sampled_from(list(KNOWN.values())),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(keys, inner, max_size=3)
        | st.sets(st.integers(), max_size=3)
        | st.frozensets(st.text(max_size=3), max_size=3)
        | st.dictionaries(st.text(max_size=3), st.integers(), max_size=3).map(Counter)
        | st.builds(Frozen, number=st.integers(), any=inner)
        | st.builds(slotted, st.lists(inner, max_size=2), st.dictionaries(keys, inner, max_size=2))
    ),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    """The same kinds, the same bits, the same order of dicts."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return same_bits(a, b) and a.device == b.device
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return same(list(a), list(b)) and all(map(same, a.values(), b.values()))
    if is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    return bool(a == b)


def there_and_back(value: object) -> Any:
    plain, stored = CODEC.encode(value)
    return CODEC.decode(json.loads(json.dumps(plain, allow_nan=False)), stored)


@given(values)
@settings(max_examples=300)
def test_what_is_written_comes_back(value: object) -> None:
    assert same(there_and_back(value), value)


def test_one_tensor_in_two_places_is_stored_once_and_shared_again() -> None:
    ones = torch.ones(3)
    plain, stored = CODEC.encode([ones, {"again": ones}, ones[1:]])
    assert len(stored) == 2
    first, second, part = CODEC.decode(plain, stored)
    assert first is second["again"]
    assert same_bits(part, ones[1:])


def test_what_cannot_be_written_is_refused() -> None:
    @dataclass
    class Unknown:
        x: int

    class Words(str):
        __slots__ = ()

    for value in (Unknown(1), object(), Words("x"), torch.float32, b"x", 1j, torch.nn.Parameter(torch.ones(1))):
        with pytest.raises(CodecError, match="cannot be written"):
            CODEC.encode([value])
    with pytest.raises(CodecError, match="is no dataclass"):
        Codec([Named])


FROZEN = f"{__name__}.Frozen"


@pytest.mark.parametrize(
    "plain",
    [
        {},
        {"tuple": [], "set": []},
        {"eval": "1"},
        {"tuple": 3},
        {"float": "1e3"},
        {"tensor": ["1", "cpu"]},
        {"tensor": ["0", "gpu"]},
        {"tensor": "0"},
        {"named": "layers[2].norm"},
        {"dict": [["a"]]},
        {"dict": [[[], 1]]},
        {"class": "builtins.object", "fields": {}},
        {"class": FROZEN, "fields": {}},
        {"class": FROZEN, "fields": {"number": 1, "any": None, "more": 1}},
        {"class": FROZEN, "fields": {"any": None, "number": 1}},
        {"class": FROZEN, "fields": [1]},
    ],
)
def test_what_was_never_written_is_refused(plain: Any) -> None:
    good, stored = CODEC.encode([torch.ones(1), Frozen(number=1)])
    assert same(CODEC.decode(good, stored), [torch.ones(1), Frozen(number=1)])
    with pytest.raises(CodecError):
        CODEC.decode([good, plain], stored)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float32", "float64"])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_an_array_comes_back_bit_for_bit(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.full(shape, np.nan if dtype.startswith("float") else 1).astype(dtype)
    array.setflags(write=False)
    plain, written = CODEC.encode(Frozen(number=1, any=array))
    again = CODEC.decode(json.loads(json.dumps(plain)), written).any
    assert (again.dtype, again.shape, again.tobytes()) == (array.dtype, array.shape, array.tobytes())


def test_an_array_of_words_is_not_written() -> None:
    with pytest.raises(CodecError, match="cannot be written"):
        CODEC.encode(np.array(["a"]))


def test_the_classes_of_a_dataclass_are_those_of_its_annotations() -> None:
    assert list(classes_of(Outer)) == [Outer, Frozen, Slotted]
    value = Outer(first=Frozen(number=1), many=((slotted([1], {}),),), some=None)
    plain, written = Codec(classes_of(Outer)).encode(value)
    again = Codec(classes_of(Outer)).decode(json.loads(json.dumps(plain)), written)
    assert again == value
