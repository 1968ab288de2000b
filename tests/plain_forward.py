"""Every shipped model as its paper writes it, in numpy's fp64, one sequence and one token's experts at a time.

Shares no code with moeparity and none with transformers: no caches, no fused weights, no masks added to scores.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.torch import load_file

Array = npt.NDArray[np.float64]


class Plain:
    """A checkpoint folder read into fp64; `logits` runs it."""

    def __init__(self, folder: Path) -> None:
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text("utf-8"))
        self.weights = {k: v.double().numpy() for k, v in load_file(folder / "model.safetensors").items()}

    def logits(self, ids: list[int]) -> Array:
        """[T, vocab] of one sequence."""
        embedding = self.weights["model.embed_tokens.weight"]
        x = embedding[ids]
        attend = self._mla if self.config["model_type"] == "deepseek_v3" else self._gqa
        for i in range(self.config["num_hidden_layers"]):
            at = f"model.layers.{i}."
            x = x + attend(self._norm(x, at + "input_layernorm"), at + "self_attn.", self._window(i))
            normed = self._norm(x, at + "post_attention_layernorm")
            sparse = [
                at + block for block in ("mlp.", "block_sparse_moe.") if f"{at}{block}gate.weight" in self.weights
            ]
            if at + "mlp.router.weight" in self.weights:
                x = x + self._gpt_oss_moe(normed, at + "mlp.")
            else:
                x = x + (self._moe(normed, sparse[0]) if sparse else self._mlp(normed, at + "mlp."))
        head = embedding if self.config["tie_word_embeddings"] else self.weights["lm_head.weight"]
        return self._norm(x, "model.norm") @ head.T

    def _window(self, layer: int) -> int | None:
        """How many tokens a query of a layer sees, as a config.json that transformers completed says it."""
        kinds = self.config.get("layer_types")
        window: int | None = self.config.get("sliding_window")
        return window if kinds is None or kinds[layer] == "sliding_attention" else None

    def _norm(self, x: Array, name: str, eps: float | None = None) -> Array:
        eps = self.config["rms_norm_eps"] if eps is None else eps
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * self.weights[name + ".weight"]

    def _linear(self, x: Array, name: str) -> Array:
        return x @ self.weights[name + ".weight"].T + self.weights.get(name + ".bias", 0.0)

    def _gqa(self, x: Array, at: str, window: int | None) -> Array:
        c = self.config
        heads, groups = c["num_attention_heads"], c["num_key_value_heads"]
        width = c.get("head_dim") or c["hidden_size"] // heads
        angles, factor = self._angles(len(x), int(width * c["rope_parameters"].get("partial_rotary_factor", 1)))
        q, k, v = (self._headed(x, at, letter, n) for letter, n in (("q", heads), ("k", groups), ("v", groups)))
        # With a factor the whole head is turned.
        q, k = (_turned(y, angles, _halves) * factor for y in (q, k))
        sinks = self.weights.get(at + "sinks", np.full(heads, -math.inf))
        out = [
            _attend(q[:, h], k[:, h * groups // heads], v[:, h * groups // heads], width**-0.5, window, sinks[h])
            for h in range(heads)
        ]
        return self._linear(np.concatenate(out, -1), at + "o_proj")

    def _headed(self, x: Array, at: str, letter: str, count: int) -> Array:
        """Queries, keys or values [T, heads, width]: OLMoE's norm takes all heads together, those of others each."""
        y, norm = self._linear(x, f"{at}{letter}_proj"), f"{at}{letter}_norm"
        normed = norm + ".weight" in self.weights
        whole = self.config["model_type"] == "olmoe"
        y = self._norm(y, norm) if normed and whole else y
        y = y.reshape(len(x), count, -1)
        y = self._norm(y, norm) if normed and not whole else y
        limit = self.config.get("clip_qkv") or math.inf
        return np.clip(y, -limit, limit)

    def _mla(self, x: Array, at: str, window: int | None) -> Array:
        c = self.config
        heads, nope, rope, latent = (
            c[k] for k in ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "kv_lora_rank")
        )
        angles, factor = self._angles(len(x), rope)
        low = (
            x if c["q_lora_rank"] is None else self._norm(self._linear(x, at + "q_a_proj"), at + "q_a_layernorm", 1e-6)
        )
        q = self._linear(low, at + ("q_proj" if c["q_lora_rank"] is None else "q_b_proj"))
        q = q.reshape(len(x), heads, nope + rope)
        compressed = self._linear(x, at + "kv_a_proj_with_mqa")
        shared = _turned(compressed[:, None, latent:], angles, _pairs)[:, 0] * factor
        expanded = self._linear(self._norm(compressed[:, :latent], at + "kv_a_layernorm", 1e-6), at + "kv_b_proj")
        expanded = expanded.reshape(len(x), heads, -1)
        turned = _turned(q[..., nope:], angles, _pairs) * factor
        scale = (nope + rope) ** -0.5 * self._mscale() ** 2
        out = []
        for h in range(heads):
            key = np.concatenate((expanded[:, h, :nope], shared), -1)
            query = np.concatenate((q[:, h, :nope], turned[:, h]), -1)
            out.append(_attend(query, key, expanded[:, h, nope:], scale, window))
        return self._linear(np.concatenate(out, -1), at + "o_proj")

    def _mscale(self) -> float:
        rope = self.config["rope_parameters"]
        return _magnitude(rope["factor"], rope["mscale_all_dim"]) if rope["rope_type"] == "yarn" else 1.0

    def _angles(self, length: int, width: int) -> tuple[Array, float]:
        """Angles [T, width / 2], and the factor on what is turned."""
        rope = self.config["rope_parameters"]
        theta = rope["rope_theta"]
        if rope["rope_type"] == "dynamic":
            grown = max(length / self.config["max_position_embeddings"], 1.0)
            theta *= (rope["factor"] * grown - rope["factor"] + 1) ** (width / (width - 2))
        plain = np.array([theta ** (-2 * i / width) for i in range(width // 2)])
        factor = 1.0
        if rope["rope_type"] == "linear":
            plain = plain / rope["factor"]
        if rope["rope_type"] == "llama3":
            turns = rope["original_max_position_embeddings"] * plain / (2 * math.pi)
            low_turns, high_turns = rope["low_freq_factor"], rope["high_freq_factor"]
            ramp = np.clip((turns - low_turns) / (high_turns - low_turns), 0, 1)
            plain = plain / rope["factor"] * (1 - ramp) + plain * ramp
        if rope["rope_type"] == "yarn":
            trained = rope["original_max_position_embeddings"]

            def turning(turns: float) -> float:
                return width * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(theta))

            low, high = turning(rope["beta_fast"]), turning(rope["beta_slow"])
            if rope.get("truncate", True):
                low, high = math.floor(low), math.ceil(high)
            low, high = max(low, 0), min(high, width - 1)
            ramp = np.clip((np.arange(width // 2) - low) / (high - low), 0, 1)
            plain = plain / rope["factor"] * ramp + plain * (1 - ramp)
            factor = _magnitude(rope["factor"], rope.get("mscale", 1.0))
            factor /= _magnitude(rope["factor"], rope["mscale_all_dim"]) if "mscale_all_dim" in rope else 1.0
        return np.arange(length)[:, None] * plain, factor

    def _mlp(self, x: Array, at: str) -> Array:
        mixtral = at + "w1.weight" in self.weights
        names = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
        gate, up = (self._linear(x, at + name) for name in names[:2])
        return self._linear(gate / (1 + np.exp(-gate)) * up, at + names[2])

    def _moe(self, x: Array, at: str) -> Array:
        by_sigmoid = at + "gate.e_score_correction_bias" in self.weights
        out = np.zeros_like(x)
        for t in range(len(x)):
            logits = self._linear(x[t], at + "gate")
            chosen = self._sigmoid_route(logits, at) if by_sigmoid else self._softmax_route(logits)
            for expert, weight in chosen.items():
                out[t] += weight * self._mlp(x[t], f"{at}experts.{expert}.")
        if by_sigmoid:
            out += self._mlp(x, at + "shared_experts.")
        if at + "shared_expert_gate.weight" in self.weights:
            share = 1 / (1 + np.exp(-self._linear(x, at + "shared_expert_gate")))
            out += share * self._mlp(x, at + "shared_expert.")
        return out

    def _gpt_oss_moe(self, x: Array, at: str) -> Array:
        out = np.zeros_like(x)
        limit, alpha = self.config.get("swiglu_limit", 7.0), self.config.get("swiglu_alpha", 1.702)
        for t in range(len(x)):
            for e, weight in self._softmax_route(self._linear(x[t], at + "router")).items():
                weights_of = {
                    name: self.weights[f"{at}experts.{name}"][e]
                    for name in ("gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias")
                }
                gate_up = x[t] @ weights_of["gate_up_proj"] + weights_of["gate_up_proj_bias"]
                gate, up = np.minimum(gate_up[0::2], limit), np.clip(gate_up[1::2], -limit, limit)
                hidden = (up + 1) * gate / (1 + np.exp(-alpha * gate))
                out[t] += weight * (hidden @ weights_of["down_proj"] + weights_of["down_proj_bias"])
        return out

    def _softmax_route(self, logits: Array) -> dict[int, float]:
        scores = np.exp(logits - logits.max())
        scores /= scores.sum()
        chosen = np.argsort(-scores)[: self.config["num_experts_per_tok"]]
        total = scores[chosen].sum() if self.config.get("norm_topk_prob", True) else 1.0
        return {int(e): float(scores[e] / total) for e in chosen}

    def _sigmoid_route(self, logits: Array, at: str) -> dict[int, float]:
        c = self.config
        scores = 1 / (1 + np.exp(-logits))
        choice = scores + self.weights[at + "gate.e_score_correction_bias"]
        groups = choice.reshape(c["n_group"], -1)
        best = np.sort(groups, -1)[:, -2:].sum(-1)
        groups_kept = set(np.argsort(-best)[: c["topk_group"]].tolist())
        size = groups.shape[1]
        open_ = [e for e in np.argsort(-choice).tolist() if e // size in groups_kept]
        chosen = open_[: c["num_experts_per_tok"]]
        total = sum(scores[e] for e in chosen) + 1e-20 if c["norm_topk_prob"] else 1.0
        return {e: float(scores[e] / total * c["routed_scaling_factor"]) for e in chosen}


def _magnitude(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0


def _halves(width: int) -> tuple[list[int], list[int]]:
    return list(range(width // 2)), list(range(width // 2, width))


def _pairs(width: int) -> tuple[list[int], list[int]]:
    return list(range(0, width, 2)), list(range(1, width, 2))


def _turned(x: Array, angles: Array, pairing: Callable[[int], tuple[list[int], list[int]]]) -> Array:
    """x [T, heads, width] with each pair of its first coordinates turned as a complex number; the others are kept."""
    width = 2 * angles.shape[-1]
    first, second = pairing(width)
    turned = (x[..., first] + 1j * x[..., second]) * np.exp(1j * angles)[:, None, :]
    return np.concatenate((turned.real, turned.imag, x[..., width:]), -1)


def _attend(q: Array, k: Array, v: Array, scale: float, window: int | None, sink: float = -math.inf) -> Array:
    """Causal attention of one head, a query at a time; the sink takes a share of every query's."""
    rows = []
    for t in range(len(q)):
        window_keys = slice(0 if window is None else max(t + 1 - window, 0), t + 1)
        scores = k[window_keys] @ q[t] * scale
        highest = max(scores.max(), sink)
        weights = np.exp(scores - highest)
        rows.append(weights / (weights.sum() + np.exp(sink - highest)) @ v[window_keys])
    return np.stack(rows)
