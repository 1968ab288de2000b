"""All ops by name."""

from __future__ import annotations

from moeparity.errors import SpecError, did_you_mean, listed
from moeparity.ops import (
    attention,
    combine,
    elementwise,
    experts,
    kv_cache,
    linear,
    log_probs,
    mla,
    placement,
    rope,
    router,
)
from moeparity.ops.declaration import Op
from moeparity.ops.norm import rms_norm

OPS: dict[str, Op] = {
    op.name: op
    for op in (
        elementwise.EMBEDDING,
        rope.ROTARY,
        rms_norm.RMS_NORM,
        linear.LINEAR,
        rope.ROPE,
        kv_cache.KV_CACHE,
        attention.ATTENTION,
        mla.MLA_EXPAND,
        mla.MLA,
        placement.ALL_REDUCE,
        elementwise.ADD,
        linear.GATE,
        router.ROUTER,
        experts.EXPERTS,
        combine.COMBINE,
        elementwise.SHARED_ADD,
        elementwise.SWIGLU,
        elementwise.SIGMOID_GATE,
        elementwise.CLAMP,
        elementwise.SPLIT,
        linear.LM_HEAD,
        log_probs.LOG_PROBS,
    )
}


def find(name: str) -> Op:
    """The op of that name. Raises SpecError."""
    if name not in OPS:
        raise SpecError(f"op {name!r} is unknown; expected one of {listed(OPS)}.{did_you_mean(name, OPS)}")
    return OPS[name]
