"""How far one prediction moved, and the relative similarity S_rel (He & Su eq. 2.2; Dan et al. Definitions 1 and 2).

A change function is change(before, difference) → one number a prediction. It gets the *difference* of the outputs, not
the outputs after the step: the engine computes differences more precisely than a subtraction of two nearly equal
numbers. `before` and
`difference` have k outputs on their last axis and broadcast on the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import torch
from torch import Tensor

from local_elasticity.engine.loss import Kind, no_distribution
from local_elasticity.engine.noise import RESOLVED
from local_elasticity.engine.response import Response, by_place
from local_elasticity.measures.measure import Measure, Scores
from local_elasticity.shapes import Bool, Float

Change = Callable[..., Tensor]


def euclidean(before: Float[Tensor, "*b k"], difference: Float[Tensor, "*c k"]) -> Float[Tensor, "*c"]:
    """‖difference‖₂; the absolute value where there is one output.

    Args:
        before: the predictions before the step, [..., k].
        difference: how far they moved, [..., k].

    Returns:
        The size of the change, [...].

    >>> import torch
    >>> euclidean(torch.zeros(2), torch.tensor([3.0, 4.0]))
    tensor(5.)
    """
    return torch.linalg.vector_norm(difference, dim=-1)


def manhattan(before: Float[Tensor, "*b k"], difference: Float[Tensor, "*c k"]) -> Float[Tensor, "*c"]:
    """‖difference‖₁.

    Args:
        before: the predictions before the step, [..., k].
        difference: how far they moved, [..., k].

    Returns:
        The size of the change, [...].

    >>> import torch
    >>> manhattan(torch.zeros(2), torch.tensor([3.0, -4.0]))
    tensor(7.)
    """
    return difference.abs().sum(-1)


def kl(before: Float[Tensor, "*b k"], difference: Float[Tensor, "*c k"], kind: Kind = "logits") -> Float[Tensor, "*c"]:
    """KL(after ‖ before) of the predicted distributions, the new one first (Dan et al., Definition 2).

    From logits z and their difference d, with p = softmax(z + d) and u = −(d − p·d),

        KL = log(1 + Σ p_i (e^{u_i} − 1 − u_i)),

    where nothing cancels: it is right to rounding for differences from 1e-9 to 1e3, and exactly 0 where nothing moved.
    Probabilities q that move by r·q have KL = Σ q ((1 + r) log(1 + r) − r). Binary outputs are k independent ones.

    Args:
        before: the outputs before the step, [..., k].
        difference: how far they moved, [..., k].
        kind: what the outputs are: `"logits"`, `"probabilities"`, `"binary_logits"` or `"binary_probabilities"`.

    Returns:
        The divergence in nats, [...].

    Raises:
        ValueError: if outputs of this kind are no distribution.

    >>> import torch
    >>> z, d = torch.tensor([0.0, 0.0], dtype=torch.float64), torch.tensor([1e-6, -1e-6], dtype=torch.float64)
    >>> kl(z, d)  # δᵀ(diag p − p pᵀ)δ / 2
    tensor(5.0000e-13, dtype=torch.float64)
    """
    if kind == "logits":
        return _kl_of_logits(before, difference)
    if kind == "binary_logits":
        zero = torch.zeros_like
        pairs = torch.stack([before, zero(before)], -1), torch.stack([difference, zero(difference)], -1)
        return _kl_of_logits(*pairs).sum(-1)
    if kind == "probabilities":
        return _kl_of_probabilities(before, difference)
    if kind == "binary_probabilities":
        return _kl_of_probabilities(torch.cat([before, 1 - before], -1), torch.cat([difference, -difference], -1))
    raise ValueError(f"change: kl needs a distribution, but {no_distribution(kind)}")


def for_outputs(change: Change, response: Response) -> Change:
    """The change function as it reads the outputs of this response; only `kl` reads them in more than one way. Over
    many places, such as pixels or tokens, it is the sum of what it is at each."""
    if change is not kl:
        return change
    classes = response.classes_by_place
    return partial(kl, kind=response.kind) if classes is None else partial(_kl_by_place, classes)


def _kl_by_place(classes: int, before: Tensor, difference: Tensor) -> Tensor:
    return _kl_of_logits(by_place(before, classes), by_place(difference, classes)).sum(-1)


def _kl_of_logits(z: Tensor, d: Tensor) -> Tensor:
    log_p = torch.log_softmax(z + d, dim=-1)
    p = log_p.exp()
    d = d.expand_as(p)
    d = d - d.gather(-1, p.argmax(-1, keepdim=True))  # KL does not see a common shift
    u = (p * d).sum(-1, keepdim=True) - d
    far = torch.exp(log_p + u) - p - p * u
    total = torch.where(u.abs() < 0.5, p * expm1_minus(u), far).sum(-1)
    log_total = torch.logsumexp(log_p + u, dim=-1)
    return torch.where(log_total < 1, torch.log1p(total), log_total)


def expm1_minus(u: Tensor) -> Tensor:
    """e^u − 1 − u for |u| < ½ by its series, u²/2 (1 + u/3 (1 + u/4 (1 + …)))."""
    u = u.clamp(-0.5, 0.5)
    series = torch.ones_like(u)
    for i in range(16, 2, -1):
        series = 1 + u / i * series
    return u * u / 2 * series


def _kl_of_probabilities(q: Tensor, dq: Tensor) -> Tensor:
    r = dq / q
    far = (1 + r) * torch.log1p(r) - r
    term = q * torch.where(r.abs() < 0.1, _bregman_series(r), torch.where(r <= -1, torch.ones_like(r), far))
    appeared = torch.where(dq > 0, torch.full_like(r, torch.inf), torch.zeros_like(r))
    return torch.where(q > 0, term, appeared).sum(-1)


def _bregman_series(r: Tensor) -> Tensor:
    """(1 + r) log(1 + r) − r = r²/2 − r³/6 + r⁴/12 − …, the n-th term being (−r)ⁿ/(n(n − 1)), for |r| < 0.1."""
    r = r.clamp(-0.1, 0.1)
    series = torch.zeros_like(r)
    for n in range(17, 1, -1):
        series = 1 / (n * (n - 1)) - r * series
    return r * r * series


SMALL = 1 << 18
"""The size of a response up to which the effect of noise is computed for every row."""


ROUNDED = 5e-3
"""The share by which the rounding of a probability may change a divergence; there is one at the source and one at the
target."""


def relative(response: Response, change: Change = euclidean) -> Float[Tensor, "n m"]:
    """How far the target moved, compared with the source itself:

        S_rel(x, x′) = |f(x′; w⁺) − f(x′; w)| / |f(x; w⁺) − f(x; w)|

    with the same change function above and below: `euclidean` (the absolute value for one output), `manhattan`, `kl`
    (Definition 2; summed over places where outputs are logits [k, …] of many, such as pixels), or your own.
    S_rel(x, x) = 1. A pair that is not clear of the rounding noise is NaN (`resolved`).

    Args:
        response: from `respond` or `respond_in_sequence`.
        change: the size of a change: `euclidean`, `manhattan`, `kl`, or a function (before, difference) → size.

    Returns:
        The similarities, [n, m]; NaN for pairs that are not resolved.

    Raises:
        ValueError: if `kl` is asked of outputs that are no distribution.

    >>> import torch, local_elasticity as le
    >>> problem = le.Problem.of(torch.nn.Linear(2, 3).double(), "cross_entropy")
    >>> response = le.respond(problem, (torch.eye(2).double(), torch.tensor([0, 1])), update=le.SGD(0.1))
    >>> le.relative(response, change=le.kl).diagonal()
    tensor([1., 1.], dtype=torch.float64)
    """
    return _scores(response, change).values


def source_change(response: Response, change: Change = euclidean) -> Float[Tensor, " n"]:
    """The denominator: how far each source itself moved; the mean over a minibatch that was stepped on at once.

    Args:
        response: from `respond` or `respond_in_sequence`.
        change: the size of a change: `euclidean`, `manhattan`, `kl`, or a function (before, difference) → size.

    Returns:
        How far each source moved, [n].

    Raises:
        ValueError: if `kl` is asked of outputs that are no distribution.

    >>> import torch, local_elasticity as le
    >>> problem = le.Problem.of(torch.nn.Linear(2, 1, bias=False), "half_mse")
    >>> le.source_change(le.respond(problem, (torch.zeros(1, 2), torch.ones(1))))
    tensor([0.])
    """
    own = for_outputs(change, response)(response.source_before, response.source_change)
    return own.mean(1) if response.minibatches else own


def noise_floor(response: Response, change: Change = euclidean) -> Float[Tensor, " n"]:
    """The smallest own change at which a source's row is resolved: the change caused by a difference of `RESOLVED`
    times the rounding noise. It is never zero, so that a source that does not move is not resolved.

    Args:
        response: from `respond` or `respond_in_sequence`.
        change: the size of a change: `euclidean`, `manhattan`, `kl`, or a function (before, difference) → size.

    Returns:
        The floor of each source, [n], in the unit of `change`.

    Raises:
        ValueError: if `kl` is asked of outputs that are no distribution.

    >>> import torch, local_elasticity as le
    >>> problem = le.Problem.of(torch.nn.Linear(2, 1), "half_mse")
    >>> response = le.respond(problem, (torch.eye(2), torch.full((2,), 9.0)))
    >>> bool((le.noise_floor(response) < le.source_change(response)).all())
    True
    """
    change = for_outputs(change, response)
    floor = _change_of_noise(change, response.source_before, RESOLVED * response.source_noise)
    if response.minibatches:
        floor = floor.mean(1)
    return floor.clamp_min(torch.finfo(floor.dtype).tiny)


def resolved(response: Response) -> Bool[Tensor, "n m"]:
    """Which pairs are known to a percent, of the similarity or of 1, whichever is larger: the source's own change is
    above its `noise_floor`, and the effect of the noise at the target is small compared with the larger of the two
    changes. What is infinite is not known.
    """
    own, moved = source_change(response), _target_change(response, euclidean)
    return _resolved(response, euclidean, own, moved, noise_floor(response))


def _scores(response: Response, change: Change) -> Scores:
    own, moved, floor = source_change(response, change), _target_change(response, change), noise_floor(response, change)
    clear = _resolved(response, change, own, moved, floor)
    if change is kl and response.kind == "binary_probabilities":
        clear &= _keeps_digits(response, own, moved)
    return Scores(torch.where(clear, moved / own[:, None], torch.nan), own, floor)


def _keeps_digits(response: Response, own: Float[Tensor, " n"], moved: Float[Tensor, "n m"]) -> Bool[Tensor, "n m"]:
    """Which pairs have the same divergences of probabilities f, but for `ROUNDED`, where those are a unit in the last
    place smaller: 1 − f, which the divergence reads, has few digits where f is nearly 1."""
    below = 1 - torch.finfo(response.source_before.dtype).eps
    other = replace(
        response, source_before=below * response.source_before, target_before=below * response.target_before
    )
    at_source = (source_change(other, kl) - own).abs() <= ROUNDED * own
    return at_source[:, None] & (
        (_target_change(other, kl) - moved).abs() <= ROUNDED * torch.maximum(own[:, None], moved)
    )


def _of_probabilities(response: Response) -> Scores:
    return _scores(response if response.kind == "numbers" else response.as_probabilities(), manhattan)


def _resolved(response: Response, change: Change, own: Tensor, moved: Tensor, floor: Tensor) -> Tensor:
    larger = torch.maximum(own[:, None], moved)
    clear_at_target = larger >= _at_targets(response, for_outputs(change, response))
    return (own >= floor)[:, None] & clear_at_target & larger.isfinite()


def _target_change(response: Response, change: Change) -> Float[Tensor, "n m"]:
    """The numerator."""
    return for_outputs(change, response)(response.target_before, response.target_change)


def _at_targets(response: Response, change: Change) -> Tensor:
    """The effect of the noise at the targets, [n, m]. Rows with the same noise scale are computed once, unless there
    are few rows: finding them takes longer, and a GPU would have to wait."""
    if response.target_before.ndim == 3 or response.target_change.numel() <= SMALL:
        noise = RESOLVED * response.noise_scale[:, None, None] * response.target_noise
        return _change_of_noise(change, response.target_before.expand_as(noise), noise)
    scale, row_of = response.noise_scale.unique(return_inverse=True)
    noise = RESOLVED * scale[:, None, None] * response.target_noise
    return _change_of_noise(change, response.target_before.expand_as(noise), noise)[row_of]


def _change_of_noise(change: Change, before: Tensor, noise: Tensor) -> Tensor:
    """The largest change that differences of this size make, over a few patterns of signs."""
    k = noise.shape[-1]
    if k == 1:
        return change(before, noise)
    patterns = _signs(k, noise.dtype, noise.device).view(4, *[1] * (noise.ndim - 1), k)
    return change(before, patterns * noise).amax(0)


@cache
def _signs(k: int, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "4 k"]:
    """Signs in turn, and three patterns at random."""
    generator = torch.Generator("cpu").manual_seed(0)
    signs = torch.randint(0, 2, (4, k), generator=generator, device="cpu") * 2 - 1
    signs[0, ::2], signs[0, 1::2] = 1, -1
    return signs.to(device, dtype)


RELATIVE = Measure(
    "relative",
    "how far a target's prediction moves, as a share of how far the source's own moves",
    partial(_scores, change=euclidean),
    ratio=True,
    axis="change at the target / at the source",
)
"""S_rel of the outputs, Euclidean (Definition 1)."""

RELATIVE_L1 = Measure(
    "relative_l1",
    "how far a target's predicted probabilities move, as a share of how far the source's own move",
    _of_probabilities,
    ratio=True,
    axis="change of probabilities, target / source",
)
"""S_rel of the probabilities, L1 (Definition 1 as Dan et al. use it); of plain numbers, L1."""

KL = Measure(
    "kl",
    "how far a target's predicted distribution moves (in KL divergence), as a share of how far the source's own moves",
    partial(_scores, change=kl),
    ratio=True,
    order=2,
    axis="KL divergence, target / source",
)
"""S_rel of the predicted distributions (Definition 2)."""
