"""Algorithm 1 of He & Su, line by line, with a copy of the network that torch.optim really moves."""

import copy

import torch


def algorithm_1(net, loss, primary, auxiliary, *, order, step_size, relative, auxiliary_label=-1.0):
    """The matrix S before it is symmetrised, in float64. `order` runs over primary, then auxiliary points."""
    moving = copy.deepcopy(net).double().eval()
    optimizer = torch.optim.SGD(moving.parameters(), lr=step_size)
    primary, auxiliary = primary.double(), auxiliary.double()
    S = torch.zeros(len(primary), len(primary)).double()
    for t in order:
        i = int(t)
        is_primary = i < len(primary)
        x = primary[i] if is_primary else auxiliary[i - len(primary)]
        y = torch.ones(1, 1).double() if is_primary else torch.full((1, 1), auxiliary_label).double()
        with torch.no_grad():
            before = moving(primary)[:, 0]
        f = moving(x[None])
        value = loss(f, y)
        (g,) = torch.autograd.grad(value, f, retain_graph=True)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        if is_primary:
            with torch.no_grad():
                change = moving(primary)[:, 0] - before
            S[i] = change.abs() / change[i].abs() if relative else change / (-step_size * g)
    return S
