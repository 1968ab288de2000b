"""A checkpoint of several GB, bisected while it streams: memory against its bound, throughput against a plain read.

    python -m benchmarks.streaming [--threads 2] [--folder /tmp] [--experts 128] [--formats fp8-blocks mxfp4-packed]

Writes 5.0 GB (four layers of Qwen3-30B-A3B, bf16), and deletes them again. With --formats it writes a quantised copy in
each format too, whose weights are multiplied out as they stream; the copy is made in memory, so that fewer experts may
be needed. Its throughput is in bytes of the file, like that of the plain read of the same file. Memory is the peak of
anonymous memory of a process that bisects: the pages of mapped files are no part of it, since the system drops them
when it needs to. The bound is two layers in the model's dtype, embedding, head and the values of all variants, from the
shapes alone. For the throughput each side reads after the system was told to forget the files (posix_fadvise DONTNEED),
which it may or may not do for what a disk or a hypervisor keeps: both sides have the same chance. Rates are of wall
time, and of processor time, which counts where other programs run too. Exits with 1 where the bound does not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.turns import header, settle
from moeparity.bisection.observe import observe
from moeparity.bisection.prepare import prepare
from moeparity.engine.lockstep import run
from moeparity.engine.memory import Peak
from moeparity.engine.walker import Walker
from moeparity.errors import Where
from moeparity.inputs.model import Model
from moeparity.inputs.weights.checkpoint import Checkpoint
from moeparity.inputs.weights.formats import FORMATS
from moeparity.inputs.weights.quantise import quantise
from moeparity.inputs.weights.store import WeightStore
from moeparity.ops.memory import weight_bytes
from moeparity.plan.bind import bind
from moeparity.plan.config import Config
from moeparity.plan.engine_profile import load_profile
from moeparity.plan.expand import expand
from moeparity.plan.schedule.steps import MicroBatches
from tests import checkpoint_factory

LAYERS, EXPERTS, SEQUENCES, TOKENS = 4, 128, 2, 32
NEEDED = 6 << 30
PLAIN = "bf16"
_GROUP = 128
"""Inputs that share a scale, in the formats that leave it open."""

RECIPE = """kind: recipe
checkpoint: .
tokens: {file: tokens.safetensors, sampled_from: candidate}
reference: {profile: hf-eager}
candidate: {profile: hf-default}
gate: {metric: k3, below: 1e-4}
"""


def main() -> int:
    """Make the checkpoint, measure both in processes of their own, print, judge."""
    options = _options()
    if options.part:
        torch.set_num_threads(options.threads)
        print(json.dumps({"bisect": bisected, "stream": streamed}[options.part](options.folder)))
        return 0
    if shutil.disk_usage(options.folder).free < NEEDED:
        raise SystemExit(f"{options.folder}: less than {NEEDED / 1e9:.1f} GB free. Give another --folder.")
    print(header(options.threads))
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        source = Path(scratch) / PLAIN
        source.mkdir()
        checkpoint_factory.make_wide(source, LAYERS, options.experts)
        bounds = [_is_within(options, form, source) for form in (PLAIN, *options.formats)]
    return int(not all(bounds))


def _is_within(options: argparse.Namespace, form: str, source: Path) -> bool:
    """Measure the checkpoint in a format, print, and say whether the bound on its memory holds."""
    folder = source if form == PLAIN else source.with_name(form)
    if form != PLAIN:
        quantise(source, FORMATS[form], folder, FORMATS[form].group or _GROUP)
    files = prepared(folder)
    size = sum(path.stat().st_size for path in files)
    memory = _in_a_process("bisect", folder, options.threads)
    plain, stream = [], []
    for _ in range(options.repeats):
        before = time.process_time()
        seconds = read_plainly(files)
        plain.append((size / seconds, size / (time.process_time() - before)))
        forget(files)
        figures = _in_a_process("stream", folder, options.threads)
        stream.append((size / figures["seconds"], size / figures["processor"]))
    print(f"{form}: {size / 1e9:.2f} GB, {LAYERS} layers of {options.experts} experts, {SEQUENCES} x {TOKENS} tokens")
    _print_memory(memory)
    for clock, reads, streams in zip(
        ("wall", "processor"), zip(*plain, strict=True), zip(*stream, strict=True), strict=True
    ):
        print(f"by {clock} time: streaming {max(streams) / 1e9:.2f} GB/s, plain sequential read ", end="")
        print(f"{max(reads) / 1e9:.2f} GB/s, ratio {max(streams) / max(reads):.2f} (best of {options.repeats})")
    return memory["taken"] <= memory["bound"]


def _print_memory(memory: dict[str, float]) -> None:
    gigabytes = {key: f"{value / 1e9:.2f} GB" for key, value in memory.items()}
    print(
        f"bisected by {int(memory['variants'])} variants: {gigabytes['taken']} of anonymous memory beside the ", end=""
    )
    print(f"{gigabytes['before']} held before; bound {gigabytes['bound']}: two layers {gigabytes['layers']}, ", end="")
    print(f"embedding and head {gigabytes['ends']}, values {gigabytes['values']}; ", end="")
    print(f"ratio {memory['taken'] / memory['bound']:.2f}; estimated before the run {gigabytes['estimated']}")


def prepared(folder: Path) -> list[Path]:
    """Tokens and a recipe beside the checkpoint; the files that hold weights."""
    vocab = int(Config(folder / "config.json")["vocab_size"])
    ids = torch.randint(0, vocab, (SEQUENCES, TOKENS), generator=torch.Generator().manual_seed(0))
    save_file({"input_ids": ids}, folder / "tokens.safetensors")
    (folder / "recipe.yaml").write_text(RECIPE, "utf-8")
    return [folder / checkpoint_factory.FILE]


def bisected(folder: Path, device: str = "cpu") -> dict[str, float]:
    """Bytes a bisection takes, and the bound on them."""
    study = prepare(folder / "recipe.yaml", device=device)
    observed = observe(study, study.toggles)
    assert observed.cost.memory.peak is not None
    assert observed.cost.memory.held_before is not None
    before, *layers, after = (_bytes(study.model, segment.name) for segment in study.model.graph.segments)
    values = _values(study.model, len(study.toggles))
    return {
        "variants": 3 + 2 * len(study.toggles),
        "taken": observed.cost.memory.peak - observed.cost.memory.held_before,
        "before": observed.cost.memory.held_before,
        "layers": 2 * max(layers),
        "ends": before + after,
        "values": values,
        "bound": 2 * max(layers) + before + after + values,
        "estimated": observed.cost.memory.estimated,
    }


def _bytes(model: Model, segment: str) -> int:
    nodes = next(s.nodes for s in model.graph.segments if s.name == segment)
    refs = [ref for node in nodes for ref in node.weights.values()]
    return sum(weight_bytes(ref.shape, len(ref.names), model.dtype) for ref in refs)


def _values(model: Model, toggles: int) -> int:
    """fp32 for every variant: the stream twice, the experts' rows three times, the scores and the logits twice."""
    config = model.graph.config
    widths = 2 * config["hidden_size"] + 3 * config["num_experts_per_tok"] * config["hidden_size"]
    widths += 2 * config["num_attention_heads"] * TOKENS + 2 * config["vocab_size"]
    return 4 * SEQUENCES * TOKENS * int(widths) * (3 + 2 * toggles)


def streamed(folder: Path, device: str = "cpu") -> dict[str, float]:
    """Seconds of a forward of one token, its weights read from the files as it goes, also of the processor, and the
    bytes of them.
    """
    config = Config(folder / "config.json")
    graph = expand(config)
    weights = WeightStore(Checkpoint(folder), graph, torch.device(device), "stream")
    plan = bind(graph, load_profile("hf-eager", Where(Path(__file__))), "bf16")
    walker = Walker(name="one", plan=plan, schedule=MicroBatches(1))
    started, before = time.perf_counter(), time.process_time()
    with Peak(weights.device) as peak:
        counts = run([walker], weights, torch.zeros(1, 1, dtype=torch.int64, device=device), [])
        settle(weights.device)
    processor, seconds = time.process_time() - before, time.perf_counter() - started
    return {"seconds": seconds, "processor": processor, "peak": peak.bytes or 0, "read": counts.bytes_read}


def read_plainly(files: list[Path]) -> float:
    """Seconds to read the files from end to end, 8 MB at a time, after they were forgotten."""
    forget(files)
    buffer = bytearray(8 << 20)
    started = time.perf_counter()
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return time.perf_counter() - started


def forget(files: list[Path]) -> None:
    """Ask the system to drop the files' pages."""
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _in_a_process(part: str, folder: Path, threads: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.streaming", "--part", part, "--folder", str(folder)]
    done = subprocess.run([*command, "--threads", str(threads)], stdout=subprocess.PIPE, check=True, text=True)  # noqa: S603
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--experts", type=int, default=EXPERTS)
    parser.add_argument("--formats", nargs="*", choices=[name for name in FORMATS if name != "mxfp4"], default=[])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--part", choices=["bisect", "stream"], help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
