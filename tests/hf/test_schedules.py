"""Schedules of transformers, live and bit for bit: a filled cache, `generate`, static caches, packs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from moeparity.engine.forward import forward
from moeparity.inputs.model import Model
from moeparity.numerics.bits import int_view, same_bits
from moeparity.plan.schedule.steps import Phase, Schedule, Span, Step, rectangle
from tests.checkpoint_factory import make_random
from tests.hf.compare import DTYPES, PROFILES, opened, tokens
from tests.hf.reference import load
from tests.small_models import SMALL, Shallow

MODELS = sorted(SMALL.keys() - {"qwen3_moe_odd", "qwen3_moe_even"})
"""All but those whose expert width torch's grouped GEMM refuses."""
MLA = {
    "deepseek_v3",
    "kimi_k25",
    "deepseek_v3_yarn",
    "glm4_moe_lite",
    "deepseek_v2",
    "deepseek_v2_yarn",
    "kimi_linear",
    "kimi_linear_odd",
    "bailing_hybrid",
    "bailing_hybrid_odd",
    "axk1",
    "deepseek_v32",
    "deepseek_v32_yarn",
    "glm_moe_dsa",
    "glm_moe_dsa_plain",
    "axk2",
    "axk2_plain",
    "mistral4",
    "mistral4_plain",
    "longcat_flash",
    "longcat_flash_odd",
}
INDEXED = {"deepseek_v32", "deepseek_v32_yarn", "glm_moe_dsa", "glm_moe_dsa_plain", "axk2", "axk2_plain"}
"""Whose indexer ranks the places of a static cache too."""
NOT_ISOLATED = {"gpt_oss", "gpt_oss_mha", "afmoe", "afmoe_mha", "glm4v_moe"}
"""transformers 5.17.0 and 5.23.0, GptOssModel.forward, and 5.23.0, AfmoeModel.forward, build their masks without
position_ids: packed sequences see those before them. So does 5.23.0, Glm4vMoeTextModel.forward, of position_ids [B, T];
it takes those of text out of position_ids [4, B, T] alone."""

STATEFUL = {
    *("qwen3_next", "qwen3_next_mha", "qwen3_5_moe", "qwen3_5_moe_mha"),
    *("kimi_linear", "kimi_linear_odd", "minimax", "minimax_mha", "bailing_hybrid", "bailing_hybrid_odd"),
    *("granitemoehybrid", "granitemoehybrid_odd", "nemotron_h", "nemotron_h_latent"),
    *("jamba", "jamba_odd", "lfm2_moe", "lfm2_moe_odd"),
}
"""Whose states run on over the borders of a pack: transformers 5.23.0 begins anew in a row with the kernels of
flash-linear-attention only."""

OWN_CACHE = {"minimax", "minimax_mha"}
"""Which transformers runs with a cache of their own class, whatever is asked for: it grows."""

BY_MODEL = pytest.mark.parametrize("name", MODELS, scope="module")
"""All tests of a model come together, so that it is loaded once."""
ATTEND, SAVED = "layers[0].attention.attend", "layers.0.attention.attend"


def cached(name: str, **more: str | float) -> dict[str, str | float]:
    """What a filled cache of a model does to keys and values; that of MLA holds latents."""
    form: dict[str, str | float] = {"kv_layout": "cached", **more}
    if name in MLA:
        form["projection"] = "context"
    settings = {f"**.attend:{key}": value for key, value in form.items()}
    indexed = (
        {"layers[*].attention.index:allocated": more["allocated"]} if name in INDEXED and "allocated" in more else {}
    )
    return settings | indexed


def steps(sequences: int, *edges: int) -> tuple[Step, ...]:
    """Prefill up to the first edge, then a chunk up to each next one, or a step of decode."""
    pairs = list(zip((0, *edges[:-1]), edges, strict=True))
    phases: list[Phase] = ["prefill", *("decode" if b - a == 1 else "chunk" for a, b in pairs[1:])]
    return tuple(rectangle(0, sequences, a, b, phase) for (a, b), phase in zip(pairs, phases, strict=True))


def truth_by_step(
    model: PreTrainedModel, ids: torch.Tensor, edges: tuple[int, ...], *, last_row: bool = False
) -> torch.Tensor:
    """Logits of transformers with a dynamic cache, called for each step; `last_row`: of each its last row only."""
    parts: list[torch.Tensor] = []
    cache = None
    with torch.no_grad():
        for first, last in zip((0, *edges[:-1]), edges, strict=True):
            output = model(ids[:, first:last], past_key_values=cache, use_cache=True, logits_to_keep=int(last_row))
            parts, cache = [*parts, output.logits], output.past_key_values
    return torch.cat(parts, 1)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("profile", PROFILES)
@BY_MODEL
def test_steps_against_a_filled_cache(shallow: Shallow, name: str, profile: str, dtype: str) -> None:
    model = opened(shallow(name))
    ids = tokens(model.vocab_size, (3, 19))
    live = load(model.folder, profile, DTYPES[dtype])
    for edges in ((7, *range(8, 20)), (4, 9, 10, 16, 19)):
        schedule = Schedule(steps=steps(3, *edges))
        ours = forward(model, ids, profile=profile, dtype=dtype, schedule=schedule)["logits"]
        assert same_bits(truth_by_step(live, ids, edges), ours)


@pytest.mark.parametrize("profile", PROFILES)
def test_some_shapes_vary_on_this_machine(shallow: Shallow, profile: str) -> None:
    """Else nothing above would show that steps go through ops with their own shapes."""
    varying = []
    for name in ("qwen3_moe", "mixtral", "deepseek_v3"):
        model = opened(shallow(name))
        ids = tokens(model.vocab_size, (3, 19))
        schedule = Schedule(steps=steps(3, 7, *range(8, 20)))
        whole = forward(model, ids, profile=profile, dtype="fp32")["logits"]
        in_steps = forward(model, ids, profile=profile, dtype="fp32", schedule=schedule)["logits"]
        varying.append(not same_bits(whole, in_steps))
    assert any(varying)


@contextmanager
def without_end(model: PreTrainedModel) -> Iterator[None]:
    """Generation goes on to the last token asked for."""
    ends = model.generation_config.eos_token_id
    model.generation_config.eos_token_id = None
    try:
        yield
    finally:
        model.generation_config.eos_token_id = ends


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("profile", PROFILES)
@BY_MODEL
def test_generate_with_padding_in_front(shallow: Shallow, name: str, profile: str, dtype: str, cache: str) -> None:
    model = opened(shallow(name))
    prompt, new = 7, 9
    ids, mask = tokens(model.vocab_size, (3, prompt)), torch.ones(3, prompt, dtype=torch.int64)
    mask[1, :3] = mask[2, :6] = 0
    live = load(model.folder, profile, DTYPES[dtype])
    kind = {"cache_implementation": "static", "disable_compile": True} if cache == "static" else {}
    with torch.no_grad(), without_end(live):
        output: Any = live.generate(  # type: ignore[operator]
            ids,
            attention_mask=mask,
            max_new_tokens=new,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
            pad_token_id=0,
            **kind,
        )
    length = prompt + new - 1
    prefill, *decode = steps(3, prompt, *range(prompt + 1, length + 1))
    first = Step(spans=prefill.spans, phase="prefill", scored=(0, 1, 2))
    schedule = Schedule(steps=(first, *decode), positions="tokens")
    whole_mask = torch.cat([mask, torch.ones(3, new - 1, dtype=torch.int64)], 1)
    more: dict[str, str | float] = {"kv_layout": "static", "allocated": length}
    more = more if cache == "static" and name not in OWN_CACHE else {}
    ours = forward(
        model,
        output.sequences[:, :length],
        attention_mask=whole_mask,
        profile=profile,
        dtype=dtype,
        schedule=schedule,
        settings=cached(name, **more) if more else None,
    )["logits"]
    assert same_bits(torch.stack(output.logits, 1).float(), ours[:, prompt - 1 :].float())


LENGTHS = (5, 11, 3, 8)


def packed(*, isolated: bool) -> tuple[Step, ...]:
    """One pack of all sequences, and what of the grid is padding."""
    spans = tuple(Span(i, 0, length) for i, length in enumerate(LENGTHS))
    rest = tuple(Span(i, length, max(LENGTHS)) for i, length in enumerate(LENGTHS) if length < max(LENGTHS))
    return Step(spans=spans, shape="packed", isolated=isolated), Step(spans=rest, shape="flat")


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", [name for name in MODELS if name not in STATEFUL], scope="module")
def test_packs(shallow: Shallow, name: str, profile: str, dtype: str) -> None:
    """Positions that begin anew; the same with transformers' default cache, which does not look at them; running on."""
    model = opened(shallow(name))
    ids = tokens(model.vocab_size, (len(LENGTHS), max(LENGTHS)))
    real = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    live = load(model.folder, profile, DTYPES[dtype])
    reset = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    isolated = Schedule(steps=packed(isolated=name not in NOT_ISOLATED))
    together = Schedule(steps=packed(isolated=False))
    running = Schedule(steps=packed(isolated=False), positions="running")
    for schedule, settings, told_fields in (
        (isolated, None, {"position_ids": reset, "use_cache": False}),
        (together, cached(name), {"position_ids": reset}),
        (running, None, {"use_cache": False}),
    ):
        with torch.no_grad():
            truth = live(ids[real][None], **told_fields).logits[0]
        ours = forward(
            model, ids, attention_mask=real, profile=profile, dtype=dtype, schedule=schedule, settings=settings
        )["logits"][real]
        assert same_bits(truth, ours)


def test_a_pack_without_its_mask_is_another_value(qwen3_moe: Path) -> None:
    model: Model = opened(qwen3_moe)
    ids = tokens(model.vocab_size, (len(LENGTHS), max(LENGTHS)))
    real = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    with_mask, without = (
        forward(model, ids, attention_mask=real, schedule=Schedule(steps=packed(isolated=isolated)))["logits"]
        for isolated in (True, False)
    )
    equal = (int_view(with_mask) == int_view(without)).all(-1)
    assert equal[0, : LENGTHS[0]].all()
    assert not equal[1:][real[1:]].any()


@pytest.fixture(scope="module")
def wide_mla(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One layer whose latents have 2048 numbers."""
    config = {**SMALL["deepseek_v3"], "num_hidden_layers": 1, "kv_lora_rank": 2048}
    return make_random(config, tmp_path_factory.mktemp("wide_mla"))


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("profile", PROFILES)
def test_wide_latents_are_expanded_anew_at_each_step(wide_mla: Path, profile: str, dtype: str) -> None:
    """transformers 5 caches latents: kv_b's GEMM has as many rows as there are tokens in the cache."""
    model, edges = opened(wide_mla), (70, *range(71, 80))
    ids = tokens(model.vocab_size, (3, 79))
    schedule = Schedule(steps=steps(3, *edges))
    truth = truth_by_step(load(model.folder, profile, DTYPES[dtype]), ids, edges)
    by_profile = forward(model, ids, profile=profile, dtype=dtype, schedule=schedule)["logits"]
    assert same_bits(truth, by_profile)


def test_a_wide_latent_expanded_in_its_own_step_has_other_bits(wide_mla: Path) -> None:
    """As transformers 4 caches them. Some number of rows shows, or nothing above does."""
    model = opened(wide_mla)
    ids = tokens(model.vocab_size, (3, 79))

    def values(form: str, dtype: str) -> torch.Tensor:
        settings: dict[str, str | float] = {f"{ATTEND}:projection": form}
        schedule = Schedule(steps=steps(3, 70, *range(71, 80)))
        return forward(model, ids, dtype=dtype, schedule=schedule, settings=settings, save=[ATTEND])[SAVED]

    assert any(not same_bits(values("context", dtype), values("expanded", dtype)) for dtype in ("bf16", "fp32"))
