"""A flag is offered where the engine would run it: the reader of launch files says what a command with it comes to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest

from moeparity.documents.checked import shipped
from moeparity.errors import MoeparityError
from moeparity.plan.bound import Plan
from moeparity.plan.engine_profile import Profile, load_profile
from moeparity.plan.flags import LEAVING_OUT
from moeparity.plan.offers import gives, offers
from moeparity.plan.toggles import toggles
from moeparity.profiles.launch import read
from moeparity.profiles.launch.merged_profile import combined, load_combined
from tests.plan.flagged_sides import HERE, shipped_sides

COMMANDS = {
    "vllm": "vllm serve {model} --tensor-parallel-size {tensor}",
    "sglang": "python -m sglang.launch_server --model-path {model} --tp-size {tensor}",
}
FURTHER = {
    "vllm": (
        "VLLM_USE_BREAKABLE_CUDAGRAPH=0",
        '--compilation-config \'{"pass_config": {"fuse_allreduce_rms": false}}\'',
    ),
    "sglang": ("--enforce-disable-flashinfer-allreduce-fusion",),
}
"""What a profile may need to be what is started, where the engine decides otherwise by itself."""


class Started:
    """What engines run of one model on so many ranks, by the command that they are started with."""

    def __init__(self, family: str, tensor: int, folder: Path) -> None:
        self.tensor, self.folder = tensor, folder
        self.sides = shipped_sides(family, tensor)
        fields = json.loads(shipped("configs", "json")[family].read_text("utf-8"))
        (folder / "config.json").write_text(json.dumps(fields), "utf-8")
        self.plan, self.flags = cache(self._plan), cache(self._fewest_flags)

    def _plan(self, name: str, flags: tuple[str, ...]) -> Plan | None:
        """What a side's engine runs with these flags; None where the reader or no op knows it."""
        flagged = self.sides[name].flagged
        assert flagged is not None
        try:
            profile = self._profile(name.partition("-")[0], flags)
            return None if profile is None else flagged.bind(profile)
        except MoeparityError:
            return None

    def _profile(self, engine: str, flags: tuple[str, ...]) -> Profile | None:
        variables = [flag for flag in flags if not flag.startswith("-")]
        options = [flag for flag in flags if flag.startswith("-")]
        command = COMMANDS[engine].format(model=self.folder, tensor=self.tensor)
        (self.folder / "start.sh").write_text(" ".join([*variables, command, *options]) + "\n", "utf-8")
        launch = read(self.folder / "start.sh", self.folder)
        if launch.ignored or any(warning.name for warning in launch.warnings):
            return None
        side = launch.sides[0]
        if not side.further and not side.sets:
            return load_profile(side.profile, HERE)
        return load_combined(combined(side, launch, "started"))

    def _fewest_flags(self, name: str) -> tuple[str, ...] | None:
        """The fewest flags with which an engine runs a shipped side; None where there are none."""
        engine = name.partition("-")[0]
        if engine not in COMMANDS:
            return None
        layers = load_profile(name, HERE).layers
        stated = dict.fromkeys(rule.set_by for layer in layers for rule in layer if rule.set_by)
        every = (*stated, *FURTHER[engine])
        choices = [flags for number in range(len(every) + 1) for flags in combinations(every, number)]
        wanted = _values(self.sides[name].plan)
        return next((flags for flags in choices if _values(self.plan(name, flags)) == wanted), None)


def _values(plan: Plan | None) -> dict[object, object]:
    if plan is None:
        return {}
    return {
        (case, place): plan.resolved(place[0], setting.value)
        for case in plan.phases
        for place, setting in plan.at_phase(case).settings.items()
    }


def _with(flags: tuple[str, ...], flag: str) -> tuple[str, ...]:
    if flag.startswith(LEAVING_OUT):
        return tuple(started for started in flags if started != flag.removeprefix(LEAVING_OUT))
    name = flag.partition("=")[0] if not flag.startswith("-") else flag.partition(" ")[0]
    # What is given again counts in its last form.
    return (*(started for started in flags if not started.startswith(name)), flag)


def offered(started: Started) -> Iterator[tuple[str, bool]]:
    """Every flag that is offered and read, and whether the engine would run what it is offered for."""
    sides = started.sides
    for first, second in combinations(sides, 2):
        for toggle in toggles(sides[first], sides[second]):
            leading = [member for member in toggle.members if member.follows is None]
            for name, opposite in ((first, second), (second, first)):
                wanted, flags = sides[opposite].plan, started.flags(name)
                if flags is None:
                    continue
                for offer in offers(sides[name], wanted, leading):
                    runs = started.plan(name, _with(flags, offer.flag))
                    if runs is not None:
                        is_right = all(gives(runs, wanted, member) for member in leading)
                        yield f"{name} with {offer.flag} for {toggle.name} of {opposite}", is_right


@pytest.mark.parametrize(("family", "tensor"), [("qwen3_moe", 1), ("qwen3_moe", 2), ("qwen3_moe", 4), ("qwen3", 2)])
def test_an_offered_flag_is_what_the_engine_runs_with_it(family: str, tensor: int, tmp_path: Path) -> None:
    checked = list(offered(Started(family, tensor, tmp_path)))
    print(f"{family}, {tensor} ranks: {len(checked)} offers of flags that are read")
    assert len(checked) > 100
    assert not [says for says, is_right in checked if not is_right][:5]
