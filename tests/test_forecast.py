"""The forecast against a fine-tune that is really run: copy the model, step it with torch.optim, predict."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import local_elasticity as le
from local_elasticity.api.forecast import Outlook
from local_elasticity.measures.margin import losses, margins
from local_elasticity.statistics.ranking import auroc, auroc_interval
from local_elasticity.training.language import answer_problem, token_sources
from tests.tolerances import ROUNDING, SAME_IN_FLOAT64


def images(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 6, generator=generator, dtype=torch.float64)


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 3)).double()


def examples(net, n=5, m=30):
    """New examples with labels that the network gets wrong, and old ones, some of which it gets wrong."""
    new, old = images(n, seed=1), images(m, seed=2)
    with torch.no_grad():
        wrong, labels = (net(new).argmax(1) + 1) % 3, net(old).argmax(1)
    labels[:4] = (labels[:4] + 1) % 3
    return (new, wrong), (old, labels)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9),
    "nesterov and decay": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.003),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.02),
}


def fine_tuned(net, optimizer, new, steps, batch_size, clip=None):
    """The oracle: a deep copy that torch.optim steps, batch after batch."""
    moved = copy.deepcopy(net)
    made = type(optimizer)(list(moved.parameters()), lr=1.0)
    made.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    x, y = new
    size = batch_size or len(y)
    parts = [slice(i, i + size) for i in range(0, len(y), size)]
    for step in range(steps):
        rows = parts[step % len(parts)]
        made.zero_grad()
        F.cross_entropy(moved(x[rows]), y[rows]).backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(moved.parameters(), clip)
        made.step()
    return moved


def same(forecast, moved, old):
    x, y = old
    with torch.no_grad():
        outputs = moved(x)
    assert np.allclose(forecast.old.after, outputs.numpy(), rtol=0, atol=SAME_IN_FLOAT64)
    frame = forecast.frame()
    expected = F.cross_entropy(outputs, y, reduction="none").numpy()
    assert np.allclose(frame["loss_forecast"], expected, rtol=0, atol=SAME_IN_FLOAT64)
    assert (frame["lost"] == (~frame["wrong_before"] & (outputs.argmax(1) != y).numpy())).all()


@pytest.mark.parametrize("batch_size", [None, 2])
@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_taking_every_step_is_the_fine_tune(name, live, batch_size):
    net = network()
    new, old = examples(net)
    optimizer = OPTIMIZERS[name](net.parameters())
    for _ in range(3 * live):
        optimizer.zero_grad()
        F.cross_entropy(net(old[0]), old[1]).backward()
        optimizer.step()
    found = le.forecast(
        net,
        new,
        old,
        loss="cross_entropy",
        update=le.FromOptimizer(optimizer),
        steps=5,
        batch_size=batch_size,
        virtual=5,
    )
    same(found, fine_tuned(net, optimizer, new, 5, batch_size), old)
    assert np.isnan(found.nonlinearity)


@pytest.mark.parametrize("virtual", [1, 3, 5])
@pytest.mark.parametrize("batch_size", [None, 2])
@pytest.mark.parametrize(
    ("update", "name"), [(le.SGD(0.05), "sgd"), (le.Adam(0.01), "adam")], ids=lambda value: str(value)[:4]
)
def test_virtual_steps_then_one_that_is_extrapolated_are_exact(update, name, batch_size, virtual):
    """From any number of steps on, one more is no extrapolation."""
    net = network()
    new, old = examples(net)
    found = le.forecast(
        net, new, old, loss="cross_entropy", update=update, steps=virtual + 1, batch_size=batch_size, virtual=virtual
    )
    same(found, fine_tuned(net, OPTIMIZERS[name](net.parameters()), new, virtual + 1, batch_size), old)


def of_the_hardest(outputs, labels):
    each = F.cross_entropy(outputs, labels, reduction="none")
    return each.topk(min(2, len(each))).values.mean()


@pytest.mark.parametrize("n", [5, 70], ids=["rows of examples", "rows of batches"])
@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(reduction="sum"),
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 9.0, 0.1], dtype=torch.float64)),
        of_the_hardest,
    ],
    ids=["sum", "weights", "hardest"],
)
def test_the_loss_of_a_batch_need_not_be_the_mean_over_its_examples(loss, n):
    net = network()
    new, old = examples(net, n)
    problem, options = le.Problem.of(net, loss, kind="logits"), {"update": le.SGD(1e-4), "batch_size": 3, "steps": 6}
    found = le.forecast(problem, new, old, **options, simulate=True)
    moved, real = (part.old.after - part.old.before for part in (found, found.simulated))
    assert np.linalg.norm(moved - real) < 0.01 * np.linalg.norm(real)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_step_is_exact(name):
    net = network()
    new, old = examples(net)
    optimizer = OPTIMIZERS[name](net.parameters())
    found = le.forecast(net, new, old, loss="cross_entropy", update=le.FromOptimizer(optimizer), steps=1)
    same(found, fine_tuned(net, optimizer, new, 1, None), old)


def test_clipping_is_part_of_every_step():
    net = network()
    new, old = examples(net)
    optimizer = OPTIMIZERS["momentum"](net.parameters())
    update = le.FromOptimizer(optimizer, clip_norm=0.1)
    found = le.forecast(net, new, old, loss="cross_entropy", update=update, steps=4, virtual=4)
    same(found, fine_tuned(net, optimizer, new, 4, None, clip=0.1), old)


@pytest.mark.parametrize("batch_size", [None, 2])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("virtual", [0, 2])
def test_it_is_exact_where_outputs_are_linear_in_the_weights(batch_size, momentum, virtual):
    """One linear output under the squared loss: transfer does not change, and the residual is all of the gradient."""
    torch.manual_seed(0)
    net = nn.Linear(6, 1).double()
    new, old = (images(5, 1), 10 + images(5, 3)[:, 0]), (images(20, 2), images(20, 4)[:, 0])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=momentum)
    options = {"update": le.FromOptimizer(optimizer), "steps": 12, "batch_size": batch_size, "virtual": virtual}
    found = le.forecast(net, new, old, loss="half_mse", drop=1.0, **options)
    moved = copy.deepcopy(net)
    made, size = torch.optim.SGD(moved.parameters(), lr=0.01, momentum=momentum), batch_size or 5
    parts = [slice(i, i + size) for i in range(0, 5, size)]
    for step in range(12):
        x, y = (part[parts[step % len(parts)]] for part in new)
        made.zero_grad()
        (0.5 * (moved(x)[:, 0] - y).square().mean()).backward()
        made.step()
    assert np.allclose(found.old.after, moved(old[0]).detach().numpy(), rtol=0, atol=SAME_IN_FLOAT64)
    rise = found.old.loss_after - found.old.loss_before
    assert np.allclose(found.old.margin_after, 1 - rise, rtol=0, atol=ROUNDING)
    assert (found.frame()["lost"] == (rise >= 1)).all()


def softmax_regression(n=6):
    """Logits that are linear in the weights, new examples with another label each, and old ones."""
    torch.manual_seed(0)
    net = nn.Linear(6, 4).double()
    new, old = images(n, seed=1), images(200, seed=2)
    return net, (new, (net(new).argmax(1) + 1) % 4), (old, net(old).argmax(1))


@pytest.mark.parametrize("batch_size", [None, 3])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_the_turning_of_loss_gradients_is_followed(batch_size, momentum):
    """Transfer between logits does not change here, but the loss gradient of an example turns as it is learned. Its
    present direction alone makes changes that are too large by half."""
    net, new, old = softmax_regression()
    update = le.FromOptimizer(torch.optim.SGD(net.parameters(), lr=0.1, momentum=momentum))
    options = {"loss": "cross_entropy", "update": update, "steps": 60, "batch_size": batch_size}
    found = le.forecast(net, new, old, **options, simulate=True)
    check = le.ForecastCheck.of(found.old, found.simulated.old)
    assert check.slope == pytest.approx(1, abs=0.01)
    assert check.rank_correlation > 0.999
    assert abs(check.forecast_lost - check.lost) <= 2 < check.lost
    np.testing.assert_allclose(found.new.loss_after, found.simulated.new.loss_after, rtol=0.05)


def test_the_walk_is_gradient_descent_along_few_directions():
    """With fewer directions than gradients turn to, the loss of the new examples falls all the same. Shares of the loss
    gradients themselves, in place of those of the displacements, make it rise to seven times what it was."""
    torch.manual_seed(0)
    net = nn.Linear(6, 30).double()
    new = 5 + images(40, seed=1), torch.randint(30, (40,), generator=torch.Generator().manual_seed(3))
    old = 5 + images(50, seed=2)
    options = {"loss": "cross_entropy", "update": le.SGD(0.1), "steps": 200}
    found = le.forecast(net, new, (old, net(old).argmax(1)), **options, simulate=True)
    before, after, real = found.new.loss_before, found.new.loss_after, found.simulated.new.loss_after
    assert after.mean() < 0.5 * (before.mean() + real.mean())


def test_a_batch_that_is_learned_already_moves_nothing():
    net = nn.Linear(2, 2, bias=False).double()
    nn.init.eye_(net.weight)
    far = 1e5 * torch.eye(2).double()
    new = torch.cat([far, -0.1 * torch.eye(2).double()]), torch.tensor([0, 1, 0, 1])
    old = images(20, seed=2)[:, :2], torch.arange(20) % 2
    for update in (le.SGD(0.01), le.Adam(0.01)):
        options = {"loss": "cross_entropy", "update": update, "steps": 6, "batch_size": 2}
        found = le.forecast(net, new, old, **options, simulate=True)
        assert le.ForecastCheck.of(found.old, found.simulated.old).rank_correlation > 0.9


def test_probabilities_and_the_range_of_the_number_lost():
    net = network()
    new, old = examples(net, n=6, m=200)
    options = {"loss": "cross_entropy", "update": le.SGD(0.05), "steps": 15}
    found = le.forecast(net, new, old, **options, simulate=True)
    before, after, right = found.old.margin_before, found.old.margin_after, found.old.right
    spread = found.total_nonlinearity * np.sqrt(np.mean((after - before)[right] ** 2))
    expected = torch.special.ndtr(torch.from_numpy(-after[right] / spread)).numpy()
    assert np.allclose(found.frame()["probability"][right], expected, rtol=0, atol=ROUNDING)
    assert np.isnan(found.probability[~right]).all()
    low, high = found.lost_range
    moved = [before + (1 + off) * (after - before) for off in (-found.total_nonlinearity, found.total_nonlinearity)]
    assert sorted((low, high)) == sorted(int((right & (one <= 0)).sum()) for one in moved)
    assert low <= found.old.lost.sum() <= high
    assert f"will be lost ({low} to {high} if changes are off by {found.total_nonlinearity:.0%})" in repr(found)
    walked = found.simulated
    assert walked.lost_range == (walked.old.lost.sum(),) * 2
    assert (walked.probability[right] == walked.old.lost[right]).all()
    assert "if changes are off" not in repr(walked)
    other = {"total_nonlinearity": float("nan")}, {"update": le.Adam(0.01)}
    for unknown in (dataclasses.replace(found, **change) for change in other):
        assert unknown.lost_range is None
        assert np.isnan(unknown.probability).all()
    assert dataclasses.replace(found, update=le.Adam(0.01), virtual=8).lost_range == (low, high)


def test_it_beats_the_margin_and_virtual_steps_help():
    net = network()
    new, old = examples(net, n=6, m=200)
    found = [
        le.forecast(net, new, old, loss="cross_entropy", update=le.SGD(0.05), steps=15, virtual=v, simulate=True)
        for v in (0, 5)
    ]
    checks = [le.ForecastCheck.of(one.old, one.simulated.old) for one in found]
    assert checks[0].auroc > checks[0].margin_auroc + 0.1
    assert checks[1].auroc >= checks[0].auroc
    assert checks[1].rank_correlation > checks[0].rank_correlation > 0.8
    assert found[0].simulated.seconds > 0


def test_more_new_examples_than_rows_are_taken_batch_by_batch():
    net = network()
    new, old = examples(net, n=70, m=40)
    found = le.forecast(net, new, old, loss="cross_entropy", update=le.SGD(0.05), steps=9, batch_size=32, simulate=True)
    assert le.ForecastCheck.of(found.old, found.simulated.old).rank_correlation > 0.8


def test_nothing_is_changed():
    net = network().train()
    new, old = examples(net)
    optimizer = OPTIMIZERS["adam"](net.parameters())
    F.cross_entropy(net(old[0]), old[1]).backward()
    optimizer.step()

    def everything():
        state = copy.deepcopy((net.state_dict(), optimizer.state_dict(), [p.grad for p in net.parameters()]))
        return state, net.training, torch.get_rng_state(), torch.is_grad_enabled()

    before = everything()
    found = le.forecast(
        net,
        new,
        old,
        loss="cross_entropy",
        update=le.FromOptimizer(optimizer),
        steps=8,
        virtual=2,
        batch_size=2,
        simulate=True,
    )
    found.check(net)
    torch.testing.assert_close(everything()[0], before[0], rtol=0, atol=0)
    assert everything()[1] == before[1]
    assert torch.equal(everything()[2], before[2])
    assert everything()[3] == before[3]


def test_examples_that_are_wrong_already_are_counted_apart():
    net = network()
    new, old = examples(net)
    found = le.forecast(net, new, old, loss="cross_entropy", update=le.SGD(0.05), steps=10, simulate=True)
    frame = found.frame()
    assert frame["wrong_before"].tolist() == [True] * 4 + [False] * 26
    assert frame["risk"].isna().tolist() == frame["wrong_before"].tolist()
    assert not frame["lost"][:4].any()
    assert set(found.at_risk(100)) == set(range(4, 30))
    top = found.at_risk(3)
    assert frame["risk"][top].tolist() == sorted(frame["risk"].dropna(), reverse=True)[:3]
    assert "4 of 30 are wrong already" in repr(found)
    assert {"margin_simulated", "lost_simulated", "label"} <= set(frame)


def test_where_all_are_wrong_already_it_says_so():
    net = network()
    new, (x, _) = examples(net, m=10)
    wrong = x, (net(x).argmax(1) + 1) % 3
    found = le.forecast(net, new, wrong, loss="cross_entropy", update=le.SGD(0.05), steps=10)
    assert "old: all 10 are wrong already, so that none can be lost" in repr(found)
    assert len(found.at_risk(3)) == 0
    assert found.lost_range == (0, 0)


def test_a_check_reads_the_model_after():
    net = network()
    new, old = examples(net, n=6, m=100)
    found = le.forecast(net, new, old, loss="cross_entropy", update=le.SGD(0.05), steps=10)
    moved = fine_tuned(net, OPTIMIZERS["sgd"](net.parameters()), new, 10, None)
    check = found.check(moved)
    for same_thing in (moved.state_dict(), le.Problem.of(moved, "cross_entropy")):
        assert repr(found.check(same_thing)) == repr(check)
    net.load_state_dict(moved.state_dict())
    assert repr(found.check(net)) == repr(check)
    assert check.lost == int((~found.frame()["wrong_before"] & (moved(old[0]).argmax(1) != old[1]).numpy()).sum())
    assert check.low <= check.auroc <= check.high
    with pytest.raises(TypeError, match="model_after: expected the model"):
        found.check(3)
    with pytest.raises(ValueError, match="model_after: it gives 2 outputs"):
        found.check(nn.Linear(6, 2).double())
    with pytest.raises(ValueError, match=r"model_after: the model does not take one example of float64 \(1, 6\)"):
        found.check(nn.Linear(5, 3).double())
    weights = moved.state_dict()
    of_a_wrapper = {f"module.{name}": tensor for name, tensor in weights.items()}
    for other, words in (
        (of_a_wrapper, "model_after: 0.weight is missing"),
        ({**weights, "0.weight": weights["0.weight"][:2]}, r"model_after: 0.weight has the shape \(2, 6\)"),
        ({**weights, "0.weight": "a"}, "model_after: 0.weight is a str"),
    ):
        with pytest.raises((ValueError, TypeError), match=words):
            found.check(other)


def test_a_check_by_hand():
    before = np.zeros((5, 1))
    margin_before = np.array([1.0, 2.0, 3.0, 4.0, -1.0])
    loss_before = np.array([0.5, 0.4, 0.3, 0.2, 2.0])
    forecast = Outlook(
        before, np.array([[1.0], [2.0], [3.0], [4.0], [0.0]]), loss_before, loss_before + np.array([1, 2, 3, 4, 0]),
        margin_before, np.array([-1.0, 1.0, -2.0, 3.0, -1.0]),
    )  # fmt: skip
    real = Outlook(
        before, np.array([[2.0], [4.0], [6.0], [8.0], [0.0]]), loss_before, loss_before + np.array([1, 3, 2, 4, 0]),
        margin_before, np.array([2.0, -1.0, -2.0, 3.0, -1.0]),
    )  # fmt: skip
    check = le.ForecastCheck.of(forecast, real)
    assert (check.right, check.lost, check.forecast_lost, check.both) == (4, 2, 2, 1)
    assert check.auroc == 0.75  # risks 1, -1, 2, -3; the second and third are lost: 3 of 4 pairs in order
    assert check.margin_auroc == 0.5
    assert check.slope == pytest.approx(2)
    assert check.rank_correlation == pytest.approx(1)
    assert check.loss_rank_correlation == pytest.approx(0.9)  # one exchange of neighbours: 1 - 6·2/(5·24)
    assert check.calibration["examples"].sum() == 4
    assert "real changes are 2.00 times those forecast" in repr(check)


def test_auroc_by_hand():
    assert auroc(np.array([1.0, 2.0, 2.0, 3.0]), np.array([0, 1, 0, 1])) == 0.875
    assert np.isnan(auroc(np.arange(3.0), np.ones(3, dtype=bool)))
    low, high = auroc_interval(np.arange(50.0), np.arange(50) > 25)
    assert low == high == 1
    assert np.isnan(auroc_interval(np.array([]), np.array([], dtype=bool))).all()


def test_margins_by_hand():
    by_place = torch.tensor([[[3.0, 0.0, 9.0], [1.0, 2.0, 0.0]]])  # two classes at three places
    assert margins(by_place, torch.tensor([[0, 1, -100]]), "logits").tolist() == [2.0]
    assert margins(by_place, torch.tensor([[0, 0, -100]]), "logits").tolist() == [-2.0]
    assert margins(torch.tensor([[2.0], [-1.0]]), torch.tensor([1.0, 1.0]), "binary_logits").tolist() == [2.0, -1.0]
    assert margins(torch.tensor([0.75, 0.75]), torch.tensor([1, 0]), "binary_probabilities").tolist() == [0.25, -0.25]
    soft = torch.tensor([[0.2, 0.8]])
    assert margins(torch.tensor([[1.0, 3.0]]), soft, "logits").tolist() == [2.0]
    assert margins(torch.ones(2, 1), torch.ones(2), "numbers") is None
    own = losses(lambda f, y: (f - y).abs().mean(), torch.tensor([[1.0], [5.0]]), torch.tensor([[0.0], [1.0]]))
    assert own.tolist() == [1.0, 4.0]


def test_a_loss_of_tokens_is_lost_when_an_answer_changes():
    """Logits of several places: the smallest margin counts."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 15), nn.Unflatten(1, (5, 3))).double()
    x = torch.randn(20, 4).double()
    y = net(x).argmax(1)
    found = le.forecast(
        net, (x[:3], (y[:3] + 1) % 5), (x[3:], y[3:]), loss="cross_entropy", update=le.SGD(0.3), steps=4, virtual=4
    )
    moved = fine_tuned(net, torch.optim.SGD(net.parameters(), lr=0.3), (x[:3], (y[:3] + 1) % 5), 4, None)
    assert (found.frame()["lost"] == (moved(x[3:]).argmax(1) != y[3:]).any(1).numpy()).all()


def test_sequences_are_lost_when_they_become_less_likely():
    from local_elasticity.training.language import sequence_problem, sequences

    torch.manual_seed(0)
    problem = sequence_problem(nn.Sequential(nn.Embedding(6, 8), nn.Linear(8, 6)))
    new, old = sequences(torch.randint(0, 6, (4, 5))), sequences(torch.randint(0, 6, (12, 5)))
    found = le.forecast(problem, new, old, update=le.SGD(0.1), steps=5, drop=0.1, simulate=True)
    rise = found.simulated.old.loss_after - found.simulated.old.loss_before
    assert (found.simulated.old.lost == (rise >= 0.1)).all()
    assert le.ForecastCheck.of(found.old, found.simulated.old).loss_rank_correlation > 0.9


def test_a_fine_tune_that_wrecks_the_network_is_refused():
    net = network()
    new, old = examples(net)
    options = {"loss": "cross_entropy", "update": le.SGD(1e3), "steps": 5}
    with pytest.raises(
        ValueError, match="the step is too large for a forecast: one step is .* Take a smaller step size"
    ):
        le.forecast(net, new, old, **options)
    assert le.forecast(net, new, old, virtual=5, **options).virtual == 5
    linear = nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 3)).double()
    with pytest.raises(ValueError, match="predictions become infinite or NaN"):
        le.forecast(linear, new, old, loss="cross_entropy", update=le.SGD(1e300), steps=3, virtual=3)


def conflicting():
    """A network, new examples whose labels have nothing to do with their inputs, and old ones."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3)).double()
    new, old = 4 * images(16, seed=1), 4 * images(30, seed=2)
    return net, (new, torch.arange(16) % 3), (old, net(old).argmax(1))


def test_steps_that_overshoot_are_refused():
    net, new, old = conflicting()
    with pytest.raises(ValueError, match="the steps overshoot, and the loss of the new examples would rise from 1.1"):
        le.forecast(net, new, old, loss="cross_entropy", update=le.SGD(1.0), steps=20)


def test_the_automatic_step_and_batch_norm():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).double()
    new, old = examples(net.eval())
    found = le.forecast(net.train(), new, old, loss="cross_entropy", update=le.SGD("auto"), steps=3, virtual=3)
    same(found, fine_tuned(net.eval(), torch.optim.SGD(net.parameters(), found.update.step_size), new, 3, None), old)


def test_it_says_how_far_it_extrapolates():
    net, new, old = conflicting()
    near, far = (
        le.forecast(net, new, old, loss="cross_entropy", update=le.SGD(0.3), steps=steps) for steps in (1, 999)
    )
    assert near.total_nonlinearity == pytest.approx(near.nonlinearity)
    assert far.total_nonlinearity > 0.5 > near.total_nonlinearity
    assert "trust the ranking more than the sizes" in repr(far)
    assert "trust the ranking" not in repr(near)
    adam = le.forecast(*softmax_regression(), loss="cross_entropy", update=le.Adam(0.001), steps=6)
    assert "6 steps are extrapolated from 1, but steps of this optimizer do not shrink with the gradient" in repr(adam)
    assert "how many will be lost is not forecast" in repr(adam)
    assert adam.frame()["lost"].isna().all()
    assert "will be lost" in repr(dataclasses.replace(adam, virtual=2))


def test_moments_of_earlier_steps_are_told_of():
    net = network()
    new, old = examples(net)
    optimizer = OPTIMIZERS["adam"](net.parameters())
    F.cross_entropy(net(old[0]), old[1]).backward()
    optimizer.step()
    found = le.forecast(net, new, old, loss="cross_entropy", update=le.FromOptimizer(optimizer), steps=3)
    assert "moments of earlier steps" in repr(found)
    assert "Adam, step size 0.01" in repr(found)


def test_it_is_drawn_and_told():
    net = network()
    new, old = examples(net)
    found = le.forecast(net, new, old, loss="cross_entropy", update=le.SGD(0.05), steps=10, virtual=2)
    assert repr(found).splitlines()[0].startswith("Forecast of 10 steps on all new examples (SGD(step_size=0.05")
    assert "from 2 virtual steps" in repr(found)
    assert repr(found).splitlines()[1] in found._repr_html_().replace("<br>", "\n")
    assert found.plot().axes[0].get_xlabel() == "margin before"


def test_the_rates_of_parameter_groups_are_told():
    net = network()
    new, old = examples(net)
    groups = [{"params": [*net[0].parameters()], "lr": 0.1}, {"params": [*net[3].parameters()], "lr": 0.01}]
    update = le.FromOptimizer(torch.optim.SGD(groups, lr=1.0))
    found = le.forecast(net, new, old, loss="cross_entropy", update=update, steps=4, virtual=4)
    assert repr(found).startswith("Forecast of 4 steps on all new examples (SGD, step sizes 0.01 to 0.1), every step")
    slower = le.forecast(net, new, old, loss="cross_entropy", update=le.SGD(0.01), steps=4, virtual=4)
    assert np.abs(found.old.after - found.old.before).sum() > np.abs(slower.old.after - slower.old.before).sum()


x, y = images(6), torch.arange(6) % 3
BAD = {
    "empty new": ({"new": (x[:0], y[:0])}, "new: there are no examples"),
    "no new": ({"new": ()}, "new: there are no examples"),
    "empty old": ({"old": (x[:0], y[:0])}, "old: there are no examples"),
    "new without labels": ({"new": x}, r"new: expected a pair \(inputs, labels\)"),
    "old without labels": ({"old": x}, r"old: expected a pair \(inputs, labels\)"),
    "labels that are none": ({"old": (x, None)}, "old: labels must be a tensor"),
    "fewer labels": ({"old": (x, y[:4])}, "old: 6 inputs but labels of shape"),
    "another class": ({"old": (x, y + 7)}, "old: "),
    "a class of new": ({"new": (x, y + 7)}, "new: "),
    "other inputs": ({"old": (x[:, :4], y)}, "old: "),
    "no steps": ({"steps": 0}, "steps: expected a whole number of at least 1, got 0"),
    "steps backwards": ({"steps": -3}, "steps: expected a whole number"),
    "half a step": ({"steps": 2.5}, "steps: expected a whole number"),
    "endless steps": ({"steps": 10**20}, "steps: expected at most 1,000,000"),
    "no batch": ({"batch_size": 0}, "batch_size: expected a whole number of at least 1"),
    "virtual below 0": ({"virtual": -1}, "virtual: expected a whole number of at least 0"),
    "too many virtual steps": ({"virtual": 6, "steps": 40}, "virtual: expected at most 5, got 6"),
    "an optimizer": ({"update": torch.optim.SGD([torch.ones(1)], lr=1.0)}, "update: an optimizer was given; wrap it"),
    "a negative drop": ({"drop": -1.0}, "drop: expected a positive number"),
    "numbers": ({"loss": "mse", "new": (x, x[:, :3]), "old": (x, x[:, :3])}, "drop: the outputs decide for no class"),
    "drift": (
        {"update": lambda net: le.FromOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), drift="remove")},
        "update: a fine-tune takes whole steps",
    ),
    "no learning rate": (
        {"update": lambda net: le.FromOptimizer(torch.optim.Adam(net.parameters(), lr=0.0))},
        "update: the learning rate of the optimizer is 0, so that no step is taken",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    net = network()
    options, words = BAD[name]
    given = {"new": (x, y), "old": (x, y), "loss": "cross_entropy", "update": le.SGD(0.01), "steps": 4, **options}
    given["update"] = given["update"](net) if callable(given["update"]) else given["update"]
    with pytest.raises((ValueError, TypeError), match=words):
        le.forecast(net, **given)


class TinyGPT(nn.Module):
    """One block over six tokens; logits [b, T, 12]."""

    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Embedding(12, 16), nn.Embedding(6, 16)
        self.qkv, self.up, self.down = nn.Linear(16, 48), nn.Linear(16, 32), nn.Linear(32, 16)
        self.head = nn.Linear(16, 12)

    def forward(self, ids):
        x = self.embed(ids) + self.place(torch.arange(ids.shape[1]))
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(x + self.down(F.gelu(self.up(x))))


def language(seed=0):
    """A model that knows most of 24 short texts; two unknown ones, of other lengths."""
    torch.manual_seed(seed)
    net = TinyGPT().double()
    old, new = torch.randint(12, (24, 5)), torch.randint(12, (2, 5))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    for _ in range(150):
        optimizer.zero_grad()
        F.cross_entropy(net(old)[:, 1:-1].flatten(0, 1), old[:, 2:].flatten()).backward()
        optimizer.step()
    return net, *(_answers(tokens) for tokens in (new, old)), old


def _answers(tokens):
    """Two tokens are the prompt; the second text is one token shorter."""
    mask, labels = torch.ones_like(tokens), tokens.clone()
    labels[:, :2] = -100
    mask[1, -1], labels[1, -1] = 0, -100
    return token_sources({"input_ids": tokens, "attention_mask": mask, "labels": labels})


def _trained_on_answers(net, optimizer, new, steps):
    inputs, labels = new
    for _ in range(steps):
        optimizer.zero_grad()
        logits = net(inputs["input_ids"])[:, :-1]
        F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=-100).backward()
        optimizer.step()


def _greedy(net, inputs, labels, tokens):
    """Whether decoding from the prompt gives the answer, token by token."""
    right = []
    for row, wanted in zip(tokens, labels, strict=True):
        shown = row[:2]
        answer = wanted[wanted != -100]
        for _ in answer:
            shown = torch.cat([shown, net(shown[None])[0, -1].argmax()[None]])
        right.append(torch.equal(shown[2:], answer))
    return np.array(right)


@pytest.mark.parametrize("kind", ["all", "frozen", "params", "lora"])
def test_a_language_model_is_forecast_as_it_is_fine_tuned(kind):
    """Every step taken in a copy is the real fine-tune of all weights, of those not frozen, of those selected, and of
    adapters; an answer is right exactly where greedy decoding gives it."""
    net, new, old, tokens = language()
    params = None
    if kind == "frozen":
        net.embed.requires_grad_(False)
    if kind == "params":
        params = r"model\.(up|down)\."
    if kind == "lora":
        peft = pytest.importorskip("peft", reason="peft is not installed")
        net = peft.get_peft_model(net, peft.LoraConfig(r=2, target_modules=["qkv", "up"])).double()
    problem = answer_problem(net, params=params)
    moved = copy.deepcopy(net)
    stepped = [p for p in moved.parameters() if p.requires_grad]
    if kind == "params":
        stepped = [*moved.up.parameters(), *moved.down.parameters()]
    assert len(stepped) == len(problem.stepped)
    rate = 0.05 if kind == "lora" else 0.003
    _trained_on_answers(moved, torch.optim.Adam(stepped, lr=rate), new, 5)
    found = le.forecast(problem, new, old, update=le.Adam(rate), steps=5, virtual=5)
    check = found.check(answer_problem(moved, params=".*"))
    frame = found.frame()
    assert (~frame["wrong_before"] == _greedy(net, *old, tokens)).all()
    assert ((found.old.margin_after > 0) == _greedy(moved, *old, tokens)).all()
    assert 0 < check.lost == check.both == check.forecast_lost
    assert check.slope == pytest.approx(1, abs=SAME_IN_FLOAT64)
    fallen = le.forecast(problem, new, old, update=le.Adam(rate), steps=5, virtual=5, drop=0.5)
    inputs, labels = old
    for row in range(24):
        answer = labels[row] != -100
        values = [
            F.cross_entropy(one(inputs["input_ids"][row : row + 1])[0, :-1][answer], labels[row][answer]).item()
            for one in (net, moved)
        ]
        assert fallen.old.lost[row] == (values[1] - values[0] > 0.5)
