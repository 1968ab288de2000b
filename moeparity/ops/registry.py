"""All ops by name."""

from __future__ import annotations

from moeparity.errors import SpecError, did_you_mean, listed
from moeparity.ops import (
    attention,
    combine,
    elementwise,
    experts,
    gated_delta,
    images,
    indexer,
    kv_cache,
    lightning,
    linear,
    log_probs,
    mamba2,
    mla,
    placement,
    position_scale,
    preference,
    rope,
    router,
    selective_scan,
    short_conv,
)
from moeparity.ops.declaration import Op
from moeparity.ops.norm import gated_norm, layer_norm, rms_norm, unweighted_norm

OPS: dict[str, Op] = {
    op.name: op
    for op in (
        elementwise.EMBEDDING,
        images.PLACE_IMAGES,
        images.ADD_IMAGES,
        rope.ROTARY,
        rms_norm.RMS_NORM,
        layer_norm.LAYER_NORM,
        unweighted_norm.UNWEIGHTED_NORM,
        linear.LINEAR,
        rope.ROPE,
        rope.BY_HEAD,
        rope.BY_TOKEN,
        kv_cache.KV_CACHE,
        attention.ATTENTION,
        mla.MLA_EXPAND,
        mla.MLA,
        indexer.INDEXER,
        position_scale.POSITION_SCALE,
        short_conv.SHORT_CONV,
        gated_delta.GATED_DELTA,
        lightning.LIGHTNING,
        mamba2.MAMBA2,
        selective_scan.SELECTIVE_SCAN,
        gated_norm.GATED_NORM,
        placement.ALL_REDUCE,
        elementwise.ADD,
        linear.GATE,
        router.ROUTER,
        experts.EXPERTS,
        combine.COMBINE,
        elementwise.SHARED_ADD,
        elementwise.SWIGLU,
        elementwise.SILU,
        elementwise.RELU2,
        elementwise.SIGMOID_GATE,
        elementwise.SCALE,
        elementwise.CLAMP,
        elementwise.SPLIT,
        elementwise.JOIN,
        elementwise.MASK_PADDING,
        linear.LM_HEAD,
        log_probs.LOG_PROBS,
        preference.PREFERENCE,
    )
}


def find(name: str) -> Op:
    """The op of that name. Raises SpecError."""
    if name not in OPS:
        raise SpecError(f"op {name!r} is unknown; expected one of {listed(OPS)}.{did_you_mean(name, OPS)}")
    return OPS[name]
