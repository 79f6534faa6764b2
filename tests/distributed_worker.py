"""Run by torchrun from test_distributed.py: train under DDP, watched, and write what rank 0 measured."""

import sys
from contextlib import contextmanager
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.utils.prune
from torch import nn

import local_elasticity as le
from local_elasticity import measurement
from local_elasticity.emergence import FeatureMeasure, stream_features
from local_elasticity.engine.respond import response_of

MEASURES = ("relative", "kl", "normalized_kernel", "stiffness_cos", "activation")


class Moody:
    """A schedule that another rank contradicts, as one that looks at a clock may."""

    def due(self, step):
        return step % 3 == 0 if dist.get_rank() == 0 else step % 2 == 0


@contextmanager
def out_of_memory_once(rank):
    """The third response that this rank is asked for fails, after one before training and one in it."""
    asked = []

    def respond(*args, **options):
        asked.append(args)
        if dist.get_rank() == rank and len(asked) == 3:
            raise torch.OutOfMemoryError("no memory, on purpose")
        return response_of(*args, **options)

    measurement.response_of = respond
    yield
    measurement.response_of = response_of


def train(store, *, budget=None, distract=False, sources=7, schedule=None):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)).double()
    x, y = torch.randn(12, 4).double(), torch.arange(12) % 3
    parallel = nn.parallel.DistributedDataParallel(net) if dist.is_initialized() else net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    monitor = le.Monitor(
        parallel,
        (x[:sources], y[:sources]),
        loss="cross_entropy",
        measure=MEASURES,
        update=le.SGD(0.01),
        every=(2 if budget is None else 1) if schedule is None else None,
        schedule=schedule,
        budget=budget,
        store=store,
    )
    if distract and dist.get_rank() == 1:
        monitor.budget.affords = lambda step, **_: step % 3 == 0  # another opinion, that must not count
    for step in range(6):
        optimizer.zero_grad()
        nn.functional.cross_entropy(parallel(x), y).backward()
        optimizer.step()
        monitor.step(step)
    return monitor


class Fault:
    """Raises on one rank while it is on."""

    on = False

    def __init__(self, rank):
        self.rank = rank

    def __call__(self, value):
        if self.on and dist.get_rank() == self.rank:
            raise ValueError("failed, on purpose")
        return value


class Faulty(nn.Module):
    def __init__(self, fault):
        super().__init__()
        self.fault = fault

    def forward(self, x):
        return self.fault(x)


class FaultyOn(Fault):
    def due(self, step):
        return self(True)


def check_failures(rank):
    """A rank that fails, wherever it does, leaves no other waiting; all of them skip the same probes and stop."""
    torch.manual_seed(0)
    measure, forward, features, schedule = Fault(rank), Fault(rank), Fault(rank), FaultyOn(0)

    def mine(response):
        return measure(le.relative(response))

    def norm(rows, labels):
        return features(rows.norm())

    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3), Faulty(forward))
    x, y = torch.randn(7, 4), torch.arange(7) % 3
    norms = FeatureMeasure(norm, stream_features(net, [(x, y)], layer="1"))
    measures = (mine, "stiffness_cos", norms)
    monitor = le.Monitor(net, (x, y), loss="cross_entropy", measure=measures, schedule=schedule, budget=None)
    assert monitor.step(0)
    measure.on = True
    assert monitor.step(1)
    measure.on, features.on = False, True
    assert monitor.step(2)
    features.on = False
    found = [probe.similarity["mine"] for probe in monitor.history]
    assert [bool(np.isnan(S).all()) for S in found] == [False, True, False]
    nn.utils.prune.random_unstructured(net[0], "weight", 0.5)
    assert monitor.step(3)
    assert list(monitor.history.notes) == [3]
    forward.on = True
    assert not any(monitor.step(step) for step in range(4, 10))
    forward.on = False
    assert (monitor.history.steps, monitor.skipped) == ([0, 1, 2, 3], [4, 5, 6])
    assert "step 6" in monitor.stopped
    assert not monitor.step(10)
    assert monitor.probe(11)
    schedule.on = True
    assert not any(monitor.step(step) for step in range(12, 17))
    assert monitor.history.steps == [0, 1, 2, 3, 11]


def check_precision():
    """Sources of one rank alone have logits that need float64."""
    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    x, y = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3
    with torch.no_grad():
        net.weight[:, 3] = 1
        x[:, 3] = 1e6 * (torch.arange(8) >= 4)
    options = {"loss": "cross_entropy", "measure": "kl", "update": le.SGD(1e-2), "every": 1, "budget": None}
    monitor = le.Monitor(net, (x, y), targets=(x[:4], y[:4]), **options)
    assert monitor.step(0)
    problem = le.Problem.of(net, "cross_entropy").to(torch.float64)
    exact = le.relative(le.respond(problem, (x, y), (x[:4], y[:4]), update=le.SGD(1e-2)), le.kl)
    assert np.allclose(monitor.history[0].similarity["kl"], exact, rtol=1e-2, equal_nan=True)
    assert np.isfinite(exact).all()


if __name__ == "__main__":
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))  # one that waits for another fails
    folder = sys.argv[1]
    shared = train(f"{folder}/shared.zarr")
    tight = train(None, budget=1e-9, distract=True)
    few = train(None, sources=1)
    assert train(None, schedule=Moody()).history.steps == [0, 3]  # what rank 0 says
    check_precision()
    with out_of_memory_once(rank=1):
        lucky = train(None)
    assert (lucky.history.steps, lucky.skipped) == ([0, 4], [2])  # training went on, on both
    for rank in range(2):
        check_failures(rank)
    if dist.get_rank() == 0:
        torch.save(
            {"steps": shared.history.steps, "tight": tight.history.steps, "few": few.history.state()},
            f"{folder}/found.pt",
        )
    assert shared.history.steps == [0, 2, 4]  # on every rank
    last = dist.barrier(async_op=True)  # kept until exit: torch aborts if a thread of gloo has to free it then
    last.wait()
    dist.destroy_process_group()
