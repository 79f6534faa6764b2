"""Two settings compared seed by seed: against scipy's tests, on null data, and with a planted effect."""

from html import escape

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import local_elasticity as le
from local_elasticity.statistics.over_seeds import adjusted, compared_over_seeds

CLASSES = np.repeat(["a", "b", "c"], 6)


def settings(rng, seeds=5, shift=0.0, shared=False, **about):
    """Two sides of networks; every seed has its own level for each pair of classes, and a → b is shifted."""
    levels = rng.normal(1.0, 0.1, size=(2, seeds, 3, 3))
    if shared:
        levels[1] = levels[0] + rng.normal(0.0, 0.005, size=levels[0].shape)
    levels[1, :, 0, 1] += shift
    each = np.arange(18) // 6
    found = levels[:, :, each[:, None], each] + rng.normal(0.0, 0.02, size=(2, seeds, 18, 18))
    return [[le.as_similarity(S, source_labels=CLASSES, measure="relative", **about) for S in side] for side in found]


@pytest.mark.parametrize("paired", [True, False])
def test_intervals_and_p_values_are_those_of_scipy(paired):
    rng = np.random.default_rng(0)
    before, after = rng.normal(size=(6, 4)), rng.normal(0.5, 2.0, size=(6 if paired else 4, 4))
    found = compared_over_seeds(before, after, paired=paired, level=0.9)
    expected = stats.ttest_rel(after, before) if paired else stats.ttest_ind(after, before, equal_var=False)
    interval = expected.confidence_interval(0.9)
    np.testing.assert_allclose(found.p_value, expected.pvalue)
    np.testing.assert_allclose([found.low, found.high], [interval.low, interval.high])
    np.testing.assert_allclose(found.difference, after.mean(0) - before.mean(0))


def test_what_has_no_value_is_left_out_and_counted():
    before = np.array([[1.0, np.nan, 2.0], [2.0, 1.0, 2.0], [4.0, np.inf, 2.0]])
    after = np.array([[2.0, 3.0, 3.0], [np.nan, 4.0, 3.0], [5.0, 5.0, 3.0]])
    found = compared_over_seeds(before, after)
    assert found.seeds_before.tolist() == [3, 1, 3]
    assert found.seeds_after.tolist() == [2, 3, 3]
    assert np.isnan(found.p_value).tolist() == [False, True, True]
    assert found.difference[1:].tolist() == [3.0, 1.0]
    pairs = compared_over_seeds(before, after, paired=True)
    assert pairs.seeds_before.tolist() == pairs.seeds_after.tolist() == [2, 1, 3]
    assert np.isnan(pairs.p_value).all()  # of the first column too: both pairs differ by 1
    rounded = compared_over_seeds(before, before * (1 + 1e-15), paired=True)
    assert np.isnan(rounded.p_value).all()


def test_holm_corrects_over_the_tests_that_were_made():
    assert adjusted(np.array([0.01, np.nan, 0.02])).tolist() == pytest.approx([0.02, np.nan, 0.02], nan_ok=True)


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
@pytest.mark.parametrize("draw", ["normal", "lognormal"])
def test_false_positives_are_near_the_level(paired, seeds, draw):
    """Of 20,000 comparisons without a difference about 5 % are below 0.05, and intervals leave 0 out as often; Welch's
    test has fewer with two or three seeds, and with heavy tails."""
    before, after = getattr(np.random.default_rng(seeds), draw)(size=(2, seeds, 20_000))
    found = compared_over_seeds(before, after, paired=paired)
    share = (found.p_value < 0.05).mean()
    assert ((found.low > 0) | (found.high < 0)).mean() == share
    assert share <= 0.055
    if draw == "normal" and (paired or seeds >= 5):
        assert share >= 0.04


@pytest.mark.parametrize("paired", [True, False])
def test_false_positives_of_the_whole_comparison(paired):
    rng, single, any_class, runs = np.random.default_rng(1), 0, 0, 150
    for _ in range(runs):
        found = le.compare(*settings(rng), paired=paired)
        single += int((found.frame("classes")["p_value"] < 0.05).sum())
        any_class += bool((found.frame("classes")["p_adjusted"] < 0.05).any())
    assert 0.03 * 9 * runs < single < 0.07 * 9 * runs
    assert any_class <= 15  # of 150 at 5 %, more once in 200


@pytest.mark.parametrize("paired", [True, False])
def test_a_planted_effect_is_found_where_it_is(paired):
    found = le.compare(*settings(np.random.default_rng(2), seeds=6, shift=0.5), paired=paired)
    classes = found.frame()
    (clear,) = classes[classes["p_adjusted"] < 0.05].to_dict("records")
    assert (clear["source_class"], clear["target_class"]) == ("a", "b")
    assert clear["low"] < 0.5 < clear["high"]
    assert clear["difference"] == pytest.approx(clear["after"] - clear["before"])
    assert "1 class pair changed clearly (p < 0.05 after Holm's correction for 9 class pairs)" in repr(found)
    assert "a → b +0." in repr(found)
    assert found.frame(top=1)["difference"].tolist() == [clear["difference"]]


def test_pairs_of_seeds_find_what_the_spread_of_seeds_hides():
    sides = settings(np.random.default_rng(3), shift=0.05, shared=True)
    found = [le.compare(*sides, paired=paired).frame().iloc[1] for paired in (False, True)]
    assert found[0]["difference"] == pytest.approx(found[1]["difference"])
    assert found[0]["p_adjusted"] > 0.05 > found[1]["p_adjusted"]


def test_statistics_are_those_of_each_network():
    before, after = settings(np.random.default_rng(4), seeds=3)
    found = le.compare(before, after)
    seeds = found.frame("seeds")
    assert seeds["side"].tolist() == ["before"] * 3 + ["after"] * 3
    for row, S in zip(seeds.itertuples(), [*before, *after], strict=True):
        local = le.locality(S, resamples=0, permutations=0)
        assert (row.times, row.within, row.between) == (local.times, local.within, local.between)
    overall = found.frame("overall").set_index("statistic")
    assert overall.index.tolist() == ["times", "within", "between", "median"]
    assert overall.loc["times", "after"] == pytest.approx(seeds["times"][3:].mean())
    table = before[0].le.classes(resamples=0)["value"]
    others = [S.le.classes(resamples=0)["value"] for S in before[1:]]
    assert found.frame()["before"].tolist() == pytest.approx(((table + sum(others)) / 3).tolist())


def test_signed_measures_have_no_times_and_examples_without_classes_no_class_pairs():
    rng = np.random.default_rng(5)
    signed = [
        [le.as_similarity(rng.normal(1, 1, (9, 9)), source_labels=list("aaabbbccc"), measure="loss")] * 1 for _ in "ab"
    ]
    draw = lambda: le.as_similarity(rng.normal(1, 1, (9, 9)), source_labels=list("aaabbbccc"), measure="loss")
    signed = [[draw(), draw()] for _ in range(2)]
    assert le.compare(*signed).frame("overall")["statistic"].tolist() == ["within", "between", "median"]
    plain = [[le.as_similarity(rng.normal(size=(5, 4))) for _ in range(2)] for _ in range(2)]
    found = le.compare(*plain)
    assert found.frame("overall")["statistic"].tolist() == ["median"]
    assert "class pair" not in repr(found)
    assert len(found.plot().axes) == 1
    with pytest.raises(ValueError, match="by: no classes are known"):
        found.frame()


def test_it_says_what_was_left_out_and_what_was_not_tested():
    before, after = settings(np.random.default_rng(6), seeds=2)
    before[0][:] = np.nan
    found = le.compare(before, after)
    assert "some networks have no value for some statistics" in repr(found)
    assert "not tested: 1 seed of a side with a value, at least 2 are needed" in repr(found)
    assert "some networks" not in repr(le.compare(*settings(np.random.default_rng(7))))
    assert escape(found.sentences()[0]) in found._repr_html_()


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("paired", [True, False])
def test_it_is_drawn(columns, paired):
    made = le.compare(*settings(np.random.default_rng(8), shift=1), paired=paired).plot(columns)
    assert made.axes[0].get_ylabel().replace("\n", " ") == "relative: times as far within a class as between classes"
    assert len(made.axes[1].patches) >= 1


X, Y = torch.randn(12, 4, generator=torch.Generator().manual_seed(1)), torch.arange(12) % 3


def networks(count, start=0):
    found = []
    for seed in range(start, start + count):
        torch.manual_seed(seed)
        found.append(nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3)))
    return found


def test_models_problems_histories_and_results_are_compared_alike():
    sides = networks(2), tuple(networks(3, start=10))
    options = {"sources": (X, Y), "loss": "cross_entropy", "update": le.SGD("auto")}
    found = le.compare(*sides, **options)
    steps = {S.attrs["step_size"] for S in (*found.before, *found.after)}
    assert len(steps) == 1
    again = le.compare(list(found.before), list(found.after))
    np.testing.assert_array_equal(again.frame("overall")["difference"], found.frame("overall")["difference"])
    assert "2 seeds before, 3 after" in repr(found)
    monitors = []
    for net in [*sides[0], *sides[1]]:
        monitor = le.Monitor(net, (X, Y), loss="cross_entropy", measure=("relative", "kl"), every=1, budget=None)
        monitor.step(0)
        monitors.append(monitor)
    watched = le.compare(monitors[:2], [monitor.history for monitor in monitors[2:]], measure="kl")
    assert watched.measure == "kl"
    with pytest.raises(ValueError, match=r"measure: A\[0\] has relative, kl; say which"):
        le.compare(monitors[:2], monitors[2:])


def test_circumstances_that_differ_are_said_once():
    nets = networks(4)
    options = {"loss": "cross_entropy"}
    before = [le.similarity(net, (X, Y), update=le.SGD(1e-3), **options) for net in nets[:2]]
    after = [le.similarity(net, (X, Y), update=le.SGD(1e-4), **options) for net in nets[2:]]
    assert repr(le.compare(before, after)).count("measured with another update") == 1


SIDES = settings(np.random.default_rng(9), seeds=3)
MODELS = networks(4)
BAD = {
    "one seed": (
        (SIDES[0][:1], SIDES[1]),
        {},
        "A: 1 seed; a comparison of two settings needs at least 2 seeds on each",
    ),
    "no seed": ((SIDES[0], []), {}, "B: 0 seeds; a comparison of two settings needs at least 2"),
    "no list": ((SIDES[0], SIDES[1][0]), {}, "B: expected a list of results, one for each seed"),
    "uneven pairs": (
        (SIDES[0], SIDES[1][:2]),
        {"paired": True},
        "paired: 3 and 2 seeds; give both sides the same seeds",
    ),
    "pairs of single results": (
        (SIDES[0][0], SIDES[1][0]),
        {"paired": True},
        "paired: seeds are paired; pass two lists",
    ),
    "other examples": (
        (SIDES[0], [S.assign_coords(source=np.arange(18) + 1) for S in SIDES[1]]),
        {},
        r"A\[0\], B\[0\]: they are of other examples: sources differ first at place 0",
    ),
    "other measures": (
        (SIDES[0], [S.assign_attrs(measure="kl") for S in SIDES[1]]),
        {},
        r"A\[0\], B\[0\]: two measures, relative and kl",
    ),
    "other examples within a side": ((SIDES[0], [SIDES[1][0], SIDES[1][1][:9, :9]]), {}, r"A\[0\], B\[1\]: \(18, 18\)"),
    "the same network twice": (([SIDES[0][0], SIDES[0][0]], SIDES[1]), {}, r"A\[0\], A\[1\]: the same numbers twice"),
    "models and results": ((MODELS[:2], SIDES[0]), {}, "one is a model and the other is not"),
    "models without sources": ((MODELS[:2], MODELS[2:]), {"loss": "mse"}, "sources: models are measured at the same"),
    "no results": ((["a", "b"], ["c", "d"]), {}, r"A\[0\]: .* got the path 'a'"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_compared(name):
    both, options, words = BAD[name]
    with pytest.raises((ValueError, TypeError), match=words):
        le.compare(*both, **options)
