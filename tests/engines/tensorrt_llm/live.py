"""A method of TensorRT-LLM's linear layers and one of its sampler's, on CPU, run by test_functions.py.

Their files import the whole engine and its C++. Their classes are run by themselves, on names of torch alone, as they
stand in the files.
"""

from __future__ import annotations

import ast
from types import SimpleNamespace
from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.engines.live import FOLDER, answer
from tests.engines.tensorrt_llm.functions import LINEAR, SAMPLER

_EAGER = SimpleNamespace(
    **{name: getattr(torch, name) for name in ("Tensor", "nn", "_dynamo")},
    compile=lambda **_: lambda function: function,
)
"""torch, whose `compile` leaves functions as they are."""


class _Base:
    """In place of a base class that is not had."""


def _class_of(file: str, name: str, keep: tuple[str, ...], **names: Any) -> Any:
    """A class of a file of TensorRT-LLM with the methods `keep` of it, made with these names alone."""
    tree = ast.parse((FOLDER / "tensorrt-llm" / file).read_text("utf-8"))
    (class_node,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    class_node.body = [node for node in class_node.body if isinstance(node, ast.FunctionDef) and node.name in keep]
    assert {node.name for node in class_node.body if isinstance(node, ast.FunctionDef)} == set(keep)
    exec(compile(ast.Module([class_node], []), file, "exec"), names)  # noqa: S102 (of files that someone put there)
    return names[name]


LINEAR_METHOD = _class_of(
    LINEAR, "UnquantizedLinearMethod", ("apply",),
    LinearMethodBase=_Base, Linear=_Base, BufferKind=SimpleNamespace(DEFAULT=0), Optional=Optional, List=list,
    torch=torch, F=F,
)  # fmt: skip
FUSIONS = _class_of(SAMPLER, "Fusions", ("_gather_log_softmax_impl", "gather_log_softmax"), torch=_EAGER)


def linear(x: Tensor, weight: Tensor) -> dict[str, Tensor]:
    """x [T, H], weight [N, H]."""
    module = SimpleNamespace(use_custom_cublas_mm=False, weight=weight)
    return {"output": LINEAR_METHOD().apply(module, x, None)}


def log_probs(x: Tensor, temperature: float) -> dict[str, Tensor]:
    """Of all rows of logits x [T, V], which it is handed as they are."""
    assert temperature == 1
    return {"output": FUSIONS.gather_log_softmax(x, torch.arange(len(x)))}


if __name__ == "__main__":
    answer({"linear": linear, "log_probs": log_probs})
