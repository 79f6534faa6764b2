"""Plain SGD on wide linear layers without their gradients: the step is made in the product that would compute them.

A layer of 40960 × 784 weights has a gradient of 128 MB, which is allocated, written, read and discarded at every
batch, in addition to two small products. W ← W − η qᵀx avoids all of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

WIDE = 1 << 20
"""The least number of weights for which this is faster."""


@contextmanager
def steps_in_place(net: nn.Module, x: Tensor, rate: float) -> Iterator[None]:
    """While it lasts, a backward pass through `net` steps the weights of its wide linear layers by −rate times their
    gradients, and leaves no gradient of them. All other parameters get their gradients as usual. The network runs on
    the batch `x` first: a weight that is used twice, or in another way, is not stepped here.

    >>> import torch
    >>> net = torch.nn.Linear(1024, 1024, bias=False)
    >>> x, before = torch.ones(1, 1024), net.weight.detach().clone()
    >>> with steps_in_place(net, x, rate=0.5):
    ...     net(x).sum().backward()
    >>> net.weight.grad is None, torch.allclose(net.weight, before - 0.5)
    (True, True)
    """
    with torch.no_grad(), _Uses() as uses:
        net(x)
    wide = {
        id(p) for p in net.parameters() if p.numel() >= WIDE and p.requires_grad and uses.linear[id(p)] == 1
    } - uses.elsewhere
    if not wide:
        yield
        return
    with _Stepping(wide, rate):
        yield


class _Uses(TorchFunctionMode):
    """Counts how often each parameter is the weight of a linear layer, and notes those that are anything else."""

    def __init__(self) -> None:
        super().__init__()
        self.linear: Counter[int] = Counter()
        self.elsewhere: set[int] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [value for value in (*args, *(kwargs or {}).values()) if isinstance(value, nn.Parameter)]
        if func is F.linear and len(args) > 1:
            self.linear[id(args[1])] += 1
            given = [value for value in given if value is not args[1]]
        self.elsewhere |= {id(value) for value in given}
        return func(*args, **(kwargs or {}))


class _Stepping(TorchFunctionMode):
    def __init__(self, wide: set[int], rate: float) -> None:
        super().__init__()
        self.wide, self.rate = wide, rate

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear and len(args) > 1 and id(args[1]) in self.wide:
            bias = args[2] if len(args) > 2 else (kwargs or {}).get("bias")
            out: Tensor = _Linear.apply(args[0], args[1], self.rate)  # type: ignore[no-untyped-call]
            return out if bias is None else out + bias
        return func(*args, **(kwargs or {}))


class _Linear(torch.autograd.Function):
    """x Wᵀ, whose backward pass steps W after it was used."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, rate: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.weight, ctx.rate = weight, rate
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None]:
        (x,), q = ctx.saved_tensors, gradients[0]
        passed_on = q @ ctx.weight if ctx.needs_input_grad[0] else None
        with torch.no_grad():
            ctx.weight.addmm_(q.reshape(-1, q.shape[-1]).T, x.reshape(-1, x.shape[-1]), alpha=-ctx.rate)
        return passed_on, None, None
