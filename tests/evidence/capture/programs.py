"""Programs that tests run under `moeparity capture`, each a few lines; they say on standard output what they are at.

Those that import torch collect no garbage: they soon end, and a quarter of their time would go there.
"""

from __future__ import annotations

TRAINING = """
import gc; gc.disable()
import atexit, os, sys, torch
atexit.register(gc.freeze)
import torch.distributed as dist
torch.set_num_threads(1)
if "RANK" in os.environ:
    dist.init_process_group("gloo")
rank = int(os.environ.get("RANK", 0))
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
model = torch.nn.parallel.DistributedDataParallel(net) if "RANK" in os.environ else net
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    hidden = torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * step + rank))
    result = model(hidden)
    noise = float(os.environ.get("NOISE", 0)) if (step, rank) == (1, 1) else 0.0
    shifted = result + torch.full((4, 2), noise)
    shifted.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
if "SHARDED" in os.environ:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    mesh = init_device_mesh("cpu", (2,))
    sharded = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    for module in (sharded[0], sharded):
        fully_shard(module, mesh=mesh)
    optimizer = torch.optim.SGD(sharded.parameters(), lr=0.1)
    sharded(hidden).square().mean().backward()
    optimizer.step()
    sums = [parameter.full_tensor().sum().item() for parameter in sharded.parameters()]
    summed = torch.ones(8)
    for _ in range(60):
        dist.all_reduce(summed, async_op=True).get_future().wait()
        summed = summed / 2
if "RANK" in os.environ:
    dist.destroy_process_group()
else:
    child = os.fork()
    torch.ones(4).cos()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
sys.exit(int(os.environ.get("CODE", 0)))
"""

ENDLESS = """
import gc; gc.disable()
import os, time, torch
torch.set_num_threads(1)
hidden = torch.ones(8, 8)
print(os.getpid(), flush=True)
while True:
    hidden = (hidden @ hidden) / hidden.sum()
    time.sleep(0.01)
"""

TWO_RANKS = """
import os, subprocess, sys
environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2"}
ranks = [subprocess.Popen([sys.executable, *sys.argv[1:]], env={**environment, "RANK": str(rank)}) for rank in (0, 1)]
sys.exit(max(rank.wait() for rank in ranks))
"""

SLEEPING = """
import os, time
print(os.getppid(), flush=True)
time.sleep(600)
"""
