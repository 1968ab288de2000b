"""What Megatron-LM decides for a trainer on top of it: whether its dispatcher makes partial sums, and of what."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from moeparity.profiles.launch.options import Decision, Implied, LaunchSettings, Option, Rule, switch, word, words

_DISPATCHER = "Megatron-LM d98e8a64dd, megatron/core/transformer/moe/token_dispatcher.py"
_CUT = "Megatron-LM d98e8a64dd, megatron/core/model_parallel_config.py:506-507 expert_tensor_parallel_size"
_SIGMOID_SOURCE = "Megatron-LM d98e8a64dd, megatron/core/transformer/moe/moe_utils.py:901-940"
_NODE = 8
"""Ranks of one node."""
_RESET = "Megatron-LM d98e8a64dd, megatron/training/arguments.py:1432-1439"
_AS_TENSOR = "as tensor parallel"
DISPATCHERS = ("alltoall", "flex", "allgather")
ROUTER_DTYPES = {
    "fp32": Implied(says="with Megatron-LM: logits in fp32", overlay="megatron-router-fp32"),
    "fp64": Implied(
        says="with Megatron-LM: gate:inputs, gate:output and router:weights fp64",
        sets={"gate:inputs": "fp64", "gate:output": "fp64", "router:weights": "fp64"},
    ),
}


def fusion(name: str, default: bool, *, fused: Implied, unfused: Implied) -> Option:
    """A fusion of Megatron-LM, on or off where nothing is set."""
    return switch(name, default=default, on=fused, off=unfused, role="trainer")


def modelled(prefix: str, *, permute: bool, rope: bool, router: str) -> tuple[Option, ...]:
    """The fields that profiles speak of, with a trainer's own defaults; its names begin with `prefix`."""
    return (
        score_function(prefix),
        described(prefix),
        replace(
            word(
                f"{prefix}moe_router_dtype",
                default=router,
                implies=words(ROUTER_DTYPES, "with Megatron-LM: logits in the model's dtype"),
                role="trainer",
            ),
            null="none",
        ),
        word(
            f"{prefix}moe_token_dispatcher_type",
            default="alltoall",
            implies=lambda value: Implied(says=f"with Megatron-LM: {value}"),
            choices=DISPATCHERS,
            role="trainer",
        ),
        flex_backend(prefix),
        switch(
            f"{prefix}deterministic_mode",
            on=Implied(says="with Megatron-LM: no atomics, NCCL's ring", overlay="megatron-deterministic"),
            off=Implied(says="with Megatron-LM: atomics, NCCL as it chooses"),
            role="trainer",
        ),
        fusion(
            f"{prefix}moe_permute_fusion",
            permute,
            fused=Implied(says="with Megatron-LM: rows added in fp32", overlay="megatron-permute-fusion"),
            unfused=Implied(says="with Megatron-LM: rows added to a bf16 output as they arrive"),
        ),
        fusion(
            f"{prefix}apply_rope_fusion",
            rope,
            fused=Implied(says="with Megatron-LM: cos, sin and products in fp32"),
            unfused=Implied(says="with Megatron-LM: every product rounded", overlay="megatron-unfused-rope"),
        ),
        fusion(
            f"{prefix}bias_activation_fusion",
            True,
            fused=Implied(says="with Megatron-LM: SwiGLU rounded once"),
            unfused=Implied(says="with Megatron-LM: silu and products rounded", overlay="megatron-unfused-swiglu"),
        ),
    )


def flex_backend(prefix: str) -> Option:
    """What sends the rows of the flex dispatcher."""
    return word(
        f"{prefix}moe_flex_dispatcher_backend",
        default="deepep",
        implies=lambda value: Implied(says=f"with Megatron-LM's flex dispatcher: {value}"),
        role="trainer",
    )


def described(prefix: str) -> Option:
    """What describes the model itself, and is compared with its config.json where that is here."""
    return Option(
        names=(f"{prefix}rotary_base",),
        kind="number",
        default=10_000.0,
        implies=lambda value: Implied(says=f"the rotary embedding's base is {value:g}, as the model's should be"),
        role="trainer",
        quiet=True,
    )


def as_described(prefix: str) -> Rule:
    """The rule that warns where the launch file describes another model than the config.json."""

    def rule(settings: LaunchSettings) -> Iterator[Decision]:
        name, base = f"{prefix}rotary_base", settings.model.rotary_base
        value = settings[name]
        if name in settings.stated and isinstance(value, float) and base not in (None, value):
            warns = f"the rotary embedding's angles: config.json has {base:g}, which is what runs here"
            yield Decision(role="trainer", implied=Implied(says=f"rotary_base {value:g}", warns=warns), source=name)

    return rule


SCORE_FUNCTION = "moe_router_score_function"
_SIGMOIDS = frozenset({"DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "Glm4MoeForCausalLM"})


def score_function(prefix: str) -> Option:
    """What makes scores of the router's logits, which the model's own configuration says too."""
    return Option(
        names=(f"{prefix}{SCORE_FUNCTION}",),
        kind="word",
        default="as the model's",
        implies=lambda value: Implied(says=f"the router's scores: {value}"),
        role="trainer",
        quiet=True,
    )


def idle(prefix: str) -> Callable[[LaunchSettings], Mapping[str, str]]:
    """Options behind a prefix that Megatron-LM passes over, for what else is set."""

    def of(settings: LaunchSettings) -> Mapping[str, str]:
        scores = str(settings[f"{prefix}{SCORE_FUNCTION}"])
        if scores == "sigmoid" or (scores.startswith("as ") and settings.model.architecture in _SIGMOIDS):
            reason = "the router's scores are sigmoids, which know no softmax before or after the top-k"
            return {f"{prefix}moe_router_pre_softmax": f"{reason} ({_SIGMOID_SOURCE})"}
        return {}

    return of


def expert_cut(prefix: str, *, default: int | str = _AS_TENSOR) -> Option:
    """Over how many ranks each expert is cut: as many as attention where Megatron-LM is told nothing."""
    return Option(
        names=(f"{prefix}expert_tensor_parallel_size",),
        kind="count",
        default=default,
        implies=lambda value: Implied(says=f"each expert is cut over {value} ranks" if value != 1 else "whole experts"),
        role="trainer",
        quiet=True,
        null=_AS_TENSOR,
    )


def placement(
    parallel: str, fields: str, runs: Callable[[LaunchSettings], bool], dispatcher: Callable[[LaunchSettings], str]
) -> Rule:
    """The rule for a trainer whose ranks stand under `parallel` and whose fields under `fields`, where it `runs`."""

    def rule(settings: LaunchSettings) -> Iterator[Decision]:
        if not runs(settings):
            return
        tensor = settings.ranks(f"{parallel}tensor_model_parallel_size")
        if tensor == 1 and settings.values.get(f"{parallel}sequence_parallel") is True:
            off = Implied(says="sequence parallel is reset to off: one rank has all of the sums")
            yield Decision(role="trainer", implied=off, source=_RESET)
        if tensor > 1 and settings.values.get(f"{parallel}sequence_parallel") is True:
            scattered = Implied(says="sequence parallel: sums are scattered by tokens", placement={"sequence": True})
            source = "Megatron-LM d98e8a64dd, megatron/core/tensor_parallel/layers.py RowParallelLinear"
            yield Decision(role="trainer", implied=scattered, source=source)
        if settings.model.is_dense is True:
            return
        ranks, sent = settings.ranks(f"{parallel}expert_model_parallel_size"), dispatcher(settings)
        if ranks > 1:
            backend = str(settings.values.get(f"{fields}moe_flex_dispatcher_backend", "deepep"))
            yield Decision(role="trainer", implied=_dispatched(sent, backend, ranks), source=_DISPATCHER)
        cut = settings[f"{parallel}expert_tensor_parallel_size"]
        each = tensor if cut == _AS_TENSOR else cut
        if isinstance(each, int) and max(tensor, each) > 1 and (each, ranks, sent) != (tensor, 1, "allgather"):
            yield Decision(role="trainer", implied=_cut(each, sent), source=_CUT)

    return rule


def _cut(ranks: int, dispatcher: str) -> Implied:
    """What it means that each expert is cut over so many ranks, where a placement has no number for it."""
    if ranks == 1:
        whole = {"**.experts:tensor": 1}
        return Implied(says="experts are whole, whatever attention is cut over", selects=whole)
    added = {
        "alltoall": "each row's partial sums are added over them before it goes home",
        "allgather": "their sums and those of the expert-parallel ranks are added in one reduce-scatter",
    }
    how = added.get(dispatcher, "the dispatcher adds them with the expert-parallel ranks' sums")
    warns = f"each expert is cut over {ranks} ranks, and {how}: no placement says that"
    return Implied(says=f"experts are cut over {ranks} ranks", warns=warns)


def _dispatched(dispatcher: str, backend: str, ranks: int) -> Implied:
    """What becomes of the rows of `ranks` expert-parallel ranks."""
    if dispatcher == "alltoall":
        says = f"all-to-all over {ranks} ranks brings every row home, where all are added: no partial sums"
        return Implied(says=says, placement={"expert": 1})
    if dispatcher == "allgather":
        return Implied(
            says=f"each of {ranks} ranks adds its own rows, then reduce-scatter", placement={"expert": ranks}
        )
    if backend == "deepep":
        overlay = "deepep-normal" if ranks <= _NODE else "deepep-internode"
        says = f"flex: each of {ranks} ranks adds its own rows, and DeepEP adds the ranks"
        return Implied(says=says, placement={"expert": ranks}, overlay=overlay)
    return Implied(
        says=f"flex with {backend}",
        placement={"expert": 1},
        warns=f"{backend} adds rows and ranks over {ranks} ranks in its own kernel, and no profile states its order",
    )
