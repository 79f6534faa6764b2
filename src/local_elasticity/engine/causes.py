"""Why sources did not move: the true cause in words, where it is not the size of the step."""

from __future__ import annotations

import torch
from torch import Tensor

from local_elasticity.engine.loss import NAMED
from local_elasticity.engine.response import Response
from local_elasticity.engine.update import Update, step_sizes_of
from local_elasticity.warn import warn

MOSTLY = 0.5
"""The share of sources that must not move for one reason before that reason is called the cause."""

NO_STEP = (
    "the learning rate of the optimizer is 0, so that no step is taken; measure after the warm-up has begun, or pass "
    "update=le.SGD(step_size)"
)


ROUNDING = (
    "the steps change predictions by less than rounding does; take a larger step, or measure in float64, "
    "problem.to(torch.float64)"
)
"""Why pairs are unresolved, where no other cause is known."""

TOO_LARGE = "the step changes predictions so much that they or their squares overflow; take a smaller step"
"""Why pairs are unresolved, where changes have no finite norm."""

NOT_FINITE = (
    "predictions before the step are NaN or infinite at {} of {} {}; look for NaN and infinity in the model's weights"
)

SURE = 1e-6
"""The probability of all other classes, below which a prediction is called saturated."""


class UnresolvedWarning(UserWarning):
    """Most pairs of a result are unresolved; the message says why."""


def warn_of_unresolved(measure: str, share: float, cause: str | None, *, takes_steps: bool = True) -> None:
    """Warn if most pairs of a measure have no value."""
    if share > MOSTLY:
        warn(unresolved_in_words(measure, share, cause, takes_steps=takes_steps), UnresolvedWarning)


def unresolved_in_words(measure: str, share: float, cause: str | None, *, takes_steps: bool = True) -> str:
    """How many pairs have no value, and why."""
    why = cause or (ROUNDING if takes_steps else "it is not defined there, as where a gradient is 0")
    return f"measure: {share:.0%} of the pairs of {measure} are unresolved: {why}"


def cause_of_unresolved(response: Response, *, of_probabilities: bool) -> str | None:
    """Why most pairs of a measure are unresolved, where it is known: the sources or their probabilities do not move."""
    found = cause_of_rest(response)
    if found or not of_probabilities or response.kind not in ("logits", "binary_logits"):
        return found
    before = response.source_before
    p = before.softmax(-1).amax(-1) if response.kind == "logits" else before.sigmoid().sub(0.5).abs().add(0.5).amin(-1)
    sure = int((1 - p.double() < SURE).reshape(len(p), -1).all(1).sum())
    if sure <= MOSTLY * len(p):
        return None
    return (
        f"the outputs of {sure} of {len(p)} sources are saturated (one class has a probability of 1 up to {SURE:g}), "
        'so that probabilities hardly move; measure="relative" reads the logits'
    )


def takes_no_step(update: Update) -> bool:
    """Whether the step size is 0, in all parameter groups."""
    return step_sizes_of(update) == [0.0]


def cause_of_rest(response: Response) -> str | None:
    """Why most sources did not move at all, and what to do; None if they moved."""
    if takes_no_step(response.update):
        return NO_STEP
    for name, before in (("sources", response.source_before), ("targets", response.target_before)):
        count = int((~before.isfinite()).flatten(1).any(1).sum())
        if count > MOSTLY * len(before):
            return NOT_FINITE.format(count, len(before), name)
    largest = response.source_change.flatten(1).abs().amax(1)
    if int((~(largest < torch.finfo(largest.dtype).max ** 0.5)).sum()) > MOSTLY * len(largest):
        return TOO_LARGE
    if response.loss_gradient is None:
        return None
    rests = (response.source_change == 0).flatten(1).all(1)
    flat = (response.loss_gradient == 0).flatten(1).all(1)
    saturated = _saturated(response)
    unreached = rests & ~flat & (response.noise_scale == 0)  # where nothing was subtracted, rounding hides nothing
    n = len(rests)
    resting, without_gradient, learned = (
        torch.stack([unreached, flat & rests, flat & saturated & rests]).sum(1).tolist()
    )
    if learned > MOSTLY * n:
        return (
            f"the loss gradient is exactly 0 at {learned} of {n} sources: their outputs are saturated, so that the "
            "network has nothing to learn from them in this precision; measure in float64, problem.to(torch.float64), "
            "or sources that it has not memorised"
        )
    if without_gradient > MOSTLY * n:
        return f"the loss gradient is exactly 0 at {without_gradient} of {n} sources: {_why_flat(response)}"
    if resting <= MOSTLY * n:
        return None
    return (
        f"{resting} of {n} sources have a loss gradient, but a step on them changes no prediction of theirs: the "
        "gradient reaches no parameter that steps, as where units are dead or the step underflows"
    )


def _why_flat(response: Response) -> str:
    """What makes the gradient of an example's loss zero where its outputs are not saturated."""
    if response.loss in NAMED:
        return "they are fitted exactly; measure sources that the network has still to learn"
    return (
        "the loss of a single example does not depend on its outputs there. A contrastive or ranking loss compares "
        "several examples, so pass source_batch_size=; a margin that is kept has no gradient either"
    )


def _saturated(response: Response) -> Tensor:
    """Which sources have outputs at the end of their range, where the gradient underflows."""
    before, kind = response.source_before, response.kind
    p = before
    if kind == "logits":
        p = before.softmax(-1)
    elif kind == "binary_logits":
        p = before.sigmoid()
    elif kind not in ("probabilities", "binary_probabilities"):
        return torch.zeros(len(before), dtype=torch.bool, device=before.device)
    return ((p == 0) | (p == 1)).flatten(1).all(1)
