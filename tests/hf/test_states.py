"""What a model with states gives in steps, live and bit for bit; tensors of its checkpoint that are ignored."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from moeparity.engine.forward import forward
from moeparity.numerics.bits import same_bits
from moeparity.ops.attribute import Value
from moeparity.plan.schedule.steps import Schedule
from tests.checkpoint_factory import FILE, make_random
from tests.hf.compare import DTYPES, LIVE, PROFILES, assert_is, opened, tokens
from tests.hf.reference import load, reference
from tests.hf.test_schedules import STATEFUL, steps, truth_by_step
from tests.small_models import SMALL, Shallow
from tests.verified import record


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", sorted(STATEFUL))
def test_states_behind_more_tokens_than_a_chunk_of_them(shallow: Shallow, name: str, profile: str, dtype: str) -> None:
    """A prompt of 70 tokens and decode; chunks that end within, at and behind the rule's 64 tokens, some of one."""
    model = opened(shallow(name))
    live = load(model.folder, profile, DTYPES[dtype])
    for edges in ((70, *range(71, 76)), (50, 64, 65, 140, 141, 142)):
        ids = tokens(model.vocab_size, (2, edges[-1]))
        ours = forward(model, ids, profile=profile, dtype=dtype, schedule=Schedule(steps=steps(2, *edges)))["logits"]
        assert same_bits(truth_by_step(live, ids, edges), ours)
    there = {node.op.name for node in model.graph.nodes}
    scale = {} if name.startswith("kimi") else {"scale": "over"}
    values: list[tuple[str, dict[str, Value]]] = [
        ("gated_delta", {"form": "tokens", "step_state": "unrounded", **scale}),
        ("gated_delta", {"form": "chunks", "chunk": 64, "scale": "times", "chunk_state": "fp32"}),
        ("short_conv", {"step_state": "unrounded"}),
        ("lightning", {"form": "tokens", "step_state": "unrounded"}),
        ("selective_scan", {"start": "state", "skip": "model", "output": "model", "step_state": "unrounded"}),
        ("selective_scan", {"start": "zeros", "skip": "fp32", "output": "fp32", "read": "model"}),
        ("mamba2", {"form": "tokens", "increment": "model", "read": "model", "skip": "model", "output": "model"}),
        ("mamba2", {"form": "chunks", "chunk": "config", "chunk_state": "fp32", "skip": "fp32", "output": "fp32"}),
        ("mamba2", {"step_state": "unrounded"}),
    ]
    # A floor under the steps of several tokens.
    values += [("mamba2", {"floor": form}) for form in ("config", "none") if name.startswith("nemotron")]
    for op, of_op in values:
        if op in there:
            record(op, of_op, LIVE)


@pytest.mark.parametrize("profile", PROFILES)
def test_other_roundings_of_a_state_show(shallow: Shallow, profile: str) -> None:
    """Else nothing above would show that states are handed on."""
    model = opened(shallow("qwen3_next"))
    ids, schedule = tokens(model.vocab_size, (2, 75)), Schedule(steps=steps(2, 70, *range(71, 76)))
    plain = forward(model, ids, profile=profile, dtype="bf16", schedule=schedule)["logits"]
    for setting in ("step_state", "chunk_state"):
        settings = {f"**.delta:{setting}": "bf16"}
        in_bf16 = forward(model, ids, profile=profile, dtype="bf16", schedule=schedule, settings=settings)["logits"]
        assert not same_bits(plain, in_bf16)


def test_positions_behind_a_first_layer_without_keys(tmp_path: Path) -> None:
    """As MiniMax-Text-01 has it: transformers 5.23.0 counts the keys of the first layer, so it must be told them."""
    kinds = ["linear_attention", "full_attention", "full_attention"]
    model = opened(make_random({**SMALL["minimax"], "layer_types": kinds}, tmp_path))
    ids, edges = tokens(model.vocab_size, (2, 12)), (7, *range(8, 13))
    ours = forward(model, ids, profile="hf-eager", dtype="bf16", schedule=Schedule(steps=steps(2, *edges)))["logits"]
    live, cache = load(model.folder, "hf-eager", torch.bfloat16), None
    parts: list[torch.Tensor] = []
    assert not same_bits(truth_by_step(live, ids, edges), ours)
    for first, last in zip((0, *edges[:-1]), edges, strict=True):
        positions = torch.arange(first, last)[None]
        with torch.no_grad():
            output = live(ids[:, first:last], past_key_values=cache, use_cache=True, position_ids=positions)
        parts, cache = [*parts, output.logits], output.past_key_values
    assert same_bits(torch.cat(parts, 1), ours)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("profile", PROFILES)
def test_bias_of_the_head(tmp_path: Path, profile: str, dtype: str) -> None:
    """As Phi-3.5-MoE has it. Where `generate` of transformers gives the head a slice, torch adds it behind a rounding,
    which is not computed here.
    """
    model = opened(make_random({**SMALL["phimoe"], "lm_head_bias": True}, tmp_path))
    ids, edges = tokens(model.vocab_size, (2, 20)), (7, 12, *range(13, 21))
    whole = forward(model, ids, profile=profile, dtype=dtype)
    assert_is(model, whole, reference(model.folder, profile, DTYPES[dtype], ids))
    steps_of = Schedule(steps=steps(2, *edges))
    ours = forward(model, ids, profile=profile, dtype=dtype, schedule=steps_of)["logits"]
    assert same_bits(truth_by_step(load(model.folder, profile, DTYPES[dtype]), ids, edges), ours)


def test_layers_that_predict_several_tokens_are_ignored(qwen3_next: Path, tmp_path: Path) -> None:
    """Their tensors, as the hub's checkpoint has them; transformers leaves them out too."""
    folder = Path(shutil.copytree(qwen3_next, tmp_path / "qwen3_next"))
    more = {"mtp.fc.weight": torch.ones(64, 128), "mtp.layers.0.self_attn.q_proj.weight": torch.ones(256, 64)}
    save_file(load_file(folder / FILE) | more, folder / FILE, metadata={"format": "pt"})
    ids = tokens(512, (2, 9))
    truth = reference(qwen3_next, "hf-default", torch.bfloat16, ids)
    assert_is(opened(folder), forward(folder, ids, profile="hf-default", dtype="bf16"), truth)
    assert same_bits(reference(folder, "hf-default", torch.bfloat16, ids)[0], truth[0])


ONES: dict[str, dict[str, Any]] = {
    "granitemoehybrid": {
        **dict.fromkeys(("mamba_n_heads", "mamba_n_groups", "mamba_d_state", "mamba_chunk_size"), 1),
        **dict.fromkeys(("num_attention_heads", "num_key_value_heads"), 1),
    },
    "nemotron_h": {
        **dict.fromkeys(("mamba_num_heads", "n_groups", "chunk_size", "n_group", "topk_group"), 1),
        **dict.fromkeys(("num_attention_heads", "num_key_value_heads"), 1),
    },
    "jamba": dict.fromkeys(
        ("mamba_d_state", "mamba_dt_rank", "mamba_expand", "num_attention_heads", "num_key_value_heads"), 1
    ),
}


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("name", ONES)
def test_state_spaces_with_axes_of_length_one(tmp_path: Path, name: str, dtype: str) -> None:
    """One head, group, entry of a state or token of a chunk; one sequence and two, one token and several."""
    model = opened(make_random({**SMALL[name], **ONES[name]}, tmp_path))
    live = load(model.folder, "hf-default", DTYPES[dtype])
    for sequences, edges in ((1, (7, 8, 9, 20)), (2, (5, 6, 11))):
        ids = tokens(model.vocab_size, (sequences, edges[-1]))
        schedule = Schedule(steps=steps(sequences, *edges))
        ours = forward(model, ids, profile="hf-default", dtype=dtype, schedule=schedule)["logits"]
        assert same_bits(truth_by_step(live, ids, edges), ours)
    for shape in ((1, 1), (1, 3), (2, 6)):
        ids = tokens(model.vocab_size, shape)
        with torch.no_grad():
            truth = live(ids, use_cache=False).logits
        assert same_bits(truth, forward(model, ids, profile="hf-default", dtype=dtype)["logits"])
