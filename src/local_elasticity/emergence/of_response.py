"""Alignment as a similarity matrix, for whatever takes measures of a `Response`, such as a `Monitor`."""

from __future__ import annotations

import torch
from torch import Tensor

from local_elasticity.engine.response import Response
from local_elasticity.shapes import Float


def cosine(response: Response) -> Float[Tensor, "n m"]:
    """cos(f(x), f(x′)) before the step, for networks whose outputs are features: the mean over a class's pairs of
    different examples is its `alignment(form="cosine")`. A zero row has cosine 0 with every other.

    >>> import local_elasticity as le
    >>> net, x = torch.nn.Linear(3, 5), torch.randn(4, 3)
    >>> response = le.respond(le.Problem.of(net, "mse"), (x, torch.randn(4, 5)))
    >>> cosine(response).shape
    torch.Size([4, 4])
    """
    return _cosines(response.source_before, response.target_before)


def centred_cosine(response: Response) -> Float[Tensor, "n m"]:
    """The same after the mean over the targets is taken off: the pairs of `alignment(form="centred_cosine")`.

    >>> import local_elasticity as le
    >>> monitor = le.Monitor(
    ...     torch.nn.Linear(3, 5),
    ...     (torch.randn(6, 3), torch.randn(6, 5)),
    ...     loss="mse",
    ...     source_labels=torch.arange(6) % 2,
    ...     measure=(centred_cosine, cosine),
    ...     every=10,
    ...     budget=None,
    ... )
    >>> monitor.step(0)
    True
    >>> sorted(set(monitor.frame()["measure"]))
    ['centred_cosine', 'cosine']
    """
    mean = response.target_before.mean(0)
    return _cosines(response.source_before - mean, response.target_before - mean)


def _cosines(sources: Tensor, targets: Tensor) -> Tensor:
    normalize = torch.nn.functional.normalize
    return normalize(sources, dim=-1) @ normalize(targets, dim=-1).T
