"""Recipes with one planted value: a node's attribute on the candidate's side, everything else the same on both."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

from moeparity.bisection.measures import summarise
from moeparity.bisection.observe import observe
from moeparity.bisection.observed import Observed
from moeparity.bisection.prepare import prepare
from moeparity.bisection.report import Report
from moeparity.bisection.study import Study
from moeparity.errors import Where
from moeparity.inputs.model import Model, open_model
from moeparity.numerics.tensor_core.gemm_orders import USUAL
from moeparity.ops.attribute import ABOVE_1, OTHER_THAN_0, OTHER_THAN_1, Value
from moeparity.plan.bind import bind
from moeparity.plan.bound import Plan
from moeparity.plan.engine_profile import load_profile
from moeparity.plan.graph import Node
from tests.planted import moe as planted_moe
from tests.planted import quantised as planted_quantised
from tests.planted import ranks as planted_ranks
from tests.planted.ranks import RANKS
from tests.planted.values import ATTENDS, GEMMS, SEQUENCES, TOKENS, Planted, values_of

PROFILE = "hf-eager"

MET: dict[Value | None, Value] = {ABOVE_1: RANKS, OTHER_THAN_1: 0.7, OTHER_THAN_0: 1}
"""A number that meets a condition."""

INDEX_SITES = ("scores", "weights", "total")
BACKGROUND: dict[str, dict[str, Value]] = {
    # Many bf16 logits are equal to the 40th largest.
    "log_probs:top_k_ties": {"top_k": 40},
    "log_probs:min_p_place": {"min_p": 0.002, "top_p": 0.9},
    "log_probs:sorted": {"top_k": 40, "top_p": 0.7},
    # At so high a temperature all 512 tokens are as likely, so that cumulated softmaxes are multiples of 1 / 512.
    "log_probs:kept_mass": {"temperature": 1e30, "top_p": 0.75 + 1e-12},
    # There their logits still differ.
    "log_probs:min_p_form": {"temperature": 1e30, "min_p": 1},
    "log_probs:bias_place": {"logit_bias": "applied", "repetition_penalty": 1.3},
    "log_probs:subtracted": {"repetition_penalty": 1.3, "presence_penalty": 0.5},
    # In bf16 the two associations differ in one of some ten thousand elements; without the last rounding in half.
    "rms_norm:association": {"normalized": "fp32", "output": "fp32"},
    # One bit of the root shows in few bf16 elements.
    **{
        f"rms_norm:{name}": {"normalized": "fp32", "output": "fp32"}
        for name in ("square", "statistic", "order", "mean", "rsqrt")
    },
    "add:border": {"output": "fp32"},
    "rotary:sines": {"output": "fp32"},
    # 1 + a bf16 weight is exact in fp32 already.
    "rms_norm:weight": {"offset": 0.1, "normalized": "fp32", "output": "fp32"},
    **planted_moe.BACKGROUND,
    # In bf16 torch has no sum of its own, and `native` is `sequential`.
    "combine:order=native": {"weighted": "fp32", "accumulate": "fp32", "output": "fp32"},
    # What is added in bf16 has nothing to cut off.
    "combine:output=bf16_rz": {"weighted": "fp32", "accumulate": "fp32"},
    "combine:partial": {"weighted": "fp32", "accumulate": "fp32"},
    # An fma is one of two fp32 operations.
    "combine:order=sequential(fma)": {"weighted": "fp32", "accumulate": "fp32", "output": "fp32"},
    "experts:implementation": {"projections": "fp32", "product": "fp32", "output": "fp32"},
    "experts:gate_up": {"projections": "fp32", "product": "fp32", "output": "fp32"},
    **{
        f"experts:{name}": {"projections": "fp32", "product": "fp32", "output": "fp32"}
        for name in ("tf32", "order", "rows", "splits", "split")
    },
    "experts:splits_order": {"split": "bf16"},
    # fp32 is left to torch.
    **{f"experts:order={order}": {"output": "fp32"} for order in USUAL},
    "mla_expand:kv_b_order": {"kv_b": "fp32", "kv_b_tf32": "yes"},
    "mla:kv_b_order": {
        "projection": "absorbed",
        "kv_b": "fp32",
        "kv_b_tf32": "yes",
        "o_latent": "fp32",
        "output": "fp32",
    },
    **{f"{op}:allocated": {"scores": "fp32", "probabilities": "fp32", "output": "fp32"} for op in ATTENDS},
    # Probabilities stay bf16, as tensor cores take them.
    "attention:order": {"output": "fp32"},
    "attention:kv_layout": {"scores": "fp32", "probabilities": "fp32", "output": "fp32"},
    # One bit of a probability, or of a sum of them, shows in few bf16 elements.
    **{
        f"{op}:{name}": {"scores": "fp32", "probabilities": "fp32", "output": "fp32"}
        for op in ATTENDS
        for name in ("softmax", "exp", "denominator", "tf32")
    },
    **{
        f"{op}:{name}": {"kv_block": block, "probabilities": "fp32", "output": "fp32"}
        for op in ATTENDS
        # Blocks come in an order where there are several; torch's sum of a few values is sequential.
        for name, block in (
            *(("kv_order", 4), ("exponential", 16), ("row_sum", 16), ("normalize", 16), ("scores_order", 16)),
            *(("values_order", 4), ("rescale_above", 2), ("contraction", 4), ("scale_on", 16)),
        )
    },
    # Tensor cores multiply probabilities of 16 bits.
    **{
        f"{op}:{name}={order}": {"kv_block": block, "probabilities": "bf16", "output": "fp32"}
        for op in ATTENDS
        for name, block in (("scores_order", 16), ("values_order", 4))
        for order in USUAL
    },
    **{
        f"{op}:merge=segments": {
            "kv_block": 2,
            "splits": 16,
            "exponential": "triton",
            "normalize": "div_full",
            "probabilities": "bf16",
            "output": "fp32",
        }
        for op in ATTENDS
    },
    **{
        f"{op}:{name}": {"kv_block": block, "probabilities": "fp32", "output": "fp32"}
        for op in ATTENDS
        for name, block in (("kv_block", 64), ("splits", 2))
    },
    **{
        f"{op}:{name}": {"kv_block": 4, "splits": 2, "output": "fp32"}
        for op in ATTENDS
        for name in ("split", "merge", "splits_order", "split_by")
    },
    **{
        f"{op}:{name}": {"kv_block": 2, "splits": 2, "split_by": "keys", "output": "fp32"}
        for op in ATTENDS
        for name in ("q_block", "split_unit")
    },
    **{f"{op}:split_keys": {"kv_block": 2, "output": "fp32"} for op in ATTENDS},
    **{f"{op}:shared_keys": {"kv_block": 2, "output": "fp32"} for op in ATTENDS},
    **{f"{op}:splits=shared": {"kv_block": 2, "shared_keys": 3, "output": "fp32"} for op in ATTENDS},
    **{f"{op}:splits=fixed": {"kv_block": 2, "split_keys": 4, "output": "fp32"} for op in ATTENDS},
    # A run of one tile.
    **{
        f"{op}:normalize=first": dict[str, Value](
            splits="fixed", split_keys=16, kv_block=16, probabilities="fp32", output="fp32"
        )
        for op in ATTENDS
    },
    # A sum may start from the sink where scores are scaled; the same sum begun elsewhere shows in few bf16 elements.
    "attention:sink": {"exponential": "exp", "probabilities": "fp32", "output": "fp32"},
    # The latent is bf16, which fits; the latent output does not.
    "mla:kv_b_tf32": {"projection": "absorbed", "o_latent": "fp32", "output": "fp32"},
    # A quotient and a product that are exact are rounded nowhere.
    **{f"kv_cache:{name}": {"k_scale": 0.7, "v_scale": 0.7} for name in ("quotient", "dequantized")},
    "mla_expand:rows": {"kv_b": "fp32"},
    # Of a checkpoint without scales they are 1.
    "kv_cache:scale=checkpoint": {"k_scale": 0.7, "v_scale": 0.7},
    # Of which some are too large then.
    "kv_cache:overflow": {"v_scale": 1e-5},
    # The GEMM behind it rounds its inputs too.
    "mla:o_latent": {"kv_b": "fp32"},
    # Of a product that is exact an fma rounds as much.
    "rope:contraction": {"output": "fp32"},
    # The order of fp32 sums, and split-K, show in few sums rounded to bf16.
    **{f"{op}:{name}": {"output": "fp32"} for op in GEMMS for name in ("order", "rows", "splits", "split")},
    **{f"{op}:rows": {"kv_block": 4, "probabilities": "fp32", "output": "fp32"} for op in ATTENDS},
    # One bit of a sigmoid, of some numbers.
    "experts:logistic": {"projections": "fp32", "activation": "fp32", "product": "fp32", "output": "fp32"},
    **{f"{op}:logistic": {"activation": "fp32", "output": "fp32"} for op in ("swiglu", "sigmoid_gate", "gated_norm")},
    "silu:logistic": {"output": "fp32"},
    "sigmoid_gate:softplus": {"activation": "fp32", "output": "fp32"},
    "layer_norm:form": {"output": "fp32"},
    # An fp32 gate beside an fp64 one, of a head's bf16 norm.
    "gated_norm:activation": {"output": "fp32"},
    **{f"{op}:splits_order": {"split": "bf16"} for op in GEMMS},
    **planted_quantised.BACKGROUND,
}
"""Values both sides have on the node, beyond those the attribute's `when` asks for."""

REFERENCE_VALUE: dict[str, Value] = {
    # torch's own kernel, and a chain of fma (products of bf16 are exact), may be sequential.
    **{
        f"{op}:order={order}": "reverse"
        for op in (*GEMMS, "experts")
        for order in ("native", "sequential", "sequential(fma)")
    },
    **{f"{op}:order=onednn": "reverse" for op in GEMMS},
    **{
        f"{op}:kv_b_order={order}": "reverse"
        for op in ("mla", "mla_expand")
        for order in ("native", "sequential", "sequential(fma)")
    },
    **{
        f"{op}:{name}={order}": "reverse"
        for op in ATTENDS
        for name in ("scores_order", "values_order")
        for order in ("native", "sequential", "sequential(fma)")
    },
    # Simple's chunks are as long in a message of this size.
    **{f"all_reduce:protocol={name}": "ll" for name in ("simple", "ll128")},
    # The graph's own way is row-wise where this is planted.
    "linear:parallel=plan": "column",
    "linear:parallel=row": "column",
    "all_reduce:collective=gloo.all_reduce": "none",
    # Scattered, the profile's gloo.all_reduce is this one.
    "all_reduce:collective=gloo.reduce_scatter_tensor": "none",
    **planted_moe.REFERENCE_VALUE,
    **planted_quantised.REFERENCE_VALUE,
    # 16 bits and more hold all that comes.
    **{f"kv_cache:stored={dtype}": "fp8_e4m3" for dtype in ("unrounded", "model", "bf16", "fp16", "fp32", "fp64")},
    **{f"kv_cache:quotient={dtype}": "bf16" for dtype in ("fp16", "fp32", "fp64")},
    # In a forward every token is in one step.
    **{f"mla:projection={form}": "absorbed" for form in ("expanded", "context")},
    "combine:order=native": "reverse",
    # Of four rows it is sequential.
    "combine:order=cascade": "reverse",
    # A sum in bf16 is cut by no store.
    **{f"combine:output={dtype}": "fp32" for dtype in ("model", "bf16")},
    # What is merged in fp32 is no longer in fp64.
    **{f"{op}:split={dtype}": "bf16" for op in ATTENDS for dtype in ("fp32", "fp64")},
    # Beside fp32 only bf16 shows in which keys are best.
    **{f"indexer:{name}={dtype}": "bf16" for name in INDEX_SITES for dtype in ("fp16", "fp32", "fp64")},
    # In fp32 it is computed.
    **{f"layer_norm:normalized={dtype}": "bf16" for dtype in ("fp32", "fp64")},
    # On CPU it is torch's own.
    "rms_norm:order=cascade": "reverse",
    # A cache holds all keys of few tokens, as 64 do.
    **{f"{op}:kv_block=l2": 4 for op in ATTENDS},
    # Where the model has the gate already.
    **{f"gated_norm:gated={place}": "before" for place in ("config", "after")},
    # Nothing is lost of a sum in fp32.
    **{f"add:border={dtype}": "bf16" for dtype in ("unrounded", "fp32", "fp64")},
}
"""What the reference has where the profile's value will not do."""

FED_FP32 = (
    "linear:inputs",
    "gate:inputs",
    "lm_head:inputs",
    "log_probs:inputs",
    "combine:order=sequential(fma)",
    *planted_moe.FED_FP32,
    "rope:contraction",
    *(f"{op}:tf32" for op in GEMMS),
)
"""What rounds what comes in, or its products: both sides give their node fp32, as bf16 fits into every other dtype."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """The node a value was planted on, what each side has there, and what both set."""

    node: str
    reference: Value
    candidate: Value
    sets: tuple[dict[str, Value], dict[str, Value]]


def plant(planted: Planted, model: Model) -> Sides:
    """Which node, by a seeded draw, and what each side sets there."""
    base = _base(model)
    node = random.Random(planted.label).choice(_nodes(planted, model))  # noqa: S311
    own_names = {attribute.name for attribute in node.attributes}
    settings: dict[str, Value] = {
        name: MET.get(value, value)
        for name, (value, *_) in planted.attribute.when.items()
        if name in own_names and value is not None
    }
    settings |= BACKGROUND.get(planted.label, BACKGROUND.get(planted.place, {}))
    settings_there = {f"{node.name}:{name}": value for name, value in settings.items()}
    settings_there |= planted_ranks.background(planted.attribute, planted.place, planted.value, node, model.graph)
    settings_there |= {f"{node.inputs[0]}:output": "fp32"} if {planted.place, planted.label} & {*FED_FP32} else {}
    address = f"{node.name}:{planted.attribute.name}"
    reference = REFERENCE_VALUE.get(planted.label, _another_value(planted, base, node))
    of_value = {} if reference == base.settings[node.name, planted.attribute.name].value else {address: reference}
    return Sides(
        node=node.name,
        reference=reference,
        candidate=planted.value,
        sets=({**settings_there, **of_value}, {**settings_there, address: planted.value}),
    )


_BASES: dict[Path, Plan] = {}


def _base(model: Model) -> Plan:
    """The profile bound to a model, once: a model cannot be hashed."""
    if model.folder not in _BASES:
        _BASES[model.folder] = bind(model.graph, load_profile(PROFILE, Where(Path(__file__))), model.dtype)
    return _BASES[model.folder]


def _nodes(planted: Planted, model: Model) -> list[Node]:
    return [
        n
        for n in model.graph.nodes
        if n.op is planted.op
        and planted.attribute in n.attributes
        and planted_ranks.fits(planted.place, n, model.graph)
    ]


def _another_value(planted: Planted, base: Plan, node: Node) -> Value:
    """The profile's value where it is another one, else a value that is."""
    usual = base.settings[node.name, planted.attribute.name].value
    for value in (usual, *reversed(values_of(planted.op, planted.attribute))):
        if base.resolved(node.name, value) != base.resolved(node.name, planted.value):
            return value
    raise AssertionError(f"{planted.place} has one value only; list a number")


def write_recipe(
    folder: Path,
    checkpoint: Path,
    tokens: Mapping[str, torch.Tensor],
    reference: Mapping[str, object],
    candidate: Mapping[str, object],
    *,
    sampled_from: str = "candidate",
    below: float = 1e-4,
    reduce: str = "token",
    floor: bool = False,
    oracle: bool = False,
    earlier: Sequence[object] = (),
    adapter: Path | None = None,
    requests: Sequence[Mapping[str, object]] = (),
) -> Path:
    """A recipe with its token file; JSON is YAML."""
    metadata = {"requests": json.dumps(requests)} if requests else None
    save_file(dict(tokens), folder / "tokens.safetensors", metadata)
    recipe = {
        "kind": "recipe",
        "checkpoint": str(checkpoint),
        "earlier": list(earlier),
        "adapter": None if adapter is None else str(adapter),
        "tokens": {"file": "tokens.safetensors", "sampled_from": sampled_from},
        "reference": {"profile": PROFILE, **reference},
        "candidate": {"profile": PROFILE, **candidate},
        "gate": {"metric": "k3", "below": below, "reduce": reduce},
        "floor": floor,
        "oracle": oracle,
    }
    path = folder / "recipe.yaml"
    path.write_text(json.dumps(recipe, indent=1), "utf-8")
    return path


def random_tokens(sequences: int = SEQUENCES, tokens: int = TOKENS, *, vocab: int = 512, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, vocab, (sequences, tokens), generator=torch.Generator().manual_seed(seed))


def requests_for(ids: torch.Tensor, vocab: int) -> list[dict[str, object]]:
    """For each sequence of ids [B, T] a request that asks for something of each kind and leaves out no token of it."""
    return [_request(row, sorted(set(range(vocab)) - set(row))) for row in ids.tolist()]


def _request(row: list[int], absent: list[int]) -> dict[str, object]:
    forbidden, stops, words, ungrammatical = (absent[i : i + 20] for i in range(0, 80, 20))
    vocab = sorted({*row, *absent})
    # The first token is the prompt.
    words_of_two = [[row[0], words[0]], [row[3], words[1]]]
    return {
        "request": {
            "logit_bias": {str(row[2]): 1.5, str(absent[0]): -3.25},
            "sequence_bias": [[[row[1], absent[1]], 0.75]],
            "bad_words_token_ids": [[word] for word in words[2:]] + words_of_two,
            "allowed_token_ids": [token for token in vocab if token not in forbidden],
            "min_tokens": len(row),
            "stop_token_ids": stops,
        },
        "grammar": [None, *[[token for token in vocab if token not in ungrammatical] for _ in row[1:]]],
    }


@dataclass(slots=True)
class Bisection:
    """A bisection, step by step."""

    study: Study
    observed: Observed
    report: Report


def bisected(path: Path, opener: Callable[..., Model] = open_model) -> Bisection:
    """The steps of `moeparity.bisect`."""
    study = prepare(path, device="cpu", opener=opener)
    observed = observe(study, study.toggles)
    return Bisection(study=study, observed=observed, report=summarise(study, observed))
