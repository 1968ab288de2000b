"""Steps of decoding explained: keys are those of the forwards before; a fault that steps alone have is told of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from moeparity.documents.checked import shipped
from moeparity.errors import TraceError
from moeparity.evidence.explain.explained_profile import profile_text
from moeparity.evidence.explain.report import Explained, Explanation
from moeparity.evidence.explain.trace import ExplainRequest, explain_trace
from tests.evidence.explain.observed import on_screen
from tests.evidence.traced import captured, generated, uneven

ATTEND = "layers[1].attention.attend"
LENGTHS = (7, 4, 1)
STEPS = (1, 2, 3)


def trace_of(
    checkpoint: Path, folder: Path, lengths: tuple[int, ...] = LENGTHS, profile: str = "hf-eager", **more: Any
) -> Path:
    """A trace of `generate`: the prompts at once, then three steps."""
    ids, mask = uneven(lengths)
    how = more.pop("how", {})

    def run(program: Any, ids: torch.Tensor) -> object:
        return generated(program, ids, mask, **how)

    return captured(checkpoint, folder / "trace", ids, run=run, profile=profile, **more)


def ask(checkpoint: Path, trace: Path, nodes: str = ATTEND, profile: str = "hf-eager") -> Explained:
    return explain_trace(ExplainRequest(trace=trace, checkpoint=checkpoint, profile=profile, nodes=(nodes,)))


def otherwise(result: Explained) -> list[Explanation]:
    return [node for node in result.nodes if not node.as_started]


@pytest.mark.parametrize(
    ("name", "profile", "lengths"),
    [
        ("qwen3_moe", "hf-default", LENGTHS),
        ("mixtral", "hf-default", (5,)),
        ("gpt_oss", "hf-eager", LENGTHS),
        ("deepseek_v3", "hf-eager", LENGTHS),
        ("deepseek_v3", "hf-default", (5,)),
    ],
)
def test_every_bit_of_generate_is_explained(
    request: pytest.FixtureRequest, tmp_path: Path, name: str, profile: str, lengths: tuple[int, ...]
) -> None:
    checkpoint = request.getfixturevalue(name)
    trace = trace_of(checkpoint, tmp_path, lengths, profile)
    result = ask(checkpoint, trace, "layers[*].attention.attend", profile)
    assert result.nodes
    assert otherwise(result) == []
    assert {node.forwards for node in result.nodes} == {(0, *STEPS)}
    assert result.taken[-1] == "that row i of a forward goes on row i of those before it"


def test_a_head_that_saw_the_last_tokens_alone_is_explained(qwen3_moe: Path, tmp_path: Path) -> None:
    (node,) = ask(qwen3_moe, trace_of(qwen3_moe, tmp_path), "lm_head").nodes
    assert (node.as_started, node.forwards, node.padding) == (True, (0, *STEPS), (0, 0))
    assert node.elements == 3 * 4 * 512


def test_what_a_step_makes_of_all_keys_is_no_value_of_its_own_token(deepseek_v3: Path, tmp_path: Path) -> None:
    """transformers expands all latents of the cache in each step; the prompt's alone are those of its tokens."""
    result = ask(deepseek_v3, trace_of(deepseek_v3, tmp_path), "layers[1].attention.expand")
    assert [(node.as_started, node.forwards) for node in result.nodes] == [(True, (0,))]
    assert [unseen.forwards for unseen in result.unseen] == [STEPS]


def test_one_choice_explains_prompts_and_steps(qwen3_moe: Path, tmp_path: Path) -> None:
    result = ask(qwen3_moe, trace_of(qwen3_moe, tmp_path, profile="hf-default"))
    (node,) = result.nodes
    assert (node.matches[0].choices, node.forwards) == ((f"{ATTEND}:implementation=sdpa",), (0, *STEPS))
    (rule,) = (r for r in yaml.safe_load(profile_text(result, "mine"))["rules"] if "implementation" in r["set"])
    assert rule["phase"] == ["prefill", "decode"]


def test_a_static_cache_is_seen_through_its_mask(qwen3_moe: Path, tmp_path: Path) -> None:
    how = {"cache_implementation": "static", "disable_compile": True}
    trace = trace_of(qwen3_moe, tmp_path, how=how)
    (node,) = ask(qwen3_moe, trace).nodes
    assert (node.as_started, node.forwards) == (True, (0, *STEPS))


def in_steps(change: Callable[[dict[str, Any], int], None], at: Callable[[Any], Any]) -> Callable[[Any], None]:
    """A patch of a module's arguments in steps of one token, which are counted from 1."""

    def patch(program: Any) -> None:
        module, count = at(program), 0

        def before(_: Any, args: Any, kwargs: dict[str, Any]) -> Any:
            nonlocal count
            tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
            if tensors[0].shape[1] == 1:
                count += 1
                change(kwargs, count)
            return args, kwargs

        # In front of those of the capture: what it records is what the module is called with.
        module.register_forward_pre_hook(before, with_kwargs=True, prepend=True)

    return patch


def positions_ahead(kwargs: dict[str, Any], _: int) -> None:
    kwargs["position_ids"] = kwargs["position_ids"] + 1


def mask_back(kwargs: dict[str, Any], _: int) -> None:
    mask = kwargs["attention_mask"]
    kwargs["attention_mask"] = mask[:, (torch.arange(mask.shape[1]) + 1).clamp(max=mask.shape[1] - 1)]


def stale_key(kwargs: dict[str, Any], step: int) -> None:
    """The key that the step before has written is overwritten with the one before that."""
    keys = kwargs["past_key_values"].layers[1].keys
    if step == 2:
        keys[:, :, -1] = keys[:, :, -2]


@pytest.mark.parametrize("where", ["model", "model.rotary_emb"])
def test_positions_that_run_ahead_in_steps_are_named_there(qwen3_moe: Path, tmp_path: Path, where: str) -> None:
    patch = in_steps(positions_ahead, lambda program: program.get_submodule(where))
    trace = trace_of(qwen3_moe, tmp_path, patch=patch)
    result = ask(qwen3_moe, trace, "rotary")
    (node,) = otherwise(result)
    assert (node.node, node.forwards, node.phases) == ("rotary", STEPS, ("decode",))
    assert node.matches[0].choices == ("rotary:fault=rope-offset(offset=1)",)
    text = on_screen(result)
    assert "rotary in forwards 1 to 3 (decode): rotary:fault=rope-offset(offset=1) (all bits equal" in text
    assert "rotary in forward 0 (prefill): as the profile computes it" in text
    assert "1 node: 0 as hf-eager computes them, 1 under other choices, 0 not explained; exit 0" in text
    assert otherwise(ask(qwen3_moe, trace)) == []


def test_a_mask_that_is_shifted_in_steps_is_named_there(mixtral: Path, tmp_path: Path) -> None:
    patch = in_steps(mask_back, lambda program: program.model)
    (node,) = otherwise(ask(mixtral, trace_of(mixtral, tmp_path, patch=patch)))
    assert node.forwards == STEPS
    assert node.matches[0].choices == (f"{ATTEND}:fault=mask-shifted(offset=-1)",)


@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_oss"])
def test_a_stale_key_is_beyond_any_order_from_its_step_on(
    request: pytest.FixtureRequest, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moeparity.evidence.explain.trace.WORK", 512)
    checkpoint = request.getfixturevalue(name)
    patch = in_steps(stale_key, lambda program: program.model.layers[1].self_attn)
    result = ask(checkpoint, trace_of(checkpoint, tmp_path, patch=patch))
    (node,) = otherwise(result)
    assert (node.node, node.forwards, node.explained) == (ATTEND, (2, 3), False)
    assert node.left is not None
    assert node.left.beyond_orders


def in_the_second(kwargs: dict[str, Any], step: int) -> None:
    if step == 2:
        positions_ahead(kwargs, step)


def test_of_keys_that_one_step_left_wrong_later_steps_are_innocent(
    qwen3_moe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a map that shows no table of the rotation, so that attention shows it, in that step and in all behind it."""
    monkeypatch.setattr("moeparity.evidence.explain.trace.WORK", 2048)
    shown = yaml.safe_load(shipped("maps")["transformers"].read_text())
    shown["values"] = {name: place for name, place in shown["values"].items() if not name.startswith("rotary")}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(shown))
    patch = in_steps(in_the_second, lambda program: program.model.rotary_emb)
    request = ExplainRequest(
        trace=trace_of(qwen3_moe, tmp_path, patch=patch),
        checkpoint=qwen3_moe,
        map_name=str(tmp_path / "own.yaml"),
        nodes=(ATTEND,),
    )
    result = explain_trace(request)
    (node,) = otherwise(result)
    assert (node.forwards, node.matches[0].choices) == ((2,), ("rotary:fault=rope-offset(offset=1)",))
    assert [part.forwards for part in result.nodes if part.as_started] == [(0, 1, 3)]
    with pytest.raises(TraceError, match="was not computed alike in all forwards of phase decode"):
        profile_text(result, "mine")
