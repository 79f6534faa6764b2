"""The same question gives the same numbers, labels and errors in memory, in a store, by a Monitor and on Ray."""

import tempfile
import warnings
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import local_elasticity as le
from local_elasticity.measures.registry import OURS
from tests.random_cases import random_cases
from tests.tolerances import SAME_IN_FLOAT64

NAMES = [one.name for one in OURS]
WITHOUT_STEPS = [one.name for one in OURS if not one.takes_steps]
SAID = ("measure", "reading", "unresolved", "update", "step_size", "loss", "outputs", "policy", "dtype", "device")
"""Attributes that follow from the question alone."""


def largest(response):
    return le.Scores(response.target_change.abs().amax(-1), own=response.source_change.abs().amax(-1))


OWN = le.Measure("largest", "the largest change of an output", largest)


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).double()


def data(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 4, generator=generator, dtype=torch.float64), torch.randint(0, 3, (n,), generator=generator)


def assert_same(one, other, *, coords=True):
    np.testing.assert_allclose(one.values, other.values, rtol=SAME_IN_FLOAT64, atol=1e-12)
    assert {name: one.attrs.get(name) for name in SAID} == {name: other.attrs.get(name) for name in SAID}
    assert one.attrs["targets_are_sources"] == other.attrs["targets_are_sources"]
    if coords:
        assert set(one.coords) == set(other.coords)
        for name in one.coords:
            if one[name].dtype.kind == "f":
                estimated = "floor" in name  # the rounding of outputs, from the examples of a block
                rtol = 0.5 if estimated else SAME_IN_FLOAT64
                np.testing.assert_allclose(one[name], other[name], rtol=rtol, atol=1e-18)
            else:
                assert one[name].values.tolist() == other[name].values.tolist()


@pytest.mark.parametrize(("seed", "measure"), list(enumerate([*NAMES, OWN])))
def test_memory_store_and_monitor_agree(seed, measure):
    check_paths(measure, 7 - seed % 3, 1 + seed % 5, seed % 2 == 0, seed)


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(st.sampled_from([*NAMES, OWN]), st.integers(2, 7), st.integers(1, 5), st.booleans(), st.integers(0, 9))
def test_memory_store_and_monitor_agree_in_random_cases(measure, n, m, square, seed):
    check_paths(measure, n, m, square, seed)


def check_paths(measure, n, m, square, seed):
    """In memory, in a store and by a monitor."""
    name = measure if isinstance(measure, str) else measure.name
    square = square or name == "normalized_kernel"
    net, sources, others = network(seed), data(n, seed), data(m, seed + 100)
    options = {} if name in WITHOUT_STEPS else {"update": le.SGD(0.1)}
    targets = None if square else others
    S = le.similarity(net, sources, targets, loss="cross_entropy", measure=measure, **options)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.zarr"
        stored = le.similarity(
            net, sources, targets, loss="cross_entropy", measure=measure, store=path, block=3, **options
        )
        assert_same(S, stored)
        assert stored.identical(le.load(path))
    monitor = le.Monitor(
        net, sources, targets=targets, loss="cross_entropy", measure=(measure,), every=1, budget=None, **options
    )
    monitor.step(0)
    history = monitor.history
    np.testing.assert_allclose(history[0].similarity[name], S.values, rtol=SAME_IN_FLOAT64, atol=1e-12)
    assert history.source_classes == S["source_class"].values.tolist()
    assert history.target_classes == S["target_class"].values.tolist()
    assert history.square == S.attrs["targets_are_sources"]


x, y = data(6)
BAD = {
    "unknown measure": ({"measure": "elastic"}, "measure: expected one of .*, got 'elastic'"),
    "no measure": ({"measure": 3}, "measure: expected a name, a le.Measure or a function"),
    "no sources": ({"sources": (x[:0], y[:0])}, "sources: there are no examples"),
    "a source short": ({"sources": (x, y[:5])}, "sources: 6 inputs but labels of shape"),
    "not finite": ({"sources": (x / 0, y)}, "sources: inputs contain NaN or infinity"),
    "an unknown class": ({"sources": (x, y + 7)}, "sources: label . is outside the model's 3 outputs"),
    "other targets": ({"targets": torch.ones(3, 5).double()}, "targets: the model does not take one example"),
    "no labels": ({"measure": "stiffness_cos", "targets": x[:3]}, "targets: this measure reads their labels"),
    "normalized": ({"measure": "normalized_kernel", "targets": x[:3]}, "normalized_kernel needs the targets to be"),
    "unknown engine": ({"engine": "quick"}, "engine: 'quick' is not one of"),
    "no update": ({"update": 0.1}, "update: "),
    "a step of stiffness": (
        {"measure": "stiffness_cos", "update": le.SGD(1e-3)},
        "update: stiffness_cos takes no step",
    ),
    "an engine of activation": ({"measure": "activation", "engine": "looped"}, "engine: activation takes no step"),
    "a vector": ({"measure": lambda response: response.step_size}, r"measure: <lambda> gives \(\d,\), not a tensor"),
    "Adam's kernel": ({"measure": "kernel", "update": le.Adam(1e-3)}, "kernel: the update is Adam"),
    "no loss": ({"loss": None}, "loss: a bare model needs one"),
    "no model": ({"problem": "net"}, "problem: expected le.Problem.of"),
    "classes": ({"source_labels": [1, 2]}, "source_labels: "),
}


@pytest.mark.parametrize("size", [4, 0])
def test_batches_that_do_not_divide_the_sources_are_refused_in_memory_and_in_a_store(size, tmp_path):
    for options in ({}, {"store": tmp_path / "s.zarr"}):
        with pytest.raises(ValueError, match="source_batch_size: "):
            le.similarity(network(), (x, y), loss="cross_entropy", source_batch_size=size, **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", ["memory", "store", "monitor"])
@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named_on_every_path(name, path, tmp_path):
    options, words = BAD[name]
    options = {"problem": network(), "sources": (x, y), "loss": "cross_entropy", **options}
    given_measure = options.pop("measure", "relative")
    call = {
        "memory": partial(le.similarity, measure=given_measure),
        "store": partial(le.similarity, measure=given_measure, store=tmp_path / "s.zarr"),
        "monitor": partial(le.Monitor, measure=(given_measure,), every=1),
    }[path]
    with pytest.raises((ValueError, TypeError), match=words):
        call(**options)
    assert not list(tmp_path.iterdir())


@random_cases(
    8,
    40,
    st.lists(st.sampled_from([*NAMES, OWN]), min_size=1, max_size=4, unique_by=str),
    st.integers(2, 7),
    st.integers(1, 5),
    st.booleans(),
    st.integers(0, 9),
)
def test_several_measures_agree_with_each_alone_in_memory_and_in_a_store(measures, n, m, square, seed):
    square = square or "normalized_kernel" in measures
    net, sources, targets = network(seed), data(n, seed), None if square else data(m, seed + 100)
    steps = any(not isinstance(one, str) or one not in WITHOUT_STEPS for one in measures)
    asked = partial(le.similarity, net, sources, targets, loss="cross_entropy")
    step = {"update": le.SGD(0.1)} if steps else {}
    S = asked(measure=tuple(measures), **step)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.zarr"
        stored = asked(measure=tuple(measures), store=path, block=3, **step)
        assert isinstance(stored, xr.Dataset)
        assert stored.identical(le.load(path))
        again = asked(measure=tuple(measures), store=path, **step)
        assert again.identical(stored)
        saved = le.load(stored.le.save(Path(folder) / "saved.zarr"))
        assert saved.identical(stored)
    assert list(S) == list(stored)
    for measure, name in zip(measures, S, strict=True):
        assert_same(S[name], stored[name])
        alone = asked(measure=measure, **({} if measure in WITHOUT_STEPS else step))
        assert_same(S[name], alone, coords=False)


class Counting(le.Looped):
    """Notes how many rows were asked for, by each call."""

    taken: ClassVar[list[int]] = []

    def runner(self, job):
        self.taken.append(job.n)
        return super().runner(job)


def test_a_store_of_several_measures_takes_one_response_for_each_block(tmp_path):
    several, options = ("relative", "kl", "kernel"), {"loss": "cross_entropy", "block": 3}
    counts = {}
    for name, measure in {"one": "relative", "several": several}.items():
        Counting.taken.clear()
        le.similarity(network(), (x, y), measure=measure, **options, engine=Counting(), store=tmp_path / f"{name}.zarr")
        counts[name] = list(Counting.taken)
    assert counts["one"] == counts["several"]


def test_a_store_of_several_measures_resumes(tmp_path):
    measures, options = ("kernel", "normalized_kernel", "relative"), {"loss": "cross_entropy", "block": 2}
    whole = le.similarity(network(), (x, y), measure=measures, **options, store=tmp_path / "whole.zarr")

    def stop(done, total):
        if done == 5:
            raise InterruptedError

    path = tmp_path / "s.zarr"
    with pytest.raises(InterruptedError):
        le.similarity(network(), (x, y), measure=measures, **options, store=path, progress=stop)
    with pytest.raises(ValueError, match="is not finished: . of 9 blocks are there"):
        le.load(path)
    with pytest.raises(ValueError, match=r"holds another measurement: measure \(kernel, normalized_kernel, relative"):
        le.similarity(network(), (x, y), measure=measures[:2], **options, store=path)
    with pytest.raises(ValueError, match="holds another measurement"):
        le.similarity(network(), (x, y), measure="kernel", **options, store=path)
    resumed = le.similarity(network(), (x, y), measure=measures, **options, store=path)
    for name in measures:
        assert np.array_equal(resumed[name].values, whole[name].values)
    odd = le.Measure("a/b", "a quotient", lambda response: response.target_change.amax(-1))
    with pytest.raises(ValueError, match="measure: 'a/b' cannot name a matrix in a store"):
        le.similarity(network(), (x, y), measure=("kl", odd), **options, store=tmp_path / "odd.zarr")
    assert not (tmp_path / "odd.zarr").exists()
    page = le.write_report([path], tmp_path / "page.html")
    assert all(name in Path(page).read_text() for name in measures)


def test_several_measures_cost_one_response():
    Counting.taken.clear()
    S = le.similarity(
        network(),
        (x, y),
        loss="cross_entropy",
        measure=("relative", "kl", "kernel", "stiffness_cos"),
        engine=Counting(),
    )
    assert Counting.taken == [6]
    assert list(S) == ["relative", "kl", "kernel", "stiffness_cos"]
    assert S["kl"].attrs["measure"] == "kl"
    assert len(S["kl"].le.classes()) == len(S["kl"].le.classes(reduce="ratio_of_sums"))
    alone = le.similarity(network(), (x, y), loss="cross_entropy", measure="kl", engine="looped")
    assert S.le.locality(resamples=0).set_index("measure").loc["kl", "ratio"] == le.locality(alone).ratio
    assert set(S.le.classes(resamples=0).measure) == set(S)
    with pytest.raises(TypeError, match="S: expected one similarity, got a Dataset"):
        le.locality(S)
    assert np.array_equal(S["kl"].values, alone.values)
    assert np.array_equal(S["source_change_kl"].values, alone["source_change"].values)


def test_a_measure_of_ones_own_is_taken_everywhere(tmp_path):
    @le.measure("spread", words="how unevenly the outputs of a target move", signed=True)
    def spread(response):
        return response.target_change.std(-1)

    net = network()
    options = {"loss": "cross_entropy"}
    by_name = le.similarity(net, (x, y), measure="spread", **options)
    by_function = le.similarity(net, (x, y), measure=spread, **options)
    assert np.array_equal(by_name.values, by_function.values)
    stored = le.similarity(net, (x, y), measure="spread", **options, store=tmp_path / "s.zarr", block=2)
    np.testing.assert_allclose(stored.values, by_name.values, rtol=SAME_IN_FLOAT64, atol=1e-12)
    monitor = le.Monitor(net, (x, y), **options, measure=("spread", "kl"), every=1)
    monitor.step(0)
    np.testing.assert_allclose(
        monitor.history[0].similarity["spread"], by_name.values, rtol=SAME_IN_FLOAT64, atol=1e-12
    )
    page = le.write_report([stored], tmp_path / "page.html")
    assert "how unevenly the outputs of a target move" in Path(page).read_text()
    with pytest.raises(ValueError, match="name: 'kl' is a measure of local_elasticity"):
        le.measure("kl", words="another")
    with pytest.raises(ValueError, match="measure: two are called 'spread'"):
        le.similarity(net, (x, y), measure=("spread", spread), **options)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = network()

    def forward(self, a, b):
        return self.net(a + b)


def test_targets_of_every_form():
    net, labels = network(), y[:3]
    expected = le.similarity(net, (x, y), x[:3], loss="cross_entropy")
    forms = [(x[:3], None), (x[:3], labels), [x[:3], labels], torch.utils.data.TensorDataset(x[:3], labels)]
    for targets in forms:
        S = le.similarity(net, (x, y), targets, loss="cross_entropy")
        assert np.array_equal(S.values, expected.values)
        known = not (isinstance(targets, tuple) and targets[1] is None)
        assert ("target_class" in S.coords) == known
    for targets in (x, (x, y), (x, None), [x, y]):
        assert le.similarity(net, (x, y), targets, loss="cross_entropy").attrs["targets_are_sources"]
    two = Two()
    a, b = x / 2, x / 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        S = le.similarity(two, ((a, b), y), ((a[:3], b[:3]), None), loss="cross_entropy")
        np.testing.assert_allclose(S.values, expected.values, rtol=SAME_IN_FLOAT64)
        named = le.similarity(two, ({"a": a, "b": b}, y), {"a": a[:3], "b": b[:3]}, loss="cross_entropy")
        np.testing.assert_allclose(named.values, expected.values, rtol=SAME_IN_FLOAT64)
    with pytest.warns(DeprecationWarning, match=r"pass \(\(a, b\), None\)"):
        old = le.similarity(two, ((a, b), y), (a[:3], b[:3]), loss="cross_entropy")
    np.testing.assert_allclose(old.values, expected.values, rtol=SAME_IN_FLOAT64)


def test_classes_have_names(tmp_path):
    names = ["cat", "dog", "bird"]
    expected = [names[label] for label in y.tolist()]
    net, options = network(), {"loss": "cross_entropy"}
    S = le.similarity(net, (x, y), **options, class_names=names)
    stored = le.similarity(net, (x, y), **options, class_names=dict(enumerate(names)), store=tmp_path / "s.zarr")
    monitor = le.Monitor(net, (x, y), **options, class_names=names, every=1)
    found = [S["source_class"].values.tolist(), stored["target_class"].values.tolist(), monitor.history.source_classes]
    assert found == [expected] * 3
    with pytest.raises(ValueError, match="class_names: expected a name for each class"):
        le.similarity(net, (x, y), **options, class_names=["cat"])
