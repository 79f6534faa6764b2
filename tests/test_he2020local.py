"""He & Su's experiments: stacked warm-ups are plain SGD, shared units are measured once, tables say what was measured."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import local_elasticity as le
from local_elasticity.models.small import fnn
from local_elasticity.papers.he2020local import warm_up
from local_elasticity.papers.he2020local.warm_up import Lesson, Schedule, learn_one, learn_two_layers
from tests.tolerances import SAME_IN_FLOAT64


def lesson(n, d, seed, rate=0.02):
    """Inputs with a few that never change, as the rims of images are."""
    generator = torch.Generator().manual_seed(100 + seed)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    x[:, : 1 + seed % 2] = -1.0
    return Lesson(x, (torch.arange(n) % 2).double(), rate * (1 + seed), seed)


def plain_sgd(lesson, schedule, width, activation):
    """One net in PyTorch's words: nn.MSELoss or nn.BCELoss, torch.optim.SGD, the same draws."""
    net = fnn(lesson.x.shape[1], width=width, activation=activation).double()
    Wb, V, c = warm_up.initial_weights(lesson.x.shape[1], width, seed=lesson.seed, device="cpu", dtype=torch.float64)
    linear = [m for m in net if isinstance(m, nn.Linear)]
    with torch.no_grad():
        linear[0].weight.copy_(Wb[:, :-1]), linear[0].bias.copy_(Wb[:, -1])
        linear[1].weight.copy_(V[None]), linear[1].bias.copy_(c[None])
    optimizer = torch.optim.SGD(net.parameters(), lr=lesson.rate)
    order = torch.Generator().manual_seed(lesson.seed)
    for epoch in torch.rand(schedule.epochs, len(lesson.x), generator=order).argsort(1):
        for rows in epoch.split(schedule.batch_size):
            optimizer.zero_grad()
            f = net(lesson.x[rows])[:, 0]
            loss = (
                nn.MSELoss()(f, lesson.y[rows]) if schedule.loss == "l2" else nn.BCELoss()(f.sigmoid(), lesson.y[rows])
            )
            loss.backward()
            optimizer.step()
    return net


@pytest.mark.parametrize("d", [4, 30], ids=["weights", "pre-activations"])
@pytest.mark.parametrize("activation", ["relu", "linear", "sigmoid"])
@pytest.mark.parametrize("loss", ["l2", "bce", "bce of probabilities"])
def test_stacked_warm_up_is_plain_sgd(d, activation, loss):
    """In the cheaper coordinates, batches of unequal size among them: the same predictions and the same kernel."""
    lessons = [lesson(20, d, seed) for seed in range(3)]
    schedule = Schedule(loss, epochs=6, batch_size=8)
    learned = learn_two_layers(lessons, schedule, width=70, activation=activation, device="cpu", dtype=torch.float64)
    for one, found in zip(lessons, learned, strict=True):
        expected = plain_sgd(one, schedule, 70, activation)
        assert torch.allclose(found.net(found.x), expected(one.x), rtol=SAME_IN_FLOAT64, atol=SAME_IN_FLOAT64)
        kernels = [le.ntk(le.Problem.of(net, "mse"), x) for net, x in ((found.net, found.x), (expected, one.x))]
        assert torch.allclose(*kernels, rtol=SAME_IN_FLOAT64)


@pytest.mark.parametrize("d", [4, 30], ids=["weights", "pre-activations"])
def test_units_that_fall_silent_are_left_out(d):
    """Examples that are close together: on one side of most units. Each net loses another number of them."""
    near = [
        replace(one, x=torch.where(one.x == -1, one.x, one.x / 20))
        for one in (lesson(20, d, s, 0.005) for s in range(3))
    ]
    schedule = Schedule("l2", epochs=6, batch_size=8)
    learned = learn_two_layers(near, schedule, width=300, activation="relu", device="cpu", dtype=torch.float64)
    assert 50 < len(learned[0].net[0].weight) < 250
    for one, found in zip(near, learned, strict=True):
        expected = plain_sgd(one, schedule, 300, "relu")
        assert torch.allclose(found.net(found.x), expected(one.x), rtol=SAME_IN_FLOAT64)
        kernels = [le.ntk(le.Problem.of(net, "mse"), x) for net, x in ((found.net, found.x), (expected, one.x))]
        assert torch.allclose(*kernels, rtol=SAME_IN_FLOAT64)


def test_a_net_does_not_depend_on_its_company():
    lessons = [lesson(20, 6, seed) for seed in range(4)]
    schedule = Schedule("l2", epochs=5, batch_size=5)
    options = {"width": 30, "activation": "relu", "device": "cpu", "dtype": torch.float64}
    together = learn_two_layers(lessons, schedule, **options)
    alone = learn_two_layers(lessons[2:3], schedule, **options)[0]
    assert torch.allclose(together[2].net(together[2].x), alone.net(alone.x), rtol=SAME_IN_FLOAT64)


def test_probabilities_that_round_to_one_have_no_gradient():
    f, y = torch.tensor([[30.0, 3.0]]), torch.zeros(1, 2)
    assert warm_up._loss_gradient(f, y, "bce of probabilities")[0, 0] == 0
    assert warm_up._loss_gradient(f, y, "bce")[0, 0] == 0.5


def test_any_net_can_be_warmed_up():
    one = lesson(20, 6, 0)
    schedule = Schedule("l2", epochs=5, batch_size=8)
    before = torch.get_rng_state()
    learned = [learn_one(one, schedule, lambda: fnn(6, width=30).double(), "cpu") for _ in range(2)]
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(learned[0].net(one.x), learned[1].net(one.x))
    assert (learned[0].net(one.x)[:, 0] - one.y).square().mean() < 0.3
