"""Users' functions that compute what an op's kernel does under other choices, or what none of them gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from moeparity.bisection.nearest.data import Nearest
from moeparity.bisection.options import Options
from moeparity.bisection.pipeline import bisect
from moeparity.bisection.report import Report
from moeparity.errors import Where
from moeparity.inputs.model import open_model
from moeparity.plan.bind import bind
from moeparity.plan.engine_profile import load_profile
from tests.planted.places import random_tokens, write_recipe

CODE = '''
import torch
import torch.nn.functional as F

from moeparity.ops.registry import OPS

SETTINGS = {settings!r}
seen = dict[bytes, int]()


def chosen(*inputs, node):
    """The op's kernel, in the layers that are named under other settings; a parameter in the place of the model's."""
    op, base, layers = SETTINGS["op"], SETTINGS["base"], SETTINGS["layers"]
    values = layers.get(str(node.layer), {{}})
    params = dict(node.params[node.name.rpartition(".")[2]])
    params |= {{name: value for name, value in values.items() if name in params and name not in base}}
    if "rope_theta" in values:
        params["rope"] = {{**params["rope"], "rope_theta": values["rope_theta"]}}
    at = OPS[op].settings({{**base, **values}})
    weights = {{name.partition(".")[2]: tensor for name, tensor in node.weights.items()}}
    return OPS[op].load()(*inputs, w=weights, p=params, at=at)


def rms(x, node, wide=False):
    rows = x.float()
    rows = rows * torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + 1e-6)
    weight = node.weights["norm.weight"]
    return (rows * weight.float()).to(x.dtype) if wide else weight * rows.to(x.dtype)


def untouched(x, *, node):
    return rms(x, node)


def in_steps_of_one(x, *, node):
    """An eps of its own; in steps of one token the normalized row is not rounded."""
    rows = x.float()
    rows = rows * torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + 0.0013)
    weight = node.weights["norm.weight"]
    return (rows * weight.float()).to(x.dtype) if x.shape[1] == 1 else weight * rows.to(x.dtype)


def by_mean_of_sizes(x, *, node):
    rows = x.float()
    return node.weights["norm.weight"] * (rows / (rows.abs().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def one_token(x, *, node):
    out = rms(x, node).clone()
    out[:, 3] = rms(x, node, wide=True)[:, 3]
    return out


def later_batches(x, *, node):
    """Another choice on all inputs but the first two that it is called on in layer 1, on equal ones always the same."""
    number = seen.setdefault(x.float().numpy().tobytes(), len(seen)) if node.layer == 1 else 0
    return rms(x, node, wide=number >= 2)


def not_finite(x, *, node):
    out = rms(x, node, wide=True).clone()
    out[..., 0], out[0, 0, 1] = float("inf"), float("nan")
    return out


def one_expert(x, ids, weights, *, node):
    up, down = node.weights["experts.gate_up"], node.weights["experts.down"]
    flat, picked = x.flatten(0, 1), ids.flatten(0, 1)
    out = torch.zeros(*picked.shape, flat.shape[1], dtype=x.dtype)
    for expert in range(len(up)):
        token, slot = torch.where(picked == expert)
        gate, wide = F.linear(flat[token], up[expert]).chunk(2, -1)
        product = F.silu(gate) * wide if expert != 5 else (F.silu(gate.float()) * wide.float()).to(x.dtype)
        out[token, slot] = F.linear(product, down[expert])
    return out.view(*ids.shape, -1)


def block(x, ids, weights, *, node):
    """Experts and their sum, as a loop that adds in fp32, and an activation that is not rounded."""
    up, down = node.weights["experts.gate_up"], node.weights["experts.down"]
    flat, picked, out = x.flatten(0, 1), ids.flatten(0, 1), torch.zeros_like(x.flatten(0, 1), dtype=torch.float32)
    for expert in range(len(up)):
        slot, token = torch.where(picked.t() == expert)
        gate, wide = F.linear(flat[token], up[expert]).chunk(2, -1)
        rows = F.linear((F.silu(gate.float()) * wide.float()).to(x.dtype), down[expert])
        out.index_add_(0, token, (rows * weights.flatten(0, 1)[token, slot, None]).float())
    return out.to(x.dtype).view(x.shape)


def halves(x, *, node):
    weight = node.weights["o_proj.weight"]
    half = weight.shape[1] // 2
    return F.linear(x[..., :half], weight[:, :half]) + F.linear(x[..., half:], weight[:, half:])


def tempered(x, *, node):
    return F.linear(x, node.weights["lm_head.weight"]) / 0.83


def log_probs(x, *, node):
    return F.linear(x, node.weights["lm_head.weight"]).float().log_softmax(-1)
'''


def report_of(
    folder: Path,
    checkpoint: Path,
    function: str,
    nodes: Any,
    *,
    settings: dict[str, Any] | None = None,
    shape: tuple[int, int] = (4, 12),
    micro_batch: int = 2,
    side: str = "candidate",
    reference: dict[str, Any] | None = None,
    mask: torch.Tensor | None = None,
    schedule: dict[str, Any] | None = None,
) -> Report:
    """The report of a recipe whose one side runs a function of `CODE` in place of some nodes."""
    module = f"plants_{folder.name}_{abs(hash(str(folder)))}"
    (folder / f"{module}.py").write_text(CODE.format(settings=settings or {}), "utf-8")
    steps = {"micro_batch": micro_batch} if schedule is None else {"schedule": schedule}
    sides: dict[str, dict[str, Any]] = {name: dict(steps) for name in ("reference", "candidate")}
    sides["reference"] |= reference or {}
    sides[side]["impl"] = [{"nodes": nodes, "call": f"{module}:{function}"}]
    tokens = {"input_ids": random_tokens(*shape)} | ({} if mask is None else {"attention_mask": mask})
    path = write_recipe(folder, checkpoint, tokens, sides["reference"], sides["candidate"])
    return bisect(path, device="cpu", options=Options(allow_code=True))


def chosen_layers(checkpoint: Path, nodes: str, layers: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What `chosen` needs to compute as hf-eager does, but for these values of some layers; `nodes` with `[*]`."""
    model = open_model(checkpoint, device="cpu")
    plan = bind(model.graph, load_profile("hf-eager", Where(Path("test"))), model.dtype)
    node = next(node for node in model.graph.nodes if node.name == nodes.replace("*", "1"))
    values = {a.name: plan.resolved(node.name, plan.settings[node.name, a.name].value) for a in node.attributes}
    return {"op": node.op.name, "base": {**plan.told_to(node), **values}, "layers": layers}


def plainest(answer: Nearest) -> dict[str, str]:
    """The plainest exact answer as attribute -> value; empty where none of those tried is."""
    choices = answer.found[0].choices if answer.explained else ()
    return dict(choice.rpartition(":")[2].split("=", 1) for choice in choices)
