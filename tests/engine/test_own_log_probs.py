"""Users' own log-softmax, chunked and over a cut vocabulary, beside transformers' logits put through the same code."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from moeparity.numerics.bits import same_bits
from tests.command import alone
from tests.hf.reference import reference
from tests.planted.places import random_tokens, write_recipe

CODE = '''
import torch


def plain(x, *, node):
    return x.float().log_softmax(-1)


def chunked(x, *, node, at_once=100):
    """The maximum and the sum so far are carried from chunk to chunk."""
    x = x.float()
    most, total = torch.full_like(x[..., :1], -torch.inf), torch.zeros_like(x[..., :1])
    for chunk in x.split(at_once, -1):
        higher = torch.maximum(most, chunk.amax(-1, keepdim=True))
        total = total * (most - higher).exp() + (chunk - higher).exp().sum(-1, keepdim=True)
        most = higher
    return x - (most + total.log())


def vocabulary_parallel(x, *, node):
    """As ranks do that hold a part of the vocabulary each: maxima and sums are reduced."""
    ranks = x.float().chunk(4, -1)
    most = torch.stack([rank.amax(-1, keepdim=True) for rank in ranks]).amax(0)
    total = sum((rank - most).exp().sum(-1, keepdim=True) for rank in ranks)
    return torch.cat([rank - most - total.log() for rank in ranks], -1)


def tempered(x, *, node):
    return chunked(x.float() / 0.7, node=node)


def in_place(x, *, node):
    """As Megatron-LM's over a cut vocabulary: the logits' own memory is written into."""
    return x.sub_(x.logsumexp(-1, keepdim=True))


def scaled_head(x, *, node):
    weight = node.weights["lm_head.weight"].mul_(1.05)
    return plain(torch.nn.functional.linear(x, weight), node=node)


def head(x, *, node):
    return chunked(torch.nn.functional.linear(x, node.weights["lm_head.weight"]), node=node)


def noisy(x, *, node, calls=[0]):
    calls[0] += 1
    return plain(x, node=node) - calls[0] * 2.0**-10


def of_the_chosen(x, *, node):
    return plain(x, node=node)[..., 0]


def without_the_last(x, *, node):
    return plain(x, node=node)[..., :-1]


def whole_numbers(x, *, node):
    return x.argsort(-1)


def logits(x, *, node):
    return x


def leaves(x, *, node):
    raise SystemExit(0)


def in_fp8(x, *, node):
    return plain(x, node=node).to(torch.float8_e5m2)


class Marked(torch.Tensor):
    """As frameworks mark what they hand on; comparing two gives a bool."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        return bool(result.all()) if func is torch.Tensor.ne else result


def marked(x, *, node):
    return plain(x, node=node).as_subclass(Marked)


class Wrapped(torch.Tensor):
    """As DTensor and torchao's: its values lie in another tensor."""

    @staticmethod
    def __new__(cls, values):
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=values.dtype)

    def __init__(self, values):
        self.values_ = values

    def __tensor_flatten__(self):
        return ["values_"], None

    @classmethod
    def __tensor_unflatten__(cls, inner, *_):
        return cls(inner["values_"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*(arg.values_ if isinstance(arg, cls) else arg for arg in args), **(kwargs or {}))


def wrapped(x, *, node):
    return Wrapped(plain(x, node=node))
'''
HEAD = ["lm_head", "log_probs"]
IDS = random_tokens(6, 9)


def _run(folder: Path, checkpoint: Path, sides: tuple[str, str], nodes: Any = "log_probs") -> dict[str, Any]:
    """The JSON of a bisection of two functions, as a user runs it; empty where it is refused, with the errors."""
    (folder / "own.py").write_text(CODE, "utf-8")
    first, second = ({"impl": [{"nodes": nodes, "call": f"own:{name}"}]} if name else {} for name in sides)
    recipe = write_recipe(folder, checkpoint, {"input_ids": IDS}, first, second)
    outputs = ("--json", folder / "report.json", "--per-token", folder / "tokens")
    done = alone("bisect", recipe, "--allow-code", "--device", "cpu", *outputs)
    if done.returncode == 2:
        return {"errors": done.stderr}
    assert "Traceback" not in done.stderr
    report: dict[str, Any] = json.loads((folder / "report.json").read_text("utf-8"))
    return report


def _logits(checkpoint: Path) -> torch.Tensor:
    """Those of transformers."""
    return reference(checkpoint, "hf-eager", torch.bfloat16, IDS)[0]


def _computed(name: str, logits: torch.Tensor) -> torch.Tensor:
    """What the function makes of logits, of the tokens that were chosen."""
    module = ModuleType("own")
    exec(CODE, module.__dict__)  # noqa: S102
    log_probs: torch.Tensor = getattr(module, name)(logits, node=SimpleNamespace())
    return log_probs[:, :-1].gather(-1, IDS[:, 1:, None])[..., 0]


@pytest.mark.parametrize("name", ["chunked", "vocabulary_parallel", "tempered", "in_place"])
def test_every_token_has_the_bits_of_the_same_code_on_transformers_logits(
    tmp_path: Path, qwen3_moe: Path, name: str
) -> None:
    report = _run(tmp_path, qwen3_moe, ("plain", name))
    logits = _logits(qwen3_moe)
    delta = _computed("plain", logits).double() - _computed(name, logits).double()
    assert same_bits(load_file(tmp_path / "tokens")["delta"][:, 1:], delta.float())
    assert [root["node"] for root in report["roots"]] == ["log_probs"]
    assert [toggle["name"] for toggle in report["toggles"]] == ["log_probs:impl"]


def test_a_function_in_place_of_the_head_too_gives_the_same_bits(tmp_path: Path, qwen3_moe: Path) -> None:
    report = _run(tmp_path, qwen3_moe, ("", "head"), HEAD)
    logits = _logits(qwen3_moe)
    exact = logits.double().log_softmax(-1)[:, :-1].gather(-1, IDS[:, 1:, None])[..., 0]
    delta = exact - _computed("chunked", logits).double()
    assert torch.allclose(load_file(tmp_path / "tokens")["delta"][:, 1:].double(), delta, rtol=0, atol=1e-9)
    assert [root["node"] for root in report["roots"]] == ["log_probs"]


def test_a_function_that_gives_other_bits_each_time_is_named(tmp_path: Path, qwen3_moe: Path) -> None:
    report = _run(tmp_path, qwen3_moe, ("", "noisy"))
    assert [(entry["node"], entry["call"]) for entry in report["not_deterministic"]] == [("log_probs", "own:noisy")]


@pytest.mark.parametrize(
    ("sides", "words"),
    [
        (
            ("of_the_chosen", "of_the_chosen"),
            "returned torch.float32 [6, 9]; log-probabilities of the whole vocabulary",
        ),
        (("", "without_the_last"), "returned torch.float32 [6, 9, 511]; "),
        (("", "whole_numbers"), "returned torch.int64 [6, 9, 512]; "),
        (("", "logits"), "as logits have; log-probabilities of the whole vocabulary"),
        (("", "in_fp8"), "returned torch.float8_e5m2 [6, 9, 512]; "),
    ],
)
def test_what_can_be_no_log_probabilities_is_refused(
    tmp_path: Path, qwen3_moe: Path, sides: tuple[str, str], words: str
) -> None:
    errors = _run(tmp_path, qwen3_moe, sides)["errors"]
    assert words in errors
    assert "in a floating dtype" in errors
    assert errors.startswith(f"error: {tmp_path / 'recipe.yaml'}:")
    assert errors.count("\n") == 1


def test_a_subclass_of_tensor_is_taken_by_its_values(tmp_path: Path, qwen3_moe: Path) -> None:
    report = _run(tmp_path, qwen3_moe, ("plain", "marked"))
    assert not report["not_deterministic"]
    assert load_file(tmp_path / "tokens")["delta"].count_nonzero() == 0


def test_a_function_that_writes_into_a_weight_is_refused(tmp_path: Path, qwen3_moe: Path) -> None:
    errors = _run(tmp_path, qwen3_moe, ("", "scaled_head"), HEAD)["errors"]
    assert "wrote into the weight lm_head.weight, which others read. Write into a copy." in errors


def test_a_function_that_exits_does_not_end_the_command_as_if_it_had_passed(tmp_path: Path, qwen3_moe: Path) -> None:
    errors = _run(tmp_path, qwen3_moe, ("", "leaves"))["errors"]
    assert "impl own:leaves at log_probs raised SystemExit: 0 (" in errors


def test_a_tensor_that_only_wraps_others_is_refused(tmp_path: Path, qwen3_moe: Path) -> None:
    errors = _run(tmp_path, qwen3_moe, ("", "wrapped"))["errors"]
    assert "returned Wrapped, which holds its values in other tensors" in errors
    assert errors.count("\n") == 1


def test_nothing_is_sampled_from_a_side_that_has_no_logits(tmp_path: Path, qwen3_moe: Path) -> None:
    (tmp_path / "own.py").write_text(CODE, "utf-8")
    impl = {"impl": [{"nodes": HEAD, "call": "own:head"}]}
    recipe = write_recipe(tmp_path, qwen3_moe, {"input_ids": IDS}, {}, impl)
    fields = yaml.safe_load(recipe.read_text("utf-8"))
    del fields["tokens"]["sampled_from"]
    fields["tokens"]["sample"] = {"from": "candidate", "new_tokens": 2, "temperature": 1.0, "seed": 0}
    recipe.write_text(yaml.safe_dump(fields), "utf-8")
    done = alone("bisect", recipe, "--allow-code", "--device", "cpu")
    assert done.returncode == 2
    assert "so the candidate has no logits to sample from. Set `tokens.sample.from: reference`" in done.stderr


def test_the_known_form_of_a_function_is_named(tmp_path: Path, qwen3_moe: Path) -> None:
    report = _run(tmp_path, qwen3_moe, ("", "plain"))
    (nearest,) = report["nearest"]
    assert nearest["found"][0]["exact"]
    assert nearest["found"][0]["choices"] == ["log_probs:form=log_softmax"]
