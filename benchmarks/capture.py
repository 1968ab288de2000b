"""What a capture costs beside torch's DebugMode and msprobe: time added to the bare run, and bytes written.

    python -m benchmarks.capture --msprobe FOLDER...

All run one model, forward alone and forward with backward, module paths on all, each in a fork of one process, since
msprobe leaves torch's functions wrapped. In a fork the step is run twice: the first time pays for what is made once,
and for the pages of a fresh fork, the second doesn't: the C library is told to keep memory that was freed, since it
otherwise gives it back and faults it in again, up to 0.05 s that chance lays on one tool or on the bare step. Times are
of the processor, user's and system's. In each round
all run in turn; a ratio is taken within a round, to the least of the peers that record the same content and as much of
stacks, and the table has medians of rounds.
"Digests" are of inputs and outputs, with statistics where a tool has them; "tensors" are the whole values. Of "modules"
contents are equal: inputs, outputs and parameters of every module, and with a backward pass the gradients of all three
(`--level module,gradient`, level L0 of msprobe; a gradient of an input is over all its readers here, over the module
alone there). Of "all" they are not: DebugMode has inputs' hashes but outputs' tensors only, holds everything in memory
and writes nothing by itself (what it kept is written by torch.save here), and msprobe (level mix) sees a backward pass
at modules and functions, no op between: of this model a quarter of the bytes. `--msprobe`: folders of mindstudio-probe
and what it imports, unpacked with `pip install --target`, since it pins old packages.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import platform
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
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

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's `mallopt`."""

Times = tuple[float, float, int]
"""Seconds of the processor for the first step and for the second, and bytes on disk of one."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A way to record: its name, what of which calls it records, whether with stacks, and the context that does it."""

    name: str
    scope: str
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


def step(model: torch.nn.Module, tokens: torch.Tensor, *, backward: bool) -> None:
    """One forward pass, and where it is asked for the backward pass."""
    with torch.set_grad_enabled(backward):
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
    if backward:
        loss.backward()
        model.zero_grad(set_to_none=True)


def tools() -> list[Tool]:
    """Ours and the peers, each with and without stacks where it has the choice."""
    chosen: list[Tool] = []
    for content in ("digests", "tensors"):
        for stacks in (False, True):
            for scope in ("modules", "all"):
                ours = partial(_moeparity, content=content, stacks=stacks, scope=scope)
                chosen.append(Tool("moeparity", scope, content, stacks, ours))
            theirs = partial(_debug_mode, content=content, stacks=stacks)
            chosen.append(Tool("DebugMode", "all", content, stacks, theirs))
        if "msprobe" in sys.modules:
            for scope, level in (("modules", "L0"), ("all", "mix")):
                theirs = partial(_msprobe, content=content, level=level)
                chosen.append(Tool("msprobe", scope, content, True, theirs))
    return chosen


def _moeparity(
    out: Path, _: torch.nn.Module, *, content: str, stacks: bool, scope: str
) -> AbstractContextManager[object]:
    save = "*" if content == "tensors" else ()
    level = "module,gradient" if scope == "modules" else "op,module"
    return moeparity.capture(out / "t", level=level, stacks=stacks, save=save, budget="100G")


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
def _msprobe(out: Path, model: torch.nn.Module, *, content: str, level: str) -> Iterator[None]:
    from msprobe.pytorch import PrecisionDebugger  # noqa: PLC0415  it is there on request only

    task = "statistics" if content == "digests" else "tensor"
    settings: dict[str, Any] = {"scope": [], "list": [], "data_mode": ["all"]}
    if content == "digests":
        settings["summary_mode"] = "md5"
    config = {"task": task, "dump_path": str(out / "dump"), "rank": [], "step": [], "level": level, task: settings}
    (out / "config.json").write_text(json.dumps(config))
    # A process has one: the second step goes into the first's folder.
    debugger = PrecisionDebugger._instance or PrecisionDebugger(config_path=str(out / "config.json"))  # noqa: SLF001
    debugger.start(model=model)
    yield
    debugger.stop()
    debugger.step()


def apart(tool: Tool | None, model: torch.nn.Module, tokens: torch.Tensor, *, backward: bool) -> Times:
    """`measure` twice in a fork of this process."""
    reading, writing = os.pipe()
    folder = Path(tempfile.mkdtemp())
    process = os.fork()
    if process == 0:
        try:
            first = measure(tool, model, tokens, folder / "0", backward=backward)
            nbytes = _size(folder)
            second = measure(tool, model, tokens, folder / "1", backward=backward)
            os.write(writing, json.dumps((first, second, nbytes)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        first, second, nbytes = json.loads(file.read())
    os.waitpid(process, 0)
    shutil.rmtree(folder)
    return first, second, nbytes


def _size(folder: Path) -> int:
    return sum(512 * path.stat().st_blocks for path in folder.rglob("*") if path.is_file())


def measure(tool: Tool | None, model: torch.nn.Module, tokens: torch.Tensor, folder: Path, *, backward: bool) -> float:
    """Seconds of the processor for a step under a tool, writing included."""
    folder.mkdir()
    started = time.process_time()
    with tool.recording(folder, model) if tool else contextlib.nullcontext():
        step(model, tokens, backward=backward)
    return time.process_time() - started


def table(rounds: Sequence[dict[Tool | None, Times]]) -> str:
    """The figures as a table of Markdown, medians over rounds; ratios are to the better peer of the same round."""
    lines = [
        "| calls | content | stacks | tool | first | second | to the better peer, first | second | on disk |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for tool in sorted(filter(None, rounds[0]), key=lambda each: (each.scope == "all", each.content, each.stacks)):
        added = [statistics.median(each[tool][i] - each[None][i] for each in rounds) for i in (0, 1)]
        peers = [
            each
            for each in filter(None, rounds[0])
            if each.name != "moeparity"
            and (each.scope, each.content) == (tool.scope, tool.content)
            and (each.stacks or not tool.stacks)
        ]
        ratios = ["", ""]
        if tool.name == "moeparity" and peers:
            ratios = [f"{statistics.median(_ratio(each, tool, peers, i) for each in rounds):.2f}" for i in (0, 1)]
        nbytes = rounds[-1][tool][2]
        cells = (
            tool.scope,
            tool.content,
            "yes" if tool.stacks else "no",
            tool.name,
            *(f"{seconds:.2f} s" for seconds in added),
            *ratios,
            f"{nbytes / 1e6:.1f} MB",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _ratio(each: dict[Tool | None, Times], tool: Tool, peers: Sequence[Tool], i: int) -> float:
    bare = each[None][i]
    return (each[tool][i] - bare) / min(each[peer][i] - bare for peer in peers)


def keep_freed_memory() -> None:
    """Let the C library keep what was freed, so that no step pays for the pages of another."""
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):  # glibc's alone
        library.mallopt(M_MMAP_THRESHOLD, 1 << 30)
        library.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def compare(rounds: int, passes: Sequence[str], scope: str | None) -> None:
    """Measure all tools in turn, so many times, and print a table for each of the passes."""
    model, tokens = model_and_tokens()
    ways: list[Tool | None] = [None, *(tool for tool in tools() if scope in (None, tool.scope))]
    for name in passes:
        backward = name == "backward"
        step(model, tokens, backward=backward)
        times = [{way: apart(way, model, tokens, backward=backward) for way in ways} for _ in range(rounds)]
        bare = [statistics.median(each[None][i] for each in times) for i in (0, 1)]
        words = "forward and backward" if backward else "forward"
        print(
            f"{words}: bare step {bare[0]:.2f} s, {bare[1]:.2f} s; torch {torch.__version__}, "
            f"{platform.processor() or platform.machine()}, 1 thread, medians of {rounds} rounds"
        )
        print(table(times), flush=True)


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
    parser.add_argument("--passes", nargs="+", choices=("forward", "backward"), default=("forward", "backward"))
    parser.add_argument("--scope", choices=("modules", "all"), help="the calls of one kind only")
    parser.add_argument("--long", type=int, help="instead: memory over so many steps of training")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    if arguments.long:
        long_run(arguments.long)
        return
    if arguments.msprobe:
        sys.path[:0] = arguments.msprobe
        import msprobe.pytorch  # noqa: F401, PLC0415
    compare(arguments.rounds, arguments.passes, arguments.scope)


if __name__ == "__main__":
    main()
