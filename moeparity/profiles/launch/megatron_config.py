"""What fields of Megatron-LM's configuration mean, whichever framework hands them on."""

from __future__ import annotations

from dataclasses import replace

from moeparity.profiles.launch.options import Implied, Option, word, words

_NOT_READ = "as the model's bridge to Megatron-LM has it, which was not read"
ROUTER_DTYPES = {
    "none": Implied(says="router logits in the model's dtype"),
    "fp32": Implied(says="router logits in fp32", overlay="megatron-router-fp32"),
    "fp64": Implied(says="router logits in fp64: set gate:inputs and gate:output fp64"),
}
PERMUTE_FUSED = Implied(says="rows added in fp32, rounded once", overlay="megatron-permute-fusion")
PERMUTE_UNFUSED = Implied(says="rows added to a bf16 output as they arrive")
ROPE_FUSED = Implied(says="cos, sin and products in fp32")
ROPE_UNFUSED = Implied(says="every product rounded", overlay="megatron-unfused-rope")
SWIGLU_FUSED = Implied(says="SwiGLU rounded once")
SWIGLU_UNFUSED = Implied(says="silu and products rounded", overlay="megatron-unfused-swiglu")
DISPATCHERS = {
    "allgather": Implied(says="rows are combined in partial sums, one of each rank"),
    "alltoall": Implied(says="rows come back one by one and are summed at home: no partial sums"),
    "flex": Implied(says="rows come back by DeepEP or HybridEP: no shipped profile speaks of it with Megatron-LM"),
}
ATTENTION = {
    "auto": Implied(says="what TransformerEngine chooses at run time: not stated"),
    "flash": Implied(says="FlashAttention: not stated in the profile"),
    "fused": Implied(says="cuDNN's attention: not stated in the profile"),
}
SEQUENCE = Implied(says="under tensor parallel, sums are scattered by tokens", placement={"sequence": True})
NO_SEQUENCE = Implied(says="sums are whole on every rank")


def precision(name: str) -> Implied:
    """The dtype a side runs in."""
    return Implied(says=f"dtype {name}", dtype=name)


def stated(name: str, *, on: Implied, off: Implied, role: str = "trainer") -> Option:
    """A switch of which nobody read what it is where it is not set."""
    meanings = {"unset": Implied(says=_NOT_READ), **dict.fromkeys(("true", "True"), on)}
    meanings |= dict.fromkeys(("false", "False"), off)
    return word(name, default="unset", implies=words(meanings), choices=tuple(meanings), role=role)


def overrides(prefix: str) -> tuple[Option, ...]:
    """Fields of Megatron-LM's TransformerConfig that a framework hands on, over what the model's bridge sets."""
    routers = {"unset": Implied(says=_NOT_READ), **ROUTER_DTYPES}
    dispatchers = {"unset": Implied(says=_NOT_READ), **DISPATCHERS}
    return (
        word(
            f"{prefix}moe_router_dtype", default="unset", implies=words(routers), choices=tuple(routers), role="trainer"
        ),
        stated(f"{prefix}moe_permute_fusion", on=PERMUTE_FUSED, off=PERMUTE_UNFUSED),
        stated(f"{prefix}apply_rope_fusion", on=ROPE_FUSED, off=ROPE_UNFUSED),
        stated(f"{prefix}bias_activation_fusion", on=SWIGLU_FUSED, off=SWIGLU_UNFUSED),
        replace(
            word(
                f"{prefix}moe_flex_dispatcher_backend",
                default="deepep",
                implies=lambda value: Implied(says=f"with the flex dispatcher: {value}"),
                role="trainer",
            ),
            quiet=True,
        ),
        word(f"{prefix}moe_token_dispatcher_type", default="unset", implies=words(dispatchers), role="trainer"),
        stated(
            f"{prefix}moe_enable_deepep",
            on=Implied(says="DeepEP dispatches: no shipped profile speaks of it with Megatron-LM"),
            off=Implied(says="no DeepEP"),
        ),
    )
