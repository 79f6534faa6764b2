"""Whether a step is small: deviations and orders beside the slow definition, verdicts, and what is refused."""

import copy

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import nn

import local_elasticity as le
from local_elasticity.engine.causes import NO_STEP
from tests.oracles.loop import looped_response
from tests.tolerances import SAME_AT_SMALL_STEPS


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 3)).double()


def examples(n=20, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 6, generator=generator, dtype=torch.float64), torch.arange(n) % 3


def by_definition(model, sources, rate, small=1e-7):
    """The median deviation and the rank correlation of `relative`, by the oracle loop."""

    def change(size):
        make = lambda copied: torch.optim.SGD(copied.parameters(), lr=size)
        return looped_response(model, nn.functional.cross_entropy, sources, sources[0], make)[1]

    found, limit = change(rate), change(small) * (rate / small)
    deviation = (found - limit).flatten(1).norm(dim=1) / limit.flatten(1).norm(dim=1)

    def pairs(changes):
        sizes = changes.norm(dim=2)
        return (sizes / sizes.diagonal()[:, None])[~torch.eye(len(sizes), dtype=torch.bool)]

    return float(np.median(deviation)), float(spearmanr(pairs(found), pairs(limit)).statistic)


@pytest.mark.parametrize("rate", [1e-2, 0.5, 5.0])
def test_deviation_and_order_are_the_definitions(rate):
    model, sources = net(), examples()
    found = le.check_step(model, sources, loss="cross_entropy", update=le.SGD(rate))
    deviation, order = by_definition(model, sources, rate)
    assert found.asked.deviation == pytest.approx(deviation, rel=SAME_AT_SMALL_STEPS, abs=1e-6)
    assert found.asked.rank_correlation == pytest.approx(order, abs=1e-3)
    assert found.asked.deviation_low <= found.asked.deviation <= found.asked.deviation_high
    assert (found.sources, found.targets, found.asked.step_size) == (20, 20, rate)


@pytest.mark.parametrize("measure", ["relative", "kl", "loss"])
def test_verdicts(measure):
    ask = lambda update: le.check_step(net(), examples(), loss="cross_entropy", update=update, measure=measure)
    assert ask(le.SGD(1e-4)).verdict == "small"
    assert ask(le.SGD("auto")).verdict in ("small", "moderate")
    far = ask(le.SGD(100.0))
    assert far.verdict == "large"
    assert far.recommended < 1
    assert far.frame()["verdict"].tolist() == [trial.verdict for trial in far.trials]
    assert "is large" in str(far)
    assert f"takes {far.recommended:g}" in str(far)


@pytest.mark.parametrize("layer", [nn.ReLU, nn.Tanh])
def test_a_step_whose_changes_overflow_is_large(layer, tmp_path):
    """Also if a few rows do not overflow, as where units die."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), layer(), nn.Linear(8, 8), layer(), nn.Linear(8, 3))
    with torch.no_grad():
        model[0].weight *= 30
    sources = torch.randn(30, 4), torch.arange(30) % 3
    found = le.check_step(model, sources, loss="cross_entropy", update=le.SGD(1e37))
    assert found.verdict == "large"
    assert "overflow; take a smaller step" in str(found)
    assert found.asked.deviation == np.inf
    found.plot().savefig(tmp_path / "steps.png")
    assert "inf" not in found.frame()["verdict"].tolist()
    assert "overflow" in le.write_report({"step": found}, tmp_path / "page.html").read_text()


def test_the_step_that_is_recommended_is_that_of_auto():
    found = le.check_step(net(), examples(), loss="cross_entropy", update=le.SGD(0.3))
    S = le.similarity(net(), examples(), loss="cross_entropy", update=le.SGD("auto"))
    assert found.recommended == S.attrs["step_size"]


def test_a_live_optimizer_has_its_own_step_alone():
    model, (x, y) = net(), examples()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.3)
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    before = copy.deepcopy(model.state_dict())
    found = le.check_step(model, (x, y), loss="cross_entropy", update=le.FromOptimizer(optimizer))
    assert (len(found.trials), found.recommended, found.verdict) == (1, None, "large")
    assert "keep this step" in str(found)
    assert all(torch.equal(before[name], one) for name, one in model.state_dict().items())


def test_a_learning_rate_of_zero_is_the_cause():
    model = net()
    update = le.FromOptimizer(torch.optim.SGD(model.parameters(), lr=0.0))
    found = le.check_step(model, examples(), loss="cross_entropy", update=update)
    assert (found.verdict, found.asked.step_size, found.cause) == ("unknown", 0, NO_STEP)
    assert str(found) == f"step size 0: no verdict, {NO_STEP}"
    found.plot()


@pytest.mark.parametrize("rates", [(0.01, 0.1), (0.0, 0.1)])
def test_parameter_groups_take_steps_of_their_own(rates):
    model, sources = net(), examples()

    def make(copied):
        layers = list(copied)
        groups = [
            {"params": [*layers[0].parameters()], "lr": rates[0]},
            {"params": [*layers[2].parameters(), *layers[4].parameters()], "lr": rates[1]},
        ]
        return torch.optim.SGD(groups, lr=1.0)

    found = le.check_step(model, sources, loss="cross_entropy", update=le.FromOptimizer(make(model)))

    def shrunk(copied):
        optimizer = make(copied)
        for group in optimizer.param_groups:
            group["lr"] *= 1e-6
        return optimizer

    change, limit = (
        looped_response(model, nn.functional.cross_entropy, sources, sources[0], one)[1] for one in (make, shrunk)
    )
    limit = 1e6 * limit
    deviation = (change - limit).flatten(1).norm(dim=1) / limit.flatten(1).norm(dim=1)
    assert found.asked.deviation == pytest.approx(float(deviation.quantile(0.5)), rel=SAME_AT_SMALL_STEPS, abs=1e-6)
    assert (found.step_sizes, found.asked.step_size, len(found.trials)) == (rates, rates[1], 1)
    assert str(found).startswith(f"step sizes {rates[0]:g} to {rates[1]:g} are ")
    found.plot()


def test_targets_and_many_sources_are_sampled():
    model, targets = net(), examples(50, seed=2)
    found = le.check_step(model, examples(100), targets, loss="cross_entropy", measure="loss")
    assert (found.sources, found.targets) == (30, 30)


def test_steps_below_rounding_are_unknown():
    model, (x, y) = net().float(), examples()
    found = le.check_step(model, (x.float(), y), loss="cross_entropy", update=le.SGD(1e-30))
    assert found.verdict == "unknown"
    assert "take a larger step" in str(found)
    assert found.trials[-1].verdict == "small"


def test_sources_without_a_gradient_are_said():
    model, x = net(), examples()[0]
    found = le.check_step(model, (x, model(x).detach()), loss="mse")
    assert (found.verdict, found.recommended) == ("unknown", None)
    assert "the loss gradient is exactly 0 at 20 of 20 sources" in str(found)
    found.plot()


def test_the_figure_has_every_step():
    found = le.check_step(net(), examples(), loss="cross_entropy", update=le.SGD(0.3))
    first, second = found.plot().axes
    assert all(len(axes.lines[0].get_xdata()) == len(found.trials) for axes in (first, second))


def test_what_is_refused():
    ask = lambda **options: le.check_step(net(), examples(), loss="cross_entropy", **options)
    for options, name in (
        ({"measure": "stiffness_cos"}, "measure"),
        ({"measure": ("relative", "kl")}, "measure"),
        ({"level": 2.0}, "level"),
        ({"resamples": 0}, "resamples"),
        ({"seed": -1}, "seed"),
        ({"update": 0.1}, "update"),
        ({"labels": "guessed"}, "labels"),
    ):
        with pytest.raises((ValueError, TypeError), match=f"^{name}: "):
            ask(**options)
    with pytest.raises(ValueError, match="^sources: a verdict needs at least 5"):
        le.check_step(net(), examples(4), loss="cross_entropy")
