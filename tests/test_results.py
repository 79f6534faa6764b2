"""The labelled result: what it carries, what its accessor does, how it is kept."""

import json

import numpy as np
import pytest
import torch
import xarray as xr
from torch import nn

import local_elasticity as le

MEASURES = [
    "relative",
    "relative_l1",
    "kl",
    "kernel",
    "normalized_kernel",
    "loss",
    "stiffness_cos",
    "stiffness_sign",
    "activation",
]


@pytest.fixture
def problem():
    return le.Problem.of(nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 3)), "cross_entropy")


x, y, x2 = torch.randn(8, 4), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1]), torch.randn(5, 4)


@pytest.mark.parametrize("measure", MEASURES)
def test_every_measure_has_a_name(problem, measure):
    S = le.similarity(problem, (x, y), measure=measure)
    assert S.dims == ("source", "target")
    assert S.shape == (8, 8)
    assert S.attrs["measure"] == measure
    assert S.attrs["unresolved"] == 0
    assert S["source_class"].values.tolist() == S["target_class"].values.tolist() == y.tolist()
    assert len(S.le.classes()) == 9


def test_names_mean_what_the_functions_compute(problem):
    response = le.respond(problem, (x, y), update=le.SGD(0.1), engine="looped")
    options = {"update": le.SGD(0.1), "engine": "looped"}
    expected = {
        "relative": le.relative(response),
        "relative_l1": le.relative(response.as_probabilities(), change=le.manhattan),
        "kl": le.relative(response, change=le.kl),
        "kernel": le.kernel(response),
        "normalized_kernel": le.normalized(le.kernel(response)),
    }
    for name, matrix in expected.items():
        assert np.allclose(le.similarity(problem, (x, y), measure=name, **options).values, matrix.numpy())
    own = lambda response: le.relative(response, change=lambda before, d: d.abs().amax(-1))
    assert le.similarity(problem, (x, y), measure=own, **options).shape == (8, 8)


def test_it_says_how_it_was_made(problem):
    S = le.similarity(problem, (x, y), x2, update=le.SGD(0.1), target_labels=list("abcab"))
    assert S.attrs["update"] == "SGD(step_size=0.1, weight_decay=0.0)"
    assert S.attrs["step_size"] == 0.1
    assert S.attrs["engine"] == "structured"
    assert S.attrs["reading"] == "as_defined"
    assert S.attrs["loss"] == "cross_entropy"
    assert "dropout off" in S.attrs["policy"]
    assert not S.attrs["targets_are_sources"]
    assert set(S.attrs["versions"]) == {"local_elasticity", "torch", "python"}
    assert S["target_class"].values.tolist() == list("abcab")
    json.dumps(S.attrs)


def test_the_accessor_frames_ranks_and_sums_up(problem):
    S = le.similarity(problem, (x, y), update=le.SGD(0.1))
    frame = S.le.frame()
    assert list(frame.columns) == ["source", "target", "source_class", "target_class", "value"]
    assert len(frame) == 64
    assert frame.value[3] == S.values[0, 3]
    with pytest.raises(ValueError, match="source: 99 is not one of the 8 sources"):
        S.le.nearest(source=99)
    nearest = S.le.nearest(source=3, top=4)
    assert len(nearest) == 4
    assert 3 not in nearest.target.values
    row = np.delete(S.values[3], 3)
    assert np.allclose(nearest.value, np.sort(row)[::-1][:4])
    sums = S.le.classes(reduce="ratio_of_sums")
    response = le.respond(problem, (x, y), update=le.SGD(0.1))
    moved, own = response.target_change.norm(dim=2), response.source_change.norm(dim=1)
    zeros, twos = torch.nonzero(y == 0).flatten(), torch.nonzero(y == 2).flatten()
    expected = moved[zeros][:, twos].sum() / (own[zeros].sum() * len(twos))
    assert sums[(sums.source_class == 0) & (sums.target_class == 2)].value.item() == pytest.approx(
        float(expected), rel=1e-3
    )


def test_a_result_without_classes_says_so(problem):
    plain = le.similarity(le.Problem.of(nn.Linear(4, 1), "mse"), (x, torch.randn(8)))
    assert list(plain.le.frame().columns) == ["source", "target", "value"]
    with pytest.raises(ValueError, match="no classes"):
        plain.le.classes()


def test_a_minibatch_is_a_row(problem):
    S = le.similarity(problem, (x, y), update=le.SGD(0.1), source_batch_size=4)
    assert S.shape == (2, 8)
    assert "source_class" not in S.coords


def test_stiffness_reads_the_targets_labels(problem):
    S = le.similarity(problem, (x, y), (x[:3], y[:3]), measure="stiffness_cos")
    assert np.allclose(S.values, le.stiffness(problem, (x, y)).numpy()[:, :3], atol=1e-6)


def test_it_can_be_drawn(problem, tmp_path):
    from local_elasticity.report.figures import save_figure

    for measure, labels in (("relative", None), ("stiffness_cos", list("abcabcab"))):
        S = le.similarity(problem, (x, y), measure=measure, source_labels=labels)
        S[2, 3] = np.nan
        files = save_figure(S.le.plot(), tmp_path / measure)
        assert [file.suffix for file in files] == [".png", ".svg"]
        assert all(file.stat().st_size > 3000 for file in files)
    unlabelled = le.similarity(le.Problem.of(nn.Linear(4, 1), "mse"), (x, torch.randn(8)), x2)
    unlabelled.le.plot()
    everything_hidden = unlabelled * np.nan
    everything_hidden.le.plot()


def test_figures_fill_one_column_or_two(problem):
    S = le.similarity(problem, (x, y))
    assert [S.le.plot(columns=columns).get_figwidth() for columns in (1, 2)] == [3.4, 7.0]
    with pytest.raises(ValueError, match="columns: expected 1 or 2, got 3"):
        S.le.plot(columns=3)


@pytest.mark.parametrize(("measure", "top"), [("kl", 1.0), ("kernel", 9.0)])
def test_colours_end_where_a_source_moves_as_far_as_itself(measure, top):
    """A few fitted sources, whose similarities are huge, leave the others visible."""
    S = le.as_similarity(np.full((4, 4), 9.0), measure=measure)
    assert S.le.plot().axes[0].images[0].get_clim() == (0.0, top)


@pytest.mark.parametrize(
    "labels", [None, list("abcabcab"), ["caffè", "x" * 50, "", "a", "b", "c", "d", "é"], np.arange(8.0)]
)
def test_what_is_saved_is_read_back(problem, tmp_path, labels):
    path = tmp_path / "deep" / "run.zarr"
    S = le.similarity(problem, (x, y), update=le.SGD(0.1), source_labels=labels, store=path)
    again = le.load(path)
    assert again.identical(S)
    assert again.le.classes().equals(S.le.classes())
    with xr.open_zarr(path, consolidated=False) as plain:
        assert np.array_equal(plain["similarity"].values, S.values)


def test_results_are_not_overwritten_and_not_left_half_written(problem, tmp_path, monkeypatch):
    path = tmp_path / "run.zarr"
    S = le.similarity(problem, (x, y))
    S.le.save(path)
    with pytest.raises(FileExistsError, match="run.zarr"):
        S.le.save(path)
    monkeypatch.setattr(xr.Dataset, "to_zarr", lambda *args, **kwargs: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        S.le.save(tmp_path / "other.zarr")
    assert [file.name for file in tmp_path.iterdir()] == ["run.zarr"]


def test_what_is_no_result_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="not a result"):
        le.load(tmp_path)
    xr.Dataset({"other": ("a", [1.0])}).to_zarr(tmp_path / "other.zarr", consolidated=False)
    with pytest.raises(ValueError, match="holds no similarity"):
        le.load(tmp_path / "other.zarr")
