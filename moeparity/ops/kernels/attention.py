"""Kernels of `attention` and `mla`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F

from moeparity.numerics import rounding
from moeparity.numerics.blocks import in_blocks
from moeparity.numerics.gemm_forms import ALL
from moeparity.numerics.orders import NATIVE
from moeparity.numerics.rounding import rounded, tf32, working
from moeparity.ops.attention_forms import FLASH, SDPA
from moeparity.ops.attribute import RefusedError
from moeparity.ops.kernels.exponentials import softmax
from moeparity.ops.kernels.flash import Heads, flash
from moeparity.ops.kernels.flash_blocks import flash_in_blocks
from moeparity.ops.kernels.linear import gemm_of, places_tried
from moeparity.ops.kernels.placement import parts, shared
from moeparity.ops.kernels.ranks import each, gathered
from moeparity.ops.kernels.rope import yarn_mscale
from moeparity.ops.placement import cut


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor,
    own_k: torch.Tensor | None = None,
    own_v: torch.Tensor | None = None,
    *,
    w: Mapping[str, torch.Tensor],
    p: Mapping[str, Any],
    at: Mapping[str, Any],
) -> torch.Tensor:
    """q [B, H, T, D], k and v [B, G, S, D], mask [B, S] or, of a pack, [1, T, T] bool -> [B, T, H * D].

    The queries are the last T of S tokens; own_k [B, G, T, D] and own_v [B, T, G, D] stand in place of what `k` and `v`
    have for these.
    """
    if own_k is not None and own_v is not None:
        k, v = _with_own(k, own_k), _with_own(v, own_v.transpose(1, 2))
    k, v, mask, free = _cached(k, v, mask, q.shape[2], p["window"], at)
    pieces = cut(at)
    ranks = zip(parts(q, pieces, 1), shared(k, pieces, 1), shared(v, pieces, 1), strict=True)
    ahead, counted = p.get("ahead", 0), p.get("sink_times", 1)
    at_all = Heads(
        q=q, k=k, v=v, mask=mask, window=p["window"], scale=_scale(q.shape[-1], p), free=free, ahead=ahead,
        counted=counted,
    )  # fmt: skip
    heads = [replace(at_all, q=q, k=k, v=v) for q, k, v in ranks]
    if "sinks" in w:
        owned = zip(heads, parts(w["sinks"], pieces, 0), strict=True)
        heads = [replace(piece, sinks=sinks.view(1, -1, 1, 1)) for piece, sinks in owned]
    return gathered(
        each(lambda piece: _side_by_side(_causal(piece, at)), ((piece,) for piece in heads), pieces), pieces
    )


def mla_expand(
    latent: torch.Tensor | None,
    own_latent: torch.Tensor | None = None,
    *,
    w: Mapping[str, torch.Tensor],
    p: Mapping[str, Any],
    at: Mapping[str, Any],
) -> torch.Tensor:
    """latent [B, 1, T, L], or own_latent [B, T, L] in its place -> [B, T, H, N + V]."""
    x = latent if own_latent is None else own_latent.unsqueeze(1)
    assert x is not None, "one of the two is read"
    pieces = cut(at)
    heads = gathered(each(_by_kv_b, ((x, kv_b, at) for kv_b in parts(w["kv_b"], pieces, 0)), pieces), pieces)
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
    *,
    w: Mapping[str, torch.Tensor],
    p: Mapping[str, Any],
    at: Mapping[str, Any],
) -> torch.Tensor:
    """q_nope [B, T, H, N], q_rope [B, H, T, R], latent [B, 1, S, L], k_rope [B, 1, S, R], mask [B, S], expanded
    [B, S, H, N + V] -> [B, T, H * V].

    The queries are the last T of S tokens; own_latent [B, T, L] and own_k_rope [B, 1, T, R] stand in place of what
    `latent` and `k_rope` have for these.
    """
    if own_k_rope is not None:
        k_rope = _with_own(k_rope, own_k_rope)
    if latent is not None and own_latent is not None:
        latent = _with_own(latent, own_latent.unsqueeze(1))
    pieces = cut(at)
    heads: Sequence[torch.Tensor | None] = [None] * pieces
    if expanded is not None and at["projection"] == "expanded":
        heads = parts(expanded, pieces, 2)
    ranks = zip(parts(q_nope, pieces, 2), parts(q_rope, pieces, 1), parts(w["kv_b"], pieces, 0), heads, strict=True)
    attend = _absorbed if at["projection"] == "absorbed" else _expanded
    latents = ((_Latent(nope.transpose(1, 2), rope, kv_b, latent, k_rope, mask, x),) for nope, rope, kv_b, x in ranks)
    return gathered(each(lambda piece: _side_by_side(attend(piece, p, at)), latents, pieces), pieces)


def _with_own(stored: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """[B, G, S, D], of which the last T are as they were computed, [B, G, T, D]."""
    earlier = stored.shape[2] - new.shape[2]
    return torch.cat((stored[:, :, :earlier], new), dim=2) if earlier else new


def _cached(
    k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, queries: int, window: int | None, at: Mapping[str, Any]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """Keys, values and mask as a cache hands them on, and how many of its places behind them are free.

    Imitates transformers 5.23.0, cache_utils.py: DynamicLayer, DynamicSlidingWindowLayer, StaticLayer and
    StaticSlidingWindowLayer, `update`.
    """
    layout = at.get("kv_layout")
    if layout is None:
        # An online softmax, of which it is no choice, loads tiles: it is handed one layout, whatever made the keys.
        return _own(k), _own(v), mask, 0
    if layout == "projected":
        return k, v, mask, 0
    keys, free = k.shape[2], 0
    before, reach = keys - queries, None if window is None else window - 1
    if layout == "static":
        places = int(at["allocated"]) if window is None else min(window, int(at["allocated"]))
        if window is None and keys > places:
            raise RefusedError("allocated", f"{keys} tokens do not fit into {places} places. Allocate more.")
        if not before and keys > places:
            # Handed on as they are: only what the window keeps is copied.
            return k, v, mask, 0
        free = max(0, places - keys)
        reach = None if before < places else places - 1
    within_reach = slice(0 if reach is None else max(0, before - reach), keys)
    k, v, mask = _own(k[:, :, within_reach]), _own(v[:, :, within_reach]), mask[..., within_reach]
    if not free:
        return k, v, mask, 0
    return F.pad(k, (0, 0, 0, free)), F.pad(v, (0, 0, 0, free)), F.pad(mask, (0, free)), free


def _own(x: torch.Tensor) -> torch.Tensor:
    """A contiguous copy, always: `contiguous` leaves a view of one row its strides and its place in a cache line."""
    return x.new_empty(x.shape).copy_(x)


@dataclass(frozen=True, slots=True)
class _Latent:
    """What the heads that one rank holds attend with: q_nope [B, H, T, N], q_rope [B, H, T, R], kv_b [H * (N + V), L],
    latent [B, 1, S, L], k_rope [B, 1, S, R], mask [B, S], expanded [B, S, H, N + V]; of the two that make keys and
    values one is there.
    """

    q_nope: torch.Tensor
    q_rope: torch.Tensor
    kv_b: torch.Tensor
    latent: torch.Tensor | None
    k_rope: torch.Tensor
    mask: torch.Tensor
    expanded: torch.Tensor | None

    @property
    def width(self) -> int:
        """The width of a head's query."""
        return self.q_nope.shape[-1] + self.q_rope.shape[-1]


def _expanded(x: _Latent, p: Mapping[str, Any], at: Mapping[str, Any]) -> torch.Tensor:
    """Attention to keys and values of every head's own, [B, H, T, V]; what a cache holds lies as it leaves it: latents,
    or what they were expanded into.
    """
    q, heads, k_rope, mask, free = torch.cat((x.q_nope, x.q_rope), dim=-1), x.expanded, x.k_rope, x.mask, 0
    if heads is None:
        assert x.latent is not None, "it is read where what was expanded is not"
        latent, k_rope, mask, free = _cached(x.latent, k_rope, mask, q.shape[2], None, at)
        flat = _by_kv_b(latent, x.kv_b, at)
        heads = flat.view(*flat.shape[:2], q.shape[1], -1)
    k_nope, v = torch.split(heads.transpose(1, 2), [heads.shape[-1] - p["value_dim"], p["value_dim"]], dim=-1)
    k = torch.cat((k_nope, k_rope.expand(-1, q.shape[1], -1, -1)), dim=-1).contiguous()
    if x.expanded is not None:
        k, v, mask, free = _cached(k, v, mask, q.shape[2], None, at)
    scale = _latent_scale(x.width, p)
    return _causal(Heads(q=q, k=k, v=v, mask=mask, window=None, scale=scale, free=free), at)


def _by_kv_b(latent: torch.Tensor, kv_b: torch.Tensor, at: Mapping[str, Any]) -> torch.Tensor:
    """Keys and values of every head that a rank holds, side by side: latent [B, 1, S, L] -> [B, S, H * (N + V)]."""
    x, weight = (_for_kv_b(operand, at) for operand in (latent, kv_b))
    gemm = gemm_of({"rows": at.get("rows", ALL)})
    return gemm(x, weight, None, inputs=at["kv_b"], output=at["kv_b"]).squeeze(1)


def _absorbed(x: _Latent, p: Mapping[str, Any], at: Mapping[str, Any]) -> torch.Tensor:
    """As `_expanded`, to the latent itself, one key and value head for all; its GEMMs see all tokens of a head."""
    assert x.latent is not None, "it is always read here"
    halves = x.kv_b.view(x.q_nope.shape[1], -1, x.kv_b.shape[-1])
    to_latent, to_values = halves[:, : -p["value_dim"]], halves[:, -p["value_dim"] :].transpose(1, 2)
    q_latent = _by_head(x.q_nope, to_latent, at, at["q_latent"])
    q, k = torch.cat((q_latent, x.q_rope), dim=-1), torch.cat((x.latent, x.k_rope), dim=-1)
    scale = _latent_scale(x.width, p)
    heads = Heads(q=q, k=k, v=x.latent, mask=x.mask, window=None, scale=scale)
    return _by_head(_causal(heads, {**at, "output": at["o_latent"]}), to_values, at, at["output"])


def _for_kv_b(x: torch.Tensor, at: Mapping[str, Any]) -> torch.Tensor:
    """An operand of a GEMM with kv_b."""
    x = rounded(x, at["kv_b"])
    return tf32(x) if at.get("kv_b_tf32") == "yes" else x


def _by_head(x: torch.Tensor, weight: torch.Tensor, at: Mapping[str, Any], output: torch.dtype) -> torch.Tensor:
    """x [B, H, T, K], weight [H, K, N] -> [B, H, T, N], a GEMM for each head over the tokens of all sequences."""
    flat = x.transpose(0, 1).flatten(1, 2)
    flat, weight = _for_kv_b(flat, at), _for_kv_b(weight, at)
    if at.get("rows", ALL) == ALL:
        out = _matmul(flat, weight, output)
    else:
        key = ("by head", weight.shape, weight.stride(), output)
        with places_tried():
            out = in_blocks(flat, int(at["rows"]), lambda block: _matmul(block, weight, output), key=key)
    return out.view(x.shape[1], x.shape[0], x.shape[2], -1).transpose(0, 1)


def _scale(width: int, p: Mapping[str, Any]) -> float:
    """1 / sqrt of the width of a head's query, as the parameters have it. Raises RefusedError."""
    of, factor = p.get("scale_width"), p.get("softmax_scale")
    if of is not None and of < 1:
        raise RefusedError("fault", f"no query is {of} wide.")
    once = float((width if of is None else of) ** -0.5)
    return float(1.0 if factor is None else factor) * once ** int(p.get("scaled", 1))


def _latent_scale(width: int, p: Mapping[str, Any]) -> float:
    """`_scale`, times mscale twice where DeepSeek's yarn asks for it."""
    scale, rope = _scale(width, p), p["rope"]
    if rope["rope_type"] == "default" or not rope.get("mscale_all_dim"):
        return scale
    mscale = yarn_mscale(rope["factor"], rope["mscale_all_dim"])
    return scale * mscale * mscale


def _causal(heads: Heads, at: Mapping[str, Any]) -> torch.Tensor:
    """The attention of all heads, [B, H, T, V]."""
    return {SDPA: _sdpa, FLASH: _flash}.get(at["implementation"], _eager)(heads, at)


def _side_by_side(heads: torch.Tensor) -> torch.Tensor:
    """Of heads [B, H, T, V] -> [B, T, H * V]."""
    return heads.transpose(1, 2).contiguous().flatten(2)


def _visible(x: Heads) -> torch.Tensor:
    """Which keys a query sees, [B or 1, 1, T, S] bool, the last T of S tokens asking; a padded query at the left sees
    none at all.
    """
    queries, keys = x.q.shape[2], x.mask.shape[-1]
    before = keys - x.free - queries
    visible = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=x.mask.device).tril(before + x.ahead)
    if x.window is not None:
        visible = visible.triu(before + 1 - x.window)
    if bool(x.mask.all()):
        return visible
    return visible & (x.mask[:, None, None, :] if x.mask.dim() == 2 else x.mask[:, None])


def _eager(x: Heads, at: Mapping[str, Any]) -> torch.Tensor:
    k, v = _repeated(x)
    dtype, cast = at["scores"], tf32 if at["tf32"] == "yes" else _as_it_is
    scores = _matmul(cast(x.q), cast(k).transpose(2, 3), dtype) * x.scale
    # Hugging Face adds the smallest finite number, not -inf: the addition rounds, and a row without any visible key
    # becomes a mean over all keys instead of NaN.
    hidden = ~_visible(x)
    scores = scores + torch.zeros_like(hidden, dtype=dtype).masked_fill_(hidden, torch.finfo(dtype).min)
    if x.sinks is None:
        probabilities = softmax(scores, working(dtype, at["probabilities"]), at)
    else:
        probabilities = _with_sinks(scores, x.sinks, x.counted, at)
    return _matmul(cast(rounded(probabilities, at["probabilities"])), cast(v), at["output"])


def _with_sinks(scores: torch.Tensor, sinks: torch.Tensor, counted: int, at: Mapping[str, Any]) -> torch.Tensor:
    """Softmax of scores [B, H, T, T] with a sink in each row, so many times; these then are left out: a view, as
    transformers has it.

    transformers subtracts the highest first, in the scores' dtype (GptOssAttention, eager_attention_forward).
    """
    scores = torch.cat((scores, sinks.expand(*scores.shape[:3], counted)), dim=-1)
    shifted = rounding.add(scores, -scores.amax(dim=-1, keepdim=True), at["shifted"])
    native = at["softmax"] == NATIVE and at["shifted"] == at["probabilities"]
    step = at["shifted"] if native else working(at["shifted"], at["probabilities"])
    return softmax(shifted, step, at)[..., :-counted]


def _as_it_is(x: torch.Tensor) -> torch.Tensor:
    return x


def _flash(x: Heads, at: Mapping[str, Any]) -> torch.Tensor:
    if x.ahead:
        raise RefusedError(
            "implementation", f"its tiles end at the diagonal, and {x.ahead} tokens ahead are asked for."
        )
    if x.sinks is not None and x.counted != 1:
        raise RefusedError("implementation", f"it counts a sink once, and {x.counted} times are asked for.")
    k, v = _repeated(x)
    attend = flash if at.get("rows", ALL) == ALL else flash_in_blocks
    return attend(replace(x, k=k, v=v), _visible(x), at)


def _sdpa(x: Heads, at: Mapping[str, Any]) -> torch.Tensor:
    # One dtype for all three: the widest, should an earlier site have left one of them in fp32.
    common = torch.promote_types(torch.promote_types(x.q.dtype, x.k.dtype), x.v.dtype)
    x = replace(x, q=rounded(x.q, common), k=rounded(x.k, common), v=rounded(x.v, common))
    q, k, v = x.q, x.k, x.v
    b, h, t, _ = q.shape
    groups = h // k.shape[1]
    # What torch can be told in a word is not spelled out as a mask: no padding in these sequences, none out of reach.
    in_reach = x.window is None or k.shape[2] < x.window
    at_once = t == k.shape[2] or (t == 1 and at.get("kv_layout") != "static")
    plain = in_reach and at_once and not x.ahead and bool(x.mask.all())
    visible = None if plain else _visible(x).expand(b, -1, -1, -1)
    grouped = groups > 1 and visible is None and k.shape[-1] == v.shape[-1] <= 256
    if groups > 1 and not grouped and t == 1:
        q = q.reshape(b, h // groups, groups, -1)
    elif not grouped:
        k, v = _repeated(x)
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=visible, scale=x.scale, is_causal=t > 1 and visible is None, enable_gqa=grouped
    )
    return rounded(out.reshape(b, h, t, -1), at["output"])


def _matmul(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Batched a @ b: torch's kernel of `dtype` if both operands are in it, else of `working` dtype and one rounding."""
    if a.dtype == b.dtype == dtype:
        return torch.matmul(a, b)
    step = working(a.dtype, b.dtype, dtype)
    return rounded(torch.matmul(a.to(step), b.to(step)), dtype)


def _repeated(x: Heads) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [B, H, T, D], one head for each of the queries'."""
    times = x.q.shape[1] // x.k.shape[1]
    return _repeat_heads(x.k, times), _repeat_heads(x.v, times)


def _repeat_heads(x: torch.Tensor, times: int) -> torch.Tensor:
    """[B, G, T, D] -> [B, G * times, T, D]; the view itself when there is nothing to repeat, as transformers does."""
    if times == 1:
        return x
    b, g, t, d = x.shape
    return x[:, :, None].expand(b, g, times, t, d).reshape(b, g * times, t, d)
