"""What one step on each of c sources does to each layer: changes of weights, kept as the vectors they are made of."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.utils._pytree import tree_map

from local_elasticity.engine.coverage import Coverage
from local_elasticity.engine.inputs import take
from local_elasticity.engine.job import Job
from local_elasticity.engine.tape import Use
from local_elasticity.shapes import Float


@dataclass(frozen=True)
class LayerStep:
    """ΔW_i = Σ_l q_il a_ilᵀ and Δb_i = Σ_l q_il of a linear layer or convolution, for each source i.

    l runs over the places of the layer (patches of a convolution) and the examples of a minibatch; q carries −η. With
    weight decay, W and b shrink by the share `decay` = ηλ besides. The d numbers of a patch have their channels last.
    """

    a: Float[Tensor, "c l d"]
    q: Float[Tensor, "c l o"]
    weight: bool
    bias: bool
    decay: float

    @property
    def multiplied_out(self) -> Float[Tensor, "c o d"]:
        """Σ_l q_il a_ilᵀ, for when there are more places than the matrix has rows and columns."""
        return self.q.transpose(1, 2) @ self.a


@dataclass(frozen=True)
class ScaleStep:
    """Δγ_i and Δβ_i of the affine part of a normalisation, decay included; None where it does not step."""

    weight: Float[Tensor, "c ..."] | None
    bias: Float[Tensor, "c ..."] | None


Step = LayerStep | ScaleStep


@dataclass(frozen=True)
class Steps:
    """The steps of c sources, by the identity of the parameter tensors, and the loss gradients they come from."""

    of_tensor: dict[int, Step]
    loss_gradient: Float[Tensor, "c batch k"]

    @classmethod
    def on(cls, job: Job, coverage: Coverage, start: int, stop: int) -> Steps:
        """One backward pass over the sources start … stop − 1."""
        bound, c = job.bound, stop - start
        inputs = tree_map(lambda leaf: leaf.flatten(0, 1), take(job.source_inputs, slice(start, stop)))
        tape = coverage.record(bound, inputs)
        loss_gradient = bound.loss_gradients(tape.outputs, job.source_labels[start:stop])
        of_tensor: dict[int, Step] = {}
        for use, q in zip(tape.uses, tape.gradients_at_uses(loss_gradient.flatten(0, 1)[:, None]), strict=True):
            step = _step(job, use, q[:, 0], c)
            of_tensor |= {id(bound.params[name]): step for name in use.names}
        return cls(of_tensor, loss_gradient)


def _step(job: Job, use: Use, q: Tensor, c: int) -> Step:
    rate, decay = job.update.step_size, job.update.step_size * getattr(job.update, "weight_decay", 0.0)
    if use.kind == "scale":
        return _scale_step(job, use, q, c, rate, decay)
    a, at = (part.reshape(c, -1, part.shape[-1]) for part in use.places(q[:, None], channels_last=True))
    return LayerStep(a, -rate * at, use.weight is not None, use.bias is not None, decay)


def _scale_step(job: Job, use: Use, q: Tensor, c: int, rate: float, decay: float) -> ScaleStep:
    gradients = use.gradients(q[:, None])

    def moved(name: str | None) -> Tensor | None:
        if name is None:
            return None
        p = job.bound.params[name]
        return -rate * gradients[name].reshape(c, job.batch, *p.shape).sum(1) - decay * p

    return ScaleStep(moved(use.weight), moved(use.bias))
