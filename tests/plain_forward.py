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
import torch
from safetensors.torch import load_file

from tests.plain_layouts import LAYOUTS
from tests.plain_state_spaces import convolved, gated_convolution, mamba1, mamba2, nemotron_h, silu

Array = npt.NDArray[np.float64]
_GATES = ("gate", "router.gate", "router.layer", "gate.wg", "router")
_GATED = ("qwen3_next", "qwen3_5_moe_text")
"""Whose norms have an offset of 1, and whose attention a gate."""


_ALSO = {
    "num_experts_per_tok": "num_experts_per_token",
    "norm_topk_prob": "moe_renormalize",
    "n_group": "num_expert_group",
}
"""Fields that Kimi Linear calls otherwise."""
_WITHOUT_ROPE = (
    "exaone_moe", "afmoe", "flint", "kolibri1", "cohere2_moe", "granitemoehybrid", "nemotron_h", "jamba",
)  # fmt: skip
"""Whose layers without a window turn nothing."""


_IN_PAIRS = ("ernie4_5_moe", "cohere2_moe", "llama4_text")


class Plain:
    """A checkpoint folder read into fp64; `logits` runs it."""

    def __init__(self, folder: Path) -> None:
        fields: dict[str, Any] = json.loads((folder / "config.json").read_text("utf-8"))
        self.weights = {k: v.double().numpy() for k, v in load_file(folder / "model.safetensors").items()}
        if (layout := LAYOUTS.get(fields["model_type"])) is not None:
            fields, self.weights = layout(fields, self.weights)
        self.config = fields | {name: fields[other] for name, other in _ALSO.items() if other in fields}

        self.keys: npt.NDArray[np.bool_] | None = None
        self.beside = np.zeros(())

    def logits(self, ids: list[int]) -> Array:
        """[T, vocab] of one sequence."""
        c = self.config
        if c["model_type"] == "nemotron_h":
            return nemotron_h(self, ids)
        embedding = self.weights["model.embed_tokens.weight"]
        x = embedding[ids] * c.get("embedding_multiplier", 1.0)
        x = x * c["hidden_size"] ** 0.5 if c.get("mup_enabled") else x
        share, minimax = c.get("residual_multiplier", 1.0), c["model_type"] == "minimax"
        attend = self._mla if "kv_lora_rank" in self.config else self._gqa
        for i in range(self.config["num_hidden_layers"]):
            at = f"model.layers.{i}."
            if at + "post_feedforward_layernorm.weight" in self.weights:
                attended = attend(x, at + "self_attn.", self._window(i))
                x = x + self._norm(attended, at + "post_attention_layernorm")
                x = x + self._norm(self._moe(x, at + "mlp."), at + "post_feedforward_layernorm")
                continue
            normed = self._norm(x, at + "input_layernorm")
            if (layer := {"cohere2_moe": self._beside, "afmoe": self._between_norms}.get(c["model_type"])) is not None:
                x = layer(x, normed, attend(normed, at + "self_attn.", self._window(i)), at)
                continue
            if any(at + block + "A_log" in self.weights for block in ("mamba.", "linear_attn.")):
                x = x + share * self._recurrence(normed, at)
            elif at + "conv.in_proj.weight" in self.weights:
                x = x + gated_convolution(normed, at + "conv.", self.weights, self._linear)
            elif at + "self_attn.slope_rate" in self.weights:
                x = c["linear_attn_alpha_factor"] * normed + c["linear_attn_beta_factor"] * self._lightning(
                    normed, at + "self_attn."
                )
            elif minimax:
                attended = attend(normed, at + "self_attn.", self._window(i))
                x = c["full_attn_alpha_factor"] * normed + c["full_attn_beta_factor"] * attended
            elif at + "self_attn.A_log" in self.weights:
                x = x + self._kimi_delta(normed, at + "self_attn.")
            else:
                x = x + share * self._behind(attend(normed, at + "self_attn.", self._window(i)), at + "post_attn_norm")
            jamba = at + "pre_ff_layernorm.weight" in self.weights
            normed = self._norm(x, at + ("pre_ff_layernorm" if jamba else "post_attention_layernorm"))
            # MiniMax goes on from what was normalised.
            x, share = (c["mlp_alpha_factor"] * normed, c["mlp_beta_factor"]) if minimax else (x, share)
            x = x + share * self._feed_forward(normed, at)
            if at + "shared_mlp.input_linear.weight" in self.weights:
                gate, up = np.split(self._linear(normed, at + "shared_mlp.input_linear"), 2, -1)
                x = x + share * self._linear(silu(gate) * up, at + "shared_mlp.output_linear")
        head = self.weights.get("lm_head.weight", embedding)
        last = "model.final_layernorm" if "model.final_layernorm.weight" in self.weights else "model.norm"
        logits = self._norm(x, last) @ head.T + self.weights.get("lm_head.bias", 0.0)
        return logits * c.get("logit_scale", 1.0) / c.get("logits_scaling", 1.0)

    def _feed_forward(self, normed: Array, at: str) -> Array:
        """Experts or an MLP of a layer, with a norm behind them where there is one."""
        if at + "mlp.router.weight" in self.weights:
            return self._gpt_oss_moe(normed, at + "mlp.")
        blocks = (at + block for block in ("mlp.", "block_sparse_moe.", "feed_forward."))
        sparse = [block for block in blocks if any(block + gate + ".weight" in self.weights for gate in _GATES)]
        # transformers saves a dense layer of Kimi Linear as if it had experts.
        kimi = at + "block_sparse_moe.up_proj.weight" in self.weights
        jamba = at + "feed_forward.up_proj.weight" in self.weights
        dense = at + ("block_sparse_moe." if kimi else "feed_forward." if jamba else "mlp.")
        experts = self._moe(normed, sparse[0]) if sparse else self._mlp(normed, dense)
        for behind in ("post_mlp_layernorm", "post_ffn_norm"):
            experts = self._behind(experts, at + behind)
        if at + "moe.router.classifier.weight" in self.weights:
            # What LongCat's experts give beside the first MLP is added behind the second.
            self.beside = self._longcat_moe(normed, at + "moe.")
        elif self.config["model_type"] == "longcat_flash":
            experts = experts + self.beside
        return experts

    def _window(self, layer: int) -> int | None:
        """How many tokens a query of a layer sees, as a config.json that transformers completed says it."""
        kinds = self.config.get("layer_types")
        window: int | None = self.config.get("sliding_window")
        return window if kinds is None or kinds[layer] == "sliding_attention" else None

    def _between_norms(self, x: Array, _normed: Array, attended: Array, at: str) -> Array:
        """A layer of Trinity, with norms before and behind both branches."""
        x = x + self._norm(attended, at + "post_attention_layernorm")
        normed, at_mlp = self._norm(x, at + "pre_mlp_layernorm"), at + "mlp."
        is_sparse = at_mlp + "router.gate.weight" in self.weights
        experts = self._moe(normed, at_mlp) if is_sparse else self._mlp(normed, at_mlp)
        return x + self._norm(experts, at + "post_mlp_layernorm")

    def _beside(self, x: Array, normed: Array, attended: Array, at: str) -> Array:
        """A layer of Cohere: experts, averaged with the shared ones, or a dense MLP stand beside attention."""
        if at + "mlp.gate.weight" not in self.weights:
            return x + attended + self._mlp(normed, at + "mlp.")
        return x + attended + self._moe(normed, at + "mlp.") / (2 if self.config["num_shared_experts"] else 1)

    def _behind(self, x: Array, name: str) -> Array:
        """What a branch gave, with the norm behind it, which A.X-K1 and Kolibri have."""
        return self._norm(x, name) if name + ".weight" in self.weights else x

    def _norm(self, x: Array, name: str, eps: float | None = None) -> Array:
        if name + ".W_down.weight" in self.weights:
            # A.X-K2's gates itself.
            y = self._norm(x, name + ".norm")
            return y / (1 + np.exp(-self._linear(silu(self._linear(y, name + ".W_down")), name + ".W_up")))
        eps = eps or self.config.get("rms_norm_eps") or self.config["layer_norm_eps"]
        if self.config["model_type"] in ("phimoe", "dbrx") or self.config.get("rms_norm_eps", 0) is None:
            x = x - x.mean(-1, keepdims=True)
        weight = self.weights[name + ".weight"]
        if self.config["model_type"] in _GATED and not name.endswith("linear_attn.norm"):
            weight = weight + 1
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight + self.weights.get(name + ".bias", 0.0)

    def _linear(self, x: Array, name: str) -> Array:
        return x @ self.weights[name + ".weight"].T + self.weights.get(name + ".bias", 0.0)

    def _gqa(self, x: Array, at: str, window: int | None) -> Array:
        c = self.config
        heads, groups = c["num_attention_heads"], c["num_key_value_heads"]
        # Laguna has as many as a list says.
        by_layer = c.get("num_attention_heads_per_layer")
        heads = heads if by_layer is None else by_layer[int(at.split(".")[2])]
        # In layers with a window MiMo has twice as many heads of keys.
        groups *= 2 if c["model_type"] == "mimo_v2_flash" and window is not None else 1
        width = c.get("head_dim") or c["hidden_size"] // heads
        # Mellum has a rope for each kind of layer.
        kind = "full_attention" if window is None else "sliding_attention"
        rope = c.get("rope_parameters") or {}
        rope = rope.get(kind, rope)
        # Granite with windows has one for each layer, or none.
        bases = c.get("layer_rope_theta")
        base = None if bases is None else bases[int(at.split(".")[2])]
        rope = {**rope, "rope_theta": base} if base else rope
        q, k, v = (self._headed(x, at, letter, n) for letter, n in (("q", heads), ("k", groups), ("v", groups)))
        pairing = _pairs if c["model_type"] in _IN_PAIRS else _halves
        # Cohere's dense layers turn too.
        dense = c["model_type"] == "cohere2_moe" and at.replace("self_attn.", "mlp.gate.weight") not in self.weights
        turns = c["model_type"] not in _WITHOUT_ROPE or c.get("position_embedding_type") == "rope"
        flags = c.get("no_rope_layers")
        turns &= flags is None or bool(flags[int(at.split(".")[2])])
        if base != 0 and (window is not None or dense or turns):
            angles, factor = self._angles(len(x), int(width * rope.get("partial_rotary_factor", 1)), rope)
            scaled = np.where(np.arange(width) < 2 * angles.shape[-1], factor, 1.0)
            q, k = (_turned(y, angles, pairing) * scaled for y in (q, k))
        if c["model_type"] == "llama4_text":
            q, k = self._of_llama4(q, k, turns=turns)
        if at + "query_layernorm.weight" in self.weights:
            q, k = self._norm(q, at + "query_layernorm"), self._norm(k, at + "key_layernorm")
        scale = c.get("attention_multiplier", width**-0.5)
        none = np.full(heads, -math.inf)
        sinks = self.weights.get(at + "sinks", self.weights.get(at + "softmax_offset", none))
        sinks = self.weights.get(at + "attention_sink_bias", sinks)
        v = v * (c.get("attention_value_scale") or 1.0)
        out = [
            _attend(
                q[:, h],
                k[:, h * groups // heads],
                v[:, h * groups // heads],
                scale,
                window,
                sinks[h],
                self._chunks(len(x), int(at.split(".")[2])),
            )
            for h in range(heads)
        ]
        attended = np.concatenate(out, -1)
        if c["model_type"] in _GATED:
            gate = self._linear(x, at + "q_proj").reshape(len(x), heads, 2 * width)[..., width:]
            attended = attended / (1 + np.exp(-gate.reshape(len(x), -1)))
        if at + "gate_proj.weight" in self.weights:
            attended = attended / (1 + np.exp(-self._linear(x, at + "gate_proj")))
        if at + "g_proj.weight" in self.weights:
            # Laguna's gates are one for each head, or for each of its numbers.
            gate = np.log1p(np.exp(self._linear(x, at + "g_proj"))).reshape(len(x), heads, -1)
            attended = (attended.reshape(len(x), heads, -1) * gate).reshape(len(x), -1)
        return self._linear(attended, at + "o_proj")

    def _of_llama4(self, q: Array, k: Array, *, turns: bool) -> tuple[Array, Array]:
        """Queries and keys of unit length behind a rope, or queries scaled by their position."""
        c = self.config
        if turns and c["use_qk_norm"]:
            q, k = (y / np.sqrt((y * y).mean(-1, keepdims=True) + c["rms_norm_eps"]) for y in (q, k))
            return q, k
        if turns or not c["attn_temperature_tuning"]:
            return q, k
        growth = 1 + c["attn_scale"] * np.log1p((np.arange(len(q)) + 1) // c["floor_scale"])
        return q * growth[:, None, None], k

    def _chunks(self, tokens: int, layer: int) -> npt.NDArray[np.bool_] | None:
        """Which tokens lie in the same chunk, in a layer of Llama 4 that has some."""
        if self.config["model_type"] != "llama4_text" or self.config["layer_types"][layer] == "full_attention":
            return None
        numbers = np.arange(tokens) // self.config["attention_chunk_size"]
        same: npt.NDArray[np.bool_] = numbers[:, None] == numbers
        return same

    def _recurrence(self, x: Array, at: str) -> Array:
        if at + "linear_attn.A_log" in self.weights:
            return self._delta_net(x, at + "linear_attn.")
        at, eps = at + "mamba.", self.config["rms_norm_eps"]
        if at + "x_proj.weight" in self.weights:
            return mamba1(x, at, self.weights, self._linear, eps)
        return mamba2(x, at, self.weights, self._linear, self.config["mamba_n_groups"], eps, 0.0)

    def _lightning(self, x: Array, at: str) -> Array:
        """In blocks, as the decays are rounded that the checkpoint has."""
        heads, tokens = self.config["num_attention_heads"], len(x)
        names = ("slope_rate", "query_decay", "key_decay", "diagonal_decay")
        slope, of_query, of_key, between = (self.weights[at + name] for name in names)
        qkv = silu(self._linear(x, at + "qkv_proj")).reshape(tokens, heads, -1)
        q, k, v = np.split(qkv, 3, -1)
        size, out = of_query.shape[1], np.zeros_like(v)
        for h in range(heads):
            state = np.zeros((v.shape[-1],) * 2)
            for start in range(0, tokens, size):
                block = slice(start, min(start + size, tokens))
                count = block.stop - start
                weights = q[block, h] @ k[block, h].T * between[0, h, :count, :count]
                out[block, h] = q[block, h] * of_query[h, :count] @ state + weights @ v[block, h]
                state = state * np.exp(-slope[h, 0, 0] * count) + (k[block, h] * of_key[h, -count:]).T @ v[block, h]
        normed = self._norm(out.reshape(tokens, -1), at + "norm", 1e-6)
        return self._linear(normed / (1 + np.exp(-self._linear(x, at + "output_gate"))), at + "out_proj")

    def _kimi_delta(self, x: Array, at: str) -> Array:
        """The same with a decay for each channel of the keys."""
        tokens, heads, width = len(x), self.config["linear_num_heads"], self.config["linear_head_dim"]
        q, k, v = (
            silu(convolved(self._linear(x, f"{at}{letter}_proj"), self.weights[f"{at}{letter}_conv1d.weight"][:, 0]))
            for letter in "qkv"
        )
        q, k, v = (y.reshape(tokens, heads, width) for y in (q, k, v))
        q, k = (part / np.sqrt((part * part).sum(-1, keepdims=True) + 1e-6) for part in (q, k))
        steps = (self._narrowed(x, at, "f") + self.weights[at + "dt_bias"]).reshape(tokens, heads, width)
        rates = np.exp(self.weights[at + "A_log"].reshape(-1, 1))
        # Ling's has a bound.
        bounded = self.config.get("kda_safe_gate", False)
        log = (
            self.config["kda_lower_bound"] / (1 + np.exp(-rates * steps))
            if bounded
            else -rates * np.log1p(np.exp(steps))
        )
        decay = np.exp(log)[..., None]
        beta = 1 / (1 + np.exp(-self._linear(x, at + "b_proj")))
        out = np.stack([_delta(q[:, h], k[:, h], v[:, h], decay[:, h], beta[:, h]) for h in range(heads)], 1)
        gate = self._narrowed(x, at, "g").reshape(out.shape)
        return self._linear((self._norm(out, at + "o_norm") / (1 + np.exp(-gate))).reshape(tokens, -1), at + "o_proj")

    def _narrowed(self, x: Array, at: str, letter: str) -> Array:
        """By one projection, or by two with few numbers between them."""
        if f"{at}{letter}_proj.weight" in self.weights:
            return self._linear(x, f"{at}{letter}_proj")
        return self._linear(self._linear(x, f"{at}{letter}_a_proj"), f"{at}{letter}_b_proj")

    def _delta_net(self, x: Array, at: str) -> Array:
        """The gated delta rule, token after token, behind a convolution and before a gated norm."""
        c, tokens = self.config, len(x)
        heads, served = c["linear_num_value_heads"], c["linear_num_value_heads"] // c["linear_num_key_heads"]
        widths = (c["linear_key_head_dim"],) * 2 + (served * c["linear_value_head_dim"],) * 2
        if at + "in_proj_ba.weight" in self.weights:
            by_head = self._linear(x, at + "in_proj_qkvz").reshape(tokens, heads // served, -1)
            q, k, v, z = np.split(by_head, np.cumsum(widths)[:3], -1)
            rates = self._linear(x, at + "in_proj_ba").reshape(tokens, heads // served, 2, served)
            b, a = (rates[:, :, i].reshape(tokens, heads) for i in range(2))
        else:
            key_width = heads // served * c["linear_key_head_dim"]
            q, k, v = np.split(self._linear(x, at + "in_proj_qkv"), [key_width, 2 * key_width], -1)
            z, b, a = (self._linear(x, f"{at}in_proj_{letter}") for letter in "zba")
        taps = self.weights[at + "conv1d.weight"][:, 0]
        side_by_side = np.concatenate([y.reshape(tokens, -1) for y in (q, k, v)], -1)
        y = silu(convolved(side_by_side, taps))
        q, k, v = (
            part.reshape(tokens, -1, width)
            for part, width in zip(
                np.split(y, np.cumsum([q[0].size, k[0].size]), -1),
                (widths[0], widths[1], c["linear_value_head_dim"]),
                strict=True,
            )
        )
        q, k = (part / np.sqrt((part * part).sum(-1, keepdims=True) + 1e-6) for part in (q, k))
        decay = np.exp(-np.exp(self.weights[at + "A_log"]) * np.log1p(np.exp(a + self.weights[at + "dt_bias"])))
        beta = 1 / (1 + np.exp(-b))
        out = np.stack(
            [_delta(q[:, h // served], k[:, h // served], v[:, h], decay[:, h], beta[:, h]) for h in range(heads)], 1
        )
        z = z.reshape(out.shape)
        return self._linear((self._norm(out, at + "norm") * z / (1 + np.exp(-z))).reshape(tokens, -1), at + "out_proj")

    def _headed(self, x: Array, at: str, letter: str, count: int) -> Array:
        """Queries, keys or values [T, heads, width]: OLMoE's norm takes all heads together, those of others each."""
        y, norm = self._linear(x, f"{at}{letter}_proj"), f"{at}{letter}_norm"
        normed = norm + ".weight" in self.weights
        whole = normed and len(self.weights[norm + ".weight"]) == y.shape[-1]
        y = self._norm(y, norm) if whole else y
        y = y.reshape(len(x), count, -1)
        # Queries come with their gates.
        y = y[..., : self.config["head_dim"]] if self.config["model_type"] in _GATED else y
        y = self._norm(y, norm) if normed and not whole else y
        limit = self.config.get("clip_qkv") or math.inf
        return np.clip(y, -limit, limit)

    def _mla(self, x: Array, at: str, window: int | None) -> Array:
        c = self.config
        heads, nope, rope, latent = (
            c[k] for k in ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "kv_lora_rank")
        )
        # Kimi Linear turns nothing.
        turns = "rope_parameters" in c
        angles, factor = (
            self._angles(len(x), rope, c["rope_parameters"]) if turns else (np.zeros((len(x), rope // 2)), 1.0)
        )
        narrow = x if c["q_lora_rank"] is None else self._linear(x, at + "q_a_proj")
        low = x if c["q_lora_rank"] is None else self._norm(narrow, at + "q_a_layernorm", 1e-6)
        # A.X-K2 makes queries and gates of both.
        joined = np.concatenate((low, narrow), -1) if c["model_type"] == "axk2" else low
        q = self._linear(joined, at + ("q_proj" if c["q_lora_rank"] is None else "q_b_proj"))
        q, gate = np.split(q.reshape(len(x), heads, -1), [nope + rope], -1)
        compressed = self._linear(x, at + "kv_a_proj_with_mqa")
        pairing = _pairs if c.get("rope_interleave", True) else _halves
        shared = _turned(compressed[:, None, latent:], angles, pairing)[:, 0] * factor
        expanded = self._linear(self._norm(compressed[:, :latent], at + "kv_a_layernorm", 1e-6), at + "kv_b_proj")
        expanded = expanded.reshape(len(x), heads, -1)
        turned = _turned(q[..., nope:], angles, pairing) * factor
        scale = (nope + rope) ** -0.5 * self._mscale() ** 2
        growth = self._growth(len(x))
        # A layer of GLM-5 without an indexer sees what the last one that has one chose.
        if at + "indexer.wk.weight" in self.weights:
            self.keys = self._indexed(x, low, angles, factor, at + "indexer.")
        out = []
        for h in range(heads):
            key = np.concatenate((expanded[:, h, :nope], shared), -1)
            query = np.concatenate((q[:, h, :nope], turned[:, h]), -1) * growth
            out.append(_attend(query, key, expanded[:, h, nope:], scale, window, keys=self.keys))
        gates = 1 + np.exp(-gate.reshape(len(x), -1)) if gate.size else 1.0
        if at + "g_proj.weight" in self.weights:
            gates = np.repeat(1 + np.exp(-self._linear(x, at + "g_proj")), c["v_head_dim"], -1)
        return self._linear(np.concatenate(out, -1) / gates, at + "o_proj")

    def _indexed(self, x: Array, low: Array, angles: Array, factor: float, at: str) -> npt.NDArray[np.bool_]:
        """Which keys each query attends to, [T, T]."""
        heads, pairing = self.config["index_n_heads"], _pairs if self.config["model_type"] == "glm_moe_dsa" else _halves
        q = self._linear(low, at + "wq_b").reshape(len(x), heads, -1)
        k = self._linear(x, at + "wk")
        k = k - k.mean(-1, keepdims=True)
        k = k / np.sqrt((k * k).mean(-1, keepdims=True) + 1e-6)
        k = k * self.weights[at + "k_norm.weight"] + self.weights[at + "k_norm.bias"]
        turned, width = 2 * angles.shape[-1], q.shape[-1]
        scaled = np.concatenate((np.full(turned, factor), np.ones(width - turned)))
        q, k = (_turned(y, angles, pairing) * scaled for y in (q, k[:, None]))
        scores = np.maximum(np.einsum("thd,sd->ths", q, k[:, 0]), 0) * width**-0.5
        total = np.einsum("th,ths->ts", self._linear(x, at + "weights_proj"), scores) * heads**-0.5
        causal = np.tril(np.ones_like(total, dtype=bool))
        total = np.where(causal, total, -math.inf)
        # Of keys with equal scores, and 0 is often one, torch's choice is that of transformers.
        best = torch.topk(torch.from_numpy(total), min(self.config["index_topk"], len(x)))[1].numpy()
        chosen = np.zeros_like(causal)
        np.put_along_axis(chosen, best, values=True, axis=-1)
        return chosen & causal

    def _growth(self, tokens: int) -> Array:
        """What Mistral 4 multiplies queries by, [T, 1]: the longer the context, the more."""
        rope = self.config.get("rope_parameters") or {}
        if (share := rope.get("llama_4_scaling_beta")) is None:
            return np.ones((tokens, 1))
        return 1 + share * np.log1p(np.arange(tokens) // rope["original_max_position_embeddings"])[:, None]

    def _mscale(self) -> float:
        rope = self.config.get("rope_parameters", {"rope_type": "default"})
        return _magnitude(rope["factor"], rope["mscale_all_dim"]) if rope["rope_type"] == "yarn" else 1.0

    def _angles(self, length: int, width: int, rope: dict[str, Any]) -> tuple[Array, float]:
        """Angles [T, width / 2], and the factor on what is turned."""
        theta = rope["rope_theta"]
        if rope.get("alpha"):
            theta *= rope["alpha"] ** (width / (width - 2))
        elif rope["rope_type"] == "dynamic":
            grown = max(length / self.config["max_position_embeddings"], 1.0)
            theta *= (rope["factor"] * grown - rope["factor"] + 1) ** (width / (width - 2))
        plain = np.array([theta ** (-2 * i / width) for i in range(width // 2)])
        factor = 1.0
        if rope["rope_type"] == "longrope":
            plain = plain / np.array(rope["short_factor"])
            factor = rope["long_mscale" if length > rope["original_max_position_embeddings"] else "short_mscale"]
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
        gate = next(gate for gate in _GATES if f"{at}{gate}.weight" in self.weights)
        bias = self._bias(at)
        out = np.zeros_like(x)
        for t in range(len(x)):
            logits = self._linear(x[t], at + gate)
            statics = self.weights.get(at + "moe_statics.e_score_correction_bias", np.zeros((1, 1)))[0]
            chosen = self._softmax_route(logits, statics) if bias is None else self._sigmoid_route(logits, bias)
            for expert, weight in chosen.items():
                if self.config["model_type"] == "llama4_text":
                    out[t] += self._expert(weight * x[t], at, expert)
                else:
                    out[t] += weight * self._expert(x[t], at, expert)
        ungated = () if at + "shared_expert_gate.weight" in self.weights else ("shared_expert.",)
        for shared in ("shared_experts.", "shared_mlp.", *ungated):
            if f"{at}{shared}up_proj.weight" in self.weights:
                out += self._mlp(x, at + shared)
        if at + "shared_expert_gate.weight" in self.weights:
            share = 1 / (1 + np.exp(-self._linear(x, at + "shared_expert_gate")))
            out += share * self._mlp(x, at + "shared_expert.")
        return out

    def _longcat_moe(self, x: Array, at: str) -> Array:
        """Some experts of LongCat have no weights and give what they read."""
        c, out = self.config, np.zeros_like(x)
        for t in range(len(x)):
            logits = self._linear(x[t], at + "router.classifier")
            scores = np.exp(logits - logits.max())
            scores /= scores.sum()
            for e in np.argsort(-(scores + self.weights[at + "router.e_score_correction_bias"]))[: c["moe_topk"]]:
                row = self._mlp(x[t], f"{at}experts.{e}.") if e < c["n_routed_experts"] else x[t]
                out[t] += c["routed_scaling_factor"] * scores[e] * row
        return out

    def _expert(self, x: Array, at: str, expert: int) -> Array:
        stacks = (("input_linear.weight", "output_linear.weight"), ("experts.gate_up_proj", "experts.down_proj"))
        stacked = next((names for names in stacks if at + names[0] in self.weights), None)
        if stacked is None:
            return self._mlp(x, f"{at}experts.{expert}.")
        inwards, outwards = (self.weights[at + name][expert] for name in stacked)
        if self.config["model_type"] == "llama4_text":
            inwards, outwards = inwards.T, outwards.T
        gate, up = np.split(inwards @ x, 2)
        return outwards @ (gate / (1 + np.exp(-gate)) * up)

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

    def _softmax_route(self, logits: Array, bias: Array | float = 0.0) -> dict[int, float]:
        c = self.config
        if c["model_type"] == "phimoe":
            return self._two_by_sparsemixer(logits)
        if c["model_type"] == "llama4_text":
            best = int(np.argmax(logits))
            return {best: float(1 / (1 + np.exp(-logits[best])))}
        scores = np.exp(logits - logits.max())
        scores /= scores.sum()
        choice = scores + bias
        if c.get("topk_method") == "group_limited_greedy" or c["model_type"] == "mistral4":
            groups = choice.reshape(c["n_group"], -1)
            best_of_each = np.sort(groups, -1)[:, -(2 if c["model_type"] == "mistral4" else 1) :].sum(-1)
            groups[np.argsort(-best_of_each)[c["topk_group"] :]] = 0.0
        chosen = np.argsort(-choice)[: c.get("moe_k") or c.get("moe_topk") or c["num_experts_per_tok"]]
        # DeepSeek-V2 as transformers has it scales, and never divides.
        v2 = c["model_type"] == "deepseek_v2"
        total = scores[chosen].sum() if c.get("norm_topk_prob", c["model_type"] != "jamba") and not v2 else 1.0
        scaled = v2 or c["model_type"] == "mistral4"
        return {int(e): float(scores[e] / total * (c["routed_scaling_factor"] if scaled else 1.0)) for e in chosen}

    def _two_by_sparsemixer(self, logits: Array) -> dict[int, float]:
        """The best expert by a softmax of those near it, and the same of the others."""
        remaining, chosen = list(range(len(logits))), {}
        for _ in range(2):
            best = max(remaining, key=lambda e: logits[e])
            near = [
                e
                for e in remaining
                if (logits[best] - logits[e]) / max(abs(logits[e]), logits[best])
                <= 2 * self.config["router_jitter_noise"]
            ]
            chosen[best] = float(1 / sum(np.exp(logits[e] - logits[best]) for e in near))
            remaining.remove(best)
        return chosen

    def _sigmoid_route(self, logits: Array, bias: Array) -> dict[int, float]:
        c = self.config
        cap = c.get("moe_router_logit_softcapping")
        logits = cap * np.tanh(logits / cap) if cap else logits
        scores = 1 / (1 + np.exp(-logits))
        choice = (logits if c["model_type"] == "kolibri1" else scores) + bias
        groups = choice.reshape(c.get("n_group") or 1, -1)
        best = np.sort(groups, -1)[:, -2:].sum(-1)
        groups_kept = set(np.argsort(-best)[: c.get("topk_group") or 1].tolist())
        size = groups.shape[1]
        is_open = np.isin(np.arange(len(choice)) // size, list(groups_kept))
        # A.X-K2 ranks the experts of other groups at 0.
        ranked = np.argsort(-np.where(is_open, choice, 0 if c["model_type"] == "axk2" else -math.inf))
        open_ = ranked.tolist()
        chosen = open_[: c["num_experts_per_tok"]]
        eps = 1e-6 if c["model_type"] == "lfm2_moe" else 1e-20
        total = sum(scores[e] for e in chosen) + eps if c.get("norm_topk_prob", True) else 1.0
        names = ("routed_scaling_factor", "router_scaling_factor", "route_scale")
        scale = next((c[name] for name in names if name in c), 1.0)
        return {e: float(scores[e] / total * scale) for e in chosen}

    def _bias(self, at: str) -> Array | None:
        """The correction bias of a router by sigmoid, of Flint's none."""
        if self.config["model_type"] == "flint":
            return np.zeros(self.config["num_experts"])
        biases = ("gate.e_score_correction_bias", "e_score_correction_bias", "expert_bias")
        names = (*(at + name for name in biases), at.removesuffix("mlp.") + "moe.router.expert_bias")
        return next((self.weights[name] for name in names if name in self.weights), None)


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


def _delta(q: Array, k: Array, v: Array, decay: Array, beta: Array) -> Array:
    """The gated delta rule of one head, a token at a time; the decay of a token is one, or one for each row."""
    state, rows = np.zeros((k.shape[1], v.shape[1])), []
    for t in range(len(q)):
        state = state * decay[t]
        state = state + beta[t] * np.outer(k[t], v[t] - k[t] @ state)
        rows.append(q[t] @ state * q.shape[1] ** -0.5)
    return np.stack(rows)


def _attend(
    q: Array,
    k: Array,
    v: Array,
    scale: float,
    window: int | None,
    sink: float = -math.inf,
    keys: npt.NDArray[np.bool_] | None = None,
) -> Array:
    """Causal attention of one head, a query at a time; the sink takes a share of every query's, and of keys only `keys`
    count.
    """
    rows = []
    for t in range(len(q)):
        window_keys = slice(0 if window is None else max(t + 1 - window, 0), t + 1)
        scores = k[window_keys] @ q[t] * scale
        scores = scores if keys is None else np.where(keys[t, window_keys], scores, -math.inf)
        highest = max(scores.max(), sink)
        weights = np.exp(scores - highest)
        rows.append(weights / (weights.sum() + np.exp(sink - highest)) @ v[window_keys])
    return np.stack(rows)
