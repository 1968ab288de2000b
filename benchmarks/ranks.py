"""What the guards of a live job cost: microseconds per call of each, and the share of steps of 200 ms for all of them.

    python -m benchmarks.ranks [--calls 200] [--pairs 12]

Two ranks over gloo on this machine, a model of 20 million parameters. A guard's cost is that of an empty guarded call
with it, less one with nothing but the guards' exchange. The share is of paired runs of ten steps of 200 ms, guarded and
bare in turn: the median of the ratios, and its interval from the order of the pairs. Exits with 1 above 2 %.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.turns import header
from moeparity.ranks import Guard

LIMIT = 0.02
STEP_S, STEPS = 0.2, 10
OFF: Mapping[str, Any] = {
    "inputs_every": 0,
    "weights_every": 0,
    "cache_every": 0,
    "rng": "broadcast",
    "collectives": "off",
}
GUARDS: Mapping[str, Mapping[str, Any]] = {
    "inputs (8 MB, 64 KiB of it sampled)": {"inputs_every": 1},
    "inputs (8 MB, all bytes)": {"inputs_every": 1, "sample_bytes": None},
    "generators": {"rng": "lockstep"},
    "collectives (one in each call)": {"collectives": "log"},
    "collectives, checked before they run": {"collectives": "check"},
    "weights (80 MB, every call)": {"weights_every": 1},
    "cache": {"cache_every": 1},
}


def main() -> int:
    """Start the ranks; rank 0 prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    args = parser.parse_args()
    if "RANK" in os.environ:
        return rank_main(args)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.ranks", *sys.argv[1:]]
    ranks = [subprocess.Popen(command, env={**shared, "RANK": str(rank)}) for rank in range(2)]  # noqa: S603
    return max(rank.wait() for rank in ranks)


def rank_main(args: argparse.Namespace) -> int:
    """One rank's part of all runs."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048, bias=False) for _ in range(5)))
    payload = {"hidden": torch.randn(1024, 2048)}
    bare = per_call(OFF, model, payload, args.calls)
    costs = {name: per_call({**OFF, **given}, model, payload, args.calls) - bare for name, given in GUARDS.items()}
    ratios = [paired(model, payload, guarded_first=bool(pair % 2)) for pair in range(args.pairs)]
    if dist.get_rank() == 0:
        tell(costs, bare, ratios, as_json=args.json)
    dist.destroy_process_group()
    return int(statistics.median(ratios) - 1 > LIMIT)


def per_call(given: Mapping[str, Any], model: torch.nn.Module, payload: dict[str, torch.Tensor], calls: int) -> float:
    """Microseconds of a guarded call with one small collective inside, a median over calls."""
    seconds = []
    small = torch.ones(8)
    with Guard(model, replicated=["*"], **given) as guard:
        guard.cache(cache_epoch=0, current_start_frame=0)
        for number in range(calls if given.get("weights_every") != 1 else max(3, calls // 20)):
            begun = time.perf_counter()
            with guard.call(payload, chunk=number, action="infer"):
                pass
            dist.all_reduce(small)
            seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds) * 1e6


def paired(model: torch.nn.Module, payload: dict[str, torch.Tensor], *, guarded_first: bool) -> float:
    """Time of ten steps with all guards at their default cadence, as a ratio to that of ten bare ones."""
    seconds: dict[bool, float] = {}
    for guarded in (guarded_first, not guarded_first):
        dist.barrier()
        with Guard(model, replicated=["*"]) if guarded else nullcontext() as guard:
            begun = time.perf_counter()
            for number in range(STEPS):
                with guard.call(payload, chunk=number) if isinstance(guard, Guard) else nullcontext():
                    time.sleep(STEP_S)
                dist.all_reduce(payload["hidden"][0])
            seconds[guarded] = time.perf_counter() - begun
    return seconds[True] / seconds[False]


def tell(costs: Mapping[str, float], bare: float, ratios: list[float], *, as_json: bool) -> None:
    """The table, and the share of a step."""
    ordered = sorted(ratios)
    # The binomial interval of a median: with 12 pairs, from the third to the tenth, 96 %.
    low, high = ordered[len(ordered) // 5], ordered[-1 - len(ordered) // 5]
    share = {"median": statistics.median(ratios) - 1, "low": low - 1, "high": high - 1}
    if as_json:
        print(json.dumps({"bare_us": bare, "us": dict(costs), "share": share}))
        return
    print(header(torch.get_num_threads()))
    print(f"exchange of an empty call, with a small all-reduce: {bare:,.0f} us")
    for name, cost in costs.items():
        print(f"{name:40} {cost:10,.0f} us per call")
    words = f"{share['median']:.2%} [{share['low']:.2%}, {share['high']:.2%}] of steps of {STEP_S * 1000:.0f} ms"
    print(f"all guards at their default cadence: {words}, {len(ratios)} pairs of {STEPS} steps")


if __name__ == "__main__":
    raise SystemExit(main())
