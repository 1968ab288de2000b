"""The router: scores, expert selection and routing weights."""

from __future__ import annotations

from moeparity.ops.declaration import Attribute, Op, Parameter, WeightPort, site

ROUTER = Op(
    name="router",
    says="Scores every expert, picks top-k, returns ids and weights [B, T, K] in slot order.",
    inputs=("logits",),
    outputs=("ids", "weights"),
    weights=(WeightPort(name="bias", says="[experts] fp32, added to the scores for selection only", required=False),),
    parameters=(
        Parameter(name="top_k", type=int, says="experts per token"),
        Parameter(name="score", type=str, says="softmax or sigmoid", values=("softmax", "sigmoid")),
        Parameter(name="renormalize", type=bool, says="divide the chosen scores by their sum"),
        Parameter(name="groups", type=int, required=False, default=1, says="expert groups (DeepSeek)"),
        Parameter(
            name="top_groups", type=int, required=False, default=1, says="groups kept, by the sum of their top 2"
        ),
        Parameter(name="scale", type=float, required=False, default=1.0, says="routed_scaling_factor"),
    ),
    attributes=(
        site(
            "scores",
            "softmax or sigmoid, computed in fp32 (fp64 where this or the logits are), is rounded to this dtype",
            default="fp32",
        ),
        Attribute(
            name="tie_break",
            kind="semantics",
            default="torch_topk",
            values=("torch_topk", "lowest_index"),
            says="which of equal scores is chosen: whatever torch.topk does on this device, or the lowest expert id",
        ),
        Attribute(
            name="slots",
            kind="order",
            default="sorted",
            values=("sorted", "unsorted"),
            says="slot order of the chosen experts: descending by score, or as torch.topk(sorted=False) leaves them",
            when={"tie_break": ("torch_topk",)},
        ),
        Attribute(
            name="renormalize",
            kind="form",
            default="divide",
            values=("divide", "reciprocal"),
            says="divide by the sum, or multiply by its reciprocal",
            parameter="renormalize",
        ),
        Attribute(
            name="renormalize_eps",
            kind="semantics",
            default=0.0,
            number=True,
            says="added to the sum before the division",
            parameter="renormalize",
        ),
        site("weights", "the routing weights handed to the experts are rounded to this dtype"),
    ),
    kernel="router:router",
    source="transformers 5.17.0 and 5.23.0, Qwen3MoeTopKRouter.forward, DeepseekV3TopkRouter.forward",
)
