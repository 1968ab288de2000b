"""Modules that hold tensors made of weights as the issues named hold them; each can make them anew, or forget to."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

HEADS, NOPE, VALUE, RANK, HIDDEN, EXPERTS, WIDTH = 4, 16, 24, 32, 64, 4, 48
WORKSPACES: dict[int, torch.Tensor] = {}


def weight(*shape: int, dtype: torch.dtype = torch.bfloat16) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape).to(dtype), requires_grad=False)


class Holder(nn.Module):
    """A module with weights, and what it makes of them by `make`."""

    names: tuple[str, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self.build()
        with torch.no_grad():
            self.make()

    def build(self) -> None: ...
    def make(self) -> None: ...

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Mla(Holder):
    """vLLM #48312, #48251: W_UV and W_UK_T are made of kv_b_proj when weights were loaded."""

    def build(self) -> None:
        self.kv_b_proj = nn.Linear(RANK, HEADS * (NOPE + VALUE), bias=False, dtype=torch.bfloat16)

    def make(self) -> None:
        parts = self.kv_b_proj.weight.T.view(RANK, HEADS, NOPE + VALUE)
        keys, values = parts.split([NOPE, VALUE], dim=-1)
        self.W_UV = values.transpose(0, 1).contiguous()
        self.W_UK_T = keys.permute(1, 2, 0).contiguous()


class RegisteredMla(Mla):
    """vLLM 0.32.0, `replace_parameter`: the same two as parameters of the attention beside kv_b_proj."""

    def make(self) -> None:
        parts = self.kv_b_proj.weight.T.view(RANK, HEADS, NOPE + VALUE)
        keys, values = parts.split([NOPE, VALUE], dim=-1)
        self.attn = nn.Module()
        self.attn.W_UV = nn.Parameter(values.transpose(0, 1).contiguous(), requires_grad=False)
        self.attn.W_UK_T = nn.Parameter(keys.permute(1, 2, 0).contiguous(), requires_grad=False)


class GateUp(Holder):
    """SkyRL #1680 and kin: gate and up packed into one beside the two that are loaded."""

    def build(self) -> None:
        self.gate_proj, self.up_proj = weight(WIDTH, HIDDEN), weight(WIDTH, HIDDEN)

    def make(self) -> None:
        self.gate_up = torch.cat([self.gate_proj, self.up_proj])


class Router(Holder):
    """A router's weight, transposed for a kernel, and in fp32 for another."""

    def build(self) -> None:
        self.gate = nn.Linear(HIDDEN, EXPERTS, bias=False, dtype=torch.bfloat16)

    def make(self) -> None:
        self.weight_t = self.gate.weight.T.contiguous()


class QuantMethod:
    """A helper object, as vLLM's `quant_method` is one."""

    def __init__(self) -> None:
        self.scale: torch.Tensor | None = None
        self.values: torch.Tensor | None = None
        self.owner: Any = None


class Fp8(Holder):
    """vLLM #41670, #48312: scales (and values) of fp8 on a helper object, weights in bf16 on the layer."""

    block = False

    def build(self) -> None:
        self.weight = weight(256, 256)
        self.quant_method = QuantMethod()
        self.quant_method.owner = self

    def make(self) -> None:
        values = self.weight.float()
        if self.block:
            self.quant_method.scale = values.view(2, 128, 2, 128).abs().amax((1, 3)) / 448.0
            return
        self.quant_method.scale = values.abs().max() / 448.0
        self.quant_method.values = (values / self.quant_method.scale).clamp(-448, 448).to(torch.float8_e4m3fn)


class BlockFp8(Fp8):
    block = True


class Rotary(Holder):
    """vLLM's rotary embedding: a cache of cos and sin of a base that an update of the configuration changes."""

    def build(self) -> None:
        self.base, self.rotary_dim = 10000.0, 32

    def make(self) -> None:
        frequencies = 1.0 / (self.base ** (torch.arange(0, self.rotary_dim, 2, dtype=torch.float) / self.rotary_dim))
        angles = torch.einsum("i,j -> ij", torch.arange(128, dtype=torch.float), frequencies)
        self.register_buffer("cos_sin_cache", torch.cat((angles.cos(), angles.sin()), -1), persistent=False)


class RotaryOfBuffer(Holder):
    """transformers' older form: cos and sin as attributes, of a buffer of frequencies."""

    def build(self) -> None:
        self.register_buffer("inv_freq", 1.0 / (10000.0 ** (torch.arange(0, 32, 2).float() / 32)), persistent=False)

    def make(self) -> None:
        angles = torch.outer(torch.arange(64).float(), self.get_buffer("inv_freq"))
        angles = torch.cat((angles, angles), -1)
        self.cached = (angles.cos().bfloat16(), angles.sin().bfloat16())


class Closure(Holder):
    def build(self) -> None:
        self.down_proj = weight(HIDDEN, WIDTH)

    def make(self) -> None:
        packed = self.down_proj.T.contiguous()

        def kernel(x: torch.Tensor) -> torch.Tensor:
            return x @ packed

        self.kernel = kernel


class Partial(Holder):
    def build(self) -> None:
        self.down_proj = weight(HIDDEN, WIDTH)

    def make(self) -> None:
        self.kernel = functools.partial(torch.mm, mat2=self.down_proj.T.contiguous())


class Hook(Holder):
    def build(self) -> None:
        self.bias = weight(HIDDEN, dtype=torch.float32)

    def make(self) -> None:
        bias = self.bias.double()

        def add(module: nn.Module, args: Any, output: torch.Tensor, bias: torch.Tensor = bias) -> torch.Tensor:
            return output + bias

        self._forward_hooks[0] = add


class Dictionary(Holder):
    """Buffers for kernels by name, as FlashInfer's plans keep them."""

    def build(self) -> None:
        self.sinks = weight(HEADS * 4)

    def make(self) -> None:
        self.runtime = {"sinks": {0: self.sinks.float()}, 3: "none"}


class Expert:
    __slots__ = ("scale", "unset", "w1")

    def __init__(self, w1: torch.Tensor) -> None:
        self.w1, self.scale = w1, 1.0


class Listed(Holder):
    """vLLM #50538: objects of experts, each with runtime tensors of its own."""

    def build(self) -> None:
        self.w1 = weight(EXPERTS, WIDTH, HIDDEN)

    def make(self) -> None:
        self.experts = [Expert(w.T.contiguous()) for w in self.w1]


class CUDAGraph:
    """A stand-in for torch's: this machine has no GPU."""


class StaticInputs(Holder):
    """What a captured graph reads: copies that somebody has to fill before it is replayed."""

    def build(self) -> None:
        self.weight = weight(HIDDEN, HIDDEN)

    def make(self) -> None:
        self.runner = SimpleNamespace(graph=object(), static=[self.weight.detach().clone()])


class Alias(Holder):
    """vLLM #48251: what was captured is the weight's own storage, until the weight gets another."""

    def build(self) -> None:
        self.weight = weight(HIDDEN, HIDDEN)

    def make(self) -> None:
        self.runner = SimpleNamespace(static={"weight": self.weight.detach()})


class Lora(Holder):
    """An adapter merged into a copy of its base."""

    def build(self) -> None:
        self.weight = weight(HIDDEN, WIDTH, dtype=torch.float32)
        self.lora_A, self.lora_B = weight(8, WIDTH, dtype=torch.float32), weight(HIDDEN, 8, dtype=torch.float32)
        self.scaling = {"default": 2.0}

    def make(self) -> None:
        self.merged = self.weight + (self.lora_B @ self.lora_A) * self.scaling["default"]


class ExpertStack(Holder):
    """Experts as modules, and one tensor of all for a grouped GEMM."""

    def build(self) -> None:
        self.experts = nn.ModuleList([nn.Linear(HIDDEN, WIDTH, bias=False) for _ in range(EXPERTS)])

    def make(self) -> None:
        self.stack = torch.stack([expert.get_parameter("weight").detach() for expert in self.experts])


class PaddedExperts(ExpertStack):
    """The same, padded with zeros to whole groups."""

    def make(self) -> None:
        self.stack = nn.functional.pad(
            torch.stack([expert.get_parameter("weight").detach() for expert in self.experts]), (0, 0, 0, 16)
        )


class TiedHead(Holder):
    """A head's copy of the embedding, in fp32."""

    def build(self) -> None:
        self.embed_tokens = nn.Embedding(96, HIDDEN, dtype=torch.bfloat16)

    def make(self) -> None:
        self.head_weight = self.embed_tokens.weight.detach().float()


class Mamba(Holder):
    """prime-rl #2714: A and D of Mamba's mixer, expanded for the kernel."""

    def build(self) -> None:
        self.A_log, self.D = weight(16, dtype=torch.float32), weight(16, dtype=torch.float32)

    def make(self) -> None:
        self.A = -torch.exp(self.A_log.float())
        self.D_kernel = self.D[:, None].expand(16, 64).contiguous()


class Shuffled(Holder):
    """vLLM #48438, #50538: a kernel's own order of a packed weight."""

    def build(self) -> None:
        self.qweight = nn.Parameter(torch.randint(-(2**31), 2**31, (16, 64), dtype=torch.int32), requires_grad=False)

    def make(self) -> None:
        order = torch.randperm(16 * 64, generator=torch.Generator().manual_seed(1))
        self.repacked = self.qweight.flatten()[order].view(32, 32)


@dataclass(slots=True)
class QuantConfig:
    """vLLM #41670: `moe_quant_config`, whose scales are those of the layer."""

    w1: torch.Tensor
    w2: tuple[torch.Tensor, ...]


class Configured(Holder):
    def build(self) -> None:
        self.w13_scale, self.w2_scale = (weight(EXPERTS, 2, 8, dtype=torch.float32) for _ in range(2))

    def make(self) -> None:
        self.config = QuantConfig(self.w13_scale.transpose(1, 2).contiguous(), (self.w2_scale.clone(),))


class GlobalWorkspace(Holder):
    """A kernel's workspace of a module of Python."""

    def build(self) -> None:
        self.weight = weight(HIDDEN, WIDTH)

    def make(self) -> None:
        WORKSPACES[0] = self.weight.T.contiguous()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ WORKSPACES[0]


class Buffered(Holder):
    def build(self) -> None:
        self.norm = weight(HIDDEN)

    def make(self) -> None:
        self.register_buffer("shifted", 1.0 + self.norm.float(), persistent=False)


@dataclass(frozen=True)
class Case:
    """A module, the tensors that it makes, and of which weights each is made."""

    name: str
    build: Callable[[], Holder]
    derived: dict[str, tuple[str, ...]]


KV, STACK = ("kv_b_proj.weight",), tuple(f"experts.{number}.weight" for number in range(EXPERTS))
CASES = (
    Case("MLA's W_UV and W_UK_T", Mla, {"W_UV": KV, "W_UK_T": KV}),
    Case("the same as parameters", RegisteredMla, {"attn.W_UV": KV, "attn.W_UK_T": KV}),
    Case("gate and up packed", GateUp, {"gate_up": ("gate_proj", "up_proj")}),
    Case("a transposed router", Router, {"weight_t": ("gate.weight",)}),
    Case("fp8 values and their scale", Fp8, {"quant_method.scale": ("weight",), "quant_method.values": ("weight",)}),
    Case("fp8 scales of blocks", BlockFp8, {"quant_method.scale": ("weight",)}),
    Case("cos and sin of a base", Rotary, {"cos_sin_cache": ("base",)}),
    Case("cos and sin of frequencies", RotaryOfBuffer, {"cached[0]": ("inv_freq",), "cached[1]": ("inv_freq",)}),
    Case("a closure", Closure, {"kernel.closure[packed]": ("down_proj",)}),
    Case("a partial", Partial, {"kernel.keywords[mat2]": ("down_proj",)}),
    Case("a hook's default", Hook, {"HOOK": ("bias",)}),
    Case("a dictionary", Dictionary, {"runtime[sinks][0]": ("sinks",)}),
    Case("objects in a list", Listed, {f"experts[{number}].w1": ("w1",) for number in range(EXPERTS)}),
    Case("a captured graph's inputs", StaticInputs, {"runner.static[0]": ("weight",)}),
    Case("a merged adapter", Lora, {"merged": ("weight", "lora_A", "lora_B", "scaling[default]")}),
    Case("a stack of experts", ExpertStack, {"stack": STACK}),
    Case("a padded stack of experts", PaddedExperts, {"stack": STACK}),
    Case("a head's copy of the embedding", TiedHead, {"head_weight": ("embed_tokens.weight",)}),
    Case("Mamba's A and D", Mamba, {"A": ("A_log",), "D_kernel": ("D",)}),
    Case("a kernel's own order", Shuffled, {"repacked": ("qweight",)}),
    Case("scales of a configuration", Configured, {"config.w1": ("w13_scale",), "config.w2[0]": ("w2_scale",)}),
    Case("a workspace of a module", GlobalWorkspace, {"GLOBAL": ("weight",)}),
    Case("a buffer of a norm", Buffered, {"shifted": ("norm",)}),
)
