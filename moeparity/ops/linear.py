"""GEMMs with one weight: `linear`, `gate` (the router's) and `lm_head`, told apart so that a profile can name them."""

from __future__ import annotations

from moeparity.ops.declaration import Op, Parameter, WeightPort, site

_SITES = (
    site("inputs", "activations and weight are rounded to this dtype before the GEMM"),
    site(
        "output",
        "the GEMM's result is rounded to this dtype; the same 16-bit dtype as `inputs` is torch's 16-bit kernel, any "
        "other pair is torch's fp32 kernel (fp64 where one is fp64) on the upcast operands, rounded at the end",
    ),
)
_WEIGHTS = (
    WeightPort(name="weight", says="[N, K]"),
    WeightPort(name="bias", says="[N], added inside the GEMM kernel", required=False),
)

LINEAR = Op(
    name="linear",
    says="x @ weight.T + bias, optionally seen as heads: [B, T, K] -> [B, T, N] or [B, T, heads, N / heads].",
    inputs=("x",),
    weights=_WEIGHTS,
    parameters=(Parameter(name="heads", type=int, required=False, says="split the last axis into this many heads"),),
    attributes=_SITES,
    kernel="linear:linear",
    source="torch.nn.functional.linear as called by transformers 5.17.0 and 5.23.0",
)

GATE = Op(
    name="gate",
    says="The router's GEMM on tokens laid out as rows: [B, T, K] -> [B, T, experts].",
    inputs=("x",),
    weights=_WEIGHTS[:1],
    attributes=_SITES,
    kernel="linear:gate",
    source="transformers 5.17.0 and 5.23.0, models/qwen3_moe and models/deepseek_v3, *TopKRouter.forward",
)

LM_HEAD = Op(
    name="lm_head",
    says="The projection onto the vocabulary: [B, T, hidden] -> logits [B, T, vocab].",
    inputs=("x",),
    weights=_WEIGHTS[:1],
    attributes=_SITES,
    kernel="linear:lm_head",
    source="transformers 5.17.0 and 5.23.0, *ForCausalLM.forward: logits stay in the model's dtype",
)
