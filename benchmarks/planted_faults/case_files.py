"""What a user would write for a case: a module of functions, a token file and a recipe; JSON is YAML."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from benchmarks.planted_faults.cases import Case, Function
from benchmarks.planted_faults.conditions import PROFILE

HEAD = '''"""Functions of one planted case."""

from functools import partial

from benchmarks.planted_faults import plain, regions, spoilt

'''
MOST = 6
"""With so many differences at most their shares are asked for as well."""


def write(
    case: Case, folder: Path, checkpoint: Path, tokens: Mapping[str, Tensor], settings: Mapping[str, Any] | None = None
) -> Path:
    """The recipe of a case, with its tokens and its functions beside it. `settings` go on top of the candidate's."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({key: value.contiguous() for key, value in tokens.items()}, folder / "tokens.safetensors")
    merged = _merged(case.functions)
    module = _module([text for text, _ in merged], folder)
    impl = [{"nodes": nodes, "call": f"{module}:f{i}"} for i, nodes in enumerate(merged.values())]
    ours, theirs = ({"profile": PROFILE, "micro_batch": size} for size in case.batches)
    recipe = {
        "kind": "recipe",
        "checkpoint": str(checkpoint),
        "tokens": {"file": "tokens.safetensors", "sampled_from": "candidate"},
        "reference": ours,
        "candidate": {**theirs, "set": {**case.benign, **case.semantic, **(settings or {})}, "impl": impl},
        "gate": {"metric": "k3", "below": 1e-4},
        "floor": False,
        "attribute": len(merged) + len(case.benign) + len(case.semantic) <= MOST,
    }
    path = folder / "recipe.yaml"
    path.write_text(json.dumps(recipe, indent=1), "utf-8")
    return path


def without(case: Case, functions: Sequence[Function], semantic: Sequence[str] = ()) -> Case:
    """A case less some of its functions and settings."""
    rest = {address: value for address, value in case.semantic.items() if address not in semantic}
    return replace(case, functions=tuple(f for f in case.functions if f not in functions), semantic=rest)


def toggle_of(function: Function, case: Case) -> str:
    """The name of the toggle that a function is moved by, as its recipe asks for it."""
    return f"{', '.join(_merged(case.functions)[_entry(function)])}:impl"


def _entry(function: Function) -> tuple[str, str]:
    """Functions of one text at the same node of other layers are one entry of a recipe; two in a layer are not."""
    return function.text, re.sub(r"\[\d+\]", "[*]", function.node)


def _merged(functions: Sequence[Function]) -> dict[tuple[str, str], list[str]]:
    """The entries of a recipe, each with its nodes."""
    merged: dict[tuple[str, str], list[str]] = {}
    for function in functions:
        merged.setdefault(_entry(function), []).extend(function.nodes)
    return merged


def _module(texts: Sequence[str], folder: Path) -> str:
    """The module's name, which no other text has: a process imports it once, from wherever it was first."""
    body = HEAD + "".join(f"f{i} = {text}\n" for i, text in enumerate(texts))
    name = f"case_{hashlib.sha256(body.encode()).hexdigest()[:12]}"
    (folder / f"{name}.py").write_text(body, "utf-8")
    return name
