"""Losses by name, and what each one says about the network's outputs.

A loss is a function (outputs [b, ...], labels [b, ...]) → scalar, the mean over the b examples; a source stepped on
its own is a batch of one.

| name            | formula for one example                     | the outputs are        |
|-----------------|---------------------------------------------|------------------------|
| `mse`           | mean over outputs of (f − y)²               | numbers                |
| `half_mse`      | ½ ‖f − y‖², the squared loss of He & Su     | numbers                |
| `cross_entropy` | −log softmax(f)_y                           | logits                 |
| `nll`           | −f_y; as `cross_entropy` if f = log softmax | log-probabilities      |
| `bce`           | −y log f − (1 − y) log(1 − f)               | binary probabilities   |
| `bce_logits`    | the same at f = sigmoid(z)                  | binary logits          |

An example that is learned has a gradient close to 0, which p − 1 would give as a difference of nearly equal numbers.
The two losses of logits are written so that it keeps its digits: −log softmax(f)_y is −log sigmoid of f_y minus the
logsumexp of the others, and its gradient is p_j at j ≠ y and −Σ_{j≠y} p_j at y.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Kind = Literal["numbers", "logits", "logits_by_place", "probabilities", "binary_logits", "binary_probabilities"]
"""What k outputs are. Logits that have more than one axis, as those of every pixel or token, are `logits_by_place`."""

IGNORED = -100
"""The label that `cross_entropy` leaves out, as torch does, at places that have no class."""

LossFunction = Callable[[Tensor, Tensor], Tensor]


def mse(outputs: Tensor, labels: Tensor) -> Tensor:
    return F.mse_loss(outputs, _like(labels, outputs))


def half_mse(outputs: Tensor, labels: Tensor) -> Tensor:
    return 0.5 * (outputs - _like(labels, outputs)).square().sum() / len(outputs)


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    if labels.is_floating_point() and labels.shape != outputs.shape:
        raise TypeError(
            f"sources: cross_entropy expects whole-number class labels, not {labels.dtype}; pass labels.long()"
        )
    labels = labels if labels.is_floating_point() else labels.long()
    if labels.is_floating_point() or outputs.shape[1] == 1:
        return F.cross_entropy(outputs, labels)
    others = outputs.masked_fill(_is_own(outputs, labels), -torch.inf).logsumexp(1)
    own = outputs.gather(1, labels.clamp_min(0).unsqueeze(1)).squeeze(1)
    known = labels != IGNORED
    return -torch.where(known, F.logsigmoid(own - others), 0).sum() / known.sum()


def nll(outputs: Tensor, labels: Tensor) -> Tensor:
    """−f_y itself, for log-probabilities that do not stay normalized, as clamped ones."""
    if labels.is_floating_point():
        return -(labels * outputs).sum() / (outputs.numel() // outputs.shape[1])
    return F.nll_loss(outputs, labels.long(), ignore_index=IGNORED)


def bce(outputs: Tensor, labels: Tensor) -> Tensor:
    return F.binary_cross_entropy(outputs, _like(labels, outputs))


def bce_logits(outputs: Tensor, labels: Tensor) -> Tensor:
    y = _like(labels, outputs)
    return -(y * F.logsigmoid(outputs) + (1 - y) * F.logsigmoid(-outputs)).mean()


LOSSES: dict[str, tuple[LossFunction, Kind]] = {
    "mse": (mse, "numbers"),
    "half_mse": (half_mse, "numbers"),
    "cross_entropy": (cross_entropy, "logits"),
    "nll": (cross_entropy, "logits"),  # softmax leaves probabilities as they are; the gradient keeps its digits
    "bce": (bce, "binary_probabilities"),
    "bce_logits": (bce_logits, "binary_logits"),
}


TORCH: dict[Any, str] = {
    nn.MSELoss: "mse",
    F.mse_loss: "mse",
    nn.CrossEntropyLoss: "cross_entropy",
    F.cross_entropy: "cross_entropy",
    nn.NLLLoss: "nll",
    F.nll_loss: "nll",
    nn.BCELoss: "bce",
    F.binary_cross_entropy: "bce",
    nn.BCEWithLogitsLoss: "bce_logits",
    F.binary_cross_entropy_with_logits: "bce_logits",
}
"""Torch's own losses, as classes and as functions → the name they have here."""

NAMED = (*(function for function, _ in LOSSES.values()), nll)
"""Losses whose value on a batch is the mean over its examples, and whose gradient is known in closed form."""


NORMALIZED = 1e-2
"""How far the logarithm of a sum of probabilities may be from 0, in any precision."""


def check_log_probabilities(outputs: Tensor) -> None:
    """Raise a ValueError if outputs [b, k, …] are not logarithms of probabilities, as `nll` reads them."""
    off = outputs.detach().float().logsumexp(1).abs().amax() if outputs.ndim > 1 else torch.zeros(())
    if bool(off > NORMALIZED):
        raise ValueError(
            "loss: nll needs log-probabilities, but the exponentials of the outputs do not add up to 1; end the model "
            'with nn.LogSoftmax(1), or pass "cross_entropy" for logits'
        )


def check_probabilities(outputs: Tensor) -> None:
    """Raise a ValueError if outputs are not probabilities, as `bce` reads them."""
    if bool(((outputs < 0) | (outputs > 1)).any()):
        raise ValueError(
            "loss: bce needs probabilities, but outputs are below 0 or above 1; end the model with nn.Sigmoid(), or "
            'pass "bce_logits" for logits'
        )


def gradient_of(loss: LossFunction, outputs: Tensor, labels: Tensor) -> Tensor | None:
    """∂ℓ/∂f of every example on its own, [b, …], for the losses above; None for any other, or with places left out."""
    if has_classes_first(loss) and loss in NAMED:
        p, places = outputs.softmax(1), outputs[0, 0].numel()
        if labels.is_floating_point():
            return ((p * labels.sum(1, keepdim=True) if loss is cross_entropy else 0) - labels) / places
        labels = labels.long()
        if outputs.ndim > 2 and bool((labels == IGNORED).any()):
            return None
        own = _is_own(outputs, labels)
        if loss is nll:
            return -own.to(outputs.dtype) / places
        others = p.masked_fill(own, 0)
        return torch.where(own, -others.sum(1, keepdim=True), others) / places
    if loss not in NAMED:
        return None
    y = _like(labels, outputs)
    if loss is bce_logits:
        return ((1 - y) * torch.sigmoid(outputs) - y * torch.sigmoid(-outputs)) / outputs[0].numel()
    residual = outputs - y
    if loss is half_mse:
        return residual
    if loss is bce:
        residual = residual / (outputs * (1 - outputs)).clamp_min(1e-12)  # as torch bounds it
    k = outputs[0].numel()
    return 2 * residual / k if loss is mse else residual / k


def gradient_cancels(loss: LossFunction, labels: Tensor) -> bool:
    """Whether ∂ℓ/∂f loses digits where an example is learned, as any difference f − y does."""
    return not (loss is cross_entropy and not labels.is_floating_point())


def resolve_loss(loss: str | LossFunction, kind: Kind | None) -> tuple[str, LossFunction, Kind]:
    """The loss's name, the function, and the kind of output it is for (`kind` wins where it is given).

    Torch's own losses are those of the table; with weights, hooks or other settings they stay as they are, of the same
    kind.

    >>> resolve_loss(nn.CrossEntropyLoss(), None)[0], resolve_loss(nn.CrossEntropyLoss(label_smoothing=0.1), None)[2]
    ('cross_entropy', 'logits')
    """
    if kind is not None and kind not in get_args(Kind):
        raise ValueError(f"kind: {kind!r} is not one of {', '.join(get_args(Kind))}")
    if isinstance(loss, str):
        if loss not in LOSSES:
            raise ValueError(f"loss: {loss!r} is not one of {', '.join(LOSSES)}; a callable (outputs, labels) will do")
        function, usual = LOSSES[loss]
        return loss, function, kind or usual
    if not callable(loss):
        raise TypeError(f"loss: expected a name or a callable (outputs, labels) → scalar, got {type(loss).__name__}")
    known = _name_of_torch(loss)
    if known is not None and _as_by_default(loss):
        return resolve_loss(known, kind)
    usual = "numbers" if known is None else LOSSES[known][1]
    return getattr(loss, "__name__", type(loss).__name__), loss, kind or usual


def has_classes_first(loss: LossFunction | None) -> bool:
    """Whether a loss is a cross-entropy, ours or torch's, so that outputs [b, k, …] have their classes on axis 1."""
    known = _name_of_torch(loss)
    return loss in (cross_entropy, nll) or known in ("cross_entropy", "nll")


def no_distribution(kind: Kind) -> str:
    """Why outputs of this kind are not read as one distribution, and what to do."""
    if kind == "logits_by_place":
        return (
            "the outputs have more than one axis, and with this loss it is not known which of them are the classes; "
            "use cross_entropy, whose classes are on the first, or a measure of plain numbers"
        )
    return 'the outputs are plain numbers; if they are logits, say so with Problem.of(..., kind="logits")'


def _name_of_torch(loss: Any) -> str | None:
    """What a loss of torch is called here; None for any other, which need not be hashable."""
    known = type(loss) if isinstance(loss, nn.Module) else loss
    return TORCH.get(known) if isinstance(known, Hashable) else None


def _as_by_default(loss: LossFunction) -> bool:
    """Whether a loss of torch is as a new one: no other settings, no weights, no hooks and no `forward` of its own."""
    return not isinstance(loss, nn.Module) or _attributes(loss) == _attributes(type(loss)())


def _attributes(loss: nn.Module) -> dict[str, Any]:
    """Those that its value may depend on; neither the mode nor `compile()` changes it."""
    return {name: held for name, held in vars(loss).items() if name not in ("training", "_compiled_call_impl")}


def _is_own(outputs: Tensor, labels: Tensor) -> Tensor:
    """Which of the logits [b, k, …] is that of the label [b, …]."""
    classes = torch.arange(outputs.shape[1], device=outputs.device)
    return labels.unsqueeze(1) == classes.view(-1, *[1] * (outputs.ndim - 2))


def _like(labels: Tensor, outputs: Tensor) -> Tensor:
    """Labels in the shape and dtype of the outputs, so that [b] with [b, 1] never broadcasts to [b, b]."""
    if labels.numel() != outputs.numel():
        raise ValueError(
            f"sources: labels of shape {tuple(labels.shape)} do not fit outputs of shape {tuple(outputs.shape)}; "
            "this loss expects one number for every output"
        )
    return labels.reshape(outputs.shape).to(outputs.dtype)
