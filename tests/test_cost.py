"""The cost model: found again from what it made, and the command that scales it up."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from typer.testing import CliRunner

import local_elasticity as le
from local_elasticity.cli import app
from local_elasticity.scale import cost
from local_elasticity.scale.cost import Cost

rates = st.floats(1e-7, 1e-2)


@settings(deadline=None)
@given(start=rates, source=rates, target=rates, pair=rates)
def test_what_made_the_measurements_is_found_again(start, source, target, pair):
    truth = Cost(start, source, target, pair)
    found = Cost.fit([(n, m, truth.seconds(n, m)) for n, m in cost.SIZES])
    for n, m in ((1000, 50), (50, 1000), (5000, 5000)):
        assert found.seconds(n, m) == pytest.approx(truth.seconds(n, m), rel=0.01)


def test_blocks_cost_their_edges_and_workers_share_them():
    one = Cost(0.1, 1e-3, 1e-3, 1e-6)
    assert one.in_blocks(2048, 2048) == pytest.approx(one.seconds(2048, 2048))
    assert one.in_blocks(8192, 8192) == pytest.approx(16 * one.seconds(2048, 2048))
    assert one.in_blocks(8192, 8192, workers=4) == pytest.approx(4 * one.seconds(2048, 2048))
    assert one.in_blocks(8192, 8192, workers=5) == pytest.approx(4 * one.seconds(2048, 2048))
    written = 4 * 8192**2 / cost.DRIVER_BYTES_A_SECOND
    assert Cost(0, 0, 0, 1e-12).in_blocks(8192, 8192, workers=1000) == pytest.approx(written)


def test_a_measured_cost_is_positive_and_names_the_engine():
    problem = le.Problem.of(nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 1)), "mse")
    found = Cost.measure(problem, (torch.randn(128, 4), torch.randn(128)))
    assert found.engine == "structured"
    assert np.isfinite(found.seconds(1000, 1000))
    assert found.seconds(1000, 1000) > 0


def test_half_a_minute_is_enough_for_slow_networks(monkeypatch):
    """Time passes only where responses are timed."""
    truth, now, timed, raced = Cost(0.1, 1e-2, 1e-4, 1e-3), [0.0], [], []

    def took(problem, pair, targets, update, engine, *, refine):
        seconds = truth.seconds(len(pair[1]), len(targets))
        now[0] += seconds
        timed.append((len(pair[1]), len(targets)))
        return seconds

    read = cost.Job.read
    monkeypatch.setattr(cost, "_timed", took)
    monkeypatch.setattr(cost.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(cost.Job, "read", lambda *given: (raced.append(len(given[2][0])), read(*given))[1])
    problem = le.Problem.of(
        nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)), "mse"
    )
    found = Cost.measure(problem, (torch.randn(1024, 4), torch.randn(1024)))
    assert now[0] < cost.SECONDS_TO_MEASURE
    assert len(set(timed)) >= 6
    assert raced == [cost.RACED]
    assert found.seconds(5000, 5000) == pytest.approx(truth.seconds(5000, 5000), rel=0.01)


def test_too_few_sources_are_refused():
    with pytest.raises(ValueError, match="sources: 4 are too few"):
        Cost.measure(le.Problem.of(nn.Linear(4, 1), "mse"), (torch.randn(4, 4), torch.randn(4)))


def test_the_command_shows_plans(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    answer = CliRunner().invoke(
        app,
        ["estimate", "--model", "fnn-32", "--shape", "5", "--sources", "3000", "--workers", "4", "--landmarks", "64"],
    )
    assert answer.exit_code == 0, answer.output
    for words in ("all pairs", "9.00e+06", "64 landmarks × n", "36 MB", "on 4 like this", "n m"):
        assert words in answer.output


def test_a_senseless_shape_is_refused():
    answer = CliRunner().invoke(app, ["estimate", "--model", "fnn-32", "--shape", "a,b"])
    assert isinstance(answer.exception, ValueError)
    assert "--shape" in str(answer.exception)
