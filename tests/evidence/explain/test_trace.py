"""Traces of transformers explained: the choices of its kernels, of a patched module, and what a trace does not show."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn

from moeparity.documents.checked import shipped
from moeparity.engine.forward import forward
from moeparity.errors import MoeparityError, TraceError
from moeparity.evidence.explain import inquiry as inquiry_module
from moeparity.evidence.explain.explained_profile import profile_text
from moeparity.evidence.explain.report import Explained, Explanation
from moeparity.evidence.explain.trace import ExplainRequest, explain_trace
from moeparity.inputs.model import Model
from moeparity.numerics.bits import same_bits
from moeparity.numerics.dtypes import torch_dtype
from tests.command import inside
from tests.evidence.explain.observed import on_screen
from tests.evidence.recorded import recorded
from tests.evidence.traced import captured
from tests.evidence.traced import tokens as drawn_tokens
from tests.hf.compare import opened, tokens
from tests.hf.reference import load
from tests.test_reports import refused

Patch = Callable[[nn.Module], object]


def ids_of(model: Model) -> Tensor:
    return tokens(model.vocab_size, (2, 9))


def traced(model: Model, folder: Path, kind: str, patch: Patch | None = None, **settings: str) -> Path:
    """The folder of a trace of one forward of transformers, whose program a patch may have changed."""
    program, ids = load(model.folder, kind, torch.bfloat16), ids_of(model)
    if patch is not None:
        program = deepcopy(program)
        patch(program)
    with recorded(folder, **settings), torch.no_grad():
        program(ids, attention_mask=torch.ones_like(ids), use_cache=False)
    return folder


@pytest.fixture(scope="module")
def default(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return traced(model, tmp_path_factory.mktemp("traces") / "default", "hf-default")


def by_node(result: Explained) -> dict[str, Explanation]:
    return {node.node: node for node in result.nodes}


def test_the_order_of_the_grouped_combine_and_of_sdpa_is_found(model: Model, default: Path, tmp_path: Path) -> None:
    """Held to hf-eager; what is found gives transformers' own logits as a profile, bit for bit."""
    result = explain_trace(ExplainRequest(trace=default, checkpoint=model.folder))
    assert result.exit_code == 0
    otherwise = {name: node.matches[0].choices for name, node in by_node(result).items() if not node.as_started}
    assert otherwise == {
        f"layers[{i}].{name}": (f"layers[{i}].{choice}",)
        for i in range(3)
        for name, choice in {
            "attention.attend": "attention.attend:implementation=sdpa",
            "moe.combine": "moe.combine:accumulate=fp32",
        }.items()
    }
    profile = tmp_path / "found.yaml"
    profile.write_text(profile_text(result, "found"), "utf-8")
    logits = load(model.folder, "hf-default", torch.bfloat16)(ids_of(model), use_cache=False).logits.detach()
    assert same_bits(forward(model, ids_of(model), profile=str(profile))["logits"], logits)
    assert not same_bits(forward(model, ids_of(model))["logits"], logits)
    assert "verified: trace" in profile.read_text("utf-8")


def test_of_its_own_profile_nothing_is_named(model: Model, default: Path) -> None:
    result = explain_trace(ExplainRequest(trace=default, checkpoint=model.folder, profile="hf-default"))
    assert all(node.as_started for node in result.nodes)
    text = on_screen(result)
    assert "52 nodes: 52 as hf-default computes them, 0 under other choices, 0 not explained; exit 0" in text
    assert "none of the" not in text
    assert "as not shown: layers[*].attention.rope, layers[*].attention.cache, layers[*].moe.experts" in text
    assert "Not shown by this trace\n  layers[0:3].attention.rope" in text
    assert refused("explain", json.loads(result.to_json())) == []


@pytest.mark.parametrize("name", ["mixtral", "qwen2_moe", "olmoe_clip", "glm4_moe", "gpt_oss", "deepseek_v3"])
def test_of_no_model_type_anything_innocent_is_named(request: pytest.FixtureRequest, tmp_path: Path, name: str) -> None:
    small = opened(request.getfixturevalue(name))
    result = explain_trace(ExplainRequest(trace=traced(small, tmp_path / "trace", "hf-eager"), checkpoint=small.folder))
    assert [node.node for node in result.nodes if not node.as_started] == []
    assert f"layers[{small.graph.layers - 1}].moe.reduce" in {node.node for node in result.nodes}


def norms_of(layer: int, change: Callable[[Tensor, Tensor], Tensor]) -> Patch:
    """The norm in front of the experts of one layer computed otherwise, from its input and weight."""

    def patch(program: nn.Module) -> None:
        norm = program.get_submodule(f"model.layers.{layer}.post_attention_layernorm")
        weight = norm.get_parameter("weight")
        norm.forward = lambda x: change(x, weight)

    return patch


def fused(x: Tensor, weight: Tensor) -> Tensor:
    """One rounding at the end, bf16 squares, another eps: three choices at once."""
    squares = x.square().float()
    return (x.float() * torch.rsqrt(squares.mean(-1, keepdim=True) + 1e-5) * weight.float()).to(x.dtype)


def by_magnitude(x: Tensor, weight: Tensor) -> Tensor:
    return weight * (x.float() / (x.float().abs().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def test_a_patch_of_three_choices_is_named_and_nothing_innocent(model: Model, tmp_path: Path) -> None:
    trace = traced(model, tmp_path / "trace", "hf-eager", norms_of(1, fused))
    nodes = by_node(explain_trace(ExplainRequest(trace=trace, checkpoint=model.folder)))
    patched = {name: node.matches for name, node in nodes.items() if not node.as_started}
    assert patched.keys() == {"layers[1].moe.norm"}
    by_name = dict(choice.rpartition(":")[2].split("=") for choice in patched["layers[1].moe.norm"][0].choices)
    assert by_name == {"normalized": "fp32", "square": "bf16", "eps": "1e-05"}


def test_what_nobody_lists_is_none(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moeparity.evidence.explain.trace.WORK", 1024)
    assert inquiry_module.WORK > 1024
    trace = traced(model, tmp_path / "trace", "hf-eager", norms_of(1, by_magnitude))
    result = explain_trace(ExplainRequest(trace=trace, checkpoint=model.folder, nodes=("layers[1].moe.*",)))
    assert result.exit_code == 1
    assert [node.node for node in result.nodes if not node.explained] == ["layers[1].moe.norm"]
    text = on_screen(result)
    assert "layers[1].moe.norm: none of the " in text
    assert "no legal order explains them" in text
    # What was found stands above what is equal, and nothing is wider than the terminal.
    titles = [line for line in text.splitlines() if line and line[0].isupper()]
    status, *groups, closing = map(str.strip, titles)
    assert groups == ["Not explained", "As hf-eager computes it", "Not shown by this trace"]
    assert max(map(len, on_screen(result, 80).splitlines())) <= 80
    assert status == closing
    assert status.startswith("FAIL ")
    assert status.endswith("0 under other choices, 1 not explained; exit 1")
    with pytest.raises(TraceError, match=r"no choices give the bits of layers\[1\].moe.norm"):
        profile_text(result, "x")


def test_a_shared_experts_gate_applied_twice_has_a_name(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Qwen2-MoE's block multiplies by its gate, and somebody's shared expert did so already."""
    small = opened(request.getfixturevalue("qwen2_moe"))

    def patch(program: nn.Module) -> None:
        block = program.get_submodule("model.layers.1.mlp")
        gate, scale = block.get_submodule("shared_expert_gate"), torch.sigmoid

        def twice(x: Tensor) -> Tensor:
            return scale(gate(x)) * plain(x)

        shared = block.get_submodule("shared_expert")
        plain = shared.forward
        shared.forward = twice

    trace = traced(small, tmp_path / "trace", "hf-eager", patch)
    result = explain_trace(ExplainRequest(trace=trace, checkpoint=small.folder, nodes=("layers[1].moe.*",)))
    patched = {node.node: node.matches for node in result.nodes if not node.as_started}
    assert patched.keys() == {"layers[1].moe.reduce"}
    assert patched["layers[1].moe.reduce"][0].faults == ("the shared expert's gate is applied twice",)


def test_an_eps_is_solved_for_and_stated_by_a_profile(model: Model, tmp_path: Path) -> None:
    """It is a fault in words, of which a profile can say all: an engine may compute with an eps of its own."""

    def patch(program: nn.Module) -> None:
        program.get_submodule("model.layers.1.post_attention_layernorm").variance_epsilon = 0.00037  # type: ignore[assignment]

    trace = traced(model, tmp_path / "trace", "hf-eager", patch)
    result = explain_trace(ExplainRequest(trace=trace, checkpoint=model.folder, nodes=("layers[*].moe.norm",)))
    assert [node.as_started for node in result.nodes] == [True, False, True]
    assert result.nodes[1].matches[0].choices == ("layers[1].moe.norm:eps=0.00037",)
    assert result.nodes[1].matches[0].faults == ("the norm adds eps 0.00037",)
    profile = tmp_path / "written.yaml"
    profile.write_text(profile_text(result, "written"), "utf-8")
    again = explain_trace(
        ExplainRequest(trace=trace, checkpoint=model.folder, profile=str(profile), nodes=("layers[*].moe.norm",))
    )
    assert all(node.as_started for node in again.nodes)


def test_a_fault_is_said_in_words_and_is_no_profile(model: Model, tmp_path: Path) -> None:
    """Gate and up of one layer's experts exchanged."""

    def patch(program: nn.Module) -> None:
        weight = program.get_submodule("model.layers.1.mlp.experts").get_parameter("gate_up_proj")
        weight.data = torch.cat(weight.data.chunk(2, 1)[::-1], 1).contiguous()

    trace = traced(model, tmp_path / "trace", "hf-eager", patch)
    result = explain_trace(ExplainRequest(trace=trace, checkpoint=model.folder, nodes=("layers[1].moe.combine",)))
    (node,) = result.nodes
    assert node.explained
    assert node.matches[0].faults
    assert "gate" in node.matches[0].faults[0]
    with pytest.raises(TraceError, match="which no profile states"):
        profile_text(result, "x")


@pytest.mark.parametrize("width", [8, 18])
def test_a_table_of_another_width_is_named_with_it(glm4_moe: Path, tmp_path: Path, width: int) -> None:
    """Of a partial rotation with another share of a head, a width that no file lists too."""

    def patch(program: Any) -> None:
        config = deepcopy(program.config)
        config.rope_parameters["partial_rotary_factor"] = width / config.head_dim
        program.model.rotary_emb = type(program.model.rotary_emb)(config)

    trace = traced(opened(glm4_moe), tmp_path / "trace", "hf-eager", patch)
    (node,) = explain_trace(ExplainRequest(trace=trace, checkpoint=glm4_moe, nodes=("rotary",))).nodes
    assert [match.choices for match in node.matches] == [(f"rotary:fault=rotary-width(width={width})",)]
    assert node.matches[0].faults == (f"the table of rotations is made for {width} columns of a head",)


def turned_in_place(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, **_: object) -> tuple[Tensor, Tensor]:
    """Pairs are rotated and left in their places, as engines do it where transformers writes halves."""
    half = cos.shape[-1] // 2
    cos, sin = (x[..., :half].repeat_interleave(2, -1).unsqueeze(1) for x in (cos, sin))
    q, k = (x * cos + torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2) * sin for x in (q, k))
    return q, k


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_pairs_left_in_their_places_are_found_or_said_to_give_the_same_bits(
    deepseek_v3: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    """Queries and keys lie in another order alike, which changes the order of the scores' sums alone: here no bit in
    bf16.
    """
    module = "transformers.models.deepseek_v3.modeling_deepseek_v3"
    monkeypatch.setattr(f"{module}.apply_rotary_pos_emb_interleave", turned_in_place)
    trace = captured(deepseek_v3, tmp_path / "trace", drawn_tokens((4, 16)), dtype=torch_dtype(dtype))
    request = ExplainRequest(trace=trace, checkpoint=deepseek_v3, nodes=("layers[1].attention.attend",))
    (node,) = explain_trace(request).nodes
    layout = "layers[1].attention.rope:layout"
    if dtype == "fp32":
        assert [match.choices for match in node.matches] == [(f"{layout}=pairs",)]
    else:
        assert node.as_started
        assert [(choice.value, choice.others) for choice in node.open if choice.place == layout] == [
            ("halves", ("pairs",))
        ]


def test_what_is_known_of_the_combine_is_not_doubted_at_the_sum(glm4_moe: Path, tmp_path: Path) -> None:
    """The combine is seen to have added no shared expert: where the sum has none either, it is missing."""

    def patch(program: nn.Module) -> None:
        program.get_submodule("model.layers.1.mlp.shared_experts").register_forward_hook(lambda *a: a[2] * 0)

    small = opened(glm4_moe)
    result = explain_trace(ExplainRequest(trace=traced(small, tmp_path / "t", "hf-eager", patch), checkpoint=glm4_moe))
    (node,) = (node for node in result.nodes if not node.as_started)
    assert [match.choices for match in node.matches] == [("layers[1].moe.shared_add:fault=shared-expert-missing",)]


def test_zeroed_weights_leave_a_bias(qwen2_moe: Path, tmp_path: Path) -> None:
    def patch(program: nn.Module) -> None:
        program.get_submodule("model.layers.1.self_attn.v_proj").get_parameter("weight").data.zero_()

    trace = traced(opened(qwen2_moe), tmp_path / "t", "hf-eager", patch)
    result = explain_trace(ExplainRequest(trace=trace, checkpoint=qwen2_moe, nodes=("layers[1].attention.v_proj",)))
    assert result.nodes[0].matches[0].choices == ("layers[1].attention.v_proj:fault=weights-zeroed",)


def test_a_node_that_is_not_shown_is_inconclusive(model: Model, default: Path) -> None:
    result = explain_trace(ExplainRequest(trace=default, checkpoint=model.folder, nodes=("layers[1].moe.experts",)))
    assert result.exit_code == 3
    assert "  layers[1].moe.experts: the trace does not show" in on_screen(result)


def test_a_trace_without_tensors_is_refused(model: Model, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="whole"):
        explain_trace(ExplainRequest(trace=traced(model, tmp_path / "t", "hf-eager", save=""), checkpoint=model.folder))


def test_the_command_prints_the_answer_and_ends_with_its_code(model: Model, default: Path, tmp_path: Path) -> None:
    out, profile = tmp_path / "answer.json", tmp_path / "mine.yaml"
    where = ("explain", default, "--checkpoint", model.folder, "--node", "layers[*].moe.combine")
    done = inside(*where, "--json", out, "--profile-out", profile)
    assert done.returncode == 0, done.stderr
    assert "layers[0:3].moe.combine (with layers[*].moe.experts): layers[*].moe.combine:accumulate=fp32" in done.stdout
    assert refused("explain", json.loads(out.read_text("utf-8"))) == []
    assert "name: mine" in profile.read_text("utf-8")
    assert inside(*where[:-1], "layers[1].moe.experts").returncode == 3
    assert inside(*where[:-1], "nothing").returncode == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trace": Path("nowhere")}, "no trace"),
        ({"rank": 3}, "it has no rank 3; expected one of 0 to 0"),
        ({"nodes": ("layers[1].moe.combin",)}, "matches no node. Did you mean 'layers\\[1\\].moe.combine'"),
        ({"profile": "hf-eagre"}, "hf-eager"),
        ({"map_name": "transformer"}, "transformers"),
        ({"dtype": "bfloat"}, "expected one of"),
        ({"checkpoint": Path("nowhere")}, "nowhere"),
    ],
)
def test_what_is_given_wrongly_is_said(model: Model, default: Path, changes: dict[str, object], message: str) -> None:
    request = ExplainRequest(trace=default, checkpoint=model.folder)
    with pytest.raises(MoeparityError, match=message):
        explain_trace(replace(request, **changes))  # type: ignore[arg-type]


def test_a_table_that_no_module_shows_is_computed_of_the_positions(model: Model, tmp_path: Path) -> None:
    """With another base of the rotation, which attention alone shows."""

    def patch(program: nn.Module) -> None:
        frequencies = program.get_buffer("model.rotary_emb.inv_freq")
        frequencies *= frequencies ** (math.log(40000.0) / math.log(10000.0) - 1)

    shown = yaml.safe_load(shipped("maps")["transformers"].read_text())
    shown["values"] = {name: place for name, place in shown["values"].items() if not name.startswith("rotary")}
    map_file = tmp_path / "own.yaml"
    map_file.write_text(yaml.safe_dump(shown))
    trace = traced(model, tmp_path / "trace", "hf-eager", patch)
    nodes = "layers[*].attention.attend"
    result = explain_trace(ExplainRequest(trace=trace, checkpoint=model.folder, map_name=str(map_file), nodes=(nodes,)))
    assert [node.nodes[0] for node in result.nodes] == ["rotary"] * 3
    for node in result.nodes:
        assert node.explained
        (choice,) = node.matches[0].choices
        place, _, base = choice.partition("=")
        assert (place, round(float(base), -3)) == ("rotary:rope_theta", 40000)
