"""What a census meets in programs: nothing of them is run, everything is told once, and nothing stops it."""

from __future__ import annotations

import functools
import time
from typing import Any, Never

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from moeparity.evidence.census.census import Census, census
from moeparity.evidence.census.lanes import TOTAL, _mixed, _mixed_by_torch, lanes
from moeparity.evidence.census.notice import WeightsNotice


def holding(**attributes: Any) -> nn.Module:
    module = nn.Module()
    for name, value in attributes.items():
        module.__dict__[name] = value
    return module


def paths(present: Census) -> set[str]:
    return {entry.path for entry in present.unregistered}


class Hostile:
    """Every way in which an object could answer runs code, which fails the test."""

    __slots__ = ("__dict__", "slot", "unset")

    def __init__(self) -> None:
        object.__setattr__(self, "slot", torch.randn(4))
        object.__getattribute__(self, "__dict__")["hidden"] = [torch.randn(4)]

    def __getattribute__(self, name: str) -> Never:
        raise AssertionError(name)

    def __getattr__(self, name: str) -> Never:
        raise AssertionError(name)

    def __iter__(self) -> Never:
        raise AssertionError

    def __eq__(self, other: object) -> Never:
        raise AssertionError

    def __hash__(self) -> Never:
        raise AssertionError

    def __repr__(self) -> Never:
        raise AssertionError

    @property
    def weight(self) -> Never:
        raise AssertionError


class HostileDict(dict[str, Any]):
    def items(self) -> Never:
        raise AssertionError

    def __iter__(self) -> Never:
        raise AssertionError

    def __getitem__(self, key: str) -> Never:
        raise AssertionError


class HostileTensor(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Never:
        raise AssertionError(func)


def test_no_code_of_a_program_is_run() -> None:
    module = holding(hostile=Hostile(), mapping=HostileDict(a=torch.randn(3)))
    module.__dict__["tensor"] = torch.randn(4).as_subclass(HostileTensor)
    present = census([module])
    assert paths(present) == {"hostile.slot", "hostile.hidden[0]", "mapping[a]", "tensor"}


def test_cycles_shared_tensors_and_deep_nests_are_told_once() -> None:
    shared = torch.randn(8)
    deep: list[Any] = [shared]
    for _ in range(5000):
        deep = [deep]
    module = holding(first=shared, deep=deep, again={"a": (shared, {1: shared})})
    module.__dict__["itself"] = module
    deep.append(deep)
    present = census([module])
    (entry,) = present.unregistered
    assert (entry.path, entry.others) == ("first", 3)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_tensors_without_bytes_of_their_own_are_listed_with_the_reason() -> None:
    module = holding(
        meta=torch.empty(3, device="meta"),
        empty=torch.empty(0, 4),
        scalar=torch.tensor(2.5),
        sparse=torch.eye(3).to_sparse(),
        quantised=torch.quantize_per_tensor(torch.randn(4), 0.1, 0, torch.qint8),
        complex=torch.randn(4, 4, dtype=torch.complex64),
        flags=torch.ones(4, dtype=torch.bool),
        strided=torch.randn(6, 6)[::2, ::3],
    )
    module.lazy = nn.LazyLinear(3)
    present = census([module])
    unread = {entry.path for entry in present.entries.values() if entry.unread}
    assert unread == {"meta", "sparse", "quantised", "lazy.weight", "lazy.bias"}
    assert all(entry.bits for entry in present.unregistered if not entry.unread)


def test_kinds_are_told_apart() -> None:
    module = nn.Module()
    module.layer = parametrizations.weight_norm(nn.Linear(4, 4))
    module.register_buffer("stored", torch.randn(3))
    module.register_buffer("computed", torch.randn(3), persistent=False)
    module.loose = torch.randn(3)
    kinds = {entry.path: entry.kind for entry in census([module]).entries.values()}
    assert kinds == {
        "layer.bias": "parameter",
        "layer.parametrizations.weight.original0": "parametrised",
        "layer.parametrizations.weight.original1": "parametrised",
        "stored": "buffer",
        "computed": "computed",
        "loose": "attribute",
    }


class Remembered(nn.Module):
    table = torch.randn(5)

    def __init__(self) -> None:
        super().__init__()
        values: list[torch.Tensor] = []
        self.cached = functools.lru_cache(lambda: values)
        self.method = Holder(torch.randn(3)).get


class Holder:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def get(self) -> torch.Tensor:
        return self.tensor


def test_classes_bound_methods_and_modules_that_nobody_registered_are_looked_into() -> None:
    module = Remembered()
    module.__dict__["teachers"] = [nn.Linear(3, 3)]
    assert paths(census([module])) >= {
        "Remembered.table",
        "method.self.tensor",
        "teachers[0].weight",
        "teachers[0].bias",
    }


def test_a_dtensor_is_its_local_part() -> None:
    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls: Any, inner: torch.Tensor) -> Any:
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

        def __init__(self, inner: torch.Tensor) -> None:
            self._local_tensor = inner

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Never:  # type: ignore[override]
            raise AssertionError(func)

    module = nn.Module()
    inner = torch.randn(8, 16)
    module._parameters["weight"] = Wrapper(inner)  # type: ignore[assignment]
    module.copy = inner.T.contiguous()
    present = census([module])
    origin = present.entries["copy"].origin
    assert origin is not None
    assert origin.sources == ("weight",)


def test_thousands_of_layers_take_seconds() -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(5000)))
    begun = time.process_time()
    present = census([model])
    assert len(present.entries) == 10_000
    assert time.process_time() - begun < 60


def test_both_ways_to_mix_agree_and_zeros_change_no_sum() -> None:
    for dtype in (torch.bfloat16, torch.float32, torch.float64, torch.uint8, torch.float8_e4m3fn):
        values = (torch.randn(7, 9) * 3).to(dtype)
        assert torch.equal(_mixed(values), _mixed_by_torch(values, values.element_size()))
    values = torch.randn(6, 8)
    padded = nn.functional.pad(values, (0, 3, 0, 2))
    assert torch.equal(lanes(padded).sums[TOTAL], lanes(values).sums[TOTAL])
    assert torch.equal(lanes(padded).sums[2][:6], lanes(values).sums[2])
    assert torch.equal(lanes(values.T.contiguous()).sums[1], lanes(values).sums[2])
    shuffled = values.flatten()[torch.randperm(48)].view(8, 6)
    assert torch.equal(lanes(shuffled).total, lanes(values).total)
    assert not torch.equal(lanes(values + 1).total, lanes(values).total)


def test_an_update_is_noticed_however_it_is_made() -> None:
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))
    notice = WeightsNotice(model)
    assert not notice.has_changed()
    model.get_parameter("0.weight").data.copy_(torch.randn(8, 8))
    assert notice.has_changed()
    model[1].weight = nn.Parameter(model.get_parameter("1.weight").detach().clone())
    assert notice.has_changed()
    with torch.no_grad():
        model.get_parameter("2.weight").view(-1)[9] += 1
    assert notice.has_changed()
    assert not notice.has_changed()
