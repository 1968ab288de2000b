"""How fast logs are read, and in how much memory: `python -m benchmarks.logs --megabytes 1000 --folder DIR`.

Writes a log of NeMo-RL of that size and one of a quarter of it. A process of its own per file parses every line with
`orjson.loads` and nothing else, reads the log, and reads and measures it with the metrics and the diagnosis of
`moeparity metrics`. Prints a table in Markdown: MB/s of the process's CPU time, the share of plain parsing's rate, and
the largest resident memory. Exits with 1 where four times the file takes more than 1.5 times the memory.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import orjson
import torch

from benchmarks.turns import header
from moeparity import logs
from moeparity.logs.measure import Measurement
from moeparity.logs.request import MetricsRequest

WIDTH, PROMPT, POOL = 4096, 512, 32
"""Tokens of a padded sequence and of a prompt, and different sequences, which are repeated until the file is full."""
PARSED, READ, MEASURED = "orjson.loads of each line", "moeparity.logs.open", "the same, measured"


def write(path: Path, megabytes: int) -> None:
    """A train_data_step file as NeMo-RL's logger writes it: batches of one, padded, numbers as Python prints fp32."""
    heads = [_head(random.Random(number)) for number in range(POOL)]  # noqa: S311
    idx, size = 0, 0
    with path.open("wb") as file:
        while size < megabytes * 10**6:
            size += file.write(heads[idx % POOL] + f'"idx": {idx}}}\n'.encode())
            idx += 1


def _head(rng: random.Random) -> bytes:
    length = min(WIDTH, PROMPT + int(rng.expovariate(1 / 1500)) + 1)
    scored = range(PROMPT, length)
    generation, previous = [0.0] * WIDTH, [0.0] * WIDTH
    for token in scored:
        value = rng.expovariate(2.0) if rng.random() < 0.5 else rng.expovariate(1e4)
        generation[token] = float(np.float32(-value))
        previous[token] = float(np.float32(min(-value + rng.gauss(0, 0.02 * value), 0.0)))
    record = {
        "content": [["word " * length]],
        "rewards": [1.0],
        "input_lengths": [length],
        "token_ids": [[rng.randrange(150_000) if token < length else 0 for token in range(WIDTH)]],
        "token_loss_mask": [[int(token in scored) for token in range(WIDTH)]],
        "sample_loss_mask": [1.0],
        "advantages": [[float(np.float32(rng.gauss(0, 1)))] * WIDTH],
        "generation_logprobs": [generation],
        "prev_logprobs": [previous],
    }
    return json.dumps(record).encode()[:-1] + b", "


def parse(path: Path) -> None:
    """What any reader of JSON lines does at least."""
    with path.open("rb") as file:
        for line in file:
            orjson.loads(line)


def read(path: Path) -> None:
    """The sequences, checked."""
    for _ in logs.open([path]):
        pass


def measure(path: Path) -> None:
    """Every common metric and the diagnosis, without the intervals, which cost the same for any size."""
    measurement = Measurement(MetricsRequest())
    for chunk in measurement.chunker.chunks(measurement.noted(logs.open([path]))):
        measurement.add(chunk)


WORKS: dict[str, Callable[[Path], None]] = {PARSED: parse, READ: read, MEASURED: measure}


def child(path: Path) -> None:
    """Run the works in turn and print their CPU seconds and this process's memory, in bytes."""
    torch.set_num_threads(1)
    readings: dict[str, tuple[float, int]] = {}
    for name, work in WORKS.items():
        start = time.process_time()
        work(path)
        # Linux counts in KiB; the peak so far, which each work can only raise.
        readings[name] = time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(readings))


def main() -> int:
    """Write, run, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--folder", type=Path, default=Path("/tmp"))  # noqa: S108
    parser.add_argument("--child", type=Path)
    arguments = parser.parse_args()
    if arguments.child is not None:
        child(arguments.child)
        return 0
    print(f"{header(1)}\n\n| MB | work | CPU s | MB/s | of plain parsing | peak memory, MB |")
    print("|--:|---|--:|--:|--:|--:|")
    memory = [_row(arguments.folder, size) for size in (arguments.megabytes // 4, arguments.megabytes)]
    return int(memory[1] > 1.5 * memory[0])


def _row(folder: Path, megabytes: int) -> float:
    path = folder / f"train_data_step{megabytes}.jsonl"
    try:
        write(path, megabytes)
        command = [sys.executable, "-m", "benchmarks.logs", "--child", str(path)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603
        size = path.stat().st_size / 1e6
    finally:
        path.unlink(missing_ok=True)
    readings = json.loads(done.stdout.splitlines()[-1])
    plain = readings[PARSED][0]
    for name, (seconds, memory) in readings.items():
        rates = f"{size / seconds:.0f} | {plain / seconds:.2f}"
        print(f"| {size:.0f} | {name} | {seconds:.1f} | {rates} | {memory / 1e6:.0f} |")
    return float(readings[MEASURED][1])


if __name__ == "__main__":
    sys.exit(main())
