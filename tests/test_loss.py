"""Gradients of the named losses are those that autograd takes."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import local_elasticity as le
from local_elasticity.engine.loss import LOSSES, gradient_of, nll, resolve_loss
from tests.oracles.loop import looped_loss_change, looped_response
from tests.test_engines import assert_same_rows

SHAPES = {
    "mse": [(5,), (5, 1), (5, 3), (5, 2, 3)],
    "half_mse": [(5,), (5, 1), (5, 3)],
    "cross_entropy": [(5, 4), (5, 4, 3)],
    "nll": [(5, 4), (5, 4, 3)],
    "bce": [(5, 1), (5, 2)],
    "bce_logits": [(5,), (5, 3)],
}


@pytest.mark.parametrize(("name", "shape"), [(name, shape) for name, shapes in SHAPES.items() for shape in shapes])
@pytest.mark.parametrize("soft", [False, True])
def test_closed_gradients_are_those_of_autograd(name, shape, soft):
    loss, kind = (nll, "logits") if name == "nll" else LOSSES[name]
    outputs = torch.randn(shape, dtype=torch.float64)
    outputs = (torch.sigmoid(outputs) if "probabilities" in kind else outputs).requires_grad_()
    labels = torch.rand(shape, dtype=torch.float64)
    if name in ("cross_entropy", "nll") and not soft:
        labels = torch.randint(0, shape[1], (shape[0], *shape[2:]))
    elif not soft:
        labels = labels.round()
    total = sum(loss(outputs[i : i + 1], labels[i : i + 1]) for i in range(len(outputs)))
    (expected,) = torch.autograd.grad(total, outputs)
    torch.testing.assert_close(gradient_of(loss, outputs.detach(), labels), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("shape", [(3, 200), (3, 200, 2)])
def test_labels_in_bytes_are_all_classes(shape):
    """−100, which is left out, is 156 in bytes."""
    outputs = torch.randn(shape, dtype=torch.float64).requires_grad_()
    labels = torch.full((3, *shape[2:]), 156, dtype=torch.uint8)
    loss = LOSSES["cross_entropy"][0]
    torch.testing.assert_close(loss(outputs, labels), F.cross_entropy(outputs, labels.long()))
    (expected,) = torch.autograd.grad(3 * F.cross_entropy(outputs, labels.long()), outputs)
    torch.testing.assert_close(gradient_of(loss, outputs.detach(), labels), expected)


OF_TORCH = {"cross_entropy": F.cross_entropy, "bce_logits": F.binary_cross_entropy_with_logits}


@pytest.mark.parametrize("shape", [(6, 1), (6, 4), (6, 4, 3)])
@pytest.mark.parametrize("soft", [False, True])
def test_cross_entropy_is_that_of_torch(shape, soft):
    """With places left out, too."""
    outputs = (5 * torch.randn(shape, dtype=torch.float64)).requires_grad_()
    labels = torch.rand(shape, dtype=torch.float64) if soft else torch.randint(0, shape[1], (6, *shape[2:]))
    if not soft and len(shape) == 3:
        labels[:2, 1:] = -100
    found, expected = LOSSES["cross_entropy"][0](outputs, labels), F.cross_entropy(outputs, labels)
    gradients = (torch.autograd.grad(loss, outputs)[0] for loss in (found, expected))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", OF_TORCH)
def test_the_gradient_of_a_learned_example_has_all_its_digits(name):
    """Where torch's own p − 1 has lost some or all of them."""
    loss, outputs = LOSSES[name][0], torch.tensor([[20.0, 1.5, -1.0], [-3.0, 12.0, -9.0]])
    labels = torch.tensor([0, 1]) if name == "cross_entropy" else (outputs > 0).float()
    truth = gradient_of(loss, outputs.double(), labels)
    by_hand = gradient_of(loss, outputs, labels).double()
    taken = outputs.requires_grad_()
    by_autograd, of_torch = (torch.autograd.grad(2 * f(taken, labels), taken)[0] for f in (loss, OF_TORCH[name]))
    wrong = lambda found: ((found - truth).abs() / truth.abs()).max()
    assert wrong(by_hand) < 1e-5
    assert wrong(by_autograd.double()) < 1e-5
    assert wrong(of_torch.double()) > 1e-3


def test_other_losses_have_no_closed_gradient():
    assert gradient_of(torch.nn.functional.l1_loss, torch.ones(2, 1), torch.ones(2, 1)) is None


@pytest.mark.parametrize(
    ("name", "module", "function"),
    [
        ("mse", nn.MSELoss, F.mse_loss),
        ("cross_entropy", nn.CrossEntropyLoss, F.cross_entropy),
        ("bce", nn.BCELoss, F.binary_cross_entropy),
        ("bce_logits", nn.BCEWithLogitsLoss, F.binary_cross_entropy_with_logits),
    ],
)
def test_losses_of_torch_are_known_by_name(name, module, function):
    assert resolve_loss(module(), None) == resolve_loss(function, None) == (name, *LOSSES[name])
    assert resolve_loss(module().eval(), None)[0] == name
    summed = module(reduction="sum")
    assert resolve_loss(summed, None) == (module.__name__, summed, LOSSES[name][1])
    assert resolve_loss(module(), "numbers")[2] == "numbers"


def _changed(change):
    loss = nn.CrossEntropyLoss()
    change(loss)
    return loss


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(weight=torch.ones(3)),
        nn.CrossEntropyLoss(ignore_index=0),
        nn.CrossEntropyLoss(label_smoothing=0.1),
        nn.BCEWithLogitsLoss(pos_weight=torch.ones(1)),
        type("Own", (nn.CrossEntropyLoss,), {})(),
        _changed(lambda loss: loss.register_forward_pre_hook(lambda module, args: (args[0] / 4, args[1]))),
        _changed(lambda loss: loss.register_forward_hook(lambda module, args, out: 4 * out)),
        _changed(lambda loss: loss.register_full_backward_hook(lambda module, into, out: None)),
        _changed(lambda loss: setattr(loss, "forward", lambda outputs, labels: F.cross_entropy(outputs / 4, labels))),
    ],
)
def test_losses_of_torch_with_settings_stay_as_they_are(loss):
    _, function, kind = resolve_loss(loss, None)
    assert function is loss
    assert kind == {nn.CrossEntropyLoss: "logits", nn.BCEWithLogitsLoss: "binary_logits"}.get(type(loss), "numbers")


@pytest.mark.parametrize("loss", ["nll", nn.NLLLoss(), F.nll_loss])
@pytest.mark.parametrize("measure", ["relative", "kl", "loss"])
def test_nll_is_that_of_torch(loss, measure):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(1)).double()
    x, y = torch.randn(6, 4).double(), torch.arange(6) % 3

    def literal(outputs, labels):
        return F.nll_loss(outputs, labels)

    found = le.similarity(net, (x, y), loss=loss, measure=measure)
    expected = le.similarity(le.Problem.of(net, literal, kind="logits"), (x, y), measure=measure, engine="looped")
    np.testing.assert_allclose(found.values, expected.values, rtol=1e-5, atol=1e-12)


def test_nll_keeps_the_digits_of_a_learned_example():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(1))
    with torch.no_grad():
        net[0].bias.copy_(torch.tensor([25.0, 0.0, 0.0]))
    x, y = torch.randn(6, 4), torch.zeros(6, dtype=torch.long)
    S = le.similarity(net, (x, y), loss=nn.NLLLoss(), measure="kl")
    logits = le.similarity(net[0], (x, y), loss="cross_entropy", measure="kl")
    np.testing.assert_allclose(S.values, logits.values, rtol=1e-2)


class Clamped(nn.Module):
    """Log-probabilities of a confident network, those of unlikely classes clamped; of one place or of three."""

    def __init__(self, places, write=torch.clamp):
        super().__init__()
        self.places, self.write = places, write
        self.hidden, self.head = nn.Linear(4, 8), nn.Linear(8, 3 * max(places, 1))
        with torch.no_grad():
            self.head.weight.mul_(10)

    def forward(self, x):
        z = self.head(torch.tanh(self.hidden(x)))
        z = z.unflatten(1, (3, self.places)) if self.places else z
        return torch.log(self.write(z.softmax(1), min=1e-3))


@pytest.mark.parametrize("places", [0, 3])
@pytest.mark.parametrize("engine", ["auto", "looped", "vmapped", "structured"])
def test_nll_of_clamped_probabilities_is_that_of_torch(places, engine):
    """Their sum is not constant, so that the gradient of the cross-entropy is another one."""
    torch.manual_seed(0)
    net, x = Clamped(places).double(), torch.randn(8, 4).double()
    y, optimizer = net(x).argmax(1).roll(3, 0), lambda model: torch.optim.SGD(model.parameters(), lr=0.1)
    _, target = looped_response(net, F.nll_loss, (x, y), x, optimizer)
    found = le.respond(net, (x, y), loss="nll", update=le.SGD(0.1), engine=engine)
    assert_same_rows(found.target_change, target)
    assert "nll is computed as −f_y" in " ".join(found.notes)
    change = looped_loss_change(net, F.nll_loss, (x, y), (x, y), optimizer)
    np.testing.assert_allclose(le.loss_change(found), change, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("after", [nn.Identity(), nn.Unflatten(1, (3, 1)), nn.Flatten()], ids=str)
def test_nll_of_log_softmax_keeps_its_digits_in_any_shape(after):
    net, x, y = nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(1), after), torch.randn(6, 4), torch.arange(6) % 3
    y = y[:, None] if isinstance(after, nn.Unflatten) else y
    found = le.respond(net, (x, y), loss="nll", update=le.SGD(0.1))
    assert "nll" not in " ".join(found.notes)


def test_nll_of_logits_is_refused():
    net, sources = nn.Linear(4, 3), (torch.randn(6, 4), torch.arange(6) % 3)
    with pytest.raises(ValueError, match=r"loss: nll needs log-probabilities.*nn.LogSoftmax"):
        le.similarity(net, sources, loss=nn.NLLLoss())
