"""What one step on each of c sources does to a weight, kept as the vectors that the change is made of."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from local_elasticity.shapes import Float, Int


@dataclass(frozen=True)
class LowRank:
    """ΔW_i = Σ_l q_il a_ilᵀ of a linear layer or convolution, for each source i.

    l runs over the places of the layer (tokens, patches) and the examples of a minibatch; q carries the step size. The
    d numbers of a patch have their channels last. Where it is `transposed`, the weight is [d, o].
    """

    a: Float[Tensor, "c l d"]
    q: Float[Tensor, "c l o"]
    transposed: bool = False

    @property
    def pays(self) -> bool:
        """Whether its vectors take less work than the whole matrix: l (d + o) numbers against d o."""
        (places, d), o = self.a.shape[1:], self.q.shape[2]
        return places * (d + o) < d * o

    @property
    def matrices(self) -> Float[Tensor, "c o d"]:
        return self.q.transpose(1, 2) @ self.a

    def dense(self, shape: torch.Size) -> Float[Tensor, "c ..."]:
        """The change of a weight of this shape."""
        if len(shape) > 2:
            images: Tensor = self.matrices.unflatten(2, (*shape[2:], shape[1]))
            return images.movedim(-1, 2)
        return self.matrices.transpose(1, 2) if self.transposed else self.matrices


@dataclass(frozen=True)
class TokenRows:
    """The rows of an embedding that l tokens of each source change, and by how much."""

    tokens: Int[Tensor, "c l"]
    g: Float[Tensor, "c l d"]

    def dense(self, shape: torch.Size) -> Float[Tensor, "c v d"]:
        found = self.g.new_zeros(len(self.g), *shape)
        return found.scatter_add_(1, self.tokens[:, :, None].expand_as(self.g), self.g)


@dataclass(frozen=True)
class WeightChange:
    """The change of a weight: the sum of the contributions of all its uses, minus the share `decay` of the weight."""

    parts: tuple[LowRank | TokenRows, ...]
    decay: float

    def dense(self, weight: Tensor) -> Float[Tensor, "c ..."]:
        total = self.parts[0].dense(weight.shape)
        for part in self.parts[1:]:
            total = total + part.dense(weight.shape)
        return total - self.decay * weight if self.decay else total
