"""Sketched gradients: every example's gradient in a few thousand numbers, whose inner products are nearly the NTK's.

At a linear layer a gradient is a sum of outer products q aᵀ. TensorSketch (Pham & Pagh 2013) makes of q and of a the
count sketches C q and C′a, every entry put with a random sign into one of D buckets, and convolves them circularly,

    φ(q aᵀ) = F⁻¹(F(C q) ⊙ F(C′a)),   E ⟨φ(∇), φ(∇′)⟩ = ⟨∇, ∇′⟩,

so that the D numbers of an example cost as much as its activations, not D times its parameters. Gradients that are not
factored are count-sketched as they are. Sketches of layers are independent and add up. The standard error of an inner
product is a small multiple of ‖∇‖ ‖∇′‖/√D; on two-layer nets about 0.8 of it.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from local_elasticity.checks import check_count
from local_elasticity.engine.coverage import Coverage, with_coverage
from local_elasticity.engine.guard import untouched
from local_elasticity.engine.inputs import count, read_inputs, take
from local_elasticity.engine.jacobian import (
    Factors,
    Outer,
    columns_at_once,
    explicit_columns,
    jacobian_factors,
    layers_along,
    summed,
)
from local_elasticity.engine.job import check_labels, check_network
from local_elasticity.engine.memory import examples_at_once
from local_elasticity.engine.problem import Inputs, Problem, as_problem
from local_elasticity.shapes import Float

DIMENSION = 2048

AT_ONCE = 1 << 26
"""Numbers of count sketches that are convolved at once: examples times places times the dimension."""


@untouched
def gradient_sketch(
    problem: Problem | nn.Module, x: Any, *, dimension: int = DIMENSION, seed: int = 0, memory: int | None = None
) -> Float[Tensor, "n dimension"]:
    """Features φ(x) with ⟨φ(x), φ(x′)⟩ ≈ Θ(x, x′), the trace of the neural tangent kernel; the cost grows with n alone.

    Args:
        problem, x: as for `ntk`; a bare model needs no loss.
        dimension: numbers for each example; the error falls with its root.
        seed: of the random signs and buckets. Sketches with the same seed and dimension belong together.
        memory: bytes to work in; by default half of what is free.

    Returns:
        Features, [n, dimension], whose inner products approximate the kernel.

    Raises:
        ValueError, TypeError: what is wrong with an argument; the message begins with its name.

    >>> import torch, local_elasticity as le
    >>> problem, x = le.Problem.of(torch.nn.Linear(3, 1), "mse"), torch.eye(3)
    >>> phi = le.gradient_sketch(problem, x, dimension=4096)
    >>> bool((phi @ phi.T - le.ntk(problem, x)).abs().max() < 0.2)
    True
    """
    check_count("dimension", dimension, least=2)
    problem = problem if isinstance(problem, Problem) else as_problem(problem, "mse")
    with problem.bound() as bound:
        inputs = read_inputs(x, bound.device, bound.dtype, "x")
        outputs, size, _ = check_network(bound, inputs, None, ("x",))

        def sketched_with(coverage: Coverage) -> Tensor:
            columns = explicit_columns(bound, coverage) + 2 * dimension
            k = outputs[0].numel()
            rows = examples_at_once(bound, inputs, size, memory, gradients=k, columns=columns)
            sketch = Sketch(dimension, seed)
            parts = [
                sketch(jacobian_factors(bound, coverage, take(inputs, slice(i, i + rows)))[1])
                for i in range(0, count(inputs), rows)
            ]
            return torch.cat(parts)

        return with_coverage(bound, inputs, sketched_with)


def loss_gradient_sketch(
    problem: Problem, inputs: Inputs, labels: Tensor, sketch: Sketch, *, memory: int | None = None, name: str = "data"
) -> Float[Tensor, "n dimension"]:
    """Sketches of ∇ℓ(x), one for each example: ⟨φ(x), φ(x′)⟩ ≈ ⟨∇ℓ(x), ∇ℓ(x′)⟩. Gradients are held a layer at a time.

    Args:
        problem: the network and its loss.
        inputs, labels: examples that were read; errors call them `name`.
        sketch: signs and buckets, the same for all sketches that belong together.
        memory: bytes to work in; by default half of what is free.
    """
    with problem.bound() as bound:
        outputs, size, _ = check_network(bound, inputs, None, (name,))
        check_labels(bound, labels, outputs, name)

        def sketched_with(coverage: Coverage) -> Tensor:
            columns = columns_at_once(bound, coverage) + 2 * sketch.dimension
            rows = examples_at_once(bound, inputs, size, memory, gradients=1, columns=columns)
            parts = []
            for i in range(0, count(inputs), rows):
                few, asked = (take(part, slice(i, i + rows)) for part in (inputs, labels))
                tape = coverage.record(bound, few)
                cotangents = bound.loss_gradients(tape.outputs, asked[:, None])
                parts.append(summed(sketch(layer) for layer in layers_along(bound, coverage, tape, few, cotangents)))
            return torch.cat(parts)

        return with_coverage(bound, inputs, sketched_with).detach()


@dataclass(frozen=True)
class Sketch:
    """Random signs and buckets, drawn for each layer when it is first met."""

    dimension: int
    seed: int
    drawn: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def __call__(self, gradients: Factors) -> Float[Tensor, "b dimension"]:
        """The gradients of b examples along r cotangents each, together in `dimension` numbers."""
        parts = [self._outer(layer) for layer in gradients.outer]
        parts += [self.counted(part.flatten(1), name) for name, part in gradients.explicit.items()]
        return torch.stack(parts).sum(0)

    def counted(self, rows: Float[Tensor, "... w"], name: str) -> Float[Tensor, "... dimension"]:
        """Every one of w entries with a random sign in one of the buckets, which all get equally many."""
        places, signs = self._draw(name, rows.shape[-1], rows)
        return (rows[..., places] * signs).unflatten(-1, (-1, self.dimension)).sum(-2)

    def _outer(self, layer: Outer) -> Tensor:
        """TensorSketch, summed over places; the bias steps along an input that is always 1."""
        name = layer.weight or layer.bias or ""
        q = layer.q.transpose(1, 2).flatten(2)
        if layer.weight is None:
            return self.counted(q.sum(1), name)
        a = torch.cat([layer.a, torch.ones_like(layer.a[..., :1])], dim=-1) if layer.bias else layer.a
        rows = max(1, AT_ONCE // (a.shape[1] * self.dimension))
        parts = zip(q.split(rows), a.split(rows), strict=True)
        return torch.cat([self._convolved(one, other, name) for one, other in parts])

    def _convolved(self, q: Tensor, a: Tensor, name: str) -> Tensor:
        left, right = (
            torch.fft.rfft(self.counted(part, f"{name} {side}")) for side, part in (("output", q), ("input", a))
        )
        return torch.fft.irfft((left * right).sum(1), n=self.dimension)

    def _draw(self, name: str, width: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Which entry goes to which place, and its sign; 0 for places that are left over."""
        if name not in self.drawn:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + zlib.crc32(name.encode()))
            whole = -(-width // self.dimension) * self.dimension
            places = torch.randperm(whole, generator=generator)
            signs = torch.randint(0, 2, (whole,), generator=generator) * 2 - 1
            signs = torch.where(places < width, signs, 0)
            self.drawn[name] = places.clamp_max(width - 1).to(like.device), signs.to(like)
        return self.drawn[name]
