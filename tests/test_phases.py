"""Schedules, and elastic phases: the half-life, the change-point, and how often the test cries wolf."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from local_elasticity.training import Every, Listed, LogSpaced, PerEpoch, change_point, half_life
from local_elasticity.training.phases import phases
from local_elasticity.training.schedule import resolve_schedule


@given(st.integers(1, 12), st.integers(1, 300), st.integers(0, 5))
def test_an_epoch_has_as_many_probes_as_asked_for(probes, extra, epoch):
    steps = probes + extra - 1
    schedule = PerEpoch(probes, steps_per_epoch=steps)
    due = [step for step in range(epoch * steps, (epoch + 1) * steps) if schedule.due(step)]
    assert len(due) == probes
    gaps = np.diff([*due, (epoch + 1) * steps])
    assert gaps.max() - gaps.min() <= 1


@given(st.integers(1, 12))
def test_log_spacing_is_what_it_says(per_decade):
    expected = {0} | {round(10 ** (i / per_decade)) for i in range(4 * per_decade + 1)}
    assert {step for step in range(10_001) if LogSpaced(per_decade).due(step)} == expected


def test_schedules_are_what_was_asked_for():
    assert resolve_schedule(5, None, 0.1) == Every(5)
    assert resolve_schedule(None, [3, 1], None) == Listed([1, 3])
    assert resolve_schedule(None, None, 0.1) == Every(1)
    assert resolve_schedule(np.int64(5), None, 0.1) == Every(5)
    for steps in (np.arange(0, 9, 3), {0, 3, 6}, range(0, 9, 3), torch.tensor([6, 3, 0]), [0.0, 3.0, 6.0]):
        assert resolve_schedule(None, steps, None) == Listed([0, 3, 6])
    for wrong in (lambda: PerEpoch(9, steps_per_epoch=5), lambda: PerEpoch(1, 0), lambda: LogSpaced(0)):
        with pytest.raises(ValueError, match=": expected (a whole number of at least 1|between 1 and)"):
            wrong()


def test_half_life_of_an_exponential():
    steps = np.arange(0, 400, 5)
    assert half_life(steps, 0.2 + 0.8 * np.exp(-steps / 30)) == pytest.approx(30 * np.log(2), rel=0.01)
    assert np.isnan(half_life([0, 1, 2], [0.5, 0.5, 0.5]))
    assert np.isnan(half_life([], []))
    assert half_life([0, 1, 2, 3], [1.0, np.nan, 0.4, 0.0]) == pytest.approx(2 - 0.1 / 0.6 * 2, abs=0.4)


def noise(memory, length, rng):
    """A stationary autoregression of variance 1."""
    series = rng.standard_normal(length)
    for i in range(1, length):
        series[i] = memory * series[i - 1] + np.sqrt(1 - memory**2) * series[i]
    return series


@pytest.mark.parametrize(("memory", "length"), [(0.5, 50), (0.8, 20), (0.8, 40)])
def test_the_change_point_test_seldom_cries_wolf(memory, length):
    """Without a change p < 0.05 in at most about 5 % of series; 100 series have a standard error of 2.2 points."""
    rng = np.random.default_rng(0)
    alarms = [change_point(range(length), noise(memory, length, rng), resamples=99).p_value < 0.05 for _ in range(100)]
    assert np.mean(alarms) < 0.05 + 3 * 0.022


def test_a_steady_drift_is_no_change():
    """The test does not see it at all, whatever the noise."""
    series, drift = noise(0.5, 30, np.random.default_rng(3)), np.linspace(0, 50, 30)
    assert change_point(range(30), series + drift).p_value == change_point(range(30), series).p_value
    assert change_point(range(30), drift).p_value == 1.0


def test_a_real_change_is_found_where_it_is():
    rng = np.random.default_rng(1)
    found = [
        change_point(range(50), np.where(np.arange(50) < 20, 1.0, 0.4) + 0.1 * noise(0.3, 50, rng)) for _ in range(30)
    ]
    assert np.mean([one.p_value < 0.05 for one in found]) > 0.9
    assert np.median([abs(one.step - 20) for one in found]) <= 1
    assert found[0].before > found[0].after
    assert change_point(range(4), [1.0, 1, 2, 2]).p_value == 1.0
    with pytest.raises(ValueError, match="5 steps do not fit 4"):
        change_point(range(5), range(4))


@pytest.mark.parametrize(("memory", "size"), [(0.0, 0.0), (0.0, 0.02), (0.0, 0.1), (0.6, 0.05)])
def test_a_decay_that_comes_to_rest_has_two_phases(memory, size):
    rng, t = np.random.default_rng(2), np.arange(60)
    found = [change_point(t, 0.2 + 0.8 * np.exp(-t / 8) + size * noise(memory, 60, rng)) for _ in range(10)]
    assert np.mean([one.p_value < 0.05 for one in found]) > 0.8


def test_phases_of_a_frame():
    steps = np.arange(0, 100, 2)
    inter = 0.1 + 0.7 * np.exp(-steps / 15)
    frame = pd.DataFrame({"step": steps, "measure": "kl", "within": 0.8, "between": inter, "ratio": inter / 0.8})
    (found,) = phases(frame).itertuples()
    assert found.first == pytest.approx(1.0)
    assert found.late < 0.2
    assert found.half_life == pytest.approx(15 * np.log(2), rel=0.1)
    assert found.before > found.after
