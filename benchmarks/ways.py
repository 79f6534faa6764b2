"""The networks that are measured, the other ways of measuring them, and how time and memory are taken."""

from __future__ import annotations

import copy
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from peak import forget_peak, peak_gib
from torch import Tensor, nn
from torch.func import functional_call

import local_elasticity as le

STEP_SIZE = 1e-3


@dataclass(frozen=True)
class Case:
    """A network with examples that are sources and targets at once."""

    name: str
    net: nn.Module
    loss: str
    x: Tensor
    y: Tensor
    step_size: float = STEP_SIZE

    @property
    def n(self) -> int:
        return len(self.x)

    @property
    def problem(self) -> le.Problem:
        return le.Problem.of(self.net, self.loss)

    def loss_of(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return (
            nn.functional.mse_loss(outputs[:, 0], labels)
            if self.loss == "mse"
            else nn.functional.cross_entropy(outputs, labels)
        )

    def to(self, device: str) -> Case:
        return replace(self, net=self.net.to(device), x=self.x.to(device), y=self.y.to(device))


def wide(n: int, width: int, step_size: float = STEP_SIZE) -> Case:
    """The two-layer net of He & Su on two digits."""
    torch.manual_seed(0)
    images, labels = two_digits(n)
    return Case(f"784-{width}-1, n=m={n}", le.models.fnn(784, width=width), "mse", images, labels, step_size)


def digits_cnn(n: int) -> Case:
    torch.manual_seed(0)
    images, labels = two_digits(n)
    return Case(f"MNIST CNN, n=m={n}", le.models.cnn(), "mse", images, labels)


def resnet(n: int = 60) -> Case:
    """The classifier of Dan et al. with three outputs."""
    torch.manual_seed(0)
    images = torch.randn(n, 3, 32, 32)
    return Case(f"ResNet-18, {n}x{n}", le.models.ResNet18(3), "cross_entropy", images, torch.arange(n) % 3)


def two_digits(n: int) -> tuple[Tensor, Tensor]:
    """Real 3s and 5s where there are any, noise of the same shape on a bare machine; labels 1 and 0."""
    try:
        images, digits = le.data.load("mnist").take([3, 5], per_class=n // 2)
    except (ImportError, FileNotFoundError):
        images, digits = torch.rand(n, 1, 28, 28) * 2 - 1, torch.arange(n) % 2
    return images, (digits == digits[0]).float()


def released_loop(case: Case, rows: int) -> None:
    """As in the code of He & Su: restore the weights, one step, predict in batches of 50."""
    model, still = copy.deepcopy(case.net), copy.deepcopy(case.net)
    for i in range(rows):
        optimizer = torch.optim.SGD(model.parameters(), lr=case.step_size)
        model.load_state_dict(still.state_dict())
        optimizer.zero_grad()
        case.loss_of(model(case.x[i : i + 1]), case.y[i : i + 1]).backward()
        optimizer.step()
        model.eval()
        np.concatenate([model(case.x[j : j + 50]).detach().cpu().numpy() for j in range(0, case.n, 50)])
        model.train()


def good_loop(case: Case, rows: int) -> None:
    """What a careful researcher writes: one functional step, one batched forward pass."""
    net = case.net.eval()
    params = {name: p.detach() for name, p in net.named_parameters()}
    leaves = {name: p.detach().requires_grad_() for name, p in params.items()}
    before = torch.zeros(1, device=case.x.device)
    for i in range(rows):
        loss = case.loss_of(functional_call(net, leaves, (case.x[i : i + 1],)), case.y[i : i + 1])
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        with torch.no_grad():
            after = {name: p - case.step_size * g for (name, p), g in zip(params.items(), gradients, strict=True)}
            functional_call(net, after, (case.x,)) - before


def rebuilding_loop(case: Case, updates: int) -> None:
    """As in the notebooks of Dan et al.: for each of 9 class pairs x 20 sources a new model is built and loaded, takes
    a step, and predicts the 20 targets of the pair, one class at a time.
    """
    device = case.x.device
    state = case.net.state_dict()
    for i in range(updates):
        model = type(case.net)(3).to(device)
        model.load_state_dict(state)
        source, target_class = i % case.n, i % 3
        targets = case.x[case.y == target_class]
        before = model(targets).detach().softmax(1).cpu().numpy()
        optimizer = torch.optim.SGD(model.parameters(), lr=case.step_size)
        optimizer.zero_grad()
        case.loss_of(model(case.x[source : source + 1]), case.y[source : source + 1]).backward()
        optimizer.step()
        model(targets).detach().softmax(1).cpu().numpy() - before


def respond(case: Case, engine: str = "auto") -> le.Response:
    return le.respond(case.problem, (case.x, case.y), update=le.SGD(case.step_size), engine=engine, progress=False)


def seconds(work: Callable[[], object]) -> float:
    """Wall time, waiting for the GPU where there is one."""
    _wait()
    began = time.perf_counter()
    work()
    _wait()
    return time.perf_counter() - began


def peak_memory(device: str) -> float:
    """GiB of this process, since its peak was last forgotten."""
    return torch.cuda.max_memory_allocated() / 2**30 if device.startswith("cuda") else peak_gib()


def forget_peak_memory(device: str) -> None:
    """From now on the peak is what is in use now, or what comes after."""
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
    else:
        forget_peak()


def product_rate(device: str, size: int = 4096) -> float:
    """Floating-point operations a second of a float32 matrix product, the best of a few."""
    a, b = torch.randn(size, size, device=device), torch.randn(size, size, device=device)
    return 2 * size**3 / min(seconds(lambda: a @ b) for _ in range(5))


def environment(device: str) -> dict[str, str]:
    words = f"one {torch.cuda.get_device_name()}" if device != "cpu" else f"{torch.get_num_threads()} CPU cores"
    return {"machine": words, "torch": str(torch.__version__), "python": platform.python_version()}


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
