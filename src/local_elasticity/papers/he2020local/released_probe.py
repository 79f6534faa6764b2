"""The probe of the released code to the letter, on the nets of Table 1: float32, steps of 1e-6, tripled until the
source moves.

The tables take the limit of small steps instead. In float32 a step of 1e-6 is close to the spacing of the weights, so
part of what the released probe reads is rounding. Here both are read from the same trained nets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from local_elasticity.papers.experiment import Measured, Reading, Settings
from local_elasticity.papers.he2020local import clusters, nets
from local_elasticity.papers.he2020local.clusters import PROBE, Similarities
from local_elasticity.papers.he2020local.stack import still_inputs_gathered
from local_elasticity.papers.he2020local.table import ClusteringTable, Row
from local_elasticity.papers.he2020local.table1 import KERNELIZED, RELATIVE
from local_elasticity.papers.he2020local.task import MNIST_TASKS, Samples
from local_elasticity.papers.he2020local.warm_up import Learned
from local_elasticity.statistics.correlation import spearman

GROWTH = 3.0
LARGEST = 1.0
"""A source that does not move at this rate has no gradient, and no row."""

LITERAL, LIMIT = "released probe", "limit of small steps"


def released_similarities(net: nn.Sequential, x: Tensor, y: Tensor) -> tuple[Similarities, np.ndarray]:
    """S_rel and S_ker of the rows of x, [n, n], as the released code computes them, and the rate that moved each.

    Every source starts from the same weights. Its step is one of SGD on (f − y)², at 1e-6 and three times that until
    its own prediction is another float32 number. A source that never moves has a row of NaN.

    Args:
        net: Linear, ReLU, Linear, in float32.
        x: inputs, [n, d].
        y: labels, [n].

    Returns:
        The similarities before symmetrising, and the rates, [n].

    >>> _ = torch.manual_seed(0)
    >>> net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> S, rates = released_similarities(net, torch.eye(2), torch.ones(2))
    >>> S.relative.diagonal(), rates
    (array([1., 1.]), array([1.e-06, 1.e-06]))
    """
    n, params = len(x), list(net.parameters())
    relative, kernel, rates = x.new_full((n, n), np.nan), x.new_full((n, n), np.nan), np.full(n, np.nan)
    with torch.no_grad():
        before = net(x)[:, 0]
    for i in range(n):
        f = net(x[i : i + 1])[0, 0]
        gradients = torch.autograd.grad((f - y[i]).square(), params)
        rate = PROBE
        while rate < LARGEST:
            change = _predictions(params, gradients, rate, x) - before
            if change[i] != 0:
                relative[i], rates[i] = change.abs() / change[i].abs(), rate
                kernel[i] = -change / (2 * rate * (f.detach() - y[i]))
                break
            rate *= GROWTH
    return Similarities(*(S.double().cpu().numpy() for S in (relative, kernel))), rates


@torch.no_grad()
def _predictions(params: Sequence[Tensor], gradients: tuple[Tensor, ...], rate: float, x: Tensor) -> Tensor:
    W, b, V, c = (p - rate * g for p, g in zip(params, gradients, strict=True))
    return (torch.relu(x @ W.T + b) @ V.T + c)[:, 0]


def in_pixels(learned: Learned, pixels: Tensor, seed: int) -> nn.Sequential:
    """The trained net on pixels. It was trained in coordinates in which all inputs that never change are one; of their
    weights only the sum matters, and the rest is drawn as PyTorch draws it, so that rounding meets weights of the usual
    size.
    """
    lower, _, upper = learned.net.children()
    assert isinstance(lower, nn.Linear)
    assert isinstance(upper, nn.Linear)
    basis = still_inputs_gathered(pixels)
    generator = torch.Generator(pixels.device).manual_seed(seed)
    drawn = torch.rand(len(lower.weight), len(basis), generator=generator, device=pixels.device)
    drawn = (2 * drawn - 1) * pixels.shape[1] ** -0.5
    W = lower.weight.detach()[:, : basis.shape[1]] @ basis.T + drawn - (drawn @ basis) @ basis.T
    with torch.device("meta"):
        net = nn.Sequential(nn.Linear(pixels.shape[1], len(W)), nn.ReLU(), nn.Linear(len(W), 1))
    first, last = net[0], net[2]
    first.weight, first.bias = nn.Parameter(W[:, :-1].contiguous()), nn.Parameter(W[:, -1].contiguous())
    last.weight, last.bias = upper.weight, upper.bias
    return net


class ReleasedProbe(ClusteringTable):
    name = "he2020local/released_probe"
    title = "Table 1, squared loss: the released float32 probe beside the limit of small steps, on the same nets"
    claims = ()
    tasks = MNIST_TASKS
    shares = ()
    rows = (
        Row(f"l2-relative, {LITERAL}", "relu l2", "relative", RELATIVE.paper),
        Row(f"l2-kernelized, {LITERAL}", "relu l2", "kernelized", KERNELIZED.paper),
        Row(f"l2-relative, {LIMIT}", "relu l2", "limit relative"),
        Row(f"l2-kernelized, {LIMIT}", "relu l2", "limit kernelized"),
        Row("rank correlation of the two S_rel", "relu l2", "rank correlation"),
        Row("median relative error of S_rel, percent", "relu l2", "error"),
        Row("pairs that the released probe reads as exactly 0, percent", "relu l2", "zeros"),
        Row("sources whose step was tripled, percent", "relu l2", "tripled"),
    )

    def clustering(
        self, learned: Learned, samples: Samples, kind: nets.Kind, reading: Reading, seed: int, settings: Settings
    ) -> Callable[[], Measured]:
        limit = clusters.similarities_of(learned, samples, probabilities=False)
        if not np.isfinite(limit.kernel).all():
            return lambda: {"diverged": True}
        n = len(samples.classes)
        pixels = samples.x.flatten(1).to(learned.x.device, torch.float32)
        y = nets.labels(samples, kind, reading).to(pixels)
        literal, rates = released_similarities(in_pixels(learned, pixels, seed), pixels[:n], y[:n])
        about = _compared(literal.relative, limit.relative, rates)

        def clustered() -> Measured:
            one, other = (clusters.accuracies(S, samples, seed=seed, reading=reading) for S in (literal, limit))
            return {**one, **{f"limit {name}": value for name, value in other.items()}, **about}

        return clustered


def _compared(literal: np.ndarray, limit: np.ndarray, rates: np.ndarray) -> dict[str, float | None]:
    """How far the released S_rel is from its limit, an example with itself aside."""
    others = ~np.eye(len(literal), dtype=bool) & np.isfinite(literal)
    one, other = literal[others], limit[others]
    known = other > 0
    return {
        "rank correlation": spearman(one, other),
        "error": 100 * float(np.median(np.abs(one - other)[known] / other[known])),
        "zeros": 100 * float((one == 0).mean()),
        "tripled": 100 * float((rates > PROBE).mean()),
        "unmoved": float(np.isnan(rates).sum()),
    }
