"""The neural tangent kernel by the tools of the field, for the same net and the same examples: trace over outputs.

    python benchmarks/kernels.py WAY CASE.npz [--device cuda]

Each way runs in a process of its own, so that its peak memory is its own; it prints one line of JSON. The case holds
the network's name, its weights, the inputs, and the kernel in float64 to compare with.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap
from ways import forget_peak_memory, peak_memory, seconds

import local_elasticity as le

REPEATS = 3


def ours(net: nn.Module, x: Tensor) -> Tensor:
    return le.ntk(le.Problem.of(net, "mse"), x)


def torch_func(net: nn.Module, x: Tensor) -> Tensor:
    """Jacobian contraction as in the tutorial of torch.func; the Jacobian is taken once, since both sides are equal."""
    params = {name: p.detach() for name, p in net.named_parameters()}

    def one(parameters: dict[str, Tensor], example: Tensor) -> Tensor:
        return functional_call(net, parameters, (example[None],))[0]

    jacobians = vmap(jacrev(one), (None, 0), chunk_size=10)(params, x)
    return sum(torch.einsum("naf,maf->nm", j, j) for j in (j.flatten(2) for j in jacobians.values()))


def opacus(net: nn.Module, x: Tensor) -> Tensor:
    """Per-sample gradients of each output by Opacus, and their Gram matrix."""
    from opacus import GradSampleModule

    outputs = net(x[:1]).shape[1]
    module = GradSampleModule(net, loss_reduction="sum").train()

    def gradients(output: int) -> list[Tensor]:
        module.zero_grad()
        module(x)[:, output].sum().backward()
        return [p.grad_sample for p in module.parameters()]

    K = _gram(gradients, outputs, len(x))
    module.to_standard_module()
    return K


def backpack(net: nn.Module, x: Tensor) -> Tensor:
    """Per-sample gradients of each output by BackPACK, and their Gram matrix."""
    from backpack import backpack, extend
    from backpack.extensions import BatchGrad

    extended = extend(net)
    outputs = extended(x[:1]).shape[1]

    def gradients(output: int) -> list[Tensor]:
        extended.zero_grad()
        with backpack(BatchGrad()):
            extended(x)[:, output].sum().backward()
        return [p.grad_batch for p in extended.parameters()]

    return _gram(gradients, outputs, len(x))


def _gram(gradients: Callable[[int], list[Tensor]], outputs: int, n: int) -> Tensor:
    total: Tensor | None = None
    for output in range(outputs):
        for g in gradients(output):
            flat = g.detach().reshape(n, -1)
            total = flat @ flat.T if total is None else total.addmm_(flat, flat.T)
    assert total is not None
    return total


WAYS = {"ours": ours, "torch.func": torch_func, "opacus": opacus, "backpack": backpack}


def build(name: str, width: int) -> nn.Module:
    """The network of a case, its weights not yet loaded."""
    return {
        "fnn": lambda: le.models.fnn(784, width=width),
        "cnn": le.models.cnn,
        "resnet": lambda: le.models.ResNet18(3),
    }[name]()


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("case", type=Path)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    case = np.load(options.case)
    net = build(str(case["network"]), int(case["width"])).to(options.device)
    weights = {name: torch.from_numpy(case[f"weight {name}"]) for name, _ in net.named_parameters()}
    net.load_state_dict(weights)
    net.eval()
    x = torch.from_numpy(case["x"]).to(options.device)
    way = WAYS[options.way]
    forget_peak_memory(options.device)
    unused = peak_memory(options.device)
    K = way(net, x).detach()
    times = [seconds(lambda: way(net, x)) for _ in range(REPEATS)]
    truth = torch.from_numpy(case["truth"])
    error = float((K.double().cpu() - truth).norm(dim=1).div(truth.norm(dim=1)).max())
    grown = peak_memory(options.device) - unused
    print(json.dumps({"seconds": sorted(times)[REPEATS // 2], "peak memory GiB": grown, "error": error}))


if __name__ == "__main__":
    main()
