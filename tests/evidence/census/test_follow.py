"""Tensors that were made of weights: planted stale, each is named with its weight; made anew, nothing is said."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from moeparity.errors import RankError
from moeparity.evidence.capture.context import capture
from moeparity.evidence.census.census import Census, census
from moeparity.evidence.census.follow import followed
from moeparity.evidence.census.outcome import Derived, faults
from moeparity.evidence.weights.fingerprint_files import open_weights
from moeparity.ranks import Guard, WeightLayout
from tests.command import inside
from tests.evidence.census.planted import CASES, Alias, Case, Holder, Listed, Lora, Mla, Rotary, Router, TiedHead

IDS = [case.name for case in CASES]


def bump(module: Holder) -> None:
    """Give every weight that is loaded other values, as it stands."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if not name.startswith("attn."):
                change = torch.randn_like(parameter) if parameter.is_floating_point() else torch.full_like(parameter, 3)
                parameter.add_(change)
        for name, buffer in module.named_buffers():
            if name == "inv_freq":
                buffer.mul_(0.5)
    if isinstance(module, Rotary):
        module.base = 500_000.0


def remade(module: Holder) -> None:
    with torch.no_grad():
        module.make()


def built(case: Case) -> Holder:
    torch.manual_seed(0)
    return case.build()


def results(module: nn.Module, before: Census) -> list[Derived]:
    return followed(before, census([module], before))


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_stale_tensor_is_named_with_what_it_was_made_of(case: Case) -> None:
    module = built(case)
    before = census([module])
    bump(module)
    stale = {derived.path: derived.sources for derived in faults(results(module, before))}
    expected = {_full(path, before): sources for path, sources in case.derived.items()}
    assert stale == expected


def _full(path: str, present: Census) -> str:
    """The paths of a hook and of a global, which hold a number and a name of their own."""
    ends = {"HOOK": ".defaults[0]", "GLOBAL": "globals[WORKSPACES][0]"}
    return next(name for name in present.entries if name.endswith(ends[path])) if path in ends else path


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_made_anew_nothing_is_said_and_all_followed(case: Case) -> None:
    module = built(case)
    before = census([module])
    bump(module)
    remade(module)
    by_path = {derived.path: derived.outcome for derived in results(module, before)}
    assert {by_path[_full(path, before)] for path in case.derived} == {"followed"}
    assert not faults(results(module, before))


def in_place(module: Holder) -> None:
    bump(module)


def by_data(module: Holder) -> None:
    for parameter in module.parameters():
        parameter.data = parameter.data * 2


def copied(module: Holder) -> None:
    for parameter in module.parameters():
        parameter.data.copy_(parameter.data * 2)


def loaded(module: Holder) -> None:
    module.load_state_dict({name: value * 2 for name, value in module.state_dict().items()})


def assigned(module: Holder) -> None:
    module.load_state_dict({name: value * 2 for name, value in module.state_dict().items()}, assign=True)


def replaced(module: Holder) -> None:
    for owner in list(module.modules()):
        for name, parameter in list(owner.named_parameters(recurse=False)):
            setattr(owner, name, nn.Parameter(parameter.detach() * 2, requires_grad=False))


def identical(module: Holder) -> None:
    module.load_state_dict(copy.deepcopy(module.state_dict()))


def moved_identical(module: Holder) -> None:
    for parameter in module.parameters():
        parameter.data = parameter.data.clone()


def stepped(module: Holder) -> None:
    parameters = [parameter.requires_grad_() for parameter in module.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=0.1)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


def reregistered(module: Holder) -> None:
    module.register_buffer("steps", torch.arange(9.0))
    for name, buffer in list(module.named_buffers(recurse=False)):
        module.register_buffer(name, buffer.clone())


UPDATES: tuple[Callable[[Holder], None], ...] = (
    in_place, by_data, copied, loaded, assigned, replaced, identical, moved_identical, stepped, reregistered,
)  # fmt: skip


@pytest.mark.parametrize("update", UPDATES, ids=lambda update: update.__name__)
@pytest.mark.parametrize("build", [Mla, Router, TiedHead, Listed, Lora])
def test_clean_updates_of_every_kind_are_silent(build: Callable[[], Holder], update: Callable[[Holder], None]) -> None:
    torch.manual_seed(0)
    module = build()
    before = census([module])
    update(module)
    remade(module)
    assert faults(results(module, before)) == []


def test_views_follow_by_themselves_until_they_are_parted() -> None:
    torch.manual_seed(0)
    module = Alias()
    before = census([module])
    bump(module)
    assert faults(results(module, before)) == []
    module.weight.data = module.weight.data.clone()
    (parted,) = faults(results(module, before))
    assert (parted.path, parted.outcome, parted.sources) == ("runner.static[weight]", "parted", ("weight",))


def test_a_tied_head_that_was_parted_is_told() -> None:
    module = nn.Module()
    module.embed, module.head = nn.Embedding(8, 16), nn.Linear(16, 8, bias=False)
    module.head.weight = module.embed.weight
    before = census([module])
    module.embed.weight = nn.Parameter(module.embed.weight.detach() + 1)
    assert [(each.path, each.sources, each.outcome) for each in faults(results(module, before))] == [
        ("head.weight", ("embed.weight",), "parted")
    ]


def test_half_of_a_packed_tensor_may_be_stale() -> None:
    torch.manual_seed(0)
    module = next(case for case in CASES if case.name == "gate and up packed").build()
    before = census([module])
    old_up = module.get_parameter("up_proj").detach().clone()
    bump(module)
    module.gate_up = torch.cat([module.get_parameter("gate_proj"), old_up])
    (stale,) = faults(results(module, before))
    assert (stale.sources, stale.says) == (("up_proj",), "48 of its 96 rows: copy")


def test_what_lies_at_another_address_while_a_captured_graph_lives_on() -> None:
    class CUDAGraph:
        """In the place of torch's, by its name: there is no GPU here."""

    module = Mla()
    module.graphs = {8: CUDAGraph()}  # type: ignore[assignment]
    before = census([module])
    remade(module)
    assert {(each.path, each.outcome) for each in faults(results(module, before))} == {
        ("W_UV", "moved"), ("W_UK_T", "moved"),
    }  # fmt: skip


def test_ones_and_zeros_have_no_origin_and_equal_weights_are_alternatives() -> None:
    module = nn.Module()
    module.norm, module.a = nn.Parameter(torch.ones(64)), nn.Parameter(torch.randn(8, 16))
    module.b = nn.Parameter(module.a.detach().clone())
    module.scale, module.copy = torch.ones(64), module.a.detach().clone()
    present = census([module])
    assert present.entries["scale"].origin is None
    origin = present.entries["copy"].origin
    assert origin is not None
    assert (set(origin.sources), origin.alternatives) == ({"a", "b"}, True)
    with torch.no_grad():
        module.a.add_(1)
    assert faults(results(module, present)) == [], "it may have been made of the other"


def test_unlike_anything_is_unknown() -> None:
    module = nn.Module()
    module.weight, module.workspace = nn.Parameter(torch.randn(8, 16)), torch.randn(8, 16)
    before = census([module])
    with torch.no_grad():
        module.weight.add_(1)
    (unknown,) = results(module, before)
    assert (unknown.path, unknown.outcome, unknown.says) == ("workspace", "unknown", "did not change")


def test_a_guard_ends_a_job_whose_tensor_did_not_follow() -> None:
    torch.manual_seed(0)
    module = Mla()
    words = r"behind call 2: W_UV holds what kv_b_proj.weight was before the update \(all of it: copy\), and 1 more\."
    with pytest.raises(RankError, match=words):
        guarded(module)


def guarded(module: Holder) -> None:
    """Three calls, an update behind the second."""
    with Guard(module) as guard:
        for number in range(3):
            with guard.call(chunk=number):
                module(torch.ones(1))
            if number == 1:
                with guard.update():
                    bump(module)


def remade_in_calls(module: Holder, **settings: Any) -> None:
    """Three calls that make the tensors anew, each with an update behind it."""
    with Guard(module, **settings) as guard:
        for number in range(3):
            with guard.call(chunk=number):
                remade(module)
            with guard.update():
                bump(module)


def test_a_guard_lets_tensors_be_made_anew_in_the_next_call_and_knows_snapshots() -> None:
    torch.manual_seed(0)
    module = Mla()
    remade_in_calls(module)
    for settings in ({"snapshots": ["runner.reference"]}, {}):
        reference = module.kv_b_proj.weight.detach().clone()
        module.runner = SimpleNamespace(reference=reference)  # type: ignore[assignment]
        if settings:
            remade_in_calls(module, **settings)
        else:
            with pytest.raises(RankError, match=r"runner\.reference holds what kv_b_proj\.weight was"):
                remade_in_calls(module)


def test_a_capture_notices_an_update_and_writes_censuses_that_weights_compares(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Mla()
    with capture(tmp_path / "trace"):
        for number in range(3):
            module(torch.ones(1) + 1)
            if number == 1:
                for parameter in module.parameters():
                    parameter.data.copy_(parameter.data * 2)
    events = (tmp_path / "trace/rank-0/events.jsonl").read_text("utf-8")
    assert "W_UV holds what kv_b_proj.weight was before the update" in events
    files = sorted((tmp_path / "trace/rank-0/census").iterdir())
    assert [file.name for file in files] == [f"Mla-00{number}.safetensors" for number in range(len(files))]
    done = inside("weights", files[0], files[-1])
    assert done.returncode == 1
    assert "2 tensors made of weights did not follow; exit 1" in done.stdout


def test_fingerprints_carry_the_census_and_one_of_before_helps_after_a_restart(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, layout = Mla(), WeightLayout()
    layout.write(tmp_path / "before", [module])
    bump(module)
    layout.write(tmp_path / "after", [module])
    WeightLayout().write(tmp_path / "restarted", [module], since=tmp_path / "before")
    for folder in ("after", "restarted"):
        done = inside("weights", tmp_path / "before", tmp_path / folder)
        assert done.returncode == 1
        assert "2 tensors made of weights did not follow" in done.stdout
        assert "W_UK_T  stale  kv_b_proj.weight  all of it: copy" in done.stdout
    census_read = open_weights(tmp_path / "after").by_rank[0].census
    assert census_read is not None
    assert [entry.path for entry in census_read.unregistered] == ["W_UV", "W_UK_T"]
