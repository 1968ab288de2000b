"""Which values a capture has seen: one for each storage, version and shape, so that nothing is digested twice.

A storage is told from a later one at the same address by a weak reference, which keeps the address from being used
again. Its version is that of torch, together with the writes that the capture itself saw: those through `.data` or
under `out=` count too. What writes by no op (numpy, a kernel launched by hand) is seen only where torch's version says.
Under inference mode torch counts no writes: where the capture sees no ops either, a value is known only as it is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import torch
from torch.nn.parameter import is_lazy

_storages: Any = torch.UntypedStorage
_expired: Callable[[int], bool] = _storages._expired
_free: Callable[[int], None] = _storages._free_weak_ref

_is_wrapped: Callable[[torch.Tensor], bool] = torch._C._functorch.is_functorch_wrapped_tensor

_ELEMENTS = 1 << 26
"""Of an allocated storage of more elements it isn't followed which of them were written."""

_VIEWS = 256
"""So many shapes of one storage at one version are remembered; an older one is another value when it comes again."""


class SeenValue:
    """A tensor as it was at one moment; what is known of it until it is written to the trace."""

    __slots__ = (
        "base", "bits", "device", "digest", "dtype", "extent", "file", "id", "kept_already", "label", "offset",
        "rows", "shape", "stats", "storage", "strides", "version", "written",
    )  # fmt: skip

    def __init__(self, tensor: torch.Tensor, number: int, storage: int, version: int) -> None:
        self.id = number
        self.dtype = tensor.dtype
        self.shape = tuple(tensor.shape)
        self.strides = tensor.stride()
        self.offset = int(tensor.storage_offset())
        self.device = tensor.device
        self.storage = storage
        self.version = version
        self.extent = extent(tensor)
        self.base: SeenValue | None = None
        self.label: str | None = None
        self.rows: torch.Tensor | None = None
        self.stats: torch.Tensor | dict[str, float] | None = None
        self.bits: torch.Tensor | None = None
        self.file: int | None = None
        """The number of the file that the whole tensor was written to, where it was."""
        self.digest: str | None = None
        self.written = self.kept_already = False


class Storage:
    """One storage that is alive, with the values that were seen of it at its present version."""

    __slots__ = ("allocated", "cdata", "clock", "number", "primary", "values")

    def __init__(self, cdata: int, number: int) -> None:
        self.cdata = cdata
        self.number = number
        self.clock = 0
        """When it was last seen to be written, by the count of writes."""
        self.values: dict[tuple[object, ...], SeenValue] = {}
        self.primary: SeenValue | None = None
        self.allocated: Allocated | None = None
        """Which of its bytes were written, where it was seen to be allocated without being written."""

    def wrote(self, clock: int) -> None:
        """Its bytes have changed."""
        self.clock = clock
        self.unknown()

    def unknown(self) -> None:
        """Nothing that was seen of it need hold any more."""
        self.values.clear()
        self.primary = None

    def label(self, tensor: torch.Tensor) -> str | None:
        """`unwritten` or `partly`, where none or not all of what the tensor reads was written."""
        return None if self.allocated is None else self.allocated.label(tensor)


class Allocated:
    """Which elements of a storage were written since it was allocated."""

    __slots__ = ("_done", "_item", "_unknown")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._item = tensor.element_size()
        self._done: torch.Tensor | None = None
        self._unknown = tensor.untyped_storage().nbytes() // self._item > _ELEMENTS

    def wrote(self, tensor: torch.Tensor, *, partly: bool) -> bool:
        """Enter a write; whether all of the storage has been written by now."""
        storage = tensor.untyped_storage().nbytes()
        if not partly and tensor.element_size() * tensor.numel() >= storage:
            return True
        if partly or self._unknown or tensor.element_size() != self._item:
            self._unknown = True
            return False
        if self._done is None:
            self._done = torch.zeros(storage // self._item, dtype=torch.bool)
        self._done.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).fill_(True)
        return bool(self._done.all())

    def label(self, tensor: torch.Tensor) -> str | None:
        """What is known of the elements that a tensor reads."""
        if self._unknown:
            return "partly"
        if self._done is None:
            return "unwritten"
        if tensor.element_size() != self._item:
            return "partly"
        done = self._done.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        return None if bool(done.all()) else "partly" if bool(done.any()) else "unwritten"


class Storages:
    """All storages that were seen and are alive, by address."""

    def __init__(self) -> None:
        self._storages: dict[int, Storage] = {}
        self._numbers = 0
        self._clock = 0

    @property
    def clock(self) -> int:
        """How many writes were seen so far."""
        return self._clock

    def __len__(self) -> int:
        return len(self._storages)

    def __iter__(self) -> Iterator[Storage]:
        return iter(self._storages.values())

    def of(self, tensor: torch.Tensor) -> Storage:
        """The storage of a tensor."""
        untyped: Any = tensor.untyped_storage()
        storage = self._storages.get(untyped._cdata)
        if storage is None:
            storage = Storage(untyped._weak_ref(), self._numbers)
            self._numbers += 1
            self._storages[storage.cdata] = storage
        return storage

    def wrote(self, tensor: torch.Tensor, *, partly: bool = False) -> None:
        """A tensor's bytes have changed; `partly`: perhaps not all of them."""
        self._clock += 1
        storage = self.of(tensor)
        storage.wrote(self._clock)
        if storage.allocated is not None and storage.allocated.wrote(tensor, partly=partly):
            storage.allocated = None

    def allocated(self, tensor: torch.Tensor) -> None:
        """A tensor's bytes were allocated, and are whatever lay there."""
        self.of(tensor).allocated = Allocated(tensor)

    def forget_freed(self) -> None:
        """Let go of storages that the program has freed."""
        freed = [cdata for cdata in self._storages if _expired(cdata)]
        for cdata in freed:
            del self._storages[cdata]
            _free(cdata)

    def forget(self) -> None:
        """Let go of everything, as where writes went by unseen."""
        for cdata in self._storages:
            _free(cdata)
        self._storages.clear()


@lru_cache(maxsize=1 << 12)
def overrides(kind: type) -> bool:
    """Whether a class of tensors says by itself what ops on it do, and its bits may lie elsewhere or nowhere."""
    dispatch: object = getattr(kind, "__torch_dispatch__", None)
    return dispatch is not torch._C._disabled_torch_dispatch_impl


def problem(tensor: torch.Tensor) -> str | None:
    """What keeps a tensor's bits from being looked at; None where nothing does."""
    if overrides(type(tensor)):
        return f"{type(tensor).__name__}, a subclass that runs its ops by itself,"
    if _is_wrapped(tensor) or torch._is_functional_tensor(tensor):
        return "tensors inside a transform of torch.func"
    if tensor.layout != torch.strided or tensor.is_nested or tensor.device.type == "meta":
        layout = "nested" if tensor.is_nested else tensor.layout
        return f"layout {layout} on {tensor.device.type}"
    if tensor.is_quantized or tensor._is_zerotensor():
        return f"{tensor.dtype} that are {'quantized' if tensor.is_quantized else 'zero and have no memory'}"
    if is_lazy(tensor):
        return "parameters that have no shape yet"
    if extent(tensor)[1] > tensor.untyped_storage().nbytes():
        return "tensors whose storage was freed"
    return None


def remember(storage: Storage, key: tuple[object, ...], value: SeenValue) -> None:
    """Enter a value among those of its storage, in place of the oldest where there are many."""
    if len(storage.values) >= _VIEWS:
        storage.values.pop(next(iter(storage.values)))
    storage.values[key] = value


def version_of(tensor: torch.Tensor) -> int:
    """Torch's count of writes; 0 for what was made under inference mode, which has none."""
    return 0 if tensor.is_inference() else tensor._version


def extent(tensor: torch.Tensor) -> tuple[int, int, bool]:
    """The first byte of its storage that it reads, the one behind the last, and whether it reads all between."""
    item = tensor.element_size()
    start = int(tensor.storage_offset()) * item
    if tensor.is_contiguous():  # so is an empty one
        return start, start + item * tensor.numel(), True
    reach: int = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + reach * item, reach == tensor.numel()


def covers(primary: SeenValue, tensor: torch.Tensor) -> bool:
    """Whether every byte of a tensor is one of the value's."""
    start, end, dense = primary.extent
    first, last, _ = extent(tensor)
    return dense and start <= first and last <= end
