"""Gradients of the named losses are those that autograd takes."""

import pytest
import torch

from local_elasticity.engine.loss import LOSSES, gradient_of

SHAPES = {
    "mse": [(5,), (5, 1), (5, 3), (5, 2, 3)],
    "half_mse": [(5,), (5, 1), (5, 3)],
    "cross_entropy": [(5, 4), (5, 4, 3)],
    "bce": [(5, 1), (5, 2)],
    "bce_logits": [(5,), (5, 3)],
}


@pytest.mark.parametrize(("name", "shape"), [(name, shape) for name, shapes in SHAPES.items() for shape in shapes])
@pytest.mark.parametrize("soft", [False, True])
def test_closed_gradients_are_those_of_autograd(name, shape, soft):
    loss, kind = LOSSES[name]
    outputs = torch.randn(shape, dtype=torch.float64)
    outputs = (torch.sigmoid(outputs) if "probabilities" in kind else outputs).requires_grad_()
    labels = torch.rand(shape, dtype=torch.float64)
    if name == "cross_entropy" and not soft:
        labels = torch.randint(0, shape[1], (shape[0], *shape[2:]))
    elif not soft:
        labels = labels.round()
    total = sum(loss(outputs[i : i + 1], labels[i : i + 1]) for i in range(len(outputs)))
    (expected,) = torch.autograd.grad(total, outputs)
    torch.testing.assert_close(gradient_of(loss, outputs.detach(), labels), expected, rtol=1e-12, atol=1e-14)


def test_other_losses_have_no_closed_gradient():
    assert gradient_of(torch.nn.functional.l1_loss, torch.ones(2, 1), torch.ones(2, 1)) is None
