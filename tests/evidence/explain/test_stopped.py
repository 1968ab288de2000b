"""A search that is stopped: what is known is told, and what was not searched is not called unexplained."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from moeparity.evidence.explain.inquiry import Memory
from moeparity.evidence.explain.observation import Observation, region_of
from moeparity.evidence.explain.replaced import Choices, relative
from moeparity.evidence.explain.trace import ExplainRequest, explain_trace
from moeparity.inputs.model import Model
from moeparity.plan.bound import Plan
from moeparity.progress import Progress, Stop
from tests.command import executable
from tests.evidence.explain.observed import Seen, explain, kernels_of, on_screen
from tests.evidence.traced import captured, tokens


@pytest.fixture(scope="module")
def trace(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whose attention and combine are not those of hf-eager."""
    return captured(model.folder, tmp_path_factory.mktemp("stopped") / "trace", tokens(), profile="hf-default")


def test_what_is_not_searched_is_not_said_to_be_unexplained(model: Model, trace: Path) -> None:
    result = explain_trace(ExplainRequest(trace=trace, checkpoint=model.folder), stop=Stop(seconds=0))
    assert result.exit_code == 3
    unsearched = {node.node for node in result.nodes if not node.searched}
    assert unsearched == {f"layers[{i}].{name}" for i in range(3) for name in ("attention.attend", "moe.combine")}
    assert all(node.as_started for node in result.nodes if node.searched)
    assert all((node.local_error > 0) == (not node.searched) for node in result.nodes)
    assert all(node.extent is not None for node in result.nodes if not node.searched)
    text = on_screen(result)
    assert "6 not searched to the end (stopped: this is not the whole), 0 not explained; exit 3" in text
    assert "Not searched to the end, since the search was stopped" in text


def test_all_nodes_are_compared_before_any_is_searched(model: Model, trace: Path) -> None:
    """The progress says at each step what is known by then; nodes that differ come before the others."""
    reports: list[Progress] = []
    nodes = ("layers[*].moe.*", "layers[*].attention.attend")
    result = explain_trace(ExplainRequest(trace=trace, checkpoint=model.folder, nodes=nodes), reports.append)
    steps = [progress for progress in reports if progress.unit == "nodes"]
    assert list(dict.fromkeys(progress.step for progress in steps)) == ["comparing", "searching", "what is open"]
    searched = [progress.at for progress in steps if progress.step == "searching"]
    names = [f"layers[{layer}].{name}" for name in ("moe.combine", "attention.attend") for layer in range(3)]
    assert sorted(at.partition(",")[0] for at in searched) == sorted(names)
    # Of one role the first layer's search is the others' too.
    assert [at.partition(", ")[2] for at in searched] == [
        f"6 of {steps[0].total} nodes differ, {n} explained" for n in range(6)
    ]
    assert all(node.explained for node in result.nodes)


def test_several_nodes_from_the_command_line(model: Model, trace: Path) -> None:
    options = ["--checkpoint", str(model.folder), "--node", "embed", "--node", "layers[0].moe.combine"]
    done = executable("explain", trace, *options)
    assert done.returncode == 0, done.stderr
    assert "2 nodes: 1 as hf-eager computes them, 1 under other choices, 0 not explained; exit 0" in done.stdout
    stopped = executable("explain", trace, *options, "--seconds", "0")
    assert stopped.returncode == 3, stopped.stderr
    assert "layers[0].moe.combine: " in stopped.stdout


def test_an_interruption_prints_what_is_known(model: Model, trace: Path) -> None:
    """The first Ctrl-C, as soon as the command listens for it."""
    code = (
        "import os, signal\n"
        "from moeparity.evidence.explain import trace\n"
        "inner = trace.explain_trace\n"
        "def interrupted(*arguments):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    return inner(*arguments)\n"
        "trace.explain_trace = interrupted\n"
        "from moeparity.cli import main\n"
        "main()\n"
    )
    arguments = ["explain", str(trace), "--checkpoint", str(model.folder)]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stdout + done.stderr
    assert done.stderr.startswith("stopping: what is known is printed; Ctrl-C again ends it at once\n")
    assert "stopped: this is not the whole" in done.stdout


def test_an_answer_of_another_layer_is_tried_though_nothing_is_left_to_spend(
    eager: Plan, nodes: dict[str, Seen]
) -> None:
    """One of several choices: which of them it can do without is not looked for then."""
    node_values = nodes["layers[1].moe.norm"]
    name = node_values.node.name
    kernels, met = kernels_of(eager, node_values)
    choices: Choices = frozenset({((name, "square"), "bf16"), ((name, "normalized"), "fp32")})
    with torch.inference_mode():
        outputs = kernels.outputs(choices, met.sample(region_of(eager, name, set(met.values))))
        assert outputs is not None
        recorded = Observation(values={**met.values, name: outputs[0]})
        memory = Memory(work=0.0, spent=1.0, answers={relative(kernels.replaced, choices): None})
        answer = explain(eager, name, [recorded], node_values.loaded, memory)
    assert answer.matches[0].exact
    assert set(answer.matches[0].choices) == {f"{name}:square=bf16", f"{name}:normalized=fp32"}
