"""One rank of a small guarded job, with a fault planted in one of its ranks: run by `tests/ranks/launch.py`."""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_reduce
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from moeparity.errors import ContractError, RankError
from moeparity.evidence.weights.part import part
from moeparity.ranks import Guard, WeightLayout, hold
from moeparity.ranks.collective_log import CollectiveLog
from moeparity.ranks.contract import (
    Contract,
    EnvironmentClaim,
    ProfileClaim,
    SettingsClaim,
    TensorClaim,
    WeightsClaim,
)


def main() -> None:
    """Calls of a model with collectives inside, once for each fault, which happens on one rank in one call."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--faults", type=json.loads, default=["none"])
    parser.add_argument("--at", type=int, default=3)
    parser.add_argument("--on", type=int, default=1)
    parser.add_argument("--calls", type=int, default=6)
    parser.add_argument("--settings", type=json.loads, default={})
    args = parser.parse_args()
    dist.init_process_group("gloo", timeout=timedelta(seconds=300))
    if args.faults == ["left open"]:
        left_open(args)
        return
    for fault in args.faults:
        try:
            guarded(fault, args, dist.get_rank())
        except RankError as error:
            print(f"{fault}: {error}", flush=True)
            dist.distributed_c10d._get_default_store().set("nobody waits any more", "")
        else:
            print(f"{fault}: done", flush=True)
    see_collectives()
    hold_to_a_contract()
    after = torch.ones(2)
    dist.all_reduce(after)
    print(f"after: {after.tolist()}", flush=True)
    # Its threads end here: one that frees a tensor while the interpreter ends aborts the process.
    dist.destroy_process_group()


def left_open(args: argparse.Namespace) -> None:
    """A guard that is never left, in a program that ends."""
    guard = Guard(**args.settings)
    guard.__enter__()
    with guard.call():
        dist.all_reduce(torch.ones(2))
    print("left open: done", flush=True)


def see_collectives() -> None:
    """What a log of collectives sees that Python's own calls do not show: DDP's bucket, a functional one; then one in
    inference mode.
    """
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))
    with CollectiveLog() as log:
        model(torch.ones(2, 3)).sum().backward()
        all_reduce(torch.ones(3), "sum", list(range(dist.get_world_size()))).add(0)
        with torch.inference_mode():
            dist.all_reduce(torch.ones(3))
    print("seen: " + ", ".join(call for group in log.groups.values() for _, call, _ in group.last), flush=True)


def hold_to_a_contract() -> None:
    """A contract that claims a parameter which lies over the ranks in rows: kept, then broken by a bit and a switch of
    one rank.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    whole = torch.arange(8.0 * ranks).reshape(2 * ranks, 4)
    claims = contract({"weight": whole}, {"switch.deterministic_algorithms": "False"})
    layer = torch.nn.Linear(4, 2 * ranks, bias=False)
    mesh = init_device_mesh("cpu", (ranks,))
    layer.weight = torch.nn.Parameter(distribute_tensor(whole, mesh, [Shard(0)]))
    print(f"hold: {hold(claims, layer).kept}", flush=True)
    with torch.no_grad():
        cast("DTensor", layer.weight).to_local()[1, 1] += rank == 1
    torch.use_deterministic_algorithms(mode=rank == 1)
    try:
        hold(claims, layer)
    except ContractError as error:
        print(f"hold broken: {error}", flush=True)
    try:
        hold("no.json" if rank == 1 else claims, layer)
    except ContractError as error:
        print(f"hold unread: {error}", flush=True)
    torch.use_deterministic_algorithms(mode=False)


def contract(tensors: dict[str, torch.Tensor], fields: dict[str, str]) -> Contract:
    """A contract that claims these weights and fields of the environment."""
    sums = {name: part(name, tensor) for name, tensor in tensors.items()}
    weights = {
        n: TensorClaim(dtype=tensor_sum.dtype, shape=tensor_sum.shape, bits=f"{tensor_sum.total:016x}")
        for n, tensor_sum in sums.items()
    }
    return Contract(
        recipe="job.py",
        side="candidate",
        model_type="none",
        weights=WeightsClaim(digest="", tensors=weights),
        environment=EnvironmentClaim(digest="", fields=fields),
        profile=ProfileClaim(digest="", name="", engine="", version="", dtype="fp32", phases=(), nodes={}),
        placement=SettingsClaim(digest="", settings={"tensor": str(dist.get_world_size())}),
        schedule=SettingsClaim(digest="", settings={}),
    )


def guarded(fault: str, args: argparse.Namespace, rank: int) -> None:
    """A guard around the calls, over a replica and a shard, with what is wrong from the start."""
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8)
    model.register_module("lora_a", torch.nn.Linear(8, 2, bias=False))
    model.register_buffer("scale", torch.ones(3) * 1.5)
    # Not all ranks are in every group.
    part = dist.new_group([0, 1])
    # A shard, as of tensor parallelism: each rank's own.
    shard = torch.nn.Linear(4, 4, bias=False)
    is_here = rank == args.on
    with torch.no_grad():
        shard.weight.add_(0 if fault == "same shard" else rank)
        model.weight[0, 0] += fault == "other replica" and is_here
    if fault == "variable" and is_here:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(mode=fault in ("switch", "pinned switch") and is_here)
    backend = "fa4" if fault == "backend" and is_here else "flash"
    settings = {**args.settings, **({"rng": "broadcast"} if fault == "broadcast draw" else {})}
    if "folder" in settings:
        settings["folder"] = f"{settings['folder']}/{fault}"
    if fault == "late" and is_here:
        dist.distributed_c10d._get_default_store().get("nobody waits any more")
    try:
        with Guard(
            model,
            shard,
            sharded=["1.*"],
            replicated=["0.*"],
            extra={"kv_bias_backend": backend},
            pin=fault == "pinned switch",
            weights=WeightLayout() if fault == "update" else None,
            **settings,
        ) as guard:
            loop(guard, model, fault, args, rank, part)
    finally:
        os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)


def loop(guard: Guard, model: torch.nn.Linear, planted: str, args: argparse.Namespace, rank: int, part: Any) -> None:
    """The calls: noise that all ranks draw, an all-reduce and a broadcast in each."""
    if planted in ("attached", "wrapped"):
        unchanged_loop(guard, model, planted, args, rank)
        return
    for number in range(args.calls):
        at = number == args.at
        fault = planted if at and rank == args.on else "none"
        envelope: dict[str, Any] = {"chunk": number, "action": "infer", "init_cache": number == 0, "cache_epoch": 0}
        if rank % 2:
            envelope = dict(reversed(envelope.items()))
        envelope["init_cache"] |= fault == "envelope"
        if at:
            between_calls(guard, model, planted, is_here=rank == args.on)
        if fault == "ends":
            return
        if fault == "skipped after a draw":
            torch.rand(8)
            continue
        with guard.call({"inputs": payload(fault, rank)}, **envelope):
            in_call(fault)
            step(model, payload("none", rank).float(), fault)
            if rank < 2 and fault != "skipped in a group":
                dist.all_reduce(torch.ones(3), group=part)


def unchanged_loop(guard: Guard, model: torch.nn.Linear, planted: str, args: argparse.Namespace, rank: int) -> None:
    """A loop that knows nothing of the guard; one rank is given something else in one call."""
    handles = guard.attach(model, "infer") if planted == "attached" else []

    def scaled(inputs: torch.Tensor, *, scale: float) -> torch.Tensor:
        return inputs.sum() * scale

    function = guard.guarded(scaled)
    for number in range(args.calls):
        is_here = number == args.at and rank == args.on
        if planted == "attached":
            model(payload("input bit" if is_here else "none", rank))
        else:
            function(payload("none", rank), scale=2.5 if is_here else 1.5)
    for handle in handles:
        handle.remove()


def payload(fault: str, rank: int) -> torch.Tensor:
    """What the call is given."""
    inputs = torch.arange(32, dtype=torch.float32).reshape(4, 8)
    if fault == "input bit":
        inputs.view(torch.int32)[1, 2] ^= 1
    changed = {
        "dtype": inputs.double(),
        "shape": inputs[:3],
        "noise handed over": torch.rand(4, 8, generator=torch.Generator().manual_seed(rank)),
    }
    return changed.get(fault, inputs)


def between_calls(guard: Guard, model: torch.nn.Linear, planted: str, *, is_here: bool) -> None:
    """What happens before a call: on one rank, or on all where it is no fault."""
    if planted in ("extra draw", "broadcast draw") and is_here:
        torch.rand(2)
    elif planted == "weight bit" and is_here:
        model.weight.data.view(torch.int32)[3, 3] ^= 1
    elif planted == "update":
        with guard.update(), torch.no_grad():
            model.weight.add_(0.5)
    elif planted in ("adapter bit", "buffer bit") and is_here:
        tensor = model.get_parameter("lora_a.weight") if planted == "adapter bit" else model.get_buffer("scale")
        tensor.data.view(torch.int32).view(-1)[2] ^= 1
    elif planted == "epoch weight":
        guard.cache(cache_epoch=0)
        if is_here:
            model.bias.data.view(torch.int32)[1] ^= 1
        guard.cache(cache_epoch=1)
    elif planted == "cache":
        guard.cache(cache_epoch=2, current_start_frame=7 if is_here else 8)


def in_call(fault: str) -> None:
    """What ends or stops a rank."""
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "slow":
        time.sleep(600)


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
