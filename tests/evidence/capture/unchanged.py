"""Small programs that a capture must leave as they are: each gives what it computed.

Subclasses of tensors, modes, transforms, compilers and storages of every kind that PyTorch has, as users write them.
"""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

Program = Callable[[], Any]
PROGRAMS: list[Program] = []


def program(function: Program) -> Program:
    """Enter a program among those that are run."""
    PROGRAMS.append(function)
    return function


def _hidden() -> Tensor:
    return torch.linspace(-2, 2, 12).view(3, 4)


class Loaded(torch.nn.Parameter):
    """As vLLM's parameters: with a loader, and nothing of torch's overridden."""


class Named(Tensor):
    """Keeps its class through functions, and counts them."""

    count = 0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.count += 1
        return super().__torch_function__(func, types, args, kwargs or {})


class Scaled(Tensor):
    """A wrapper of a tensor and a scale, which dequantizes for every op that it meets."""

    @staticmethod
    def __new__(cls: Any, data: Tensor, scale: float) -> Any:
        return Tensor._make_wrapper_subclass(cls, data.shape, dtype=torch.float32)

    def __init__(self, data: Tensor, scale: float) -> None:
        self.data_, self.scale = data, scale

    def plain(self) -> Tensor:
        return self.data_.float() * self.scale

    def __tensor_flatten__(self) -> Any:
        return ["data_"], self.scale

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, scale: float, *_: Any) -> Any:
        return cls(inner["data_"], scale)

    @classmethod
    def __torch_dispatch__(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        plain = [arg.plain() if isinstance(arg, cls) else arg for arg in args]
        if func is torch.ops.aten.detach.default:
            return cls(args[0].data_, args[0].scale)
        return func(*plain, **(kwargs or {}))


class Logged(Tensor):
    """A tensor whose own bits are there, and which sees each op on it."""

    names: list[str] = []  # noqa: RUF012

    @staticmethod
    def __new__(cls: Any, data: Tensor) -> Any:
        return Tensor._make_subclass(cls, data)

    @classmethod
    def __torch_dispatch__(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        cls.names.append(str(func))
        with torch._C._DisableTorchDispatch():
            plain = [arg.as_subclass(Tensor) if isinstance(arg, cls) else arg for arg in args]
        return func(*plain, **(kwargs or {}))


class Refusing(Tensor):
    """A subclass that no op takes."""

    @staticmethod
    def __new__(cls: Any, data: Tensor) -> Any:
        return Tensor._make_subclass(cls, data)

    @classmethod
    def __torch_dispatch__(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return NotImplemented


class Counting(TorchDispatchMode):
    """A program's own mode."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class CountingFunctions(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


@program
def parameter_subclass() -> Any:
    weight = Loaded(_hidden())
    layer = torch.nn.Linear(4, 3, bias=False)
    layer.weight = weight
    data = weight.data
    data.mul_(3)
    result = layer(_hidden())
    result.sum().backward()
    return type(data).__name__, data, result, weight.grad, type(weight.detach()).__name__


@program
def parameter_subclass_without_gradient() -> Any:
    weight = Loaded(torch.zeros(4, dtype=torch.int32), requires_grad=False)
    weight.data.copy_(torch.arange(4))
    return weight, weight.data.narrow(0, 1, 2), type(weight.narrow(0, 1, 2)).__name__


@program
def buffer_and_uninitialized() -> Any:
    layer = torch.nn.LazyLinear(3)
    torch.manual_seed(1)
    norm = torch.nn.BatchNorm1d(4)
    return layer(_hidden()), norm(_hidden()), norm.running_mean


@program
def function_subclass() -> Any:
    Named.count = 0
    hidden = _hidden().as_subclass(Named)
    layer = torch.nn.Linear(4, 4)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(4))
    result = layer(hidden).softmax(-1)
    hidden.mul_(2)
    return type(result).__name__, result.as_subclass(Tensor), Named.count


@program
def wrapper_subclass() -> Any:
    weight = Scaled(torch.arange(12, dtype=torch.int8).view(3, 4), 0.25)
    layer = torch.nn.Linear(4, 3, bias=False)
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    return layer(_hidden()), weight + 1, weight.sum()


@program
def dispatch_subclass() -> Any:
    Logged.names.clear()
    result = torch.nn.Identity()(Logged(_hidden())).exp().sum()
    return result, tuple(Logged.names)


@program
def refusing_subclass() -> Any:
    try:
        Refusing(torch.ones(2)).exp()
    except TypeError:
        return "refused"
    return "taken"


@program
def parameter_beside_wrapper() -> Any:
    return Loaded(torch.ones(3, 4)) * Scaled(torch.ones(3, 4, dtype=torch.int8), 0.5)


@program
def two_tensor() -> Any:
    from torch.testing._internal.two_tensor import TwoTensor

    pair = TwoTensor(_hidden(), _hidden() * 2).requires_grad_()
    layer = torch.nn.Linear(4, 4, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(4))
    result = layer(pair).exp()
    result.sum().backward()
    return result.a, result.b, pair.grad.a


@program
def masked_tensor() -> Any:
    from torch.masked import masked_tensor

    masked = masked_tensor(_hidden(), _hidden() > 0)
    return masked.sum().get_data(), masked.exp().get_data()  # type: ignore[attr-defined]


@program
def nested_jagged() -> Any:
    nested = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(5, 4)], layout=torch.jagged, requires_grad=True)
    result = torch.nn.Linear(4, 4).requires_grad_(False)
    with torch.no_grad():
        result.weight.fill_(0.5)
        result.bias.fill_(0.25)
    out = result(nested).exp()
    out.values().sum().backward()
    return out.values(), nested.grad.values()


@program
def nested_strided() -> Any:
    nested = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(5, 4)])
    return torch.nn.ReLU()(nested).to_padded_tensor(0.0), nested.mul_(2).to_padded_tensor(0.0)


@program
def fake_tensors() -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        layer = torch.nn.Linear(4, 3)
        product = layer(torch.ones(5, 4))
        product.mul_(2)
    inputs = mode.from_tensor(_hidden())
    with mode:
        result = torch.nn.Linear(4, 2)(inputs)
    return tuple(product.shape), tuple(result.shape), type(result).__name__


@program
def meta_tensors() -> Any:
    layer = torch.nn.Linear(4, 3, device="meta")
    result = layer(torch.ones(5, 4, device="meta"))
    result.mul_(2)
    layer = layer.to_empty(device="cpu")
    torch.nn.init.ones_(layer.weight)
    torch.nn.init.zeros_(layer.bias)
    return tuple(result.shape), layer(_hidden())


@program
def default_device() -> Any:
    torch.set_default_device("meta")
    try:
        ones = torch.ones(3)
        empty = torch.empty(4, 4, device="cpu")
        empty[:2] = 1
        empty[2:].fill_(2)
        result = torch.nn.ReLU()(_cpu() @ empty)
    finally:
        torch.set_default_device(None)
    return str(ones.device), result


def _cpu() -> Tensor:
    return torch.linspace(0, 1, 12, device="cpu").view(3, 4)


@program
def default_dtype() -> Any:
    torch.set_default_dtype(torch.bfloat16)
    try:
        return torch.nn.functional.softmax(torch.ones(3, 4) * 0.3, -1), (torch.ones(2) / 3).sum()
    finally:
        torch.set_default_dtype(torch.float32)


@program
def vmap_of_modules() -> Any:
    layer = torch.nn.Linear(4, 4)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(4))
        layer.bias.fill_(0.5)
    weights = dict(layer.named_parameters())

    def loss(weights: Any, row: Tensor) -> Tensor:
        return torch.func.functional_call(layer, weights, (row,)).square().sum()

    gradients = torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, _hidden())
    return gradients, torch.func.jacrev(lambda row: layer(row).exp())(_hidden()[0])


@program
def jvp_hessian_and_functionalize() -> Any:
    square = lambda row: torch.nn.Softplus()(row).square().sum()
    row = _hidden()[0]
    return (
        torch.func.jvp(square, (row,), (torch.ones(4),)),
        torch.func.hessian(square)(row),
        torch.func.functionalize(lambda x: torch.nn.ReLU(inplace=True)(x + 1))(row),
        torch.autograd.functional.hessian(square, row),
    )


@program
def forward_mode() -> Any:
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(_hidden(), torch.ones(3, 4))
        return tuple(torch.autograd.forward_ad.unpack_dual(torch.nn.Tanh()(dual)))


@program
def compiled() -> Any:
    layer = torch.nn.Linear(4, 4, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(4))
    function = torch.compile(lambda x: layer(x).gelu() if hasattr(x, "gelu") else layer(x).exp(), backend="aot_eager")
    return function(_hidden())


@program
def exported() -> Any:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU())
    graph = torch.export.export(model, (_hidden(),)).graph
    return [str(node.target) for node in graph.nodes]


@program
def traced_by_fx() -> Any:
    from torch.fx.experimental.proxy_tensor import make_fx

    layer = torch.nn.Linear(4, 4, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(4))
    out = make_fx(lambda x: layer(x).exp().mul_(2))(_hidden())
    fake = make_fx(lambda x: layer(x).exp(), tracing_mode="fake", _allow_non_fake_inputs=True)(_hidden())
    symbolic = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.ReLU()))
    return out.code, out(_hidden()), fake.code, symbolic.code


@program
def traced_and_scripted() -> Any:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.Softmax(-1))
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(4))  # type: ignore[operator]
    traced, scripted = torch.jit.trace(model, _hidden()), torch.jit.script(model)
    return (
        [node.kind() for node in traced.inlined_graph.nodes()],
        traced(_hidden()),
        scripted(_hidden()),
        scripted(_hidden()),
    )


@program
def higher_order() -> Any:
    from torch._higher_order_ops import while_loop

    two = torch.cond(torch.tensor(True), torch.sin, torch.cos, (_hidden(),))
    looped = while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, x * 2), (torch.tensor(0), _hidden()))
    return two, looped


@program
def flex_attention() -> Any:
    from torch.nn.attention.flex_attention import flex_attention as attend

    heads = torch.linspace(-1, 1, 2 * 16 * 16).view(1, 2, 16, 16)
    return attend(heads, heads, heads)


@program
def scan_and_associative() -> Any:
    from torch._higher_order_ops.scan import scan

    return scan(lambda carry, x: (carry + x, carry * 2), torch.zeros(4), _hidden())


@program
def checkpointed() -> Any:
    from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

    hidden = _hidden().requires_grad_()
    checkpoint(lambda x: torch.nn.SiLU()(x).exp(), hidden, use_reentrant=False).sum().backward()
    policy = lambda *_, **__: CheckpointPolicy.MUST_SAVE
    context = lambda: create_selective_checkpoint_contexts(policy)
    checkpoint(lambda x: torch.nn.SiLU()(x).exp(), hidden, use_reentrant=False, context_fn=context).sum().backward()
    checkpoint(lambda x: torch.nn.SiLU()(x).exp(), hidden, use_reentrant=True).sum().backward()
    return hidden.grad


@program
def inference() -> Any:
    with torch.inference_mode():
        layer = torch.nn.Linear(4, 4, bias=False)
        layer.weight.copy_(torch.eye(4))
        hidden = layer(_hidden())
        hidden.mul_(2)
        empty = torch.empty(3, 4)
        empty.copy_(hidden)
    return hidden, empty, hidden.is_inference(), torch.nn.ReLU()(_hidden())


@program
def copied_and_pickled() -> Any:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    torch.nn.init.ones_(model[0].weight)  # type: ignore[arg-type]
    torch.nn.init.zeros_(model[0].bias)  # type: ignore[arg-type]
    copied = copy.deepcopy(model)
    file = io.BytesIO()
    torch.save(copied.state_dict(), file)
    file.seek(0)
    loaded = torch.load(file)
    file.seek(0)
    return (
        loaded,
        torch.load(file, map_location="meta")["0.weight"].shape,
        pickle.loads(pickle.dumps(_hidden())),  # noqa: S301
        copy.deepcopy(Loaded(_hidden())),
        copied(_hidden()),
    )


@program
def own_mode_inside() -> Any:
    with Counting() as mode, CountingFunctions() as functions:
        torch.nn.Linear(4, 4)(_hidden()).exp().sum().backward()
    return mode.names, functions.names


@program
def counted_flops() -> Any:
    from torch.utils.flop_counter import FlopCounterMode

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    with FlopCounterMode(display=False) as counter:
        model(_hidden()).sum().backward()
    return counter.get_total_flops(), str(counter.get_flop_counts())


@program
def profiled() -> Any:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        return torch.nn.ReLU()(_hidden()) @ _hidden().t()


@program
def in_threads() -> Any:
    results: dict[int, Tensor] = {}
    model = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Tanh())

    def run(number: int) -> None:
        hidden = _hidden().requires_grad_()
        model(hidden * number).sum().backward()
        results[number] = hidden.grad  # type: ignore[assignment]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[number] for number in range(4)]


@program
def generators() -> Any:
    class Tokens(torch.nn.Module):
        def forward(self, count: int) -> Iterator[Tensor]:
            for number in range(count):
                yield torch.nn.ReLU()(torch.full((2,), float(number)))

    tokens = Tokens()(3)
    first = next(tokens)
    with torch.no_grad():
        second = next(tokens)
    return first, second, list(tokens)


@program
def sparse() -> Any:
    matrix = torch.eye(4).to_sparse()
    matrix.mul_(2)
    added = (matrix + matrix).coalesce()
    rows = torch.nn.Embedding(5, 3, sparse=True)
    torch.nn.init.ones_(rows.weight)
    optimizer = torch.optim.SGD(rows.parameters(), lr=0.5)
    rows(torch.tensor([1, 1, 3])).sum().backward()
    optimizer.step()
    return (
        added.to_dense(),
        torch.sparse.mm(matrix, torch.ones(4, 2)),
        rows.weight,
        torch.eye(3).to_sparse_csr() @ torch.ones(3),
    )


@program
def odd_storages() -> Any:
    import numpy as np

    shared = _hidden().share_memory_()
    resized = torch.zeros(2)
    resized.resize_(5).fill_(3)
    resized.untyped_storage().resize_(0)
    emptied = torch.nn.Identity()(resized)
    array = np.ones(3, dtype=np.float32)
    view = torch.from_numpy(array)
    array += 1
    swapped, zeros = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.zeros(2))
    torch.utils.swap_tensors(swapped, zeros)
    tensor = torch.zeros(3)
    tensor.set_(torch.ones(6), 2, (2, 2), (1, 1))  # type: ignore[call-overload]
    return (
        shared * 2,
        tuple(emptied.shape),
        view.exp(),
        swapped,
        tensor.exp(),
        torch.empty(0).sum(),
        torch.zeros(0, 3).exp(),
    )


@program
def quantized_and_mkldnn() -> Any:
    quantized = torch.quantize_per_tensor(_hidden(), 0.1, 10, torch.quint8)
    dense = _hidden().to_mkldnn()
    return quantized.dequantize(), torch.nn.ReLU()(dense).to_dense(), torch.nn.Identity()(quantized).int_repr()


@program
def odd_dtypes() -> Any:
    hidden = _hidden()
    return (
        torch.view_as_complex(hidden.view(3, 2, 2)).conj().mul(2).imag,
        hidden.to(torch.float8_e4m3fn).float(),
        hidden > 0,
        hidden.to(torch.complex64).exp(),
        hidden.half().mul_(2),
        hidden.to(torch.uint16).to(torch.int32),
        torch.ones(2, dtype=torch.uint8).view(torch.int8),
    )


@program
def raising() -> Any:
    words = []
    for function in (
        lambda: torch.ones(2, 3) @ torch.ones(2, 3),
        lambda: torch.ones(2).set_(torch.ones(3, dtype=torch.int32)),  # type: ignore[call-overload]
        lambda: torch.nn.Linear(2, 2)(torch.ones(3)),
        lambda: torch.empty(3, device="meta").item(),
        lambda: torch._assert_async(torch.tensor(False)),
    ):
        try:
            function()
        except Exception as error:  # noqa: BLE001  what it says is compared
            words.append(f"{type(error).__name__}: {error}".splitlines()[0])
    return words


@program
def custom_ops_and_functions() -> Any:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, x: Tensor) -> Tensor:
            return x.detach().numpy() * 2 if False else x * 2

        @staticmethod
        def backward(_: Any, gradient: Tensor) -> Tensor:
            return gradient * 3

    hidden = _hidden().requires_grad_()
    Doubled.apply(hidden).sum().backward()
    return hidden.grad


@program
def gradients_of_gradients() -> Any:
    hidden = _hidden().requires_grad_()
    layer = torch.nn.Softplus()
    (first,) = torch.autograd.grad(layer(hidden).square().sum(), hidden, create_graph=True)
    first.sum().backward()
    return first, hidden.grad


@program
def hooked_and_detected() -> Any:
    hidden = _hidden().requires_grad_()
    gradients: list[Tensor] = []
    hidden.register_hook(gradients.append)
    with (
        torch.autograd.detect_anomaly(check_nan=True),
        torch.autograd.graph.saved_tensors_hooks(lambda x: x.numpy().copy(), torch.from_numpy),
    ):
        result = torch.nn.Sigmoid()(hidden).exp()
    result.sum().backward()
    return gradients, result


@program
def autocast() -> Any:
    layer = torch.nn.Linear(4, 4)
    torch.nn.init.ones_(layer.weight)
    torch.nn.init.zeros_(layer.bias)
    with torch.autocast("cpu", torch.bfloat16):
        return layer(_hidden()), torch.nn.functional.softmax(layer(_hidden()), -1)


@program
def transformer() -> Any:
    torch.manual_seed(3)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.1)
    hidden = torch.randn(2, 5, 8)
    trained = layer(hidden)
    layer.eval()
    with torch.no_grad():
        return trained, layer(hidden), torch.nn.LSTM(8, 4)(hidden), torch.rand(3)


@program
def modules_of_every_kind() -> Any:
    class Renamed(torch.nn.Module):
        def __call__(self, *args: Any) -> Any:
            return self.forward(*args)

        def forward(self, x: Any, extra: Any = None) -> Any:
            return {"x": x, "extra": extra}

    class Pairs(torch.nn.Module):
        def forward(self, *pairs: Any, **rest: Any) -> Any:
            return pairs, rest

    odd = (object(), {1: torch.ones(1)}, [None, "a"], range(3), {torch.ones(1)})
    paired = Pairs()(*odd, key=torch.ones(2), other=print)
    return Renamed()(_hidden()), len(paired[0]), paired[1]["key"]
