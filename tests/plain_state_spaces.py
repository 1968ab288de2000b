"""The layers of models with state spaces as their papers write them, in numpy's fp64, a token and a head at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Linear = Callable[[Array, str], Array]


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def convolved(x: Array, taps: Array) -> Array:
    """x [T, C], each channel by itself over its last few tokens; taps [C, n]."""
    before = np.pad(x, ((taps.shape[1] - 1, 0), (0, 0)))
    return sum((before[i : i + len(x)] * taps[:, i] for i in range(taps.shape[1])), np.zeros_like(x))


def rms(x: Array, eps: float) -> Array:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)


def gated_convolution(x: Array, at: str, w: Mapping[str, Array], linear: Linear) -> Array:
    """LFM2's: x [T, hidden] -> [T, hidden], a convolution of one product, and another product with it."""
    b, c, u = np.split(linear(x, at + "in_proj"), 3, -1)
    mixed = convolved(b * u, w[at + "conv.weight"][:, 0]) + w.get(at + "conv.bias", 0.0)
    return linear(c * mixed, at + "out_proj")


def mamba2(x: Array, at: str, w: Mapping[str, Array], linear: Linear, groups: int, eps: float, floor: float) -> Array:
    """Mamba 2: x [T, hidden] -> [T, hidden]; dt is at least `floor`."""
    heads, width = len(w[at + "A_log"]), len(w[at + "norm.weight"])
    gate, xbc, dt = np.split(linear(x, at + "in_proj"), [width, -heads], -1)
    xbc = silu(convolved(xbc, w[at + "conv1d.weight"][:, 0]) + w.get(at + "conv1d.bias", 0.0))
    states = (xbc.shape[1] - width) // 2
    u, b, c = np.split(xbc, [width, width + states], -1)
    u, b, c = u.reshape(len(x), heads, -1), b.reshape(len(x), groups, -1), c.reshape(len(x), groups, -1)
    dt = np.maximum(np.log1p(np.exp(dt + w[at + "dt_bias"])), floor)
    out = np.zeros_like(u)
    for h in range(heads):
        state, group = np.zeros((u.shape[2], b.shape[2])), h * groups // heads
        for t in range(len(x)):
            decay = np.exp(-np.exp(w[at + "A_log"][h]) * dt[t, h])
            state = decay * state + dt[t, h] * np.outer(u[t, h], b[t, group])
            out[t, h] = state @ c[t, group] + w[at + "D"][h] * u[t, h]
    gated = (out.reshape(len(x), -1) * silu(gate)).reshape(len(x), groups, -1)
    return linear(rms(gated, eps).reshape(len(x), -1) * w[at + "norm.weight"], at + "out_proj")


def mamba1(x: Array, at: str, w: Mapping[str, Array], linear: Linear, eps: float) -> Array:
    """Mamba 1 with Jamba's three norms: x [T, hidden] -> [T, hidden]."""
    u, gate = np.split(linear(x, at + "in_proj"), 2, -1)
    u = silu(convolved(u, w[at + "conv1d.weight"][:, 0]) + w.get(at + "conv1d.bias", 0.0))
    states = w[at + "A_log"].shape[1]
    rates = linear(u, at + "x_proj")
    dt, b, c = (
        rms(part, eps) * w[f"{at}{name}_layernorm.weight"]
        for name, part in zip(("dt", "b", "c"), np.split(rates, [-2 * states, -states], -1), strict=True)
    )
    dt = np.log1p(np.exp(linear(dt, at + "dt_proj")))
    state, rows = np.zeros_like(w[at + "A_log"]), []
    for t in range(len(x)):
        state = np.exp(-np.exp(w[at + "A_log"]) * dt[t, :, None]) * state + np.outer(dt[t] * u[t], b[t])
        rows.append(state @ c[t] + w[at + "D"] * u[t])
    return linear(np.stack(rows) * silu(gate), at + "out_proj")


def nemotron_h(plain: Any, ids: list[int]) -> Array:
    """Logits [T, vocab] of one sequence; `plain` is a checkpoint of a Nemotron-H."""
    w, c, eps = plain.weights, plain.config, plain.config["layer_norm_epsilon"]

    def mlp(x: Array, at: str) -> Array:
        down: Array = plain._linear(np.maximum(plain._linear(x, at + "up_proj"), 0) ** 2, at + "down_proj")
        return down

    def moe(x: Array, at: str) -> Array:
        has_latents = at + "fc1_latent_proj.weight" in w
        low = plain._linear(x, at + "fc1_latent_proj") if has_latents else x
        out = np.zeros_like(low)
        for t in range(len(x)):
            logits = plain._linear(x[t], at + "gate")
            for expert, weight in plain._sigmoid_route(logits, w[at + "gate.e_score_correction_bias"]).items():
                out[t] += weight * mlp(low[t], f"{at}experts.{expert}.")
        out = plain._linear(out, at + "fc2_latent_proj") if has_latents else out
        return out + mlp(x, at + "shared_experts.")

    x = w["backbone.embeddings.weight"][ids]
    for i, kind in enumerate(c["layers_block_type"]):
        at = f"backbone.layers.{i}."
        normed, at = rms(x, eps) * w[at + "norm.weight"], at + "mixer."
        if kind == "linear_attention":
            x = x + mamba2(normed, at, w, plain._linear, c["n_groups"], eps, c["time_step_min"])
        else:
            x = x + (
                plain._gqa(normed, at, None)
                if kind == "full_attention"
                else (moe if kind == "moe" else mlp)(normed, at)
            )
    logits: Array = (rms(x, eps) * w["backbone.norm_f.weight"]) @ w["lm_head.weight"].T
    return logits
