"""Influence by loss gradients, ⟨∇ℓ(x), ∇ℓ(x′)⟩ for all pairs (TracIn with one checkpoint), by the tools that have it.

    python benchmarks/tracin.py

The same network, examples and loss for each tool, all parameters, no projection. A tool that is not installed is left
out. The tools take turns, and a figure is the median of the turns. Errors are those of the worst row, against the same
matrix in float64. Figures go to benchmarks/results/tracin-cpu.json.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils.data import DataLoader, TensorDataset

import local_elasticity as le

RESULTS = Path(__file__).parent / "results"
TURNS, TRAIN, TEST, BATCH = 3, 150, 100, 50
Examples = tuple[Tensor, Tensor]


def networks() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    torch.manual_seed(0)
    mlp = nn.Sequential(
        nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )
    cnn = nn.Sequential(nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 5), nn.ReLU())
    cnn.extend([nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 10)])
    return {"MLP, 270 000 parameters": (mlp, (1, 28, 28)), "CNN, 80 000 parameters": (cnn, (1, 28, 28))}


def ours(net: nn.Module, train: Examples, test: Examples) -> Tensor:
    S = le.similarity(
        net, train, test, loss="cross_entropy", measure="loss", update=le.SGD(1e-3), approximate=True, memory=2**31
    )
    return -torch.as_tensor(S.values) / 1e-3


def torch_func(net: nn.Module, train: Examples, test: Examples) -> Tensor:
    """Gradients of single examples as in the tutorial of torch.func, and one matrix product."""
    params = {name: p.detach() for name, p in net.named_parameters()}

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(net, parameters, (x[None],)), y[None])

    def gradients(examples: Examples) -> Tensor:
        each = vmap(grad(loss), (None, 0, 0), chunk_size=BATCH)(params, *examples)
        return torch.cat([one.flatten(1) for one in each.values()], 1)

    return gradients(train) @ gradients(test).T


def captum(net: nn.Module, train: Examples, test: Examples) -> Tensor:
    from captum.influence import TracInCP

    found = TracInCP(
        net,
        TensorDataset(*train),
        checkpoints=["now"],
        checkpoints_load_func=lambda model, path: 1.0,
        loss_fn=nn.CrossEntropyLoss(reduction="sum"),
        batch_size=BATCH,
        sample_wise_grads_per_batch=True,
    )
    return found.influence(test).T


def dattri(net: nn.Module, train: Examples, test: Examples) -> Tensor:
    from dattri.algorithm.tracin import TracInAttributor
    from dattri.task import AttributionTask

    def loss(params: dict[str, Tensor], example: Examples) -> Tensor:
        x, y = example
        return F.cross_entropy(functional_call(net, params, (x[None],)), y[None])

    task = AttributionTask(loss_func=loss, model=net, checkpoints=net.state_dict())
    attributor = TracInAttributor(task, weight_list=torch.ones(1), normalized_grad=False)
    attributor.projector_kwargs = None  # the default projects gradients to 512 numbers, which is another job
    loaders = [DataLoader(TensorDataset(*examples), batch_size=len(examples[0])) for examples in (train, test)]
    return attributor.attribute(*loaders)


def kronfluence(net: nn.Module, train: Examples, test: Examples) -> Tensor:
    """Its strategy `identity`: no preconditioning, so that scores are products of gradients."""
    import copy

    from kronfluence.analyzer import Analyzer, prepare_model
    from kronfluence.arguments import FactorArguments
    from kronfluence.task import Task

    class Classify(Task):
        def compute_train_loss(self, batch: Examples, model: nn.Module, sample: bool = False) -> Tensor:
            return F.cross_entropy(model(batch[0]), batch[1], reduction="sum")

        def compute_measurement(self, batch: Examples, model: nn.Module) -> Tensor:
            return self.compute_train_loss(batch, model)

    with tempfile.TemporaryDirectory() as folder:
        task = Classify()
        analyzer = Analyzer(
            "tracin", prepare_model(copy.deepcopy(net), task), task, cpu=True, disable_tqdm=True, output_dir=folder
        )
        analyzer.fit_all_factors("none", TensorDataset(*train), BATCH, factor_args=FactorArguments(strategy="identity"))
        analyzer.compute_pairwise_scores(
            "scores", "none", TensorDataset(*test), TensorDataset(*train), BATCH, per_device_train_batch_size=BATCH
        )
        scores = analyzer.load_pairwise_scores("scores")
    return scores["all_modules"].T


WAYS: dict[str, Callable[[nn.Module, Examples, Examples], Tensor]] = {
    "local_elasticity": ours,
    "torch.func": torch_func,
    "captum": captum,
    "dattri": dattri,
    "kronfluence": kronfluence,
}


def measured(net: nn.Module, shape: tuple[int, ...]) -> dict[str, dict[str, float]]:
    train, test = ((torch.randn(n, *shape), torch.arange(n) % 10) for n in (TRAIN, TEST))
    truth = torch_func(net.double(), (train[0].double(), train[1]), (test[0].double(), test[1]))
    net.float()
    found: dict[str, list[float]] = {}
    errors: dict[str, float] = {}
    for _ in range(TURNS + 1):  # the first turn is not counted
        for name, way in WAYS.items():
            began = time.perf_counter()
            try:
                values = way(net, train, test)
            except ImportError as error:
                print(f"{name}: {error}")
                continue
            found.setdefault(name, []).append(time.perf_counter() - began)
            gap = (values.double() - truth).norm(dim=1) / truth.norm(dim=1)
            errors[name] = float(gap.max())
    return {
        name: {
            "seconds": statistics.median(times[1:]),
            "lowest": min(times[1:]),
            "highest": max(times[1:]),
            "error": errors[name],
        }
        for name, times in found.items()
    }


def main() -> None:
    torch.set_num_threads(1)
    cases = {}
    for name, (net, shape) in networks().items():
        cases[name] = measured(net, shape)
        for way, figures in cases[name].items():
            print(f"{name:26} {way:18} {figures['seconds']:8.3f} s   error {figures['error']:.0e}")
    peers = [way for way in WAYS if way != "local_elasticity" and any(way in case for case in cases.values())]
    about = {
        "machine": "1 thread of a CPU",
        "job": f"{TRAIN} × {TEST} pairs, cross entropy, all parameters",
        "torch": torch.__version__,
        "versions": {way: version(way) for way in peers if way != "torch.func"},
        "cases": cases,
    }
    (RESULTS / "tracin-cpu.json").write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
