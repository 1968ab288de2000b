"""The functions of Megatron-LM that are run here, of the profile's commit and of the package; our attributes."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from moeparity.ops.kernels import elementwise, glu
from moeparity.ops.kernels import linear as linears
from tests.engines import inputs, ours, products
from tests.engines.function import At, Case, Engine, Function, Outputs
from tests.ops.plain import BF16, FP32, random

CORE = "megatron/core"
MOE, ROPE = f"{CORE}/transformer/moe", f"{CORE}/models/common/embeddings"
UNFUSED = "TransformerEngine absent: Megatron's own torch code"
DEEPSEEK = {"top_k": 6, "score": "sigmoid", "renormalize": True, "groups": 4, "top_groups": 2, "scale": 2.5}
UNGROUPED = {**DEEPSEEK, "groups": 1, "top_groups": 1}
SOFTMAX = {**UNGROUPED, "score": "softmax", "scale": 1.0}
SIGMOID = {"group_score": "topk_share_sum", "renormalize_eps": 1e-20}
RECIPROCAL = {"router:renormalize": "reciprocal"}


def in_logits_dtype(case: Case, **at: Any) -> At:
    """Scores in fp32, the routing weights in the dtype of the logits."""
    return ours.router_at(case, **{"weights": case["x"].dtype, **at})


def router(
    name: str,
    p: dict[str, Any],
    at: dict[str, Any],
    *others: dict[str, Any],
    biased: bool = False,
    timing: str = "after_topk",
) -> tuple[Function, ...]:
    """As in a training step, and without gradients."""
    return tuple(
        Function(
            "router",
            f"topk_routing_with_score_function, {name}{of}",
            f"{MOE}/moe_utils.py",
            inputs.routes(p, biased, (FP32, BF16), timing=timing, grad=grad),
            ours.routed,
            partial(in_logits_dtype, **{"slots": slots, **at}),
            # Of groups' experts the best are sorted either way.
            (*others, *(() if p["groups"] > 1 else ({"router:slots": control},))),
            p=lambda case: case["p"],
        )
        for of, grad, slots, control in (("", True, "sorted", "unsorted"), (", no_grad", False, "unsorted", "sorted"))
    )


ROUTERS = (
    *router("softmax after top-k", SOFTMAX, {"timing": "after_topk"}, {"router:timing": "before_topk"},
            {"router:weights": BF16}, {"router:softmax": "reciprocal"}),
    *router("softmax before top-k", {**SOFTMAX, "renormalize": False}, {}, {"router:scores": BF16},
            {"router:weights": BF16}, timing="before_topk"),
    *router("sigmoid and bias", UNGROUPED, SIGMOID, RECIPROCAL, {"router:scores": BF16}, {"router:total": BF16},
            {"router:quotient": BF16}, {"router:weights": BF16}, {"router:sigmoid": "tanh"}, biased=True),
    *router("sigmoid, groups and bias", DEEPSEEK, {**SIGMOID, "slots": "sorted"}, RECIPROCAL,
            {"router:group_score": "max"}, {"router:scores": BF16}, {"router:choice": BF16}, biased=True),
)  # fmt: skip


def gate(case: Case, at: At) -> Outputs:
    return {"output": linears.gate(case["x"], w={"weight": case["weight"]}, p={}, at=at["gate"])}


def gate_at(case: Case) -> At:
    """--moe-router-dtype: operands and logits in it."""
    return {"gate": {"inputs": case["dtype"], "output": case["dtype"], "order": "native", "rows": "all", "splits": 1}}


GATES = {
    f"{label} {dtype}": {**case, "dtype": dtype}
    for label, case in inputs.heads().items()
    for dtype in (case["x"].dtype, FP32)
}


def in_rows_dtype(case: Case, at: At) -> Outputs:
    """Routing weights in the dtype of the rows; none where the rows have met theirs."""
    weights = case["weights"].to(case["x"].dtype) if case["weighted"] else torch.ones_like(case["weights"])
    return ours.combined({**case, "weights": weights}, at)


def combine_at(case: Case) -> At:
    return ours.combine_at(case, leaves="expert", weighted=case["x"].dtype)


def unfused(case: Case, at: At) -> Outputs:
    """silu(gate) * up, and the routing weight."""
    values, scores = at["experts"], case["scores"]
    gate, up = case["x"].chunk(2, -1)
    hidden = glu.swiglu(gate, up, activation=values["activation"], output=values["product"], logistic="native")
    return {"output": hidden if scores is None else titan_product(hidden, scores, values["scored"])}


def titan_product(x: Tensor, scores: Tensor, dtype: torch.dtype) -> Tensor:
    return (x.float() * scores.unsqueeze(-1).float()).to(dtype)


def unfused_at(case: Case) -> At:
    dtype = case["x"].dtype
    scored = {} if case["scores"] is None else {"score_site": "activation", "scored": dtype}
    return {"experts": {"activation": dtype, "product": dtype, "logistic": "native", **scored}}


def rotary(case: Case, at: At) -> Outputs:
    """The table is not handed out."""
    return {name: x for name, x in ours.rotary(case, at).items() if name != "cache"}


def add(case: Case, at: At) -> Outputs:
    return {"output": elementwise.add(case["x"], case["residual"], w={}, p={}, at=at["add"])}


ADDED = {label: {n: case[n] for n in ("x", "residual")} for label, case in inputs.norms(residual=True).items()}
LLAMA3 = {**inputs.ROPES["llama3"], "original_max_position_embeddings": 8192}
ROPES = {
    **inputs.ropes(("default", "theta 1e6", "yarn", "yarn, mscale"), interleaved=False),
    **{label: {**case, "rope": LLAMA3} for label, case in inputs.ropes(("llama3",), interleaved=False).items()},
    **{f"half, {label}": case for label, case in inputs.ropes(("default",), interleaved=False, dim=32).items()},
}
PAIRS = inputs.ropes(("default", "yarn, mscale"), interleaved=True)


def scores(of: dict[str, Case]) -> dict[str, Case]:
    return {
        label: {**case, "scores": random(len(case["x"]), dtype=case["x"].dtype, seed=4).sigmoid()}
        for label, case in of.items()
    }


FUNCTIONS = (
    Function(
        "rms_norm",
        "WrappedTorchNorm",
        f"{CORE}/transformer/torch_norm.py",
        inputs.norms(residual=False),
        ours.norm,
        ours.norm_at,
        (
            {"rms_norm:normalized": BF16},
            {"rms_norm:association": "weight_rstd_first"},
            {"rms_norm:order": "sequential"},
        ),
        assumed="--transformer-impl local; torch.nn.RMSNorm on CPU",
    ),
    *ROUTERS,
    Function(
        "gate",
        "router_gating_linear",
        f"{MOE}/moe_utils.py",
        GATES,
        gate,
        gate_at,
        ({"gate:inputs": BF16}, {"gate:output": BF16}),
        assumed=UNFUSED,
    ),
    *(
        Function(
            "combine",
            f"permute and unpermute, {of}",
            f"{MOE}/moe_utils.py",
            inputs.slots(weighted=weighted),
            in_rows_dtype,
            combine_at,
            ({"combine:accumulate": BF16}, {"combine:leaves": "slot"}),
            blind=("accumulate", "order"),
            assumed="scatter_add_ on CPU: in fp32, in order of experts; on CUDA it is another kernel",
        )
        for of, weighted in (("rows that have met their weights", False), ("with probs", True))
    ),
    *(
        Function("mlp", f"MLP.forward, unfused{of}", f"{CORE}/transformer/mlp.py", cases, unfused, unfused_at, others)
        for of, cases, others in (
            ("", inputs.gated(scores=None), ({"experts:activation": FP32},)),
            (", per_token_scale", scores(inputs.gated()), ({"experts:activation": FP32}, {"experts:product": FP32})),
        )
    ),
    *(
        Function(
            "rotary",
            f"RotaryEmbedding, YarnRotaryEmbedding and _apply_rotary_pos_emb_bshd{of}",
            f"{ROPE}/rotary_pos_embedding.py, rope_utils.py",
            cases,
            rotary,
            partial(ours.rotary_at, layout=layout),
            ({"rope:products": FP32}, {"rotary:output": FP32}),
            p=ours.rotary_p,
            assumed="--no-rope-fusion; Llama 3's constants are Megatron's own",
        )
        for of, cases, layout in (("", ROPES, "halves"), (", mla_rotary_interleaved", PAIRS, "halves"))
    ),
    Function(
        "add",
        "get_bias_dropout_add",
        f"{CORE}/fusions/fused_bias_dropout.py",
        ADDED,
        add,
        lambda case: {"add": {"output": case["x"].dtype, "output->rms_norm": "stored"}},
        ({"add:output": BF16},),
        assumed="what it gives is all that the norm is handed",
    ),
    products.product(
        "lm_head",
        "LinearWithGradAccumulationAndAsyncCommunication.forward",
        f"{CORE}/tensor_parallel/layers.py",
        assumed="one rank",
    ),
    products.embedding("VocabParallelEmbedding.forward", f"{CORE}/tensor_parallel/layers.py", assumed="one rank"),
    Function(
        "shared_add",
        "MoELayer.postprocess",
        f"{MOE}/moe_layer.py",
        inputs.scaled(),
        ours.shared_add,
        lambda case: ours.shared_add_at(case, "weights"),
        ({"shared_add:scaling": "output"},),
    ),
    Function(
        "log_probs",
        "VocabParallelCrossEntropy",
        f"{CORE}/tensor_parallel/cross_entropy.py",
        inputs.logits((1.0,), chosen=True),
        ours.log_probs,
        lambda case: ours.log_probs_at(case, form="shifted"),
        (
            {"log_probs:form": "minus_logsumexp"},
            {"log_probs:form": "log_of_softmax"},
            {"log_probs:order": "sequential"},
        ),
        assumed="one rank: its sums are reduced with nothing",
    ),
)

ENGINE = Engine("Megatron-LM d98e8a64dd", "megatron.live", ("megatron-lm", "triton"), FUNCTIONS)
