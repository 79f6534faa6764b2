"""Run by torchrun from test_distributed.py: train under DDP, watched, and write what rank 0 measured."""

import sys

import torch
import torch.distributed as dist
from torch import nn

import local_elasticity as le

MEASURES = ("relative", "kl", "normalized_kernel", "stiffness_cos", "activation")


def train(store, *, budget=None, distract=False, sources=7):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)).double()
    x, y = torch.randn(12, 4).double(), torch.arange(12) % 3
    parallel = nn.parallel.DistributedDataParallel(net) if dist.is_initialized() else net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    monitor = le.Monitor(
        parallel,
        (x[:sources], y[:sources]),
        loss="cross_entropy",
        measures=MEASURES,
        update=le.SGD(0.01),
        every=2 if budget is None else 1,
        budget=budget,
        store=store,
    )
    if distract and dist.get_rank() == 1:
        monitor.budget.affords = lambda step: step % 3 == 0  # another opinion, that must not count
    for step in range(6):
        optimizer.zero_grad()
        nn.functional.cross_entropy(parallel(x), y).backward()
        optimizer.step()
        monitor.step(step)
    return monitor


if __name__ == "__main__":
    dist.init_process_group("gloo")
    folder = sys.argv[1]
    shared = train(f"{folder}/shared.zarr")
    tight = train(None, budget=1e-9, distract=True)
    few = train(None, sources=1)
    if dist.get_rank() == 0:
        torch.save(
            {"steps": shared.history.steps, "tight": tight.history.steps, "few": few.history.state()},
            f"{folder}/found.pt",
        )
    assert shared.history.steps == [0, 2, 4]  # on every rank
    dist.destroy_process_group()
