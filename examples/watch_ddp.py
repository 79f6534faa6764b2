"""Several processes under DDP, each probing its share: torchrun --nproc-per-node=2 watch_ddp.py"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import local_elasticity as le


def watched_training() -> le.Monitor:
    torch.manual_seed(0)  # the same weights and the same sources in every process
    digits = le.data.load("digits")
    data = TensorDataset(*digits.take([0, 1, 2], per_class=60))
    points = digits.take([0, 1, 2], per_class=10, split="test")
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))
    parallel = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    loader = DataLoader(data, batch_size=30, sampler=DistributedSampler(data))

    monitor = le.Monitor(parallel, points, loss="cross_entropy", measure="relative", every=3, budget=None)
    step = 0
    for epoch in range(4):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            monitor.step(step)  # in every process
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(parallel(x), y).backward()
            optimizer.step()
            step += 1
    return monitor


dist.init_process_group("gloo")  # "nccl" on GPUs
monitor = watched_training()
if dist.get_rank() == 0:
    print(monitor.locality()[["step", "measure", "within", "between", "times"]].round(3).to_string(index=False))
last = dist.barrier(async_op=True)  # keep it until exit: torch aborts if a thread of gloo has to free it then
last.wait()
dist.destroy_process_group()
