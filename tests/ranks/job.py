"""One rank of a small guarded job, with a fault planted in one of its ranks: run by `tests/ranks/launch.py`."""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from moeparity.errors import RankError
from moeparity.ranks import Guard


def main() -> None:
    """Calls of a model with collectives inside; the fault happens on one rank in one call."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none")
    parser.add_argument("--at", type=int, default=3)
    parser.add_argument("--on", type=int, default=1)
    parser.add_argument("--calls", type=int, default=6)
    parser.add_argument("--settings", type=json.loads, default={})
    parser.add_argument("--rng", default="lockstep")
    args = parser.parse_args()
    dist.init_process_group("gloo", timeout=timedelta(seconds=300))
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8)
    # A shard: of tensor parallelism, each rank's own.
    shard = torch.nn.Linear(4, 4, bias=False)
    if args.fault != "same shard":
        with torch.no_grad():
            shard.weight.add_(rank)
    if args.fault == "other replica" and rank == args.on:
        with torch.no_grad():
            model.weight[0, 0] += 1
    if args.fault == "variable" and rank == args.on:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    if args.fault == "switch" and rank == args.on:
        torch.use_deterministic_algorithms(mode=True)
    backend = "fa4" if args.fault == "backend" and rank == args.on else "flash"
    try:
        with Guard(
            model, shard, sharded=["1.*"], replicated=["0.*"], extra={"kv_bias_backend": backend}, rng=args.rng,
            **args.settings,
        ) as guard:  # fmt: skip
            loop(guard, model, args, rank)
    except RankError as error:
        print(f"RankError: {error}", flush=True)
        raise SystemExit(1) from None
    print("done", flush=True)


def loop(guard: Guard, model: torch.nn.Linear, args: argparse.Namespace, rank: int) -> None:
    """The calls: noise that all ranks draw, an all-reduce and a broadcast in each."""
    for number in range(args.calls):
        fault = args.fault if number == args.at and rank == args.on else "none"
        envelope: dict[str, Any] = {"chunk": number, "action": "infer", "init_cache": number == 0, "cache_epoch": 0}
        if rank % 2:
            envelope = dict(reversed(envelope.items()))
        inputs = torch.arange(32, dtype=torch.float32).reshape(4, 8)
        if fault == "envelope":
            envelope["init_cache"] = True
        elif fault == "dtype":
            inputs = inputs.double()
        elif fault == "shape":
            inputs = inputs[:3]
        elif fault == "input bit":
            inputs.view(torch.int32)[1, 2] ^= 1
        elif fault == "extra draw":
            torch.rand(2)
        elif fault == "weight bit":
            model.weight.data.view(torch.int32)[3, 3] ^= 1
        elif fault == "ends":
            return
        with guard.call({"inputs": inputs}, **envelope):
            if fault == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            elif fault == "stopped":
                os.kill(os.getpid(), signal.SIGSTOP)
            elif fault == "slow":
                time.sleep(600)
            step(model, inputs.float(), fault)


def step(model: torch.nn.Linear, inputs: torch.Tensor, fault: str) -> None:
    """A call's own work."""
    noise = torch.rand(8)
    hidden = model(inputs).detach().mean(0) + noise
    if fault == "order":
        dist.broadcast(hidden, 0)
        dist.all_reduce(hidden)
    else:
        if fault != "skipped":
            dist.all_reduce(hidden)
        dist.broadcast(hidden, 0)
    if fault == "recompute":
        dist.all_reduce(torch.ones(2))


if __name__ == "__main__":
    main()
