"""Labels that the model itself predicts, for sources that have none."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from local_elasticity.checks import check_choice
from local_elasticity.engine.guard import untouched
from local_elasticity.engine.inputs import LOADED_AT_ONCE, count, read_inputs, take
from local_elasticity.engine.problem import Inputs, Problem

LABELS = ("given", "predicted")
"""Where labels come from."""


def with_predicted_labels(problem: Problem, sources: Any, targets: Any, labels: str) -> tuple[Any, Any]:
    """Sources, and targets without labels of their own, with the labels that the model predicts now; as they are where
    labels are given."""
    check_choice("labels", labels, LABELS)
    if labels == "given":
        return sources, targets
    bare = isinstance(targets, Tensor) or (isinstance(targets, tuple) and len(targets) == 2 and targets[1] is None)
    return predicted(problem, sources, "sources"), predicted(problem, targets, "targets") if bare else targets


@untouched
def predicted(problem: Problem, examples: Any, name: str) -> tuple[Inputs, Tensor]:
    """(inputs, labels): the likeliest class of each example, or the likelier of two for every binary output."""
    if isinstance(examples, (tuple, list)) and len(examples) == 2 and isinstance(examples[1], Tensor):
        raise ValueError(f'{name}: they have labels already; leave labels="predicted" out, or pass (inputs, None)')
    inputs = examples[0] if isinstance(examples, (tuple, list)) and len(examples) == 2 else examples
    kind = problem.kind
    if kind == "numbers":
        raise ValueError(
            'labels: "predicted" needs outputs that are classes (cross_entropy, bce, bce_logits, or kind="logits"); '
            "plain numbers have no loss gradient where they are predicted, so that nothing would move"
        )
    with problem.bound() as bound, torch.no_grad():
        read = read_inputs(inputs, bound.device, bound.dtype, name)
        parts = [
            bound.outputs(bound.params, take(read, slice(i, i + LOADED_AT_ONCE)))
            for i in range(0, count(read), LOADED_AT_ONCE)
        ]
        outputs = torch.cat(parts)
    if kind in ("logits", "probabilities", "logits_by_place"):
        return read, outputs.argmax(1)
    return read, (outputs > (0.5 if kind == "binary_probabilities" else 0.0)).to(outputs.dtype)
