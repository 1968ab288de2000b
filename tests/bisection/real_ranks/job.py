"""Two ranks that bisect with `--ranks real`, once for each recipe: `python -m tests.bisection.real_ranks.job DIR`.

DIR/NAME.yaml are the recipes. Rank r writes what it printed to DIR/NAME.r, and DIR/NAME.code has both exit codes. Under
`killed` rank 1 kills itself in its second sum.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from moeparity.bisection import pipeline, sections
from moeparity.bisection.real_ranks import run as real_ranks
from moeparity.cli.commands import main as run
from moeparity.engine.live_ranks import LiveRanks

RANKS = 2


def main() -> None:
    """The ranks are forks of one process that has imported all that they need."""
    torch.set_num_threads(1)
    assert all((pipeline, sections, real_ranks, dist)), "imported before the fork"
    folder = Path(sys.argv[1])
    for recipe in sorted(folder.glob("*.yaml")):
        children = [start(recipe, rank, port) for port in [free_port()] for rank in range(RANKS)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        recipe.with_suffix(".code").write_text(" ".join(map(str, codes)))


def free_port() -> int:
    """A port of this host."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(recipe: Path, rank: int, port: int) -> int:
    """The process id of a rank, which never returns from here."""
    child = os.fork()
    if child:
        return child
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"MOEPARITY_RANKS_WATCHDOG_S": "3", "MOEPARITY_RANKS_HEARTBEAT_S": "0.1", "GLOO_SOCKET_IFNAME": "lo"}
    out = os.open(recipe.with_suffix(f".{rank}"), os.O_WRONLY | os.O_CREAT)
    os.dup2(out, 1)
    os.dup2(out, 2)
    if recipe.stem == "killed" and rank == 1:
        kill_in_second_sum()
    sys.argv = ["moeparity", "bisect", str(recipe), "--device", "cpu", "--ranks", "real"]
    sys.argv += ["--json", str(recipe.with_suffix(".json")), "--section", "cost"]
    code = 70
    try:
        run()
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def kill_in_second_sum() -> None:
    """This process ends without a word."""
    sums, whole = [], LiveRanks.reduced

    def reduced(self: LiveRanks, *args: object, **kwargs: object) -> torch.Tensor:
        sums.append(1)
        if len(sums) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(self, *args, **kwargs)  # type: ignore[arg-type]

    LiveRanks.reduced = reduced  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
