"""What changed from one similarity to another: against the plainest arithmetic; and what cannot be compared."""

import copy

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import local_elasticity as le
from tests.oracles.bootstrap import interval


def matrices(n=9, m=None, seed=0, shift=0.3):
    """Two matrices whose first class moved, with a pair that is unresolved on either side."""
    rng = np.random.default_rng(seed)
    m = n if m is None else m
    one = rng.normal(size=(n, m))
    other = one + 0.05 * rng.normal(size=(n, m))
    other[: n // 3] += shift
    one[1, 2] = other[2, 0] = np.nan
    return one, other


def labelled(values, square=True, **about):
    classes = ["a", "b", "c"] * 99
    n, m = values.shape
    return le.as_similarity(
        values, source_labels=sorted(classes[:n]), target_labels=sorted(classes[:m]), square=square, **about
    )


@pytest.mark.parametrize("square", [True, False])
def test_pairs_and_classes_by_hand(square):
    one, other = matrices(9, 9 if square else 6)
    found = le.compare(labelled(one, square), labelled(other, square))
    if square:
        np.fill_diagonal(one, np.nan)
    difference = other - one
    pairs = found.frame("pairs")
    assert len(pairs) == np.isfinite(difference).sum()
    assert pairs.difference.abs().is_monotonic_decreasing
    for row in pairs.head(20).itertuples():
        assert row.difference == difference[row.source, row.target]
        assert (row.before, row.after) == (one[row.source, row.target], other[row.source, row.target])
    classes = found.frame()
    assert len(classes) == 9
    rows, columns = found.after["source_class"].values, found.after["target_class"].values
    for row in classes.itertuples():
        block = difference[np.ix_(rows == row.source_class, columns == row.target_class)]
        assert row.difference == pytest.approx(np.nanmedian(block))
        assert row.pairs == np.isfinite(block).sum()
        assert row.low <= row.difference <= row.high
    moved = classes[classes.source_class == "a"]
    assert (moved.low > 0.1).all()
    assert classes[classes.source_class == "c"].difference.abs().max() < 0.1
    assert found.overall.difference == pytest.approx(np.nanmedian(difference))
    assert np.allclose(found.difference.values, difference, equal_nan=True)


@pytest.mark.parametrize("axis", ["sources", "targets"])
def test_examples_by_hand(axis):
    one, other = matrices(9, 12)
    found = le.compare(labelled(one, square=False), labelled(other, square=False)).frame(axis)
    difference = (other - one) if axis == "sources" else (other - one).T
    assert found.difference.to_numpy() == pytest.approx(np.nanmedian(difference, axis=1))
    assert found.pairs.tolist() == np.isfinite(difference).sum(1).tolist()
    assert (found.low <= found.difference).all()
    assert (found.difference <= found.high).all()
    assert found.columns[0] == axis.removesuffix("s")
    assert len(le.compare(labelled(one, square=False), labelled(other, square=False)).frame(axis, top=3)) == 3


def test_intervals_are_those_of_the_oracle():
    one, other = matrices(12, 12)
    found = le.compare(labelled(one), labelled(other), resamples=2000).overall
    difference = other - one
    np.fill_diagonal(difference, np.nan)
    value, low, high = interval(difference, "median", np.ones(12), np.random.default_rng(1), 2000, square=True)
    assert found.difference == value
    assert found.low == pytest.approx(low, abs=0.02)
    assert found.high == pytest.approx(high, abs=0.05)


def test_nothing_changed_is_told_as_such():
    one, _ = matrices()
    found = le.compare(labelled(one), labelled(one))
    assert found.overall.p_value == 1
    assert "median of the pairs' differences +0" in repr(found)
    assert not found.frame().difference.dropna().any()


@pytest.mark.parametrize("square", [True, False])
def test_few_examples_have_no_p_value_and_it_says_why(square):
    one, other = matrices(4, 4 if square else 9)
    found = le.compare(labelled(one, square), labelled(other, square))
    assert np.isnan(found.overall.p_value)
    side = "examples" if square else "sources or targets"
    assert f"no p-value from 4 {side}, which takes 5" in repr(found)
    assert found.frame().p_value.isna().all()


def test_classes_of_examples_that_are_sources_and_targets_draw_them_once():
    rng = np.random.default_rng(0)
    moved, small = np.zeros((24, 24)), 0
    for _ in range(60):
        of_example = rng.normal(size=(24, 1))
        found = le.compare(labelled(moved), labelled(of_example + of_example.T), resamples=100).frame()
        small += int((found[found.source_class == found.target_class].p_value < 0.05).sum())
    assert small <= 19  # of 180 at a level of 5 %, once in 1000


def test_p_values_of_class_pairs_allow_for_their_number():
    """Examples differ in how far they changed, and nothing else does: of 40 comparisons at most five name a pair of
    classes by the adjusted p-value, most by the single ones. A real change is named."""
    rng, classes = np.random.default_rng(0), np.repeat(np.arange(6), 8)
    single = adjusted = 0
    for _ in range(40):
        moved = rng.normal(size=(48, 1)) + rng.normal(size=48) + rng.normal(size=(48, 48))
        found = le.compare(*(le.as_similarity(one, source_labels=classes) for one in (0 * moved, moved))).frame()
        assert (found.p_adjusted >= found.p_value).all()
        single += bool((found.p_value < 0.05).any())
        adjusted += bool((found.p_adjusted < 0.05).any())
    assert single > 10
    assert adjusted <= 5
    moved[np.ix_(classes == 1, classes == 4)] += 6
    pair = le.compare(*(le.as_similarity(one, source_labels=classes) for one in (0 * moved, moved))).frame()
    clear = pair[pair.p_adjusted < 0.05]
    assert clear[["source_class", "target_class"]].values.tolist() == [[1, 4]]
    without = le.compare(*(le.as_similarity(one, source_labels=classes) for one in (0 * moved, moved)), resamples=0)
    assert without.frame().p_adjusted.isna().all()


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))


x, y = torch.randn(12, 4, generator=torch.Generator().manual_seed(1)), torch.arange(12) % 3


def trained(net, steps=40):
    net = copy.deepcopy(net)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return net


@pytest.mark.parametrize("measure", ["relative", "kl", "loss", "stiffness_cos", "activation"])
def test_two_models_are_two_similarities(measure):
    young = network() if measure != "activation" else nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 3))
    young, old = (net.double() for net in (young, trained(young)))
    fine = x.double()
    options = {"sources": (fine, y), "targets": (fine[:5], y[:5]), "measure": measure}
    if measure in ("relative", "kl", "loss"):
        options["engine"] = "looped"  # the winner of a race may differ from call to call, and with it the last digits
    found = le.compare(young, old, loss="cross_entropy", **options)
    for S, net in ((found.before, young), (found.after, old)):
        expected = le.similarity(net, loss="cross_entropy", **options)
        assert np.allclose(S.values, expected.values, equal_nan=True)
    problems = [le.Problem.of(net, "cross_entropy") for net in (young, old)]
    again = le.compare(*problems, **options)
    pd.testing.assert_frame_equal(again.frame(), found.frame(), atol=1e-9)  # engines may differ in the last digits


def test_one_step_for_both_models():
    young, old = network(), trained(network(), 200)
    sizes = [
        le.similarity(net, (x, y), loss="cross_entropy", update=le.SGD("auto")).attrs["step_size"]
        for net in (young, old)
    ]
    found = le.compare(young, old, sources=(x, y), loss="cross_entropy", update=le.SGD("auto"))
    assert found.before.attrs["step_size"] == found.after.attrs["step_size"] == min(sizes)
    assert found.notes == ()
    other = le.compare(
        *(
            le.similarity(net, (x, y), loss="cross_entropy", update=le.SGD(size))
            for net, size in zip((young, old), (1e-3, 1e-4), strict=True)
        )
    )
    assert "another update: SGD(step_size=0.001" in repr(other)


def test_histories_are_compared_at_their_last_probes(tmp_path):
    monitors = []
    for seed in range(2):
        net = network(seed)
        monitor = le.Monitor(
            net,
            (x, y),
            loss="cross_entropy",
            measure=("relative", "kl"),
            every=1,
            budget=None,
            store=tmp_path / f"{seed}.zarr",
        )
        monitor.step(0)
        with torch.no_grad():
            net[0].weight *= 2
        monitor.step(1)
        monitors.append(monitor)
    found = le.compare(*monitors, measure="kl")
    assert np.array_equal(found.after.values, monitors[1].history[-1].similarity["kl"])
    stored = le.compare(*(le.training.history.History.open(tmp_path / f"{i}.zarr") for i in range(2)), measure="kl")
    assert stored.frame().equals(found.frame())
    assert found.before.attrs["step"] == 1
    with pytest.raises(ValueError, match="measure: A has relative, kl; say which, such as relative"):
        le.compare(*monitors)
    with pytest.raises(ValueError, match="measure: A has no 'loss'"):
        le.compare(*monitors, measure="loss")
    with pytest.raises(ValueError, match="A: this history has no probe yet"):
        le.compare(*(le.Monitor(network(), (x, y), loss="cross_entropy", every=1) for _ in range(2)))


def test_one_of_several_measures_is_compared(tmp_path):
    options = {"loss": "cross_entropy", "measure": ("relative", "kl")}
    for seed in range(2):
        le.similarity(network(seed), (x, y), store=tmp_path / f"{seed}.zarr", **options)
    both = [le.load(tmp_path / f"{seed}.zarr") for seed in range(2)]
    found = le.compare(*both, measure="kl")
    assert found.frame("pairs").equals(le.compare(*(S["kl"] for S in both)).frame("pairs"))
    assert le.compare(both[0]["kl"], both[1], measure="kl").overall == found.overall
    with pytest.raises(ValueError, match="measure: A has relative, kl; say which, such as relative"):
        le.compare(*both)


ONE, OTHER = matrices()
BAD = {
    "other measures": ((labelled(ONE, measure="kl"), labelled(OTHER, measure="relative")), {}, "two measures, kl and"),
    "other shapes": ((labelled(ONE), labelled(ONE[:6, :6])), {}, r"\(9, 9\) and \(6, 6\) pairs"),
    "other classes": (
        (labelled(ONE), le.as_similarity(OTHER, source_labels=list("aaabbbccd"))),
        {},
        "of other examples: source classes differ first at place 8",
    ),
    "other targets": ((labelled(ONE), labelled(ONE, square=False)), {}, "the targets are the sources on one side only"),
    "other examples": (
        tuple(le.as_similarity(ONE, examples=np.arange(9)[:, None] + i) for i in range(2)),
        {},
        "source examples differ first at place 0",
    ),
    "arrays": ((ONE, OTHER), {}, "A: expected a similarity, a history, a monitor or a model, got ndarray"),
    "a model and a matrix": ((network(), labelled(ONE)), {}, "one is a model and the other is not"),
    "no sources": ((network(), network(1)), {"loss": "mse"}, "sources: models are measured at the same examples"),
    "several measures": (
        (network(), network(1)),
        {"sources": (x, y), "loss": "cross_entropy", "measure": ("kl", "relative")},
        "measure: expected one measure",
    ),
    "sources of matrices": ((labelled(ONE), labelled(OTHER)), {"sources": (x, y)}, "A and B are measured already"),
    "another measure": ((labelled(ONE, measure="kl"),) * 2, {"measure": "loss"}, "A has no 'loss'; it has kl"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_compared(name):
    both, options, words = BAD[name]
    with pytest.raises((ValueError, TypeError), match=words):
        le.compare(*both, **options)


@pytest.mark.parametrize(
    ("name", "value"),
    [("level", 2), ("level", "a"), ("level", float("nan")), ("resamples", -1), ("resamples", 1.5), ("seed", "a")],
)
def test_options_of_the_bootstrap_are_named(name, value):
    S = le.as_similarity(np.eye(6), measure="relative")
    with pytest.raises(ValueError, match=f"{name}: expected"):
        le.compare(S, S, **{name: value})


def test_frames_say_what_they_are_by():
    found = le.compare(le.as_similarity(ONE), le.as_similarity(OTHER))
    with pytest.raises(ValueError, match="by: no classes are known"):
        found.frame()
    with pytest.raises(ValueError, match="by: expected one of classes, pairs"):
        found.frame("rows")
    with pytest.raises(ValueError, match="top: expected a whole number"):
        found.frame("pairs", top=-1)
    assert "class pairs" not in repr(found)
    assert len(found.frame("pairs", top=4)) == 4


def test_it_is_drawn_and_told():
    found = le.compare(labelled(ONE, measure="kl"), labelled(OTHER, measure="kl"))
    made = found.plot()
    assert [axes.get_title() for axes in made.axes[:3]] == ["before", "after", "difference"]
    assert "class pairs, not tested: largest medians of the pairs' differences (not after − before" in repr(found)
    assert repr(found).splitlines()[0] in found._repr_html_()
    nothing = le.compare(*(le.as_similarity(np.full((2, 2), np.nan)) for _ in range(2)))
    assert "none has a value on both sides" in repr(nothing)


def test_the_text_says_what_a_p_value_at_its_floor_is_and_when_it_disagrees_with_the_interval():
    one, _ = matrices(30)
    found = le.compare(labelled(one), labelled(one + 1))
    assert found.overall.p_value == 2 / 201
    assert "p ≤ 0.01;" in repr(found)
    assert "p ≤ 0.002;" in repr(le.compare(labelled(one), labelled(one + 1), resamples=999))
    assert "Go by p" not in repr(found)
    rng = np.random.default_rng(5)
    for _ in range(200):
        a = rng.normal(size=(5, 5))
        few = le.compare(labelled(a), labelled(a + 0.4 + 0.5 * rng.normal(size=5)[:, None]))
        apart = not few.overall.low <= 0 <= few.overall.high
        assert ("Go by p" in repr(few)) == (apart and few.overall.p_value >= 0.05)
        if apart and few.overall.p_value >= 0.05:
            break
    else:
        pytest.fail("no case in which they disagree")


def test_class_pairs_that_are_not_tested_say_why():
    one, other = matrices(15)
    classes = ["a"] * 8 + ["b"] * 7
    found = le.compare(*(le.as_similarity(S, source_labels=classes) for S in (one, other)))
    assert "not tested" not in repr(found)
    few = ["a"] * 11 + ["b"] * 4
    found = le.compare(*(le.as_similarity(S, source_labels=few) for S in (one, other)))
    assert found.frame()["p_value"].isna().tolist() == [False, True, True, True]
    assert "3 of 4 class pairs are not tested: too few examples per class. A p-value needs at least 5 sources" in repr(
        found
    )
    assert "after correction for 1 class pairs" in repr(found)
    none = le.compare(found.before, found.after, resamples=0)
    assert "class pairs are not tested without resamples; p-values need resamples=2 or more" in repr(none)


def test_a_quadratic_measure_is_told_with_its_unit_and_as_how_far():
    one, other = (le.as_similarity(np.full((6, 6), value), measure="kl") for value in (0.25, 9.0))
    unit = "kl (KL divergence, target / source) is quadratic in the change: √kl is 50 % before and 300 % after"
    assert f"median 0.25 before, 9 after; {unit}, as far as the source itself" in repr(le.compare(one, other))
    assert "√" not in repr(le.compare(one.assign_attrs(measure="relative"), other.assign_attrs(measure="relative")))


def test_a_difference_is_the_median_of_differences_and_the_text_says_so():
    one = le.as_similarity([[0.0, 0.0], [0.0, 0.0], [3.0, 3.0]], source_labels=list("aaa"), target_labels=list("bb"))
    other = le.as_similarity([[1.0, 1.0], [5.0, 5.0], [3.0, 3.0]], source_labels=list("aaa"), target_labels=list("bb"))
    found = le.compare(one, other)
    (row,) = found.frame().itertuples()
    assert (row.before, row.after, row.difference) == (0, 3, 1)
    assert "largest medians of the pairs' differences (not after − before of the medians): a → b +1" in repr(found)


def test_a_path_is_not_taken_for_a_result():
    with pytest.raises(TypeError, match=r"A: .* got the path 'a.pt'. Read a stored similarity with le.load"):
        le.compare("a.pt", "b.pt")


def test_results_of_other_inputs_are_not_compared():
    x, y = torch.randn(12, 4), torch.arange(12) % 2
    net = torch.nn.Linear(4, 2)
    of = lambda inputs, model=net: le.similarity(model, (inputs, y), loss="cross_entropy")
    with pytest.raises(ValueError, match="A, B: they are of other inputs; compare"):
        le.compare(of(x), of(x + 1))
    with pytest.raises(ValueError, match="A, B: they are of other inputs; compare"):
        le.compare(of(x), of(x.flip(0)))
    assert le.compare(of(x), of(x.double(), copy.deepcopy(net).double())).overall.pairs == 132
