"""All ops by name."""

from __future__ import annotations

from moeparity.ops import attention, elementwise, experts, linear, norm, rope, router
from moeparity.ops.declaration import Op

OPS: dict[str, Op] = {
    op.name: op
    for op in (
        elementwise.EMBEDDING,
        rope.ROTARY,
        norm.RMS_NORM,
        linear.LINEAR,
        rope.ROPE,
        attention.ATTENTION,
        attention.MLA,
        elementwise.ADD,
        linear.GATE,
        router.ROUTER,
        experts.EXPERTS,
        experts.COMBINE,
        elementwise.SWIGLU,
        elementwise.SPLIT,
        linear.LM_HEAD,
    )
}
