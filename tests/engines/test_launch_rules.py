"""Rules by which engines choose a kernel: their own Python over a grid of shapes, against what is stated here."""

from __future__ import annotations

from typing import Any

import pytest

from moeparity.numerics.collectives.inference_engines import MNNVL_TABLE, VLLM_SM90_TABLE, VLLM_TABLE
from moeparity.numerics.order_map import Message, Selection
from moeparity.plan.stages import Division, Pipeline
from moeparity.profiles.launch import server_rules
from tests.engines.live import Found, ask

pytestmark = pytest.mark.live

HIDDEN, MIB = 2048, 1 << 20
GRID: dict[str, Any] = {"experts": 128, "width": 768, "hidden": 2048, "tokens": [1, 8, 33, 64, 129, 1024, 8192]}
"""Experts like Qwen3-30B-A3B's."""
LIMITS = {2: (64, 8, 1), 4: (2, 0.5, 8, 32), 6: (0.25, 0.5, 64), 8: (0.5, 0.25, 64)}
"""MiB at which some rule changes, by ranks."""


def tokens(ranks: int) -> list[int]:
    """Around every limit, of one rank's message and of all ranks'."""
    rows = [int(limit * MIB) // (2 * HIDDEN) for limit in (*LIMITS[ranks], 1 / ranks)]
    around = {count + step for count in rows for step in (-1, 0, 1)}
    return sorted({1, 2, 7, 33, *(count for count in around if count > 0)})


def chosen(table: Selection, ranks: int) -> list[str]:
    """What is chosen here, as the engine calls it; NCCL where no row holds."""
    return [_backend(table, Message(count * HIDDEN, 2, ranks, HIDDEN, "sm90")) for count in tokens(ranks)]


def _backend(table: Selection, message: Message) -> str:
    try:
        name = table.choose(message)
    except ValueError:
        return "nccl"
    if name.startswith("flashinfer"):
        return "flashinfer"
    if name.startswith("vllm"):
        return "custom"
    return "multimem" if name.endswith("multimem") else "symm_mem"


LAYERS = (4, 24, 47, 48, 61)
STAGES: dict[str, dict[str, Any]] = {
    f"stages {layers}": {"kind": "stages", "layers": layers, "counts": [2, 3, 4], "partition": None}
    for layers in LAYERS
} | {"stages given": {"kind": "stages", "layers": 6, "counts": [3], "partition": "3,1,2"}}


@pytest.fixture(scope="module")
def vllm() -> Found:
    router = {"kind": "fused_router", "groups": [1, 4, 8, 32, 64], "top_k": [1, 8, 32]}
    cases: dict[str, dict[str, Any]] = {
        f"all_reduce {ranks}": {"kind": "all_reduce", "tokens": tokens(ranks), "hidden": HIDDEN, "ranks": ranks}
        for ranks in LIMITS
    }
    cases |= {f"tile {to}": {"kind": "moe_tile", "invariant": to, **GRID} for to in (False, True)}
    cases |= {f"router {to}": {**router, "biased": to} for to in (False, True)}
    cases |= {
        f"table {eager} {head}": {"kind": "table_dtype", "eager": eager, "head": head}
        for eager in (False, True)
        for head in (64, 96, 128)
    }
    cases |= {f"norm {eager}": {"kind": "norm_in_c", "eager": eager} for eager in (False, True)}
    cases |= STAGES
    return ask("vllm.live_launch", ("vllm",), cases)


BACKENDS = ("flashinfer", "custom", "symm_mem", "multimem", "nccl")


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_layers_are_divided_over_stages(engine: Division, request: pytest.FixtureRequest) -> None:
    """get_pp_indices of both, by their own rules and as their environment variables say."""
    divisions: Found = request.getfixturevalue(engine)
    for layers in LAYERS:
        for count, sizes in divisions[f"stages {layers}"].items():
            assert Pipeline(count=int(count), stages=engine).sizes(layers) == tuple(sizes.tolist())
    assert divisions["stages given"]["3"].tolist() == [3, 1, 2]
    # The two are told apart.
    assert divisions["stages 61"]["4"].tolist() == {"vllm": [15, 15, 16, 15], "sglang": [15, 15, 15, 16]}[engine]


@pytest.mark.parametrize("ranks", LIMITS)
def test_vllm_all_reduce(vllm: Found, ranks: int) -> None:
    """CudaCommunicator.all_reduce over message sizes around every limit; FlashInfer's has none for 6 ranks."""
    theirs = [BACKENDS[i] for i in vllm[f"all_reduce {ranks}"]["chosen"].tolist()]
    assert theirs == chosen(VLLM_SM90_TABLE, ranks)
    assert theirs != chosen(VLLM_TABLE, ranks) or ranks == 6
    assert len({*theirs}) > 1


def test_vllm_router_is_fused_for_what_the_profile_states(vllm: Found) -> None:
    """With a bias and up to 32 groups and 32 experts per token: DeepSeek-V3's and GLM-4.5's routers."""
    assert vllm["router True"]["fused"].tolist() == [True] * 12 + [False] * 3
    assert not vllm["router False"]["fused"].any()


def test_vllm_norms_are_compiled_or_in_c(vllm: Found) -> None:
    """Those of profile vllm are Inductor's, those of vllm-eager the kernels in C."""
    assert vllm["norm False"]["in_c"].tolist() == [False, False]
    assert vllm["norm True"]["in_c"].tolist() == [True, True]


def test_vllm_batch_invariant_tile(vllm: Found) -> None:
    """One tile whatever the number of tokens, and no split of K; otherwise rows of a tile go by it."""
    rows, splits = (vllm["tile True"][name] for name in ("rows", "splits"))
    assert {*rows.tolist()} == {64}
    assert {*splits.tolist()} == {1}
    assert len({*vllm["tile False"]["rows"].tolist()}) > 1


def test_vllm_keeps_deepseeks_cos_and_sin_in_fp32_where_flashinfer_turns(vllm: Found) -> None:
    """With --enforce-eager, for the head sizes that FlashInfer takes; compiled they are in the model's dtype."""
    fp32 = {name.removeprefix("table "): bool(vllm[name]["fp32"]) for name in vllm if name.startswith("table ")}
    assert fp32 == {
        "False 64": False,
        "False 96": False,
        "False 128": False,
        "True 64": True,
        "True 96": False,
        "True 128": True,
    }


MOST = {2: 64, 4: 2, 8: 0.5}
"""MiB up to which vLLM hands a message to FlashInfer, by ranks."""


def up_to(ranks: int) -> list[int]:
    """Numbers of tokens that vLLM hands to FlashInfer."""
    return [count for count in tokens(ranks) if 2 * HIDDEN * count <= MOST[ranks] * MIB]


@pytest.fixture(scope="module")
def flashinfer() -> Found:
    cases = {
        f"{ranks}": {
            "kind": "all_reduce",
            "tokens": up_to(ranks),
            "hidden": HIDDEN,
            "ranks": ranks,
            "most": int(most * MIB) // (2 * HIDDEN),
        }
        for ranks, most in MOST.items()
    }
    return ask("flashinfer.live_launch", ("flashinfer",), cases)


@pytest.mark.parametrize("ranks", MOST)
def test_flashinfer_one_shot_or_two(flashinfer: Found, ranks: int) -> None:
    """By the bytes of all ranks; a workspace for vLLM's limit takes every message up to it."""
    theirs = flashinfer[f"{ranks}"]
    messages = (Message(count * HIDDEN, 2, ranks, HIDDEN, "sm90") for count in up_to(ranks))
    ours = [MNNVL_TABLE.choose(message).endswith("one_shot") for message in messages]
    assert theirs["one_shot"].tolist() == ours
    assert len({*ours}) == 2
    assert theirs["fits"].all()


OTHERS = ("LlamaForCausalLM", "MixtralForCausalLM", "OlmoeForCausalLM", "Qwen2MoeForCausalLM", "Qwen3ForCausalLM")
ARCHITECTURES = (*sorted(server_rules._FUSED_ARCHITECTURES), *OTHERS, "MiMoV2ForCausalLM")


@pytest.fixture(scope="module")
def sglang() -> Found:
    fused = {
        "kind": "fused_all_reduce",
        "architectures": list(ARCHITECTURES),
        "nodes": 1,
        "attention_groups": 1,
        "ranks": 8,
    }
    steps = {"kind": "latent_attention", "modes": ["extend"] * 3 + ["decode"], "prefixes": [0, 100, 9000, 100]}
    cases: dict[str, dict[str, Any]] = {
        "fused": {**fused, "backend": "none"},
        "one rank": {**fused, "backend": "none", "ranks": 1},
        "two nodes": {**fused, "backend": "none", "nodes": 2},
        "attention groups": {**fused, "backend": "none", "attention_groups": 2},
        "dispatched": {**fused, "backend": "deepep"},
        **{f"tile {to}": {"kind": "moe_tile", "deterministic": to, **GRID} for to in (False, True)},
        "captured": {**steps, "deterministic": False, "captured": True},
        "deterministic": {**steps, "deterministic": True, "captured": False},
        "not captured": {**steps, "deterministic": False, "captured": False},
        **{
            f"attention {latent} {sinks}": {
                "kind": "attention_backend",
                "latent": latent,
                "sinks": sinks,
                "speculates": [0, 1, 4],
            }
            for latent in (False, True)
            for sinks in (False, True)
        },
        **STAGES,
    }
    return ask("sglang.live_launch", ("sglang", "sglang-needs", "triton"), cases)


def test_sglang_fuses_the_all_reduce_of_the_models_listed_here(sglang: Found) -> None:
    ours = [name in server_rules._FUSED_ARCHITECTURES for name in ARCHITECTURES]
    assert sglang["fused"]["fused"].tolist() == ours


@pytest.mark.parametrize("but", ["one rank", "two nodes", "attention groups", "dispatched"])
def test_sglang_fuses_no_all_reduce(sglang: Found, but: str) -> None:
    assert not sglang[but]["fused"].any()


def test_sglang_deterministic_tile(sglang: Found) -> None:
    """One tile whatever the number of tokens; otherwise its rows go by them."""
    assert {*sglang["tile True"]["rows"].tolist()} == {64}
    assert len({*sglang["tile False"]["rows"].tolist()}) > 1


def test_sglang_takes_flash_attention_3_on_hopper(sglang: Found) -> None:
    """Whatever the model; but for several drafts of a step, where attention is not latent."""
    flash, flashinfer, triton = range(3)
    assert sglang["attention True False"]["backend"].tolist() == [flash] * 3
    assert sglang["attention True True"]["backend"].tolist() == [flash] * 3
    assert sglang["attention False False"]["backend"].tolist() == [flash, flash, flashinfer]
    assert sglang["attention False True"]["backend"].tolist() == [flash, flash, triton]


def test_sglang_absorbs_latent_attention(sglang: Found) -> None:
    """When captured or deterministic always; else not in prefills without a prefix, nor after 8192 cached tokens."""
    assert sglang["captured"]["absorbed"].all()
    assert sglang["deterministic"]["absorbed"].all()
    assert sglang["not captured"]["absorbed"].tolist() == [False, True, False, True]
