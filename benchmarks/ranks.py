"""What the guards of a live job cost: microseconds per call of each, and the share of steps of 200 ms for all of them.

    python -m benchmarks.ranks [--calls 60] [--pairs 12]

Two ranks over gloo on this machine, a model of 20 million parameters. A guard's cost is that of a guarded call with it,
less that of one with nothing but the guards' exchange, in runs that take turns: the median over pairs of runs, and its
interval from the order of the pairs. The share of a step likewise: ten steps of 200 ms, guarded and bare in turn. Exits
with 1 above 2 %.
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
    parser.add_argument("--calls", type=int, default=60, help="of each run of a guard (default: 60)")
    parser.add_argument("--pairs", type=int, default=12, help="of runs (default: 12)")
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
    bare = [per_call(OFF, model, payload, args.calls) for _ in range(args.pairs)]
    costs = {
        name: [more(settings, model, payload, args.calls, guarded_first=bool(pair % 2)) for pair in range(args.pairs)]
        for name, settings in GUARDS.items()
    }
    ratios = [paired(model, payload, guarded_first=bool(pair % 2)) for pair in range(args.pairs)]
    if dist.get_rank() == 0:
        tell(costs, bare, ratios, as_json=args.json)
    dist.destroy_process_group()
    return int(statistics.median(ratios) - 1 > LIMIT)


def per_call(
    settings: Mapping[str, Any], model: torch.nn.Module, payload: dict[str, torch.Tensor], calls: int
) -> float:
    """Microseconds of a guarded call with one small collective inside, a median over calls."""
    seconds = []
    small = torch.ones(8)
    with Guard(model, replicated=["*"], **settings) as guard:
        guard.cache(cache_epoch=0, current_start_frame=0)
        for number in range(calls):
            begun = time.perf_counter()
            with guard.call(payload, chunk=number, action="infer"):
                pass
            dist.all_reduce(small)
            seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds) * 1e6


def more(
    settings: Mapping[str, Any],
    model: torch.nn.Module,
    payload: dict[str, torch.Tensor],
    calls: int,
    *,
    guarded_first: bool,
) -> float:
    """Microseconds that a guard adds to a call, by one run with it and one without."""
    # A look at all weights takes as long as many other calls.
    number = max(3, calls // 20) if settings.get("weights_every") == 1 else calls
    cost = {
        guarded: per_call({**OFF, **settings} if guarded else OFF, model, payload, number)
        for guarded in (guarded_first, not guarded_first)
    }
    return cost[True] - cost[False]


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


def tell(costs: Mapping[str, list[float]], bare: list[float], ratios: list[float], *, as_json: bool) -> None:
    """The table, and the share of a step."""
    share = interval([ratio - 1 for ratio in ratios])
    if as_json:
        shown = {name: interval(pairs) for name, pairs in costs.items()}
        print(json.dumps({"bare_us": interval(bare), "us": shown, "share": share}))
        return
    print(header(torch.get_num_threads()))
    print(f"exchange of an empty call, with a small all-reduce: {microseconds(bare)}")
    for name, pairs in costs.items():
        print(f"{name:40} {microseconds(pairs)}")
    words = f"{share['median']:.2%} [{share['low']:.2%}, {share['high']:.2%}] of steps of {STEP_S * 1000:.0f} ms"
    print(f"all guards at their default cadence: {words}, {len(ratios)} pairs of {STEPS} steps")


def microseconds(pairs: list[float]) -> str:
    """A median and its interval, in words."""
    cost = interval(pairs)
    return f"{cost['median']:10,.0f} [{cost['low']:,.0f}, {cost['high']:,.0f}] us per call"


def interval(values: list[float]) -> dict[str, float]:
    """Their median and its binomial interval: with 12 values, from the third to the tenth, 96 %."""
    ordered = sorted(values)
    low, high = ordered[len(ordered) // 5], ordered[-1 - len(ordered) // 5]
    return {"median": statistics.median(values), "low": low, "high": high}


if __name__ == "__main__":
    raise SystemExit(main())
