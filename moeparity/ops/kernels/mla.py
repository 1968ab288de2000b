"""Kernels of `mla` and `mla_expand`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from moeparity.numerics.blocks import in_blocks
from moeparity.numerics.gemm_forms import ALL
from moeparity.numerics.orders import NATIVE
from moeparity.numerics.rounding import rounded, tf32
from moeparity.ops.kernels.attention_forms import cached, causal, matmul, side_by_side, softmax_scale, with_own
from moeparity.ops.kernels.flash import Heads
from moeparity.ops.kernels.linear import gemm_of, places_tried, with_scales
from moeparity.ops.kernels.pieces import each, gathered, parts
from moeparity.ops.kernels.quantised import FileScales, file_scales, multiplied_out
from moeparity.ops.kernels.rope import yarn_mscale
from moeparity.ops.mla import KV_B_ORDER
from moeparity.ops.placement import cut


def mla_expand(
    latent: torch.Tensor | None,
    own_latent: torch.Tensor | None = None,
    *,
    w: Mapping[str, torch.Tensor],
    p: Mapping[str, Any],
    at: Mapping[str, Any],
) -> torch.Tensor:
    """latent [B, 1, T, L], or if given own_latent [B, T, L] -> keys and values [B, T, H, N + V]."""
    x = latent if own_latent is None else own_latent.unsqueeze(1)
    assert x is not None, "one of the two is read"
    pieces = cut(at)
    of_ranks = zip(parts(w["kv_b"], pieces, 0), file_scales(w, "kv_b", at).by_outputs(pieces), strict=True)
    heads = gathered(each(_by_kv_b, ((x, kv_b, scales, at) for kv_b, scales in of_ranks), pieces), pieces)
    return heads.view(*heads.shape[:2], p["heads"], -1)


def mla(
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    latent: torch.Tensor | None,
    k_rope: torch.Tensor,
    mask: torch.Tensor,
    expanded: torch.Tensor | None = None,
    own_latent: torch.Tensor | None = None,
    own_k_rope: torch.Tensor | None = None,
    selected: torch.Tensor | None = None,
    *,
    w: Mapping[str, torch.Tensor],
    p: Mapping[str, Any],
    at: Mapping[str, Any],
) -> torch.Tensor:
    """q_nope [B, T, H, N], q_rope [B, H, T, R], latent [B, 1, S, L], k_rope [B, 1, S, R], mask [B, S], expanded
    [B, S, H, N + V] -> [B, T, H * V].

    The queries are the last T of S tokens. own_latent [B, T, L] and own_k_rope [B, 1, T, R], if given, replace the
    values of these tokens in latent and k_rope. selected, if given: the keys that each query sees, int64 [B, T, n], -1
    for none.
    """
    if own_k_rope is not None:
        k_rope = with_own(k_rope, own_k_rope)
    if latent is not None and own_latent is not None:
        latent = with_own(latent, own_latent.unsqueeze(1))
    selected = selected if p.get("indexed", True) else None
    pieces = cut(at)
    heads: Sequence[torch.Tensor | None] = [None] * pieces
    if expanded is not None and at["projection"] == "expanded":
        heads = parts(expanded, pieces, 2)
    scales = file_scales(w, "kv_b", at).by_outputs(pieces)
    of_ranks = (parts(q_nope, pieces, 2), parts(q_rope, pieces, 1), parts(w["kv_b"], pieces, 0), heads, scales)
    attend = _absorbed if at["projection"] == "absorbed" else _expanded
    latents = (
        (_Latent(nope.transpose(1, 2), rope, kv_b, latent, k_rope, mask, x, selected, own_scales),)
        for nope, rope, kv_b, x, own_scales in zip(*of_ranks, strict=True)
    )
    return gathered(each(lambda piece: side_by_side(attend(piece, p, at)), latents, pieces), pieces)


@dataclass(frozen=True, slots=True)
class _Latent:
    """The operands of the heads that one rank holds: q_nope [B, H, T, N], q_rope [B, H, T, R], kv_b [H * (N + V), L],
    k_rope [B, 1, S, R], mask [B, S], and either latent [B, 1, S, L] or expanded [B, S, H, N + V], from which keys and
    values come.
    """

    q_nope: torch.Tensor
    q_rope: torch.Tensor
    kv_b: torch.Tensor
    latent: torch.Tensor | None
    k_rope: torch.Tensor
    mask: torch.Tensor
    expanded: torch.Tensor | None
    selected: torch.Tensor | None
    scales: FileScales

    @property
    def width(self) -> int:
        """The width of a head's query."""
        return self.q_nope.shape[-1] + self.q_rope.shape[-1]


def _expanded(x: _Latent, p: Mapping[str, Any], at: Mapping[str, Any]) -> torch.Tensor:
    """Attention with keys and values of every head, [B, H, T, V]. The cache holds either latents or expanded values,
    and these keep the layout in which the cache hands them on.
    """
    q, heads, k_rope, mask, free = torch.cat((x.q_nope, x.q_rope), dim=-1), x.expanded, x.k_rope, x.mask, 0
    if heads is None:
        assert x.latent is not None, "it is read where what was expanded is not"
        latent, k_rope, mask, free = cached(x.latent, k_rope, mask, q.shape[2], None, at)
        flat = _by_kv_b(latent, x.kv_b, x.scales, at)
        heads = flat.view(*flat.shape[:2], q.shape[1], -1)
    k_nope, v = torch.split(heads.transpose(1, 2), [heads.shape[-1] - p["value_dim"], p["value_dim"]], dim=-1)
    k = torch.cat((k_nope, k_rope.expand(-1, q.shape[1], -1, -1)), dim=-1).contiguous()
    if x.expanded is not None:
        k, v, mask, free = cached(k, v, mask, q.shape[2], None, at)
    scale = _latent_scale(x.width, p)
    return causal(Heads(q=q, k=k, v=v, mask=mask, window=None, scale=scale, free=free, selected=x.selected), at)


def _by_kv_b(latent: torch.Tensor, kv_b: torch.Tensor, scales: FileScales, at: Mapping[str, Any]) -> torch.Tensor:
    """Keys and values of every head of a rank, side by side: latent [B, 1, S, L] -> [B, S, H * (N + V)]."""
    form = {**at, **_kv_b_form(at), "rows": at.get("rows", ALL), "splits": 1}
    gemm = partial(gemm_of(form, KV_B_ORDER), inputs=at["kv_b"], output=at["kv_b"])
    return with_scales(gemm, form, scales)(latent, kv_b, None).squeeze(1)


def _absorbed(x: _Latent, p: Mapping[str, Any], at: Mapping[str, Any]) -> torch.Tensor:
    """As `_expanded`, but attends to the latent itself, which is one key and value head for all; GEMMs are per head,
    over all tokens.
    """
    assert x.latent is not None, "it is always read here"
    kv_b = multiplied_out(x.kv_b, x.scales, at)
    halves = kv_b.view(x.q_nope.shape[1], -1, kv_b.shape[-1])
    to_latent, to_values = halves[:, : -p["value_dim"]], halves[:, -p["value_dim"] :].transpose(1, 2)
    q_latent = _by_head(x.q_nope, to_latent, at, at["q_latent"])
    q, k = torch.cat((q_latent, x.q_rope), dim=-1), torch.cat((x.latent, x.k_rope), dim=-1)
    scale = _latent_scale(x.width, p)
    heads = Heads(q=q, k=k, v=x.latent, mask=x.mask, window=None, scale=scale, selected=x.selected)
    return _by_head(causal(heads, {**at, "output": at["o_latent"]}), to_values, at, at["output"])


def _kv_b_form(at: Mapping[str, Any]) -> dict[str, Any]:
    """How GEMMs with kv_b add up, under the names that `gemm_of` has for it."""
    return {"order": at.get(KV_B_ORDER, NATIVE), "tf32": at.get("kv_b_tf32", "no")}


def _for_kv_b(x: torch.Tensor, at: Mapping[str, Any]) -> torch.Tensor:
    """x as an operand of a GEMM with kv_b, rounded to that GEMM's input dtype."""
    x = rounded(x, at["kv_b"])
    return tf32(x) if at.get("kv_b_tf32") == "yes" else x


def _by_head(x: torch.Tensor, weight: torch.Tensor, at: Mapping[str, Any], output: torch.dtype) -> torch.Tensor:
    """x [B, H, T, K], weight [H, K, N] -> [B, H, T, N]: one GEMM for each head, over the tokens of all sequences."""
    flat = x.transpose(0, 1).flatten(1, 2)
    form = _kv_b_form(at)
    if form["order"] != NATIVE:
        gemm = gemm_of(form, KV_B_ORDER)
        heads = [
            gemm(rows, of_head.t(), None, inputs=at["kv_b"], output=output)
            for rows, of_head in zip(flat, weight, strict=True)
        ]
        return torch.stack(heads).view(x.shape[1], x.shape[0], x.shape[2], -1).transpose(0, 1)
    flat, weight = _for_kv_b(flat, at), _for_kv_b(weight, at)
    if at.get("rows", ALL) == ALL:
        out = matmul(flat, weight, output)
    else:
        key = ("by head", weight.shape, weight.stride(), output)
        with places_tried():
            out = in_blocks(flat, int(at["rows"]), lambda block: matmul(block, weight, output), key=key)
    return out.view(x.shape[1], x.shape[0], x.shape[2], -1).transpose(0, 1)


def _latent_scale(width: int, p: Mapping[str, Any]) -> float:
    """`softmax_scale`, times mscale twice where DeepSeek's yarn asks for it."""
    scale, rope = softmax_scale(width, p), p["rope"]
    if rope["rope_type"] == "default" or not rope.get("mscale_all_dim"):
        return scale
    mscale = yarn_mscale(rope["factor"], rope["mscale_all_dim"])
    return scale * mscale * mscale
