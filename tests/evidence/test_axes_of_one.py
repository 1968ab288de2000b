"""Every axis at 1 through every command that reads a trace, and axes that are not as long as the checkpoint says."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import moeparity
from moeparity.bisection.pipeline import bisect
from moeparity.errors import TraceError
from moeparity.evidence.alignment.rows import lying
from moeparity.evidence.alignment.tokens import Tokens
from moeparity.evidence.diff.run import diff
from moeparity.evidence.explain.report import Explained
from moeparity.evidence.explain.trace import ExplainRequest, explain_trace
from moeparity.evidence.importers.registry import import_trace
from moeparity.evidence.maps.module_map import ValuePlace
from moeparity.evidence.maps.values import other_shape
from moeparity.inputs.model import open_model
from moeparity.plan.token_shapes import TokenShape, token_shapes
from tests.checkpoint_factory import make_random
from tests.command import Done, alone
from tests.evidence.explain.observed import on_screen
from tests.evidence.traced import captured, forward, recipe, tokens, uneven
from tests.evidence.written import written
from tests.hf.reference import load
from tests.small_models import fields_of

Of = Callable[..., Path]
"""From the name of a small checkpoint, and fields of its own, its folder."""

HEAD = {"num_attention_heads": 1, "num_key_value_heads": 1}
KEYS = {"num_key_value_heads": 1}
SPARSE = {"first_k_dense_replace": 0, "num_hidden_layers": 1}
LATENT = {"q_lora_rank": 1, "kv_lora_rank": 1, "v_head_dim": 1, "qk_nope_head_dim": 1, "n_shared_experts": 1}

AXES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "key-value heads": ("qwen3_moe", KEYS),
    "heads": ("qwen3_moe", HEAD),
    "experts": ("qwen3_moe", {"num_experts": 1, "num_experts_per_tok": 1}),
    "experts a token": ("qwen3_moe", {"num_experts_per_tok": 1}),
    "widths of experts": ("qwen3_moe", {"moe_intermediate_size": 1}),
    "all": ("qwen3_moe", {**HEAD, "num_experts": 1, "num_experts_per_tok": 1, "moe_intermediate_size": 1}),
    "all of mixtral": ("mixtral", {**HEAD, "num_local_experts": 1, "num_experts_per_tok": 1, "num_hidden_layers": 1}),
    "heads of MLA": ("deepseek_v3", {**HEAD, **SPARSE}),
    "groups": ("deepseek_v3", {**SPARSE, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 1}),
    "widths of MLA": ("deepseek_v3", {**SPARSE, **LATENT}),
    # A group of experts is chosen by its two best: transformers can't run one expert.
    "all of deepseek_v3": (
        "deepseek_v3",
        {**HEAD, **SPARSE, **LATENT, "n_routed_experts": 2, "num_experts_per_tok": 1, "n_group": 1, "topk_group": 1},
    ),
    "key-value heads of gpt_oss": ("gpt_oss", {**KEYS, "num_hidden_layers": 2}),
    "all of gpt_oss": ("gpt_oss", {**HEAD, "num_local_experts": 1, "num_experts_per_tok": 1}),
    "key-value heads of glm4_moe": ("glm4_moe", {**KEYS, **SPARSE}),
    "key-value heads of olmoe": ("olmoe", {**KEYS, "num_hidden_layers": 1}),
    "heads of llama": ("llama", {**HEAD, "num_hidden_layers": 1}),
}
WHOLE = [name for name in AXES if name.startswith("all")]


@pytest.fixture(scope="module")
def checkpoint_of(tmp_path_factory: pytest.TempPathFactory) -> Of:
    """A checkpoint of few layers of a kind, with fields of its own; each is made once."""

    @cache
    def make(name: str, fields: tuple[tuple[str, Any], ...] = ()) -> Path:
        folder = tmp_path_factory.mktemp("checkpoint")
        return make_random({**fields_of(name, 1), **dict(fields)}, folder)

    return lambda name, fields={}: make(name, tuple(fields.items()))


def decoded(program: Any, ids: torch.Tensor) -> None:
    """A prefill of all but the last two tokens, then a step for each."""
    with torch.no_grad():
        past = program(ids[:, :-2], use_cache=True).past_key_values
        for column in (-2, -1):
            step = ids[:, column:] if column == -1 else ids[:, column : column + 1]
            past = program(step, past_key_values=past, use_cache=True).past_key_values


def padded(program: Any, ids: torch.Tensor) -> None:
    """A batch whose second sequence is one token behind four of padding."""
    mask = uneven((5, 1))[1]
    with torch.no_grad():
        program(ids, attention_mask=mask, use_cache=False)


FORMS: Mapping[str, tuple[tuple[int, int], Callable[[Any, torch.Tensor], object]]] = {
    "sequences": ((2, 5), forward),
    "one sequence": ((1, 5), forward),
    "one token": ((1, 1), forward),
    "sequences of one token": ((3, 1), forward),
    "padded": ((2, 5), padded),
    "decoded": ((2, 5), decoded),
    "one sequence decoded": ((1, 4), decoded),
}


def otherwise(result: Explained) -> list[str]:
    return [node.node for node in result.nodes if not node.as_started]


CASES = [(name, "sequences") for name in AXES] + [
    (name, form) for name in (*WHOLE, "key-value heads") for form in FORMS if form != "sequences"
]


@pytest.mark.parametrize(("name", "form"), CASES)
def test_a_forward_held_to_its_own_profile_has_equal_bits(
    checkpoint_of: Of, tmp_path: Path, name: str, form: str
) -> None:
    """By `explain`, and by a recipe where there is a token to score; every node that modules show is looked at."""
    checkpoint, (shape, run) = checkpoint_of(*AXES[name]), FORMS[form]
    ids = tokens(shape)
    trace = captured(checkpoint, tmp_path / "trace", ids, run=run)
    result = explain_trace(ExplainRequest(trace=trace, checkpoint=checkpoint))
    assert (otherwise(result), result.exit_code) == ([], 0)
    shown_nodes = {node.node for node in result.nodes}
    assert {f"layers[0].attention.{node}" for node in ("q_proj", "attend", "o_proj")} <= shown_nodes
    hidden = {"rope", "cache", "experts", "kv_split", "q_split", "log_probs"}
    further = {"expand", "shared_add", "shared_reduce", "combine_reduce"}
    assert {unseen.node.rpartition(".")[2] for unseen in result.unseen} <= hidden | further
    if shape[1] > 1 and form != "padded":
        report = bisect(recipe(tmp_path, checkpoint, ids, trace), device="cpu")
        assert report.roots == ()
        assert report.metrics.unequal_tokens == 0
        assert report.trace is not None
        assert report.trace.shown >= len(shown_nodes)


def scaled_attention(program: Any) -> None:
    program.model.layers[0].self_attn.scaling *= 0.5


@pytest.mark.parametrize("name", AXES)
def test_a_planted_change_is_named_where_heads_are_few(checkpoint_of: Of, tmp_path: Path, name: str) -> None:
    checkpoint, ids, node = checkpoint_of(*AXES[name]), tokens((2, 5)), "layers[0].attention.attend"
    trace = captured(checkpoint, tmp_path / "trace", ids, patch=scaled_attention)
    result = explain_trace(ExplainRequest(trace=trace, checkpoint=checkpoint, nodes=("layers[0].attention.*",)))
    assert otherwise(result) == [node]
    (answer,) = (explanation for explanation in result.nodes if explanation.node == node)
    assert answer.explained
    assert "scale" in str(answer.matches[0])
    report = bisect(recipe(tmp_path, checkpoint, ids, trace, grafts=False), device="cpu")
    assert [root.node for root in report.roots] == [node]


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("shape", [(2, 3), (1, 1)])
def test_diff_and_verify_go_by_axes_of_one(
    checkpoint_of: Of, tmp_path: Path, name: str, shape: tuple[int, int]
) -> None:
    checkpoint, ids = checkpoint_of(*AXES[name]), tokens(shape)
    program = copy.deepcopy(load(checkpoint, "hf-eager", torch.bfloat16))
    for part in ("a", "b"):
        with moeparity.capture(tmp_path / part, save="*"):
            forward(program, ids)
    again = diff(tmp_path / "a", tmp_path / "b")
    assert (again.exit_code, again.starts) == (0, ())
    assert verified(tmp_path / "a", program, ids) == 0
    program.model.norm.variance_epsilon = 1.0
    with moeparity.capture(tmp_path / "c", save="*"):
        forward(program, ids)
    changed = diff(tmp_path / "a", tmp_path / "c")
    assert changed.exit_code == 1
    assert changed.starts[0].path == "model.norm"
    assert verified(tmp_path / "a", program, ids) == 1


def verified(trace: Path, program: Any, ids: torch.Tensor) -> int:
    """The exit code of `capture --verify`."""
    with moeparity.capture(verify=trace) as capture:
        forward(program, ids)
    assert capture.verifier is not None
    return capture.verifier.report.exit_code


@pytest.mark.parametrize("program", ["vllm", "sglang"])
@pytest.mark.parametrize("name", ["key-value heads", "all", "heads of MLA"])
def test_heads_that_stand_side_by_side_in_one_module(
    checkpoint_of: Of, tmp_path: Path, name: str, program: str
) -> None:
    """Queries, keys and values are columns of one output in the servers' programs."""
    model = open_model(checkpoint_of(*AXES[name]), device="cpu", residency="resident")
    trace = written(tmp_path / "trace", model, tokens((1, 5)), program=program)
    result = explain_trace(ExplainRequest(trace=trace, checkpoint=model.folder, map_name=program))
    assert otherwise(result) == []
    assert {"layers[0].attention.q_proj", "layers[0].attention.attend"} <= {node.node for node in result.nodes}


@pytest.mark.filterwarnings("ignore:std")
def test_what_the_debugger_wrote_of_one_token_is_imported(checkpoint_of: Of, tmp_path: Path) -> None:
    from transformers.model_debugging_utils import model_addition_debugger_context

    program = copy.deepcopy(load(checkpoint_of(*AXES["all"]), "hf-eager", torch.bfloat16))
    for part in ("a", "b"):
        folder = tmp_path / f"{part}.d"
        with model_addition_debugger_context(program, debug_path=str(folder), do_prune_layers=False, use_repr=False):
            forward(program, tokens((1, 1)))
        import_trace("transformers", folder, tmp_path / part)
    assert diff(tmp_path / "a", tmp_path / "b").starts == ()


def test_commands_say_so_too(checkpoint_of: Of, tmp_path: Path) -> None:
    """One process of each, as a user starts it."""
    checkpoint, ids = checkpoint_of(*AXES["all"]), tokens((2, 5))
    trace = captured(checkpoint, tmp_path / "trace", ids)
    results: dict[str, tuple[int, Done]] = {
        "all bits equal": (0, alone("explain", trace, "--checkpoint", checkpoint)),
        "nowhere: every node that the trace shows has the reference's bits": (
            0,
            alone("bisect", recipe(tmp_path, checkpoint, ids, trace)),
        ),
        "equal bits in all": (0, alone("diff", trace, trace)),
    }
    for words, (code, done) in results.items():
        assert (done.returncode, done.stderr) == (code, "")
        assert words in " ".join(done.stdout.split())


BASE = {"num_experts_per_tok": 5}
DENSE_TOO = {**BASE, "num_hidden_layers": 1, "first_k_dense_replace": 0}
WIDTHS: Mapping[str, tuple[str, Mapping[str, Any], str, str]] = {
    "experts a token": (
        "qwen3_moe",
        {"num_experts_per_tok": 4},
        "moe.router",
        "4 experts a token where the checkpoint says 5",
    ),
    "one expert a token": (
        "qwen3_moe",
        {"num_experts_per_tok": 1},
        "moe.router",
        "1 expert a token where the checkpoint says 5",
    ),
    "experts": (
        "qwen3_moe",
        {"num_experts": 8},
        "moe.gate",
        "8 experts where the checkpoint says 16 (num_local_experts)",
    ),
    "heads": (
        "qwen3_moe",
        {"num_attention_heads": 2},
        "attention.q_norm",
        "2 heads of 32 where the checkpoint says 4 heads of 32 (num_attention_heads and head_dim)",
    ),
    "heads and their width": (
        "qwen3_moe",
        {"num_attention_heads": 2, "head_dim": 64},
        "attention.q_norm",
        "2 heads of 64 where the checkpoint says 4 heads of 32 (num_attention_heads and head_dim)",
    ),
    "key-value heads": (
        "qwen3_moe",
        {"num_key_value_heads": 1},
        "attention.k_proj",
        "32 values for each token where the checkpoint says 64, 2 heads of 32 (num_key_value_heads and head_dim)",
    ),
    "hidden states": (
        "qwen3_moe",
        {"hidden_size": 48},
        "moe.norm",
        "48 values for each token where the checkpoint says 64 (hidden_size)",
    ),
    "vocabulary": (
        "qwen3_moe",
        {"vocab_size": 400},
        "lm_head",
        "400 tokens in the vocabulary where the checkpoint says 512 (vocab_size)",
    ),
    "intermediate": (
        "deepseek_v3",
        {"n_shared_experts": 1},
        "moe.shared_up_proj",
        "40 values for each token where the checkpoint says 80 (moe_intermediate_size and n_shared_experts)",
    ),
    "latent": (
        "deepseek_v3",
        {"kv_lora_rank": 1},
        "attention.kv_a_proj",
        "17 values for each token where the checkpoint says 48 (kv_lora_rank and qk_rope_head_dim)",
    ),
}


@pytest.mark.parametrize("name", WIDTHS)
def test_another_width_is_said_in_words(checkpoint_of: Of, tmp_path: Path, name: str) -> None:
    """By `explain` and by a recipe with the names of config.json, by `diff` with both shapes; no bits are compared."""
    family, fields, role, words = WIDTHS[name]
    base = DENSE_TOO if family == "deepseek_v3" else BASE
    checkpoint, ids = checkpoint_of(family, base), tokens((2, 5))
    trace = captured(checkpoint_of(family, {**base, **fields}), tmp_path / "trace", ids)
    node = role if role == "lm_head" else f"layers[0].{role}"
    result = explain_trace(ExplainRequest(trace=trace, checkpoint=checkpoint, nodes=(node,)))
    (answer,) = result.nodes
    assert (answer.other_shape, answer.elements, answer.left, result.exit_code) == (words, 0, None, 1)
    text = on_screen(result)
    assert f"{node}: {words}" in text
    assert "not finite" not in text
    with pytest.raises(TraceError) as refusal:
        bisect(recipe(tmp_path, checkpoint, ids, trace), device="cpu")
    assert "shapes than this checkpoint's config.json says" in str(refusal.value)
    assert words in str(refusal.value)
    report = diff(captured(checkpoint, tmp_path / "own", ids), trace)
    (sentence,) = (words for words in report.words if words.startswith("No bits were compared where rows have"))
    assert "] in A and [" in sentence


def test_what_another_number_of_experts_makes_is_explained_behind_it(checkpoint_of: Of, tmp_path: Path) -> None:
    """The checkpoint's own weights, routed to one expert fewer: all else is as it was, and the first screen of `diff`
    says what has other shapes.
    """
    checkpoint, ids = checkpoint_of("qwen3_moe", BASE), tokens((2, 5))

    def fewer(program: Any) -> None:
        program.model.layers[0].mlp.gate.top_k = 4

    trace = captured(checkpoint, tmp_path / "trace", ids, patch=fewer)
    assert otherwise(explain_trace(ExplainRequest(trace=trace, checkpoint=checkpoint))) == ["layers[0].moe.router"]
    report = diff(captured(checkpoint, tmp_path / "own", ids), trace)
    assert report.starts[0].shapes == (
        "output 1 of model.layers.0.mlp.gate Qwen3MoeTopKRouter: shapes [10, 5] in A and [10, 4] in B",
        "output 2 of model.layers.0.mlp.gate Qwen3MoeTopKRouter: shapes [10, 5] in A and [10, 4] in B",
    )


@pytest.mark.parametrize("name", AXES)
def test_one_head_is_an_axis_and_no_head_is_none(checkpoint_of: Of, name: str) -> None:
    graph = open_model(checkpoint_of(*AXES[name]), device="cpu").graph
    shapes = token_shapes(graph)
    heads = graph.config["num_attention_heads"]
    assert shapes["layers[0].attention.rope.q"].heads == heads
    assert shapes["layers[0].attention.rope.q"].axes[0] == heads
    assert shapes["layers[0].attention.o_proj"].heads is None
    assert shapes["layers[0].attention.o_proj"].axes == (graph.config["hidden_size"],)


@pytest.mark.parametrize(
    ("shape", "size", "axes"),
    [
        ((2, 5, 8), (2, 5), (8,)),
        ((10, 8), (2, 5), (8,)),
        ((2, 5, 2, 4), (2, 5), (2, 4)),
        ((2, 5, 1, 4), (2, 5), (4,)),
        ((1, 1, 3, 4), (1, 1), (3, 4)),
        ((1, 8), (1, 1), (1, 8)),
        ((3, 1, 6), (3, 1), (6,)),
        ((2, 3, 8), (2, 5), (8,)),
        # All keys of a cache in a step of one token, a token for each head, and rows of other tokens.
        ((1, 1, 3, 8), (1, 1), None),
        ((20, 4), (2, 5), None),
        ((2, 7, 8), (2, 5), None),
    ],
)
def test_shapes_lie_on_tokens(shape: tuple[int, ...], size: tuple[int, int], axes: tuple[int, ...] | None) -> None:
    """A value of two heads of four numbers."""
    lies = lying(shape, Tokens(size, ()), 8)
    assert (None if lies is None else lies.axes) == axes


@pytest.mark.parametrize(
    ("axes", "heads", "words"),
    [
        ((8,), 2, ""),
        ((2, 4), 2, ""),
        ((4, 2), 2, "4 heads of 2 where the checkpoint says 2 heads of 4"),
        ((1, 8), 2, ""),
        ((4, 2), None, ""),
        ((1, 4), 1, "1 head of 4 where the checkpoint says 1 head of 8"),
        ((2, 4), 1, "2 heads of 4 where the checkpoint says 1 head of 8"),
        ((4,), 1, "4 values for each token where the checkpoint says 8, 1 head of 8"),
    ],
)
def test_heads_of_another_width_are_another_shape(axes: tuple[int, ...], heads: int | None, words: str) -> None:
    place = ValuePlace("m", "output", ("0",), width=8)
    assert other_shape(axes, place, TokenShape(numbers=8, heads=heads)) == words
