"""What a capture costs beside torch's DebugMode and msprobe: time added to the bare run, and bytes written.

    python -m benchmarks.capture --msprobe FOLDER...

All run one forward pass of one model, in forks of one process, in turn, module paths on all: of a backward pass msprobe
sees what goes through modules and functions only, so that contents would not be equal. Times are of the processor,
user's and system's, the least of several rounds: on a machine that does other work too, the clock says little.
"Digests" are of every input and output of every op and module, with statistics where a tool has them; "tensors" are the
whole values. DebugMode keeps all in memory: what it kept is written by torch.save here. `--msprobe`: folders of
mindstudio-probe and what it imports, unpacked with `pip install --target`, since it pins old packages.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # torch's modes import it when they are first used
from torch.utils._debug_mode import DebugMode
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

import moeparity
from moeparity.evidence.capture import context  # noqa: F401  so that its import is not measured

ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Tool:
    """A way to record: its name, what it records, whether with stacks, and the context that does it in a folder."""

    name: str
    content: str
    stacks: bool
    recording: Callable[[Path, torch.nn.Module], AbstractContextManager[object]]


def model_and_tokens() -> tuple[torch.nn.Module, torch.Tensor]:
    """A Qwen3-MoE of transformers with random weights, and tokens [2, 64]."""
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        hidden_size=512,
        intermediate_size=1024,
        moe_intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        num_experts=16,
        num_experts_per_tok=4,
        vocab_size=4096,
        attn_implementation="eager",
        experts_implementation="eager",
    )  # type: ignore[call-arg]
    model: torch.nn.Module = Qwen3MoeForCausalLM(config)
    return model.eval(), torch.randint(0, 4096, (2, 64))


def step(model: torch.nn.Module, tokens: torch.Tensor) -> None:
    """One forward pass."""
    model(input_ids=tokens, labels=tokens, use_cache=False)


def tools() -> list[Tool]:
    """Ours and the peers, each with and without stacks where it has the choice."""
    chosen = []
    for stacks in (False, True):
        for content in ("digests", "tensors"):
            chosen += [
                Tool("moeparity", content, stacks, partial(_moeparity, content=content, stacks=stacks)),
                Tool("DebugMode", content, stacks, partial(_debug_mode, content=content, stacks=stacks)),
            ]
    if "msprobe" in sys.modules:
        chosen += [
            Tool("msprobe", content, True, partial(_msprobe, content=content)) for content in ("digests", "tensors")
        ]
    return chosen


def _moeparity(out: Path, _: torch.nn.Module, *, content: str, stacks: bool) -> AbstractContextManager[object]:
    save = "*" if content == "tensors" else ()
    return moeparity.capture(out / "t", stacks=stacks, save=save, budget="100G")


@contextlib.contextmanager
def _debug_mode(out: Path, _: torch.nn.Module, *, content: str, stacks: bool) -> Iterator[None]:
    recorded: AbstractContextManager[object] = DebugMode.record_outputs()
    if content == "digests":
        recorded = DebugMode.log_tensor_hashes(hash_fn=["norm", "hash_tensor"], hash_inputs=True)
    with DebugMode(record_nn_module=True, record_stack_trace=stacks) as mode, recorded:
        yield
    (out / "log.txt").write_text(mode.debug_string(show_stack_trace=stacks))
    if content == "tensors":
        torch.save([call.record for call in mode.logs if call.record], out / "outputs.pt")


@contextlib.contextmanager
def _msprobe(out: Path, model: torch.nn.Module, *, content: str) -> Iterator[None]:
    from msprobe.pytorch import PrecisionDebugger  # noqa: PLC0415  it is there on request only

    task = "statistics" if content == "digests" else "tensor"
    settings: dict[str, Any] = {"scope": [], "list": [], "data_mode": ["all"]}
    if content == "digests":
        settings["summary_mode"] = "md5"
    config = {"task": task, "dump_path": str(out / "dump"), "rank": [], "step": [], "level": "mix", task: settings}
    (out / "config.json").write_text(json.dumps(config))
    PrecisionDebugger._instance = None  # noqa: SLF001  one for each configuration
    debugger = PrecisionDebugger(config_path=str(out / "config.json"))
    debugger.start(model=model)
    yield
    debugger.stop()
    debugger.step()


def apart(tool: Tool | None, model: torch.nn.Module, tokens: torch.Tensor) -> tuple[float, int]:
    """`measure` in a fork of this process: msprobe leaves torch's functions wrapped."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            os.write(writing, json.dumps(measure(tool, model, tokens)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        seconds, nbytes = json.loads(file.read())
    os.waitpid(process, 0)
    return seconds, nbytes


def measure(tool: Tool | None, model: torch.nn.Module, tokens: torch.Tensor) -> tuple[float, int]:
    """Seconds of the processor for a step under a tool, writing included, and bytes on disk."""
    folder = Path(tempfile.mkdtemp())
    try:
        started = time.process_time()
        with tool.recording(folder, model) if tool else contextlib.nullcontext():
            step(model, tokens)
        seconds = time.process_time() - started
        return seconds, sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    finally:
        shutil.rmtree(folder)


def table(rows: list[tuple[Tool, float, int]], bare: float) -> str:
    """The figures as a table of Markdown, with ratios to the better peer."""
    lines = [
        "| content | stacks | tool | added | of the better peer | on disk |",
        "|---|---|---|---|---|---|",
    ]
    for tool, seconds, nbytes in rows:
        peers = [
            other_seconds - bare
            for other, other_seconds, _ in rows
            if other.name != "moeparity" and other.content == tool.content and (other.stacks or not tool.stacks)
        ]
        ratio = f"{(seconds - bare) / min(peers):.2f}" if tool.name == "moeparity" and peers else ""
        lines.append(
            f"| {tool.content} | {'yes' if tool.stacks else 'no'} | {tool.name} | {seconds - bare:.2f} s | {ratio} | "
            f"{f'{nbytes / 1e6:.1f} MB' if nbytes else 'none'} |"
        )
    return "\n".join(lines)


def long_run(steps: int) -> None:
    """Train a small model for so many steps under a capture, and print the memory that the process had by then."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    folder = Path(tempfile.mkdtemp())
    with moeparity.capture(folder / "t"):
        for number in range(1, steps + 1):
            model(torch.randn(16, 64)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if number % (steps // 10) == 0:
                resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
                print(f"step {number:,}: {resident / 1e6:.0f} MB", flush=True)
    print(f"on disk: {sum(path.stat().st_size for path in folder.rglob('*') if path.is_file()) / 1e6:.0f} MB")
    shutil.rmtree(folder)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--msprobe", nargs="*", default=[], help="folders to import mindstudio-probe from")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--long", type=int, help="instead: memory over so many steps of training")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.long:
        long_run(arguments.long)
        return
    if arguments.msprobe:
        sys.path[:0] = arguments.msprobe
        import msprobe.pytorch  # noqa: F401, PLC0415
    model, tokens = model_and_tokens()
    step(model, tokens)
    ways: list[Tool | None] = [None, *tools()]
    least = {way: (float("inf"), 0) for way in ways}
    for _ in range(arguments.rounds):
        for way in ways:
            seconds, nbytes = apart(way, model, tokens)
            least[way] = min(least[way], (seconds, nbytes))
            print(f"{way and (way.name, way.content, way.stacks)}: {seconds:.2f} s", file=sys.stderr, flush=True)
    bare = least[None][0]
    rows = sorted(
        ((way, *least[way]) for way in ways if way is not None), key=lambda row: (row[0].content, row[0].stacks)
    )
    print(f"bare step {bare:.2f} s; torch {torch.__version__}, {platform.processor() or platform.machine()}, 1 thread")
    print(table(rows, bare))


if __name__ == "__main__":
    main()
