"""Locality, comparisons and class pairs: right on planted structure, quiet on noise, and the same digits everywhere."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import local_elasticity as le
from local_elasticity.report.pairs import pairs_of
from local_elasticity.report.run import Panel, Run, Side
from local_elasticity.statistics.comparison import compared
from tests.tolerances import most_false


def planted(rng, n=30, within=1.0, between=0.4, noise=0.2):
    labels = np.arange(n) % 3
    same = labels[:, None] == labels
    return np.where(same, within, between) * np.exp(noise * rng.standard_normal((n, n))), labels


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([0.0, 1.0, np.nan], "source_labels: example 2 has no class"),
        (["a", "b", None], "source_labels: example 2 has no class"),
        (np.array([1, "b", 1], dtype=object), "source_labels: expected numbers or texts, got both"),
        (np.zeros((3, 2)), r"source_labels: expected 3 classes, one for each example, got shape \(3, 2\)"),
    ],
)
def test_labels_with_gaps_are_refused_wherever_they_are_given(labels, words):
    net, S, x = torch.nn.Linear(2, 2), np.eye(3), (torch.randn(3, 2), torch.arange(3) % 2)
    for call in (
        lambda: le.locality(S, labels),
        lambda: le.class_pairs(S, labels),
        lambda: le.as_similarity(S, source_labels=labels),
        lambda: le.similarity(net, x, loss="cross_entropy", source_labels=labels),
        lambda: le.Monitor(net, x, loss="cross_entropy", source_labels=labels, every=1),
    ):
        with pytest.raises(ValueError, match=f"^{words}"):
            call()


def test_classes_that_do_not_move_each_other_at_all_are_local():
    """Zeros between classes are no tie with those of permuted classes; zeros at random places are not local."""
    classes = np.repeat(["a", "b"], 12)
    values = np.where(classes[:, None] == classes, np.random.default_rng(0).random((24, 24)), 0.0)
    found = le.locality(values, classes, measure="relative")
    assert (found.verdict, found.times) == ("local", np.inf)
    assert found.headline.endswith("most examples of other classes not at all.")
    draw = np.random.default_rng(1)
    noise = draw.random((24, 24))
    noise[noise < 0.6] = 0
    verdicts = [le.locality(noise, draw.permutation(classes), measure="relative").verdict for _ in range(20)]
    assert verdicts.count("local") + verdicts.count("hardly local") <= 2


def test_locality_is_the_median_over_pairs():
    S, labels = planted(np.random.default_rng(0))
    found = le.locality(S, labels)
    same, itself = labels[:, None] == labels, np.eye(len(S), dtype=bool)
    assert found.within == np.median(S[same & ~itself])
    assert found.between == np.median(S[~same])
    assert found.ratio == found.between / found.within
    assert found.low < found.ratio < found.high
    assert found.high - found.low < 0.2
    assert found.baseline == pytest.approx(1, abs=0.1)
    assert found.p_value == 1 / 200
    assert (found.pairs_within, found.pairs_between) == (3 * 10 * 9, 30 * 20)
    assert "2.5× (2.3–2.6×)" in str(found)


def test_a_verdict_is_about_how_far_and_not_about_the_order_of_a_measure():
    """0.7 of a quadratic measure is 0.84 of the change: 1.2 times as far, and hardly local; of a linear one, local."""
    labels = np.arange(60) % 3
    rng = np.random.default_rng(0)
    S = np.where(labels[:, None] == labels, 1.0, 0.7) * np.exp(0.02 * rng.normal(size=(60, 60)))
    verdicts = {name: le.locality(S, labels, measure=name).verdict for name in ("relative", "kl")}
    assert verdicts == {"relative": "local", "kl": "hardly local"}
    root = le.locality(np.sqrt(S), labels, measure="relative")
    assert root.times == pytest.approx(le.locality(S, labels, measure="kl").times, rel=1e-6)
    assert root.verdict == verdicts["kl"]


def test_tables_of_locality_have_no_columns_that_nothing_was_computed_for(caplog):
    from local_elasticity.training.history import History, Probe

    history = History(["kl", "loss"], ["a", "b", "a", "b"], ["a", "b", "a", "b"], square=True)
    S = np.random.default_rng(0).uniform(0.5, 1.0, (4, 4))
    history.append(Probe(0, {"kl": S, "loss": -S}, 0.1, "looped"))
    table = history.locality()
    assert table[table["measure"] == "kl"].notna().all(axis=None)
    assert "low" not in table
    assert "verdict" not in table
    assert caplog.messages == [
        "locality: the ratio of loss is NaN at every step: the median within classes is "
        f"{table['within'][1]:.3g}, and a ratio needs one above 0"
    ]
    whole = history.locality(resamples=20, permutations=19)
    assert {"low", "times_low", "baseline", "verdict"} <= set(whole)
    assert whole["times"][0] == pytest.approx(whole["ratio"][0] ** -0.5)


def test_labels_at_random_have_no_locality():
    rng = np.random.default_rng(1)
    alarms = 0
    for _ in range(60):
        S, labels = planted(rng, between=1.0)
        alarms += le.locality(S, labels, resamples=0, permutations=59).p_value <= 0.05
    assert alarms <= 8  # 60 draws at a nominal 5 %


def test_intervals_hold_the_ratio():
    rng = np.random.default_rng(2)
    held = 0
    for _ in range(60):
        S, labels = planted(rng, n=24)
        found = le.locality(S, labels, permutations=0)
        held += found.low <= 0.4 <= found.high
    assert held >= 50


def test_one_class_and_empty_matrices_have_no_ratio():
    found = le.locality(np.ones((4, 4)), ["a"] * 4)
    assert np.isnan(found.ratio)
    assert np.isnan(found.low)
    assert found.within == 1
    assert np.isnan(le.locality(np.full((2, 2), np.nan), ["a", "b"]).ratio)


def test_other_targets_are_compared_by_their_own_classes():
    S = np.array([[0.8, 0.2], [0.4, 0.6]])
    found = le.locality(S, ["a", "b"], ["a", "b"], resamples=0, permutations=0)
    assert np.isnan(found.within)  # equal labels: the diagonal is an example with itself
    found = le.locality(S, ["a", "b"], ["a", "c"], resamples=0, permutations=0)
    assert (found.within, found.between) == (0.8, 0.4)


def test_the_same_history_has_the_same_digits_everywhere():
    torch.manual_seed(0)
    net, x, y = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), torch.randn(18, 4), torch.arange(18) % 3
    logged = []
    monitor = le.Monitor(
        net,
        (x, y),
        loss="cross_entropy",
        measure=("kl", "relative"),
        every=1,
        budget=None,
        loggers=[lambda values, step: logged.append(values)],
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for step in range(8):
        monitor.step(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    history = monitor.history
    side = Side(np.arange(18), y.numpy())
    for name in history.measures:
        values = np.stack([probe.similarity[name] for probe in history])
        panel = Panel(name, values, tuple(history.steps))
        page = pairs_of(Run("run", "history", (panel,), side, side, True), panel).ratio
        table = monitor.locality().query("measure == @name")
        direct = [le.locality(S, y, resamples=0, permutations=0).ratio for S in values]
        told = [one[f"local_elasticity/{name}/ratio"] for one in logged]
        assert table.ratio.tolist() == direct == told
        assert page.tolist() == direct
        phases = monitor.phases().set_index("measure").loc[name]
        assert phases.of == "times"
        assert phases["first"] == table.times.iloc[0]
    one = le.similarity(net, (x, y), loss="cross_entropy", measure="kl")
    assert le.locality(one).ratio == le.locality(one.values, y).ratio


def test_a_frame_of_class_pairs_is_deprecated():
    frame = pd.DataFrame({"step": [0], "measure": ["kl"], "source_class": ["a"], "target_class": ["a"], "value": [1.0]})
    with pytest.warns(DeprecationWarning, match="use monitor.locality"):
        assert le.training.locality(frame).intra.tolist() == [1.0]


def test_two_matrices_are_compared_by_source():
    rng = np.random.default_rng(3)
    base = rng.normal(size=(20, 15))
    row = rng.normal(size=(20, 1))  # what all pairs of a source share is one draw, not fifteen
    assert compared(base + 0.3, base).difference == pytest.approx(0.3)
    assert compared(base + 0.3, base).p_value < 0.01
    for shape in ((20, 1), (1, 15)):  # and so is what all pairs of a target share
        shared = [rng.normal(size=shape) for _ in range(60)]
        assert sum(compared(base, base + one).p_value <= 0.05 for one in shared) <= 8
    assert compared(base + row, base).low < compared(base + row, base).high
    assert compared(np.full((2, 2), np.nan), np.ones((2, 2))).pairs == 0


def additive(rng, n):
    """Differences by what each example changed by, as a source and as a target alike."""
    of_example = rng.normal(size=(n, 1))
    difference = of_example + of_example.T
    np.fill_diagonal(difference, np.nan)
    return difference


@pytest.mark.parametrize("case", ["square 10", "square 30", "5 sources"])
def test_a_comparison_without_a_difference_is_seldom_significant(case):
    """At a level of 5 %."""
    rng, count, found = np.random.default_rng(5), 1000, []
    for _ in range(count):
        if case == "5 sources":
            difference = rng.normal(size=(5, 1)) + 0.3 * rng.normal(size=(5, 40))
        else:
            difference = additive(rng, int(case.split()[1]))
        one = compared(difference, np.zeros_like(difference), square=case != "5 sources", resamples=100)
        found.append(one.p_value)
    assert np.sum(np.array(found) < 0.05) <= most_false(count)
    assert np.isfinite(found).all()


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("units", [1, 2, 3, 4])
def test_few_units_have_no_p_value(units, side):
    difference = np.random.default_rng(0).normal(size=(units, 40)) + 9
    difference = difference.T if side else difference
    found = compared(difference, np.zeros_like(difference))
    assert np.isnan(found.p_value)
    assert found.units == units
    wide = np.full((40, 40), np.nan)
    wide[:units] = np.resize(difference, (units, 40))
    assert np.isnan(compared(wide, np.zeros_like(wide)).p_value)


def test_a_clear_difference_of_few_examples_is_significant():
    rng = np.random.default_rng(0)
    assert compared(additive(rng, 10) + 9, np.zeros((10, 10)), square=True).p_value < 0.01
    assert compared(rng.normal(size=(5, 40)) + 9, np.zeros((5, 40))).p_value < 0.01


@pytest.mark.parametrize("side", ["sources", "targets"])
def test_classes_that_move_more_are_not_called_local(side):
    """Steps on one class are broader, or one class moves less; no step prefers its own class."""
    labels, rng = np.repeat([0, 1], [30, 10]), np.random.default_rng(0)
    scale = np.where(labels == 0, 1.0, 0.3)
    scale = scale[:, None] if side == "sources" else scale[None]
    found = [le.locality(np.exp(0.3 * rng.normal(size=(40, 40))) * scale, labels).verdict for _ in range(40)]
    assert found.count("local") + found.count("not local") <= 1


def test_a_planted_preference_is_found_in_classes_of_any_size():
    labels, rng = np.repeat([0, 1, 2], [40, 12, 8]), np.random.default_rng(1)
    scale = np.choose(labels, [1.0, 0.3, 2.0])
    S = np.exp(0.3 * rng.normal(size=(60, 60))) * scale * np.where(labels[:, None] == labels, 1.0, 0.4)
    found = le.locality(S, labels)
    assert found.verdict == "local"
    assert found.balanced_low < 0.4 < found.balanced_high


@pytest.mark.parametrize("count", [200, pytest.param(1000, marks=pytest.mark.slow)])
def test_permuted_classes_seldom_look_local(count):
    rng, labels = np.random.default_rng(2), np.repeat(np.arange(4), 8)
    p = [le.locality(np.exp(rng.normal(size=(32, 32))), labels, resamples=0).p_value for _ in range(count)]
    assert count / 100 <= sum(one < 0.05 for one in p) <= most_false(count)


def test_noise_has_no_coupled_classes_and_planted_pairs_are_found():
    """Rows and columns differ in size, as sources and targets do; of twenty noise matrices at most one may clear."""
    classes = np.arange(60) % 6
    false = {"relative": 0, "stiffness_cos": 0}
    for seed in range(20):
        rng = np.random.default_rng(seed)
        S = rng.lognormal(size=(60, 60)) * rng.lognormal(size=(60, 1)) * rng.lognormal(size=60)
        for measure, values in (("relative", S), ("stiffness_cos", np.log(S))):
            found = le.coupling(values, classes, measure=measure, resamples=50, seed=seed)
            false[measure] += bool(found.coupled())
    assert max(false.values()) <= 1
    assert str(le.coupling(noise(), classes, measure="relative")).startswith(
        "No coupled pair of classes was found: none is"
    )
    S[np.ix_(classes == 2, classes == 5)] *= 30
    assert le.coupling(S, classes).coupled() == [(2, 5)]
    assert le.coupling(np.log(S), classes).coupled() == [(2, 5)]
    below = le.coupling(-np.log(S), classes, measure="loss")
    assert below.coupled() == [(2, 5)]
    assert " below what row 2 and column 5 suggest (" in str(below)
    three = le.coupling(S, classes % 3)
    assert not three.coupled()
    assert str(three) == "Coupled pairs are searched for among 4 or more classes, not 3."
    assert len(three.frame()) == 6
    assert "No two classes have pairs" in str(le.coupling(np.full((60, 60), np.nan), classes))
    sparse = np.where(np.random.default_rng(0).random((400, 400)) < 0.01, noise(400), np.nan)
    assert not le.coupling(sparse, np.arange(400) % 40, measure="relative", permutations=20).coupled()
    for name, value in (("level", 1.5), ("resamples", 0), ("permutations", -1)):
        with pytest.raises(ValueError, match=f"{name}: "):
            le.coupling(S, classes, **{name: value})


def noise(n=60, sigma=0.3):
    return np.random.default_rng(0).lognormal(sigma=sigma, size=(n, n))


def test_an_excess_is_the_value_over_what_row_and_column_suggest():
    """Where rows and columns multiply, up to a planted pair, the expectation is exact; of kl the root is taken."""
    classes = np.repeat(np.arange(6), 4)
    rng = np.random.default_rng(0)
    S = np.exp(np.add.outer(rng.normal(size=6), rng.normal(size=6)))
    expected = S[1, 4]
    S[1, 4] *= 9
    for measure, order in (("relative", 1), ("kl", 2)):
        found = le.coupling(S[classes][:, classes], classes, measure=measure)
        assert found.expected[1, 4] == pytest.approx(expected)
        assert found.excess[1, 4] == pytest.approx(9 ** (1 / order))
        row = found.frame().iloc[0]
        assert (row.source_class, row.target_class, row.coupled) == (1, 4, True)
        assert row.value == pytest.approx(S[1, 4])
        assert row.excess == pytest.approx((row.value / row.expected) ** (1 / order))
        assert not found.frame().coupled[1:].any()
    difference = le.coupling(np.log(S)[classes][:, classes], classes, measure="loss")
    assert difference.excess[1, 4] == pytest.approx(np.log(9))
    assert difference.excess[1, 4] == pytest.approx(difference.value[1, 4] - difference.expected[1, 4])


def test_coupled_pairs_are_in_the_order_of_their_values():
    """The largest value first, not the largest excess; a larger value that its row explains is named as such."""
    classes = np.repeat(np.arange(6), 10)
    S = 0.1 * noise(sigma=0.1)
    S[classes == 5] *= 9
    S[np.ix_(classes == 0, classes == 1)] *= 4
    S[np.ix_(classes == 2, classes == 3)] *= 6
    S[:, classes == 3] *= 0.5
    found = le.coupling(S, classes, measure="relative")
    assert found.coupled() == [(0, 1), (2, 3)]
    assert found.excess[2, 3] > found.excess[0, 1]
    assert found.frame().target_class[:2].tolist() == [1, 3]
    said = found.larger([(0, 1)])
    assert re.match(r"Large but not coupled: 5 → \d \(9\d %; its row and column suggest 9\d %\) and 5 → ", said)
    assert said.endswith(f". Permuted labels reach {found.baseline:.3g}× what row and column suggest.")
    S[classes == 5] /= 9
    assert le.coupling(S, classes, measure="relative").larger([(0, 1)]) == ""


def test_values_of_large_matrices_are_those_of_all_examples():
    """Intervals and baseline are of a sample, and lie around the excess of all."""
    classes = np.arange(400) % 5
    S = noise(400, 0.5)
    S[np.ix_(classes == 2, classes == 4)] *= 3
    found = le.coupling(S, classes, measure="relative")
    frame = le.class_pairs(S, classes, resamples=0)
    np.testing.assert_allclose(found.value.ravel(), frame.value, rtol=1e-6)
    assert found.coupled() == [(2, 4)]
    assert found.low[2, 4] < found.excess[2, 4] < found.high[2, 4]
    assert found.excess[2, 4] == pytest.approx(3, rel=0.03)


def test_medians_of_class_pairs_are_numpys():
    from local_elasticity.statistics.class_blocks import ClassBlocks

    rng = np.random.default_rng(0)
    S, rows, columns = rng.normal(size=(12, 15)), rng.integers(0, 3, 12), rng.integers(0, 3, 15)
    S[2, 3] = np.nan
    blocks = ClassBlocks.of(S, rows, columns, False, rng, logarithms=False)
    found = blocks.medians(blocks.rows, blocks.columns)
    for i, a in enumerate(blocks.labels):
        for j, b in enumerate(blocks.labels):
            expected = np.nanmedian(S[np.ix_(rows == a, columns == b)])
            assert found[i, j] == pytest.approx(expected)


def test_the_development_is_that_of_locality_and_change_point():
    from local_elasticity.statistics.change_point import change_point
    from local_elasticity.statistics.development import development

    rng, classes = np.random.default_rng(0), np.arange(40) % 4
    same = classes[:, None] == classes
    levels = np.array([0.9, 0.9, 0.88, 0.9, 0.4, 0.3, 0.3, 0.32, 0.3, 0.3])
    values = rng.lognormal(sigma=0.2, size=(10, 40, 40)) * np.where(same, 1.0, levels[:, None, None])
    ratio = np.array([le.locality(S, classes, resamples=0, permutations=0).ratio for S in values])
    steps = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256]
    found = development(steps, ratio, values, classes, classes, square=True)
    assert found.step == change_point(steps, ratio).step == 8
    assert (found.step_low, found.step_high) == (4, 8)
    assert ((found.low <= ratio) & (ratio <= found.high)).all()
    assert found.steepest == (4, 8)
    drift = development(steps, ratio[::-1], values[::-1], classes, classes, square=True)
    assert drift.steepest != (4, 8)


def test_a_mean_of_heavy_tails_comes_with_a_warning(caplog):
    """Where the interval covers too seldom, and nowhere else."""
    rng = np.random.default_rng(0)
    heavy, light = np.exp(2 * rng.normal(size=(12, 12))), np.exp(0.2 * rng.normal(size=(12, 12)))
    classes = np.arange(12) % 2
    for S, reduce, resamples, warned in (
        (heavy, "mean", 50, True),
        (heavy, "median", 50, False),
        (heavy, "mean", 0, False),
        (light, "mean", 50, False),
    ):
        caplog.clear()
        le.class_pairs(S, classes, reduce=reduce, resamples=resamples)
        assert ("contains the true value less often" in caplog.text) == warned


def test_the_coverage_of_intervals_in_the_docs_is_what_was_measured():
    root = Path(__file__).parents[1]
    measured = json.loads((root / "benchmarks" / "results" / "coverage.json").read_text())
    page = (root / "docs" / "how-to" / "numbers.md").read_text()
    for row in measured["rows"]:
        shares = " | ".join(f"{100 * row[name]:.0f} %" for name in ("median", "trimmed", "mean"))
        assert f"| {row['points']} | {row['spread']:g} | {shares} |" in page
        assert row["median"] >= 0.9


def test_a_flat_curve_has_no_steepest_part():
    from local_elasticity.statistics.development import development

    rng = np.random.default_rng(0)
    classes, steps = np.arange(20) % 2, range(8)
    same = classes[:, None] == classes
    values = rng.lognormal(sigma=0.3, size=(8, 20, 20)) * np.where(same, 1.0, 0.5)
    ratio = np.array([np.median(S[~same]) / np.median(S[same & ~np.eye(20, dtype=bool)]) for S in values])
    assert development(steps, ratio, values, classes, classes, square=True).steepest is None
    falling = np.linspace(1, 0.3, 8)
    values = values * np.where(same, 1.0, falling[:, None, None])
    assert development(steps, ratio * falling, values, classes, classes, square=True).steepest is not None


def _overtaken(seed, own=1.0, other=1.0, classes=6, each=10):
    """A matrix with effects of sources and targets; pairs within a class are `own` times as large, and those from class
    0 to class 1 `other` times."""
    rng, labels = np.random.default_rng(seed), np.repeat(np.arange(classes), each)
    rows, columns = rng.normal(scale=0.5, size=(2, len(labels)))
    values = np.exp(rng.normal(-2, 0.5, size=(len(labels), len(labels))) + rows[:, None] + columns)
    values *= np.where(labels[:, None] == labels, own, 1.0)
    values[np.ix_(labels == 0, labels == 1)] *= other
    return le.locality(values, labels, measure="relative", permutations=0, resamples=100, seed=seed)


def test_classes_that_another_class_exceeds_are_named():
    found = [_overtaken(seed, own=2.0, other=8.0).exceptions for seed in range(10)]
    assert sum([(one.source_class, one.target_class) for one in each] == [(0, 1)] for each in found) >= 9
    assert not any(_overtaken(seed, own=2.0).exceptions for seed in range(20))
    for each in (2, 4, 10):
        noise = sum(bool(_overtaken(seed, each=each).exceptions) for seed in range(60))
        assert noise <= 8, each  # of noise alone 5 % are expected


def test_a_local_verdict_names_its_exceptions():
    rng, labels = np.random.default_rng(0), np.repeat(["cat", "dog", "fox", "owl", "pig"], 12)
    values = rng.lognormal(-2, 0.3, size=(60, 60)) * np.where(labels[:, None] == labels, 4.0, 1.0)
    values[np.ix_(labels == "cat", labels == "owl")] *= 12
    said = str(le.locality(values, labels, measure="relative"))
    assert (
        "Verdict: local. But for 1 of 5 classes a step moves another class clearly further than its own: cat → owl ("
        in said
    )
    assert "But for" not in str(le.locality(values[12:, 12:], labels[12:], measure="relative"))


def test_nothing_coupled_is_said_with_the_reason():
    """Whether the largest excess is within what permuted classes give, or only its interval is."""
    S = np.random.default_rng(3).lognormal(-2, 0.3, size=(40, 40))
    found = le.coupling(S, np.arange(40) % 5, measure="relative")
    within, beyond = (replace(found, excess=0 * found.excess + by * found.baseline) for by in (0.9, 1.2))
    assert "is within what permuted class labels give" in within.nothing
    assert "its interval reaches into what permuted class labels give" in beyond.nothing
