"""One rank of a drawn job: it does what its case says, and nothing else."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from random import Random
from typing import Any

import torch
import torch.distributed as dist

from moeparity.errors import RankError
from moeparity.ranks import Guard
from tests.ranks.drawn.case import Case, Fault, draws_first, from_json

LATE_S = 0.8
"""So much later than the rank that is to be lost do others come to where it is lost."""


def main() -> None:
    """The job of the case in the arguments; a journal goes to the second one."""
    faulthandler.enable()
    tempfile.tempdir = None
    case, rank = from_json(sys.argv[1]), int(os.environ["RANK"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=300))
    part = dist.new_group(list(range(case.ranks - 1))) if case.ranks > 2 else None
    job = Job(case, rank, part, sys.argv[2] if case.journal else None)
    if case.catches:
        try:
            job.run()
        except RankError as error:
            say(f"caught: {error}")
        else:
            say("done")
    else:
        job.run()
        say("done")
    if case.destroys:
        dist.destroy_process_group()


def say(words: str) -> None:
    """A line, also where the process is about to be killed."""
    os.write(1, f"{words}\n".encode())


class Job:
    """The calls of one rank."""

    def __init__(self, case: Case, rank: int, part: Any, folder: str | None) -> None:
        self.case, self.rank, self._part, self._folder = case, rank, part, folder
        self._random = Random(f"{case.seed} {rank}")  # noqa: S311
        self._noisy = case.noise if case.noisy == rank else "none"
        torch.manual_seed(case.seed)
        self._model, self._shard = torch.nn.Linear(8, 8), torch.nn.Linear(4, 4, bias=False)

    def run(self) -> None:
        """The guard and the calls in it."""
        case, watchdog_s = self.case, self.case.settings["watchdog_s"]
        same = any(fault.kind == "same shard" for fault in case.faults)
        with torch.no_grad():
            self._shard.weight.add_(0 if same else self.rank + 1)
        faults_here = {fault.kind: fault for fault in case.faults if fault.on == self.rank}
        if "other replica" in faults_here:
            self._model.weight.data[2, 1] += 1
        if "variable" in faults_here:
            os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        if {"variable", "backend", "other replica"} & faults_here.keys() or same:
            planted()
        if self._noisy == "slow start":
            time.sleep(0.3 * watchdog_s)
        if "never enters" in faults_here:
            planted()
            time.sleep(2 * watchdog_s + 12)
        backend = "fa4" if "backend" in faults_here else "flash"
        settings = {**case.settings, **({"folder": self._folder} if self._folder else {})}
        with Guard(
            self._model, self._shard, sharded=["1.*"], replicated=["0.*"], extra={"attention": backend}, **settings
        ) as guard:
            for number in range(case.calls):
                if not self._call(guard, number):
                    return

    def _call(self, guard: Guard, number: int) -> bool:
        """One call; False where the rank leaves."""
        call_faults = [fault for fault in self.case.faults if fault.call == number]
        faults_here = {fault.kind: fault for fault in call_faults if fault.on == self.rank}
        if not self._before(guard, call_faults, faults_here):
            return "leaves" not in faults_here
        late = [fault for fault in call_faults if fault.on != self.rank and fault.kind in ("killed", "stopped")]
        noise = self._noise()
        if any(fault.place == "in guard" for fault in late):
            time.sleep(LATE_S)
        guard.cache(cache_epoch=0, current_start_frame=7 if self._begun("cache", number) else 3 * number)
        envelope: dict[str, Any] = {"chunk": number, "action": "noop" if self._begun("envelope", number) else "infer"}
        with guard.call({"inputs": self._inputs(number), "noise": noise}, **envelope):
            self._disturb(number)
            for fault in faults_here.values():
                if fault.kind == "raises":
                    planted()
                    raise ValueError("planted")
                if fault.place == "in call":
                    lose(fault)
                elif fault.place == "in collective":
                    later(fault)
            if any(fault.place == "in collective" for fault in late):
                time.sleep(LATE_S)
            self._collectives(faults_here)
        return True

    def _before(self, guard: Guard, call_faults: list[Fault], faults_here: dict[str, Fault]) -> bool:
        """What happens before a call; False where there is none."""
        if {"leaves", "skipped call"} & faults_here.keys():
            planted()
            if draws_first(self.case, faults_here.get("skipped call")):
                torch.rand(8)
            return False
        if "extra draw" in faults_here:
            planted()
            torch.rand(1)
        if "weight bit" in faults_here:
            planted()
            tensor = (self._model.weight, self._model.bias, self._shard.weight)[faults_here["weight bit"].op % 3]
            tensor.data.view(torch.int32).view(-1)[-1] ^= 1
        if any(fault.kind == "forgotten update" for fault in call_faults):
            self._update(guard, forgets="forgotten update" in faults_here)
        for fault in faults_here.values():
            if fault.place == "before":
                lose(fault)
            elif fault.place == "in guard":
                later(fault)
        return True

    def _update(self, guard: Guard, *, forgets: bool) -> None:
        with torch.no_grad():
            if forgets:
                planted()
                self._model.weight.add_(0.5)
                return
            with guard.update():
                self._model.weight.add_(0.5)

    def _begun(self, kind: str, number: int) -> bool:
        """Whether a fault that lasts has begun on this rank."""
        begun = [f for f in self.case.faults if f.kind == kind and f.on == self.rank and f.call <= number]
        if begun and begun[0].call == number:
            planted()
        return bool(begun)

    def _inputs(self, number: int) -> torch.Tensor:
        inputs = torch.arange(32, dtype=torch.float32).reshape(4, 8) + number
        if self._begun("input bit", number):
            inputs.view(torch.int32)[3, 5] ^= 1
        if self._begun("input dtype", number):
            inputs = inputs.double()
        return inputs[:3] if self._begun("input shape", number) else inputs

    def _noise(self) -> torch.Tensor:
        """Noise that all ranks draw, or that rank 0 draws for all."""
        if self.case.settings["rng"] == "lockstep":
            return torch.rand(8)
        noise = torch.rand(8) if self.rank == 0 else torch.empty(8)
        dist.broadcast(noise, 0)
        return noise

    def _disturb(self, number: int) -> None:
        """What is no fault."""
        if self._noisy == "slow call" and number == 2:
            time.sleep(0.3 * self.case.settings["watchdog_s"])
        elif self._noisy == "uneven":
            time.sleep(self._random.random() * 0.05)
        elif self._noisy == "garbage":
            cycle: list[list[object]] = [[] for _ in range(100_000)]
            cycle[0].append(cycle)
            del cycle
            gc.collect()
        elif self._noisy == "holds the lock":
            sorted(self._random.random() for _ in range(200_000))
        elif self._noisy == "burns":
            weight = torch.rand(300, 300, generator=torch.Generator())
            for _ in range(10):
                weight = weight @ weight / 300

    def _collectives(self, faults_here: dict[str, Fault]) -> None:
        ops = list(self.case.ops)
        if "exchanged order" in faults_here:
            at = faults_here["exchanged order"].op
            ops[at : at + 2] = reversed(ops[at : at + 2])
            planted()
        for place, op in enumerate(ops):
            ours = {kind for kind, fault in faults_here.items() if fault.op == place}
            if {"skipped collective", "collective dtype", "collective shape", "extra collective"} & ours:
                planted()
            if "extra collective" in ours:
                dist.all_reduce(torch.ones(2))
            if "skipped collective" not in ours:
                self._collective(op, ours)

    def _collective(self, op: str, ours: set[str]) -> None:
        size = {"all_reduce": 8, "broadcast": 12, "all_gather": 4, "asynchronous": 16, "part": 6}[op]
        size += 3 if "collective shape" in ours else 0
        hidden = torch.ones(size, dtype=torch.float64 if "collective dtype" in ours else torch.float32)
        if op == "part":
            if self._part is not None and self.rank < self.case.ranks - 1:
                dist.all_reduce(hidden, group=self._part)
        elif op == "all_reduce":
            dist.all_reduce(hidden)
        elif op == "broadcast":
            dist.broadcast(hidden, self.case.ranks - 1)
        elif op == "all_gather":
            dist.all_gather([torch.empty_like(hidden) for _ in range(self.case.ranks)], hidden)
        else:
            work = dist.all_reduce(hidden, async_op=True)
            assert work is not None
            work.wait()


def planted() -> None:
    """Now something is wrong."""
    say(f"planted {time.monotonic()}")


def lose(fault: Fault) -> None:
    """End, stop or hold up this process, if that is what is wrong."""
    if fault.kind not in ("killed", "stopped", "slow"):
        return
    planted()
    if fault.kind == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault.kind == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        time.sleep(600)


def later(fault: Fault) -> None:
    """Be lost from inside what this rank is about to wait in."""
    act: Callable[[Fault], None] = lose
    timer = threading.Timer(LATE_S / 2, act, [fault])
    timer.daemon = True
    timer.start()
