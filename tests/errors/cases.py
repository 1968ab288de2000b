"""Every bad input and how it is given to moeparity; `run` gives it in this process, `command` as a user would."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from unittest.mock import patch

import torch

from moeparity.cli import commands, main
from moeparity.engine.forward import forward
from moeparity.errors import MoeparityError
from moeparity.inputs.machine import refuse_other_machine
from moeparity.paths import LIMIT_FACTOR
from moeparity.plan.config import Config
from moeparity.plan.expand import expand
from moeparity.plan.spec.profile_schema import Machine
from tests.errors import draft_cases, image_cases, schedules, score_cases, token_cases, trace_cases
from tests.errors.adapter_defects import ADAPTERS
from tests.errors.base import BAD, BASE, TOKENS
from tests.errors.defects import CHECKPOINTS as PLAIN
from tests.errors.defects import TOKEN_FILES
from tests.errors.quantised_defects import OF_CACHES, QUANTISED

CHECKPOINTS = {**PLAIN, **QUANTISED}
Command = tuple[str | Path, ...]
BISECT = {
    "recipe-sample-too-many-tokens-of-all",
    "recipe-envelope-of-too-many-orders",
    "recipe-spikes-of-nothing-drawn",
    "recipe-sample-without-logits",
    "recipe-set-biases-of-no-request",
    "recipe-sample-at-another-temperature",
    "recipe-tokens-missing",
    "recipe-trace-missing",
    "recipe-gate-of-a-record-that-is-not-there",
    "recipe-impl-without-leave",
    "recipe-fault-checkpoint-of-another-model",
    "recipe-fault-base-of-no-rotation",
    "recipe-fault-checkpoint-without-a-tensor",
    "recipe-fault-scales-of-a-plain-checkpoint",
    "recipe-updates-checkpoint-of-another-model",
    "recipe-updates-that-go-back",
    "recipe-updates-outside",
    "recipe-updates-of-other-sequences",
    "recipe-swap-matches-nothing",
    "recipe-costs-unknown",
    "recipe-costs-missing",
    "recipe-set-exponentials-of-another-number",
    "recipe-set-vocabulary-over-more-ranks-than-logits",
}
"""Recipes whose defect `show` does not look at."""
OPTIONS: dict[str, Command] = {
    "checkpoint-grouped-rows-of-24-bytes": ("--profile", "hf-default"),
    "recipe-sample-without-logits": ("--allow-code",),
}
FORWARD: Command = ("forward", "base", "--tokens", "base/tokens.safetensors", "--device", "cpu")
OUT: Command = ("--out", "{tmp}/out.safetensors")
RECIPE = "base/recipe.yaml"
MINE = "{tmp}/mine/recipe.yaml"
"""A copy, for outputs that would destroy it."""
SWEEP: Command = ("sweep", RECIPE, "--device", "cpu", "--over")

QUANTISE: Command = ("quantise", "base", "--out", "{tmp}/copy")
CLAIMED: Command = ("--side", "candidate", "--out", "{tmp}/contract.json")
CAPTURED: Command = ("--", "true")

COMMAND_LINES: dict[str, Command] = {
    "cli-capture-level-unknown": ("capture", "--level", "ops", *CAPTURED),
    "cli-capture-budget-malformed": ("capture", "--budget", "2 gigs", *CAPTURED),
    "cli-capture-steps-malformed": ("capture", "--steps", "3", *CAPTURED),
    "cli-capture-steps-backwards": ("capture", "--steps", "5:3", *CAPTURED),
    "cli-capture-stop-without-verify": ("capture", "--stop", *CAPTURED),
    "cli-capture-verify-no-trace": ("capture", "--verify", "base", *CAPTURED),
    "cli-capture-command-not-there": ("capture", "--out", "{tmp}/t", "--", "no-such-command"),
    "cli-capture-out-holds-a-trace": ("capture", "--out", "{tmp}/traced", *CAPTURED),
    "cli-capture-of-nothing": ("capture", "--out", "{tmp}/t", *CAPTURED),
    "cli-weights-no-fingerprint": ("weights", "beside"),
    "cli-weights-not-there": ("weights", "base", "no-such-folder"),
    "cli-weights-a-checkpoint-file": ("weights", "base/model.safetensors"),
    "cli-weights-dtype-unknown": ("weights", "base", "--dtype", "bfloat16"),
    "cli-contract-of-faults": ("contract", "beside/faulty.yaml", *CLAIMED),
    "cli-contract-environment-without-journals": ("contract", RECIPE, *CLAIMED, "--environment", "base"),
    "cli-ranks-without-journals": ("ranks", "base"),
    "cli-engines-merge-of-a-word": ("show", "launch", "beside/merge-of-a-word.yaml"),
    "cli-recipe-of-too-many-cases": ("show", "plan", "{tmp}/cases.yaml"),
    "cli-recipe-missing": ("bisect", "no-such-recipe.yaml"),
    "cli-recipe-a-folder": ("bisect", "base"),
    "cli-recipe-a-checkpoint-file": ("show", "plan", "base/model.safetensors"),
    "cli-recipe-too-large": ("show", "plan", "{tmp}/large.yaml"),
    "cli-show-nothing-there": ("show", "plan", "no-such-path"),
    "cli-checkpoint-missing": ("forward", "bsae", *FORWARD[2:], "--out", "{tmp}/out.safetensors"),
    "cli-checkpoint-a-file": ("forward", RECIPE, *FORWARD[2:], "--out", "{tmp}/out.safetensors"),
    "cli-device-without-gpu": ("bisect", RECIPE, "--device", "cuda"),
    "cli-device-unknown": ("bisect", RECIPE, "--device", "cdua"),
    "cli-dtype-unknown": (*FORWARD, "--out", "{tmp}/out.safetensors", "--dtype", "bfloat16"),
    "cli-schedule-that-overlaps": (*FORWARD, *OUT, "--schedule", "schedule-overlap.jsonl"),
    "cli-schedule-without-its-keys": (*FORWARD, *OUT, "--schedule", "schedule-before-its-keys.jsonl"),
    "cli-schedule-not-there": (*FORWARD, *OUT, "--schedule", "nowhere.jsonl"),
    "cli-schedule-and-micro-batch": (*FORWARD, *OUT, "--schedule", "schedule-gap.jsonl", "--micro-batch", "2"),
    "cli-profile-unknown": (*FORWARD, "--out", "{tmp}/out.safetensors", "--profile", "hf-eagre"),
    "cli-profile-file-missing": (*FORWARD, "--out", "{tmp}/out.safetensors", "--profile", "./mine.yaml"),
    "cli-show-profile-unknown": ("show", "plan", "base", "--profile", "vlm"),
    "cli-save-matches-nothing": (*FORWARD, "--out", "{tmp}/out.safetensors", "--save", "layers[*].moe.combined"),
    "cli-save-malformed": (*FORWARD, "--out", "{tmp}/out.safetensors", "--save", "layers[1:2:3].moe.combine"),
    "cli-format-unknown": ("show", "formats", "mxpf4"),
    "cli-quantise-in-no-format": ("quantise", "base", "--like", "int4", "--out", "{tmp}/copy"),
    "cli-quantise-onto-a-folder": ("quantise", "base", "--like", "fp8", "--out", "{tmp}"),
    "cli-quantise-in-groups-of-another-size": (*QUANTISE, "--like", "mxfp8", "--group", "16"),
    "cli-quantise-what-does-not-fit": (*QUANTISE, "--like", "mxfp4"),
    "cli-tokens-drafts-without-steps": ("tokens", "base/tokens.safetensors", "--drafts", "3:0.5", "--out", "{tmp}/out"),
    "cli-init-of-a-checkpoint-that-gives-scores": ("init", "../../checkpoints/reward", "--out", "{tmp}/recipe.yaml"),
    "cli-op-unknown": ("show", "ops", "rmsnorm"),
    "cli-tokens-missing": ("forward", "base", "--tokens", "token.safetensors", "--out", "{tmp}/out.safetensors"),
    "cli-out-in-no-folder": (*FORWARD, "--out", "{tmp}/no/out.safetensors"),
    "cli-out-a-folder": (*FORWARD, "--out", "{tmp}"),
    "cli-out-too-long": (*FORWARD, "--out", "{tmp}/" + "x" * 300),
    "cli-json-in-no-folder": ("bisect", RECIPE, "--json", "{tmp}/no/report.json"),
    "cli-json-on-the-recipe": ("bisect", MINE, "--json", MINE),
    "cli-json-on-the-tokens": ("bisect", MINE, "--json", "{tmp}/mine/tokens.safetensors"),
    "cli-json-on-config-json": ("bisect", MINE, "--json", "{tmp}/mine/config.json"),
    "cli-json-on-a-swept-profile": (
        *("sweep", MINE, "--over", "profile=hf-eager,{tmp}/mine/profile.yaml"),
        *("--device", "cpu", "--json", "{tmp}/mine/profile.yaml"),
    ),
    "cli-out-on-the-weights": ("forward", "{tmp}/mine", *FORWARD[2:], "--out", "{tmp}/mine/model.safetensors"),
    "cli-json-and-map-one-file": ("flips", MINE, "--json", "{tmp}/a", "--map", "{tmp}/../{tmp.name}/a"),
    "cli-json-a-device": ("bisect", MINE, "--json", "/dev/null"),
    "cli-json-a-pipe": ("bisect", MINE, "--json", "{tmp}/mine/pipe"),
    "cli-json-a-link": ("bisect", MINE, "--json", "{tmp}/mine/link"),
    "cli-json-and-out-printed": ("flips", MINE, "--mine", "{tmp}/x.jsonl", "--json", "-", "--out", "/dev/stdout"),
    "cli-out-printed": (*FORWARD, "--out", "-"),
    "cli-recipe-a-pipe": ("bisect", "{tmp}/mine/pipe"),
    "cli-checkpoint-a-pipe": ("forward", "{tmp}/mine/pipe", *FORWARD[2:], "--out", "{tmp}/out.safetensors"),
    "cli-tokens-a-device": ("forward", "base", "--tokens", "/dev/zero", "--out", "{tmp}/out.safetensors"),
    "cli-recipe-a-loop-of-links": ("bisect", "{tmp}/mine/loop"),
    "cli-recipe-of-a-long-name": ("bisect", "{tmp}/" + "x" * 5000),
    "cli-check-recipe-missing": ("check", "no-such-recipe.yaml"),
    "cli-check-recipe-broken": ("check", "recipe-expect-culprit-unknown.yaml"),
    "cli-check-checkpoint-broken": ("check", "recipe-checkpoint-missing.yaml"),
    "cli-junit-in-no-folder": ("check", RECIPE, "--junit", "{tmp}/no/parity.xml"),
    "cli-show-mermaid-and-dot": ("show", "plan", RECIPE, "--mermaid", "--dot"),
    "cli-workers-unknown": ("bisect", RECIPE, "--workers", "rya"),
    "cli-workers-none": (*SWEEP, "dtype=bf16,fp32", "--workers", "0"),
    "cli-workers-no-address": ("bisect", RECIPE, "--workers", "ray:10.0.0.1"),
    "cli-memory-limit-malformed": ("bisect", RECIPE, "--memory-limit", "24XB"),
    "cli-memory-limit-too-low": ("bisect", RECIPE, "--memory-limit", "1kB", "--device", "cpu"),
    "cli-json-a-folder": ("bisect", RECIPE, "--json", "{tmp}"),
    "cli-sweep-json-in-no-folder": (*SWEEP, "dtype=bf16,fp32", "--json", "{tmp}/no/sweep.json"),
    "cli-sweep-without-value": (*SWEEP, "micro_batch"),
    "cli-sweep-empty-value": (*SWEEP, "micro_batch=1,,4"),
    "cli-sweep-unknown-key": (*SWEEP, "reference.placement.tenser=1,2"),
    "cli-sweep-wrong-type": (*SWEEP, "placement.tensor=1,two"),
    "cli-sweep-unknown-word": (*SWEEP, "dtype=bf16,bfloat16"),
    "cli-sweep-value-of-an-address": (*SWEEP, "layers[*].moe.gate:output=true,false"),
    "cli-sweep-number-too-large": (*SWEEP, "micro_batch=99999999999999999999"),
    "cli-sweep-key-twice": (*SWEEP, "both.dtype=bf16,fp32", "--over", "dtype=fp16"),
    "cli-sweep-address-malformed": (*SWEEP, "layers[*].moe.gate:Output=model,fp32"),
    "cli-ranks-real-without-torchrun": ("bisect", RECIPE, "--ranks", "real", "--device", "cpu"),
    "cli-probe-of-nothing": (
        "kernel",
        "probe",
    ),
    "cli-probe-of-a-function-and-a-collective": ("kernel", "probe", "kernels:add", "--collective", "all_reduce"),
    "cli-probe-collective-unknown": ("kernel", "probe", "--collective", "all_redcue"),
    "cli-probe-collective-without-torchrun": ("kernel", "probe", "--collective", "all_reduce"),
    "cli-diff-of-two-kinds": ("diff", "{tmp}/traced", "base/tokens.safetensors"),
    "cli-diff-not-there": ("diff", "{tmp}/traced", "no-such-trace"),
    "cli-diff-layout-of-routes": ("diff", "base/tokens.safetensors", "base/tokens.safetensors", "--layout", RECIPE),
    "cli-diff-top-k-of-traces": ("diff", "{tmp}/traced", "{tmp}/traced", "--top-k", "8"),
    "cli-flips-map-of-prompts": ("flips", RECIPE, "--mine", "{tmp}/x.jsonl", "--map", "{tmp}/map.safetensors"),
    "cli-flips-top-without-prompts": ("flips", RECIPE, "--top", "3", "--out", "{tmp}/x.jsonl"),
    "cli-sweep-gathered-of-no-groups": (*SWEEP, "placement.gathered=experts"),
    "cli-sweep-address-matches-nothing": (*SWEEP, "layers[*].moe.gata:output=model,fp32"),
}

CALLS: dict[str, Callable[[], object]] = {
    **token_cases.CALLS,
    **schedules.CALLS,
    **draft_cases.CALLS,
    **image_cases.CALLS,
    **score_cases.CALLS,
    "python-config-field-missing": lambda: Config(BASE / "config.json")["hiden_size"],
    "python-forward-placement-unknown": lambda: forward(
        "base", torch.ones(2, 3, dtype=torch.int64), placement={"tenser": 2}, device="cpu"
    ),
    "python-machine-of-another-kind": lambda: refuse_other_machine(
        "vllm-cpu", Machine(has=["avx512_that_nobody_has"]), "recipe.yaml:9"
    ),
    "python-limits-malformed": lambda: _with_limits("ten"),
    "python-forward-float-ids": lambda: forward("base", torch.ones(2, 3), device="cpu"),
    "python-forward-attention-mask-of-wrong-shape": lambda: forward(
        "base", torch.ones(2, 3, dtype=torch.int64), attention_mask=torch.ones(3, dtype=torch.bool), device="cpu"
    ),
    "python-forward-attention-mask-of-other-values": lambda: forward(
        "base", torch.ones(2, 3, dtype=torch.int64), attention_mask=torch.full((2, 3), 2), device="cpu"
    ),
    "python-forward-attention-mask-with-a-hole": lambda: forward(
        "base", torch.ones(1, 3, dtype=torch.int64), attention_mask=torch.tensor([[1, 0, 1]]), device="cpu"
    ),
    "python-forward-schedule-and-micro-batch": lambda: forward(
        "base", torch.ones(2, 3, dtype=torch.int64), micro_batch=1, schedule={"decode": {"from": 1}}, device="cpu"
    ),
    "python-forward-micro-batch-zero": lambda: forward(
        "base", torch.ones(2, 3, dtype=torch.int64), micro_batch=0, device="cpu"
    ),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Exit code, what was printed to standard error (paths normalised) and to standard output, the line that raised."""

    code: int | str | None
    message: str
    printed: str
    raised: tuple[Path, int] | None


def files() -> dict[str, Path]:
    """The committed bad inputs by name."""
    return {
        path.stem: path
        for path in sorted(BAD.iterdir())
        if path.name not in {"base", "base-shared", "beside", "messages"}
    }


def names() -> list[str]:
    """Every bad input."""
    names_there = (*token_cases.LINES, *token_cases.TENSORS, *token_cases.COMMAND_LINES, *trace_cases.DEFECTS)
    return sorted([*files(), *CHECKPOINTS, *ADAPTERS, *TOKEN_FILES, *names_there, *COMMAND_LINES, *CALLS])


def command(name: str, tmp: Path) -> Command | None:
    """The command line that meets the defect, with everything it needs made in `tmp`; None where there is none."""
    if name in COMMAND_LINES:
        (tmp / "large.yaml").write_text("# x\n" * 300_000, "utf-8")
        (tmp / "cases.yaml").write_text(_many_cases(), "utf-8")
        (tmp / "traced" / "rank-0").mkdir(parents=True, exist_ok=True)
        _copy(tmp / "mine")
        arguments = (str(argument).replace("{tmp.name}", tmp.name) for argument in COMMAND_LINES[name])
        return tuple(argument.replace("{tmp}", str(tmp)) for argument in arguments)
    if name in token_cases.COMMAND_LINES:
        token_cases.prepare(tmp)
        return tuple(argument.replace("{tmp}", str(tmp)) for argument in token_cases.COMMAND_LINES[name])
    if name in token_cases.LINES or name in token_cases.TENSORS:
        return ("bisect", token_cases.recipe(name, tmp), "--device", "cpu")
    if name in trace_cases.DEFECTS:
        return trace_cases.command(name, tmp)
    if name in CHECKPOINTS:
        folder = Path(shutil.copytree(BASE, tmp / name))
        CHECKPOINTS[name](folder)
        profile = ("--profile", "vllm-fp8-kv") if name in OF_CACHES else ()
        return ("forward", folder, *FORWARD[2:], *profile, "--out", tmp / "out.safetensors")
    if name in ADAPTERS:
        folder = Path(shutil.copytree(BASE, tmp / name))
        ADAPTERS[name](folder)
        return ("show", "plan", folder / "recipe.yaml")
    if name in TOKEN_FILES:
        TOKEN_FILES[name](tmp / TOKENS)
        recipe = (BASE / "recipe.yaml").read_text("utf-8").replace("checkpoint: .", f"checkpoint: {BASE}")
        (tmp / "recipe.yaml").write_text(recipe, "utf-8")
        return ("bisect", tmp / "recipe.yaml", "--device", "cpu")
    if name.startswith("profile-"):
        return ("show", "plan", "base", "--profile", f"./{name}.yaml")
    if name in CALLS or name.startswith(("graph-", "schedule-")):
        return None
    words = ("bisect",) if name in BISECT else ("show", "plan")
    return (*words, files()[name].name, *OPTIONS.get(name, ()))


def _many_cases() -> str:
    """A recipe that sets a value by each of many numbers of rows."""
    cases = (f'"layers[*].moe.gate:output@decode[rows {n}:{n + 1}]": fp32' for n in range(1, 300))
    text = (BASE / "recipe.yaml").read_text("utf-8").replace("checkpoint: .", f"checkpoint: {BASE}")
    text = text.replace("tokens.safetensors", f"{BASE}/tokens.safetensors")
    assert "hf-default}" in text
    schedule = "schedule: {decode: {from: 1, batch: all}}"
    return text.replace("hf-default}", f"hf-default, {schedule}, set: {{{', '.join(cases)}}}}}")


def _copy(folder: Path) -> None:
    """The base, a profile, a pipe, a link and a link to itself."""
    shutil.copytree(BASE, folder)
    (folder / "profile.yaml").write_text("kind: profile\nname: mine\nextends: hf-eager\n", "utf-8")
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to("report.json")
    (folder / "loop").symlink_to("loop")


def run(name: str, tmp: Path) -> Outcome:
    """Give a bad input to moeparity in this process, in the folder tests/bad."""
    arguments = command(name, tmp)
    errors: list[MoeparityError] = []
    code: int | str | None = 0
    printed, complaints = io.StringIO(), io.StringIO()
    gpu = patch("torch.cuda.is_available", return_value=False)
    argv = patch.object(sys, "argv", ["moeparity", *map(str, arguments or ())])
    app = patch.object(commands, "app", partial(_noting, commands.app, errors))
    streams = contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complaints)
    with contextlib.chdir(BAD), gpu, argv, app, streams[0], streams[1]:
        try:
            main() if arguments else _called(name, errors)
        except SystemExit as exit_error:
            code = exit_error.code
    raised = raised_at(errors[0]) if errors else None
    return Outcome(code, normalised(complaints.getvalue(), tmp), printed.getvalue(), raised)


def _with_limits(factor: str) -> object:
    with patch.dict(os.environ, {LIMIT_FACTOR: factor}):
        return Config(BASE / "config.json")


def _noting(app: Callable[[], None], errors: list[MoeparityError]) -> None:
    """The commands, with what they raise noted."""
    try:
        app()
    except MoeparityError as error:
        errors.append(error)
        raise


def _called(name: str, errors: list[MoeparityError]) -> None:
    """What the command line does with an error, for inputs that it has no way to take."""
    try:
        if name in CALLS:
            CALLS[name]()
        elif name.startswith("schedule-"):
            schedules.meet(files()[name])
        else:
            expand(Config(BASE / "config.json"), BAD / f"{name}.yaml")
    except MoeparityError as error:
        errors.append(error)
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def raised_at(error: BaseException | None) -> tuple[Path, int] | None:
    if not isinstance(error, MoeparityError) or error.__traceback__ is None:
        return None
    last = error.__traceback__
    while last.tb_next is not None:
        last = last.tb_next
    return Path(last.tb_frame.f_code.co_filename).resolve(), last.tb_lineno


def normalised(text: str, tmp: Path) -> str:
    """Without the paths and the line numbers that another checkout or an edit of a shipped graph would change."""
    graphs = Path(str(resources.files("moeparity.graphs")))
    for path in (tmp, tmp.resolve()):
        text = text.replace(str(path), "<tmp>").replace(f"../{path.name}/", "../<tmp>/")
    for path in (graphs, graphs.resolve()):
        text = text.replace(str(path), "<graphs>")
    text = text.replace(str(BAD.resolve()), "<bad>").replace(str(BAD), "<bad>")
    # Long paths are cut, by how long the folder's own is.
    text = re.sub(r"x{20,}", "xx", text)
    return re.sub(r"(<graphs>/\S+\.yaml):\d+", r"\1:N", text)
