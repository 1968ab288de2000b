"""Both sides of a case as programs that any tool can hook: modules of torch, in order of execution. Free of moeparity.

A hidden case is two transformers models. A decoy case is the plain forward of `program.py`, a module for each node.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from benchmarks.planted import submodules
from benchmarks.planted.fix import load
from benchmarks.planted.hidden_cases import Hidden, write
from benchmarks.planted.hidden_cases import case as hidden_case
from benchmarks.planted.program import Program, Step, matches

SIDES = ("reference", "candidate")


class Node(nn.Module):
    """One step of a program under one side's settings."""

    def __init__(self, step: Step, at: Mapping[str, Any]) -> None:
        """What the step computes, and its attributes."""
        super().__init__()
        self.step, self.at = step, at

    def forward(self, *inputs: Tensor) -> Any:
        """The node's value, or a tuple of them."""
        out = self.step.run(*inputs, at=self.at)
        return out[0] if len(out) == 1 else out


class Plain(nn.Module):
    """A whole program; its submodules are named after nodes, `layers[0].moe.gate` as `layers_0.moe.gate`."""

    def __init__(self, program: Program, settings: Mapping[str, Any]) -> None:
        """One module for each step, in nested containers."""
        super().__init__()
        self.order: list[tuple[str, Node]] = []
        for step in program.steps:
            parent: nn.Module = self
            *path, last = module_of(step.node).split(".")
            for part in path:
                if part not in parent._modules:  # noqa: SLF001 - a container that grows
                    parent.add_module(part, nn.Module())
                parent = parent.get_submodule(part)
            node = Node(step, program.at(step, settings))
            parent.add_module(last, node)
            self.order.append((step.node, node))

    def forward(self, ids: Tensor) -> Tensor:
        """Logits [B, T, V]."""
        values = {"tokens": ids}
        for _, node in self.order:
            out = node(*(values[name] for name in node.step.reads))
            values.update(zip(node.step.writes, out if isinstance(out, tuple) else (out,), strict=True))
        return values["lm_head"]


class Logits(nn.Module):
    """A transformers model whose forward is the pass that every tool looks at; its submodules keep their names."""

    def __init__(self, model: Any) -> None:
        """The model itself is not one more module."""
        super().__init__()
        for name, module in model.named_children():
            self.add_module(name, module)
        self.__dict__["whole"] = model

    def forward(self, ids: Tensor) -> Tensor:
        """Logits [B, T, V]."""
        logits: Tensor = self.__dict__["whole"](ids, use_cache=False).logits
        return logits


def module_of(node: str) -> str:
    """A node's name as that of a module."""
    return node.replace("[", "_").replace("]", "")


def decoy(folder: Path) -> tuple[dict[str, nn.Module], Tensor, dict[str, tuple[str, ...]]]:
    """Both sides, the tokens, and who is to blame: module names by node."""
    case, truth = load(folder)
    program = Program(folder / "checkpoint", case.dtype)
    settings = {
        "reference": {each.key: each.reference for each in case.planted},
        "candidate": {each.key: each.candidate for each in case.planted},
    }
    blamed = {key.rpartition(":")[0] for key in truth.culprits | truth.saturated}
    nodes = {s: tuple(module_of(n.node) for n in program.steps if matches(s, n.node)) for s in blamed}
    return {side: Plain(program, side_settings) for side, side_settings in settings.items()}, tokens(folder), nodes


def hidden(case: Hidden, folder: Path) -> tuple[dict[str, nn.Module], Tensor, dict[str, tuple[str, ...]]]:
    """The same of a hidden case; the patched module is to blame."""
    if not (folder / "checkpoint").exists():
        write(case, folder)
    plain = submodules.use(folder / "checkpoint", None, "")
    patched = submodules.use(folder / "checkpoint", case.patch, case.module)
    blamed: dict[str, tuple[str, ...]] = {case.module: (case.module,)} if case.patch else {}
    return {"reference": Logits(plain), "candidate": Logits(patched)}, tokens(folder), blamed


def pair(suite: str, number: int, folder: Path) -> tuple[dict[str, nn.Module], Tensor, dict[str, tuple[str, ...]]]:
    """Both sides of a case, its tokens, and the modules to blame, by where they were planted."""
    if suite == "decoys":
        return decoy(folder / f"{number:03}")
    case = hidden_case(number)
    return hidden(case, folder / f"{number:03}")


def tokens(folder: Path) -> Tensor:
    """int64 [B, T]."""
    return load_file(folder / "tokens.safetensors")["input_ids"]


def run(module: nn.Module, ids: Tensor) -> Tensor:
    """The pass that every tool looks at."""
    with torch.no_grad():
        logits: Tensor = module(ids)
    return logits
