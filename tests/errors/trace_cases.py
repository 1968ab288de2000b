"""Traces that can't be a side of a recipe, each for the base checkpoint; written when they are run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file

from moeparity.evidence.trace.records import Head
from moeparity.evidence.trace.writer import TraceWriter
from moeparity.inputs.model import Model, open_model
from tests.errors.base import BASE, TOKENS
from tests.evidence.written import written

Defect = Callable[[Path, Model, torch.Tensor], object]


def _zeros(_: str, tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.dtype == torch.int64 else torch.zeros_like(tensor)


def _last_logits(place: str, tensor: torch.Tensor) -> torch.Tensor:
    return tensor[:, -1:] if place == "lm_head output" else tensor


def _digests(_: str, tensor: torch.Tensor) -> torch.Tensor | None:
    return tensor if tensor.dtype == torch.int64 and tensor.dim() == 2 else None


def _no_ids(place: str, tensor: torch.Tensor) -> torch.Tensor | None:
    return None if place == "model.embed_tokens input" else tensor


def _narrow(place: str, tensor: torch.Tensor) -> torch.Tensor:
    return tensor[..., :-2] if place.startswith("model.layers.1.post_attention_layernorm") else tensor


def _half_rotated(place: str, tensor: torch.Tensor) -> torch.Tensor:
    return tensor[..., : tensor.shape[-1] // 2] if place.startswith("model.rotary_emb") else tensor


def _no_modules(folder: Path, *_: object) -> None:
    TraceWriter(folder, Head(made_by="tests", levels=("op",))).close()


def _two_ranks(folder: Path, model: Model, ids: torch.Tensor) -> None:
    for rank in range(2):
        written(folder, model, ids, rank=rank, ranks=2)


def _newer(folder: Path, model: Model, ids: torch.Tensor) -> None:
    head = written(folder, model, ids) / "rank-0" / "head.json"
    head.write_text(json.dumps({**json.loads(head.read_text()), "schema": "moeparity.trace/9"}))


def _other_weights(folder: Path, model: Model, ids: torch.Tensor) -> None:
    """Ops that read other norms' weights than the checkpoint has."""
    written(folder, model, ids, whole=False)
    lines = []
    for number, path in enumerate(("model.layers.0.input_layernorm", "model.norm"), 10_000):
        lines.append({"e": "value", "id": number, "dtype": "bfloat16", "shape": [16], "digest": "0" * 16})
        lines.append(
            {"e": "call", "id": number, "level": "op", "name": "aten.mul", "path": path, "inputs": {"0": number}}
        )
    with (folder / "rank-0" / "events.jsonl").open("a") as events:
        events.writelines(json.dumps(line) + "\n" for line in lines)


def _other_batch(folder: Path, model: Model, ids: torch.Tensor) -> None:
    """A server's step that says of more rows than its forward has."""
    written(folder, model, ids)
    line = {"e": "batch", "step": 0, "requests": ["a"], "starts": [0], "tokens": [ids.numel() + 1], "padding": 0}
    with (folder / "rank-0" / "events.jsonl").open("a") as events:
        events.write(json.dumps(line) + "\n")


DEFECTS: dict[str, tuple[Defect, str]] = {
    "trace-empty-folder": (lambda folder, *_: folder.mkdir(), ""),
    "trace-of-another-version": (_newer, ""),
    "trace-of-two-ranks": (_two_ranks, ""),
    "trace-of-other-tokens": (lambda f, m, ids: written(f, m, (ids + 1) % 32), ""),
    "trace-of-another-model": (lambda f, m, i: written(f, m, i, further=("model.layers.0.mlp.gate_proj",)), ""),
    "trace-of-more-layers": (lambda f, m, i: written(f, m, i, further=("model.layers.2.input_layernorm",)), ""),
    "trace-of-another-width": (lambda f, m, i: written(f, m, i, change=_narrow), ""),
    "trace-of-a-narrower-rotation": (lambda f, m, i: written(f, m, i[:1], change=_half_rotated), ""),
    "trace-all-zero": (lambda f, m, i: written(f, m, i, change=_zeros), ""),
    "trace-of-last-logits": (lambda f, m, i: written(f, m, i, change=_last_logits), ""),
    "trace-of-digests-alone": (lambda f, m, i: written(f, m, i, change=_digests), ""),
    "trace-of-other-weights": (_other_weights, ""),
    "trace-with-rows-of-other-tokens": (_other_batch, ""),
    "trace-without-modules": (_no_modules, ""),
    "trace-without-ids": (lambda f, m, i: written(f, m, i, change=_no_ids), ""),
    "trace-of-no-known-program": (lambda f, m, i: written(f, m, i, name="Table"), ""),
    "trace-of-no-forward": (written, "map: ./no-forward.yaml"),
    "trace-map-unknown": (written, "map: transfomers"),
    "trace-map-file-missing": (written, "map: ./mine.yaml"),
    "trace-map-of-no-value": (written, "map: ./no-value.yaml"),
    "trace-map-columns-without-itself": (written, "map: ./without-itself.yaml"),
    "trace-map-columns-of-no-width": (written, "map: ./no-width.yaml"),
    "trace-map-of-neither-side": (written, "map: ./neither.yaml"),
}

MAP = """kind: map
program: mine
tokens: {{module: {}, input: 0}}
values:
"""
MAPS = {
    "no-forward": "  embed: {module: model.embed_tokens, output: 0}\n",
    "no-value": '  "layers[*].moe.gates": {module: "model.layers.{i}.mlp.gate", output: 0}\n',
    "without-itself": "  embed: {module: model.embed_tokens, output: 0, columns: [lm_head]}\n",
    "no-width": "  lm_head: {module: lm_head, output: 0, columns: [norm, lm_head]}\n",
    "neither": "  embed: {module: model.embed_tokens}\n",
}


COMMANDS: dict[str, tuple[str, ...]] = {
    "trace-under-variance": ("variance",),
    "trace-under-over": ("sweep", "--over", "layers[*].moe.gate:output=model,fp32"),
}
"""Commands that no trace can be given to."""
DEFECTS |= dict.fromkeys(COMMANDS, (written, ""))


def command(name: str, tmp: Path) -> tuple[str | Path, ...]:
    """The command line that meets a defect."""
    first, *further = COMMANDS.get(name, ("bisect",))
    return (first, recipe(name, tmp), *further, "--device", "cpu")


def recipe(name: str, tmp: Path) -> Path:
    """The recipe that meets a defect, with its trace and maps beside it."""
    defect, further = DEFECTS[name]
    shutil.copy(BASE / TOKENS, tmp / TOKENS)
    ids = load_file(BASE / TOKENS)["input_ids"]
    defect(tmp / "trace", open_model(BASE, device="cpu"), ids)
    for map_name, lines in MAPS.items():
        (tmp / f"{map_name}.yaml").write_text(
            MAP.format("model.embed" + "_tokens" * (map_name != "no-forward")) + lines, "utf-8"
        )
    text = (BASE / "recipe.yaml").read_text("utf-8").replace("checkpoint: .", f"checkpoint: {BASE}")
    path = tmp / "recipe.yaml"
    path.write_text(text.replace("{profile: hf-default}", f"{{trace: trace{', ' * bool(further)}{further}}}"), "utf-8")
    return path
