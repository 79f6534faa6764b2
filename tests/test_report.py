"""The explorable page and what it is made of: numbers against oracles, words, hostile input, and what is not there."""

import base64
import dataclasses
import gzip
import io
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image
from scipy.stats import spearmanr
from torch import nn

import local_elasticity as le
from local_elasticity.report import payload
from local_elasticity.report.diagnostics import examine
from local_elasticity.report.distance import distances, rank_correlation
from local_elasticity.report.distance import dots as pairs_of_dots
from local_elasticity.report.embedding import matched, principal_places
from local_elasticity.report.examples import is_picture, kept_examples
from local_elasticity.report.front import Front
from local_elasticity.report.pairs import pairs_of
from local_elasticity.report.run import Panel, Run, Side, chosen_rows, in_order, sampled, shown
from local_elasticity.report.words import effect, printed
from local_elasticity.report.write import read_examples
from local_elasticity.statistics.claims import Claim
from local_elasticity.statistics.judging import judge
from local_elasticity.statistics.locality import quartiles
from local_elasticity.words import percent

HOSTILE = ["<img src=x onerror=alert(1)>", "\"'`;--", "</script><script>alert(2)</script>", "日本語 ‮abc", "a" * 10_000]


@pytest.fixture
def problem():
    return le.Problem.of(nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 3)), "cross_entropy")


@pytest.fixture
def S(problem):
    images = torch.randn(12, 1, 4, 4)
    return le.similarity(problem, (images, torch.arange(12) % 3), measure="kl", update=le.SGD(0.1), examples=images)


def random_run(n=20, m=15, t=3, square=False):
    rng = np.random.default_rng(0)
    values = rng.random((t, n, n if square else m)).astype(np.float32)
    values[:, 2, 3] = np.nan
    sources = Side(np.arange(n), rng.integers(0, 4, n))
    targets = sources if square else Side(np.arange(m), rng.integers(0, 4, m))
    return Run("random", "history", (Panel("kl", values, tuple(range(t))),), sources, targets, square)


def unpacked(block):
    """The numbers of a block, as the page reads them."""
    return np.frombuffer(gzip.decompress(base64.b64decode(block)), dtype="<f4")


def blocks_of(page):
    return re.findall(r'<script type="text/plain" id="block-\d+">([^<]*)</script>', page)


def payload_of(page):
    """What the page's JavaScript reads; a bare NaN or Infinity, which no browser takes, fails the test."""
    packed = re.search(r'id="payload">([^<]*)<', page)[1]
    return json.loads(gzip.decompress(base64.b64decode(packed)), parse_constant=pytest.fail)


def written(results, tmp_path, **options):
    return le.write_report(results, tmp_path / "report.html", **options).read_text(encoding="utf-8")


def test_the_page_holds_the_numbers_exactly(S, tmp_path):
    page = written({"run": S}, tmp_path, about={"data": "made <up>", "seeds": [0, 1]})
    assert "made &lt;up&gt;" in page
    assert "0; 1" in page
    kept = unpacked(blocks_of(page)[0]).reshape(12, 12)
    assert np.array_equal(kept, np.sqrt(S.values.astype(np.float32)))  # how far, of a measure that is quadratic
    run = payload_of(page)["runs"][0]
    assert run["panels"][0]["title"] == "√kl"
    assert run["sources"]["classes"] == ["0", "1", "2"]
    assert run["sources"]["class"] == [0, 1, 2] * 4
    assert all(is_picture(one) for one in run["sources"]["examples"])
    assert run["panels"][0]["own"] == pytest.approx(S["source_change"].values.tolist())


def test_the_page_asks_nobody_for_anything(S, tmp_path):
    page = written({"run": S}, tmp_path)
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page).group(1)
    assert "default-src &#39;none&#39;" in policy
    assert "unsafe-eval" not in policy
    assert "script-src &#39;sha256-" in policy
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert not re.search(
        r"url\(|@import|fetch\(|XMLHttpRequest|WebSocket", re.sub(r">[A-Za-z0-9+/=\s]{2000,}<", "><", page)
    )
    assert len(page.encode()) < 3e6
    size = float(re.search(r'id="size">([\d.]+) MB', page).group(1))
    assert size == pytest.approx(len(page.encode()) / 1e6, abs=0.06)


@pytest.mark.parametrize("kind", ["fifo", "socket", "folder", "link to a fifo", "link to itself", "device"])
def test_only_regular_files_are_replaced_by_a_page(kind, tmp_path):
    out = tmp_path / "out"
    if kind == "folder":
        out.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(out))
    elif kind == "link to itself":
        out.symlink_to(out)
    elif kind == "device":
        if os.geteuid() != 0:
            pytest.skip("only root makes devices")
        os.mknod(out, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    else:
        os.mkfifo(tmp_path / "fifo")
        out.symlink_to("fifo") if "link" in kind else os.mkfifo(out)
    before = os.lstat(out)
    with pytest.raises(OSError, match=r"^out: .* (name a|choose)"):
        le.write_report(le.as_similarity(np.eye(4)), out)
    assert os.lstat(out).st_mode == before.st_mode
    assert os.lstat(out).st_ino == before.st_ino
    assert not list(tmp_path.glob(".*"))


def test_a_link_stays_and_a_file_keeps_its_permissions(tmp_path):
    (tmp_path / "shared").mkdir()
    target, link, new = tmp_path / "shared" / "page.html", tmp_path / "link.html", tmp_path / "new.html"
    target.write_text("before")
    target.chmod(0o640)
    link.symlink_to("shared/page.html")
    new.symlink_to("shared/made.html")
    for place in (link, new):
        assert le.write_report(le.as_similarity(np.eye(4)), place) == place
        assert place.is_symlink()
        assert "<html" in place.read_text(encoding="utf-8")
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert (tmp_path / "shared" / "made.html").is_file()


def test_a_full_disk_leaves_the_earlier_page(tmp_path, full_disk):
    out = tmp_path / "report.html"
    out.write_text("before")
    with full_disk(1000), pytest.raises(OSError, match=r"^out: .*report.html could not be written \(.*\); free some"):
        le.write_report(le.as_similarity(np.eye(4)), out)
    assert out.read_text() == "before"
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_a_page_under_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match=r"^out: .* a part of that path is a file and not a folder$"):
        le.write_report(le.as_similarity(np.eye(4)), tmp_path / "file" / "report.html")


def test_pairs_are_those_of_class_pairs():
    for run in (random_run(), random_run(square=True)):
        panel = run.panels[0]
        pairs = pairs_of(run, panel)
        labels = (run.sources.classes, None if run.square else run.targets.classes)
        expected = le.class_pairs(panel.values[-1], *labels, resamples=0)
        assert np.allclose(pairs.median[-1].ravel(), expected.value.to_numpy(), equal_nan=True, rtol=1e-5)
        known = np.isfinite(pairs.within)
        assert (pairs.bands["within_low"][known] <= pairs.within[known]).all()
        values = panel.values[-1].astype(float)
        if run.square:
            np.fill_diagonal(values, np.nan)
        same = np.array(run.sources.classes)[:, None] == np.array(run.targets.classes)
        within, between = np.nanmedian(values[same]), np.nanmedian(values[~same])
        assert pairs.within[-1] == pytest.approx(within, rel=1e-5)
        assert pairs.ratio[-1] == pytest.approx(between / within, rel=1e-5)
        assert pairs.bands["between_high"][-1] == pytest.approx(np.nanquantile(values[~same], 0.75), rel=1e-5)


@settings(deadline=None)
@given(arrays(np.float64, (3, 7), elements=st.one_of(st.floats(-1e6, 1e6), st.just(np.nan))))
def test_quantiles_are_numpys(values):
    with np.errstate(all="ignore"), pytest.warns(RuntimeWarning) if np.isnan(values).all(1).any() else _nothing():
        expected = np.nanquantile(values, (0.25, 0.5, 0.75), axis=1)
    assert np.allclose(quartiles(values), expected, equal_nan=True)


def _nothing():
    import contextlib

    return contextlib.nullcontext()


@pytest.mark.parametrize("shape", [(3, 5), (130, 7), (250, 301)])
def test_blocks_are_medians_of_neighbours(shape):
    rng = np.random.default_rng(0)
    values = rng.random(shape)
    values[1, 1] = np.nan
    rows, columns = rng.permutation(shape[0]), rng.permutation(shape[1])
    made = payload.blocks(values, rows, columns)
    edges = [[size * i // min(size, 100) for i in range(min(size, 100) + 1)] for size in shape]
    ordered = values[np.ix_(rows, columns)]
    for i in (0, len(edges[0]) - 2):
        for j in (0, len(edges[1]) - 2):
            block = ordered[edges[0][i] : edges[0][i + 1], edges[1][j] : edges[1][j + 1]]
            assert np.allclose(made[i, j], np.nanmedian(block) if np.isfinite(block).any() else np.nan, equal_nan=True)


def test_a_large_history_is_exact_at_its_ends_and_where_it_changed(monkeypatch):
    monkeypatch.setattr(payload, "COARSE_SIDE", 5)
    run, pack = random_run(t=8), payload.Pack()
    front = Front("ratio", 2, "", curve={"change": [3, 4], "steepest": None})
    made = payload._panel(run, run.panels[0], pack, 3 * 20 * 15, None, front)
    assert [matrix["exact"] for matrix in made["matrices"]] == [True, False, False, True, False, False, False, True]
    last = np.sqrt(run.panels[0].values[-1]).astype(np.float32)
    assert np.array_equal(unpacked(pack.blocks[-1]).reshape(20, 15), last, equal_nan=True)
    assert unpacked(pack.blocks[1]).shape == (25,)
    alone = payload._panel(run, run.panels[0], payload.Pack(), 1, None, front)
    assert [matrix["exact"] for matrix in alone["matrices"]] == [False] * 7 + [True]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc")), min_size=1, max_size=30))
def test_wrong_ones_are_those_of_the_best_match(pairs):
    clusters, classes = zip(*pairs, strict=True)
    match = matched(clusters, classes)
    assert match.accuracy == pytest.approx(le.best_match_accuracy(clusters, classes))
    assert match.wrong.mean() == pytest.approx(1 - match.accuracy)


def test_places_hold_a_matrix_of_rank_two():
    rng = np.random.default_rng(0)
    points = rng.uniform(-1, 1, (30, 2)) * [3, 1]
    points -= points.mean(0)
    S = np.clip(points @ points.T, *np.quantile(points @ points.T, [0.0, 1.0]))
    places = principal_places(S)
    assert places.share > 0.97
    apart = lambda x: np.linalg.norm(x[:, None] - x, axis=2)
    assert np.corrcoef(apart(places.points).ravel(), apart(points).ravel())[0, 1] > 0.98
    assert principal_places(np.full((5, 5), np.nan)) is None
    assert principal_places(np.ones((1, 1))) is None


def test_correlations_are_spearmans():
    rng = np.random.default_rng(0)
    a, b = rng.random(50), rng.integers(0, 5, 50).astype(float)
    assert rank_correlation(a, b) == pytest.approx(spearmanr(a, b).statistic, abs=1e-4)
    assert rank_correlation(a, np.ones(50)) is None


def test_distances_are_between_the_examples():
    x = np.random.default_rng(1).normal(1e4, 1, (20, 3, 40, 50))
    flat = x.reshape(20, -1)
    expected = np.linalg.norm(flat[:, None] - flat, axis=2)
    assert np.allclose(distances(x, torch.tensor(x)), expected, rtol=1e-6, atol=1e-4)
    assert distances(["a", "b"], ["a", "b"]) is None
    assert distances([x[0], None], x) is None
    assert distances(np.zeros((3000, 1)), np.zeros((3000, 1))) is None
    run = random_run(square=True)
    found = pairs_of_dots(dataclasses.replace(run, apart=expected))
    assert np.allclose(found.distances, expected[found.rows, found.columns])
    assert (found.rows != found.columns).all()
    assert pairs_of_dots(run) is None


def test_correlations_with_distance_are_of_whole_examples(tmp_path):
    """Vectors that differ only beyond what the page shows of them, from a similarity, a store and write_report."""
    rng = np.random.default_rng(0)
    x = np.concatenate([np.zeros((20, 64)), rng.normal(size=(20, 200))], 1)
    S = np.exp(-distances(x, x) / 20)
    le.as_similarity(S, examples=x).le.save(tmp_path / "run.zarr")
    for results, options in (
        (le.as_similarity(S, examples=x), {}),
        (le.as_similarity(S), {"examples": x}),
        (tmp_path / "run.zarr", {}),
    ):
        run = payload_of(written(results, tmp_path, **options))["runs"][0]
        assert run["panels"][0]["correlations"] == {"0": -1.0}
    kept = kept_examples(x, 20)
    page = written(le.as_similarity(S, examples=kept), tmp_path)
    assert payload_of(page)["runs"][0]["scatter"] is None
    assert "Distances between the examples are not known" in page
    assert "No examples were given" in written(le.as_similarity(S), tmp_path)


def test_examples_are_kept_as_pictures_texts_or_vectors():
    grey = np.random.default_rng(0).integers(0, 256, (3, 8, 8), dtype=np.uint8)
    kept = kept_examples(grey, 3)
    assert all(np.array_equal(dots(one), picture) for one, picture in zip(kept, grey, strict=True))
    colour = kept_examples(torch.rand(2, 3, 64, 64), 2)
    assert all(one.startswith("data:image/webp") for one in colour)
    assert dots(colour[0]).shape == (48, 48, 3)
    assert np.array_equal(kept_examples(kept, 3), kept)
    assert len(kept_examples(["x" * 10**7], 1)[0]) == 500
    assert is_picture(kept_examples(np.full((1, 4, 4), np.nan), 1)[0])
    assert not is_picture("data:image/svg+xml;base64,AAAA")
    assert not is_picture('data:image/png;base64,AAAA" onload=')
    with pytest.raises(ValueError, match="examples: 3 do not fit 4"):
        kept_examples(grey, 4)
    with pytest.raises(ValueError, match="1, 3 or 4 channels"):
        kept_examples(np.zeros((2, 5, 8, 8)), 2)


def test_examples_may_be_missing_or_differ_in_size():
    small, large = np.zeros((4, 4)), torch.ones(6, 5)
    first, nothing, last = kept_examples([small, None, large], 3)
    assert nothing == ""
    assert dots(first).max() == 0
    assert dots(last).min() == 255
    assert dots(last).shape == (6, 5)
    assert kept_examples([[1.0], [1.0, 2.0]], 2).tolist() == ["[1.0]", "[1.0, 2.0]"]


def dots(kept):
    with Image.open(io.BytesIO(base64.b64decode(kept.partition(",")[2]))) as image:
        return np.asarray(image)


def test_examples_travel_with_a_similarity(S, tmp_path):
    S.le.save(tmp_path / "run.zarr")
    assert le.load(tmp_path / "run.zarr").identical(S)
    assert list(S.le.frame().columns) == ["source", "target", "source_class", "target_class", "value"]
    assert len(S.le.nearest(3, top=2)) == 2
    page = payload_of(written([tmp_path / "run.zarr"], tmp_path))
    assert page["runs"][0]["sources"]["examples"] == S["source_example"].values.tolist()
    assert page["runs"][0]["panels"][0]["correlations"]["0"] is not None


def test_a_sample_keeps_every_class_in_its_share():
    classes = np.array([0] * 9000 + [1] * 1000)
    rows = chosen_rows(classes, 10_000, 100)
    assert len(rows) == len(set(rows)) == 100
    assert abs((classes[rows] == 1).sum() - 10) <= 1
    assert (np.diff(rows) > 0).all()
    run = random_run(n=50, m=60)
    small = sampled(run, 20)
    assert small.panels[0].values.shape == (3, 20, 20)
    assert np.array_equal(
        small.panels[0].values,
        run.panels[0].values[:, small.sources.places][:, :, small.targets.places],
        equal_nan=True,
    )
    assert "50 sources and 60 targets" in small.notes[0]
    assert "seed 0" in small.notes[0]


def test_few_targets_leave_space_for_more_sources():
    sources, target = Side(np.arange(600)), Side(np.arange(2))
    run = Run("who harms", "similarity", (Panel("loss", np.zeros((1, 600, 2)), ()),), sources, target, False)
    assert sampled(run, 100, longest=1000) is run
    assert len(sampled(run, 100, longest=500).sources) == 500
    assert len(sampled(run, 100).sources) == 100
    assert len(sampled(run, 30, longest=1000).sources) == 450


def test_a_hundred_thousand_examples_are_sampled_and_said(tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 100_000)
    S = le.as_similarity(rng.random((100_000, 4), dtype=np.float32), source_labels=labels, target_labels=list("abcd"))
    S.le.save(tmp_path / "large.zarr")
    page = written(tmp_path / "large.zarr", tmp_path)
    assert "100,000 sources" in page
    assert "drawn at random (seed 0)" in page
    assert len(payload_of(page)["runs"][0]["sources"]["places"]) == 1000


def test_hostile_labels_are_only_text(problem, tmp_path):
    x = torch.randn(5, 1, 4, 4)
    S = le.similarity(problem, (x, torch.arange(5) % 3), source_labels=HOSTILE, examples=HOSTILE)
    page = written({HOSTILE[0]: S}, tmp_path, title=HOSTILE[2], command=HOSTILE[2])
    assert "<img src=x" not in page
    assert "alert(2)</script>" not in page
    assert "&lt;img src=x" in page
    assert len(page) < 3e6
    card = S.le.html()._repr_html_()
    assert "<img src=x" not in card
    assert "<script" not in card


HALF = "\ud800"


@pytest.mark.parametrize(
    "options",
    [
        {"examples": [HALF, "a\x00b", "a" * 10_000]},
        {"title": HALF, "command": f"{HALF}\udcff", "about": {HALF: f"{HALF}\x00", "nan": float("nan")}},
        {"examples": np.zeros((3, 0, 0))},
        {"examples": np.zeros((3, 0, 4, 4))},
        {"examples": np.array([[[[-1.7e308, 1.7e308]]]] * 3)},
        {"examples": np.full((3, 4), np.inf)},
        {"examples": np.full((3, 4), 1e308)},
    ],
    ids=["texts", "head", "no pixels", "no channels", "huge pictures", "infinite vectors", "huge vectors"],
)
def test_whatever_is_shown_makes_a_page_of_text(tmp_path, options):
    labels = [HALF, "\x1b[31m", "</script>"]
    page = le.write_report({HALF: le.as_similarity(np.eye(3), source_labels=labels)}, tmp_path / "page.html", **options)
    assert payload_of(page.read_bytes().decode("utf-8"))["runs"][0]["sources"]["classes"]
    assert not re.search("[\x00-\x08\x0e-\x1f]", page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("value", [1e308, -1e308, np.inf, -np.inf, np.nan, -0.0, 1e-320])
@pytest.mark.parametrize("every", [False, True])
def test_any_number_makes_a_page(tmp_path, value, every):
    values = np.full((3, 3), value) if every else np.eye(3)
    values[0, 1] = value
    S = le.as_similarity(values, source_labels=[0, 1, 1])
    page = le.write_report(S, tmp_path / "page.html")
    scale = payload_of(page.read_bytes().decode("utf-8"))["runs"][0]["panels"][0]["scale"]
    assert scale["low"] <= 0 < scale["high"] < np.finfo(np.float32).max
    S.le.html()
    left_out = "Similarities beyond ±3.4e+38 are left out as unresolved" in page.read_text(encoding="utf-8")
    assert left_out == (abs(value) == 1e308)


def test_a_card_is_small_and_complete(S):
    card = S.le.html()._repr_html_()
    assert len(card) < 20_000
    assert "12 sources × 12 targets" in card
    assert "Every pair was resolved" in card
    assert card.count("<tr>") == 4
    assert len(le.as_similarity(np.random.default_rng(0).random((500, 500))).le.html().text) < 60_000


def test_responses_and_estimates_show_themselves(problem):
    sources = torch.randn(6, 1, 4, 4), torch.arange(6) % 3
    response = dataclasses.replace(le.respond(problem, sources), notes=("<b>bold</b>",))
    assert "6 sources × 6 targets × 3 logits" in response._repr_html_()
    assert "&lt;b&gt;bold" in response._repr_html_()
    estimate = dataclasses.replace(le.estimate(problem, sources), reason="<script>")
    assert "of memory" in estimate._repr_html_()
    assert "of memory" in str(estimate)
    assert "<script>" not in estimate._repr_html_()


def test_a_monitor_shows_itself(problem, tmp_path):
    x, y = torch.randn(6, 1, 4, 4), torch.arange(6) % 3
    monitor = le.Monitor(problem, (x, y), measure=("kl", "relative_l1"), every=1, budget=None)
    assert "no probe yet" in monitor._repr_html_()
    for step in range(3):
        monitor.step(step)
    assert "3 probes up to step 2" in monitor._repr_html_()
    assert monitor.history._repr_html_() == monitor._repr_html_()
    run = payload_of(written(monitor, tmp_path, examples=x))["runs"][0]
    assert [panel["measure"] for panel in run["panels"]] == ["kl", "relative_l1"]
    assert run["panels"][0]["steps"] == [0, 1, 2]
    assert np.array(run["panels"][0]["pairs"]["median"]).shape == (3, 3, 3)
    assert len(run["sources"]["examples"]) == 6


def test_a_stored_history_and_a_similarity_stand_side_by_side(problem, S, tmp_path):
    x, y = torch.randn(6, 1, 4, 4), torch.arange(6) % 3
    monitor = le.Monitor(problem, (x, y), measure=("kl",), every=1, budget=None, store=tmp_path / "history.zarr")
    monitor.step(0)
    S.le.save(tmp_path / "run.zarr")
    runs = payload_of(written([tmp_path / "history.zarr", tmp_path / "run.zarr"], tmp_path))["runs"]
    assert [(run["name"], run["kind"]) for run in runs] == [("history.zarr", "history"), ("run.zarr", "similarity")]
    both = payload_of(written(tmp_path, tmp_path))["runs"]
    assert [run["name"] for run in both] == ["history.zarr", "run.zarr"]


def test_a_clustering_is_shown_with_its_wrong_ones(tmp_path):
    from sklearn.datasets import make_blobs

    X, kinds = make_blobs(30, centers=2, n_features=3, random_state=0)
    model = le.LocalElasticityClustering(2, network="fnn-64", epochs=5, random_state=0).fit(X)
    alone = payload_of(written({"model": model}, tmp_path))["runs"][0]
    assert alone["kind"] == "clustering"
    assert alone["match"] is None
    page = written({"model": model}, tmp_path)
    assert "30 examples fall into 2 clusters: cluster 0 with " in page
    assert "local_elasticity 0" in page
    S = le.as_similarity(model.similarity_, source_labels=kinds, clusters=model.labels_, examples=X, measure="kernel")
    S.le.save(tmp_path / "clusters.zarr")
    page = written(tmp_path / "clusters.zarr", tmp_path)
    match = payload_of(page)["runs"][0]["match"]
    assert match["accuracy"] == pytest.approx(le.best_match_accuracy(model.labels_, kinds))
    assert "Each cluster is matched with a class (cluster 0 is " in page
    with pytest.raises(ValueError, match="clusters: shape"):
        S.le.with_clusters([1, 2])


def test_a_clustering_by_landmarks_is_shown_by_its_features(tmp_path):
    X = np.random.default_rng(0).normal(size=(40, 3))
    model = le.LocalElasticityClustering(2, network="fnn-64", epochs=5, random_state=0)
    with pytest.raises(ValueError, match="not fitted; call fit"):
        le.write_report(model, tmp_path / "report.html")
    model.set_params(approximation="landmarks").fit(X)
    page = written(model, tmp_path, examples=X)
    assert "features by landmarks" in page
    run = payload_of(page)["runs"][0]
    assert run["sources"]["cluster"] == model.labels_.tolist()
    found = unpacked(blocks_of(page)[0]).reshape(40, 40)
    assert np.allclose(found, model.features_ @ model.features_.T, rtol=1e-5, atol=1e-6)


def test_runs_of_one_name_are_told_apart_by_their_folders(S, tmp_path):
    paths = [tmp_path / "one" / "s.zarr", tmp_path / "two" / "s.zarr", tmp_path / "other.zarr"]
    for path in paths:
        S.le.save(path)
    runs = payload_of(written(paths, tmp_path))["runs"]
    assert [run["name"] for run in runs] == ["one/s.zarr", "two/s.zarr", "other.zarr"]


def test_long_labels_are_shortened_but_not_mixed(tmp_path):
    values = np.kron(np.array([[1.0, 0.1], [0.1, 1.0]]), np.ones((3, 3)))
    page = written(le.as_similarity(values, source_labels=["x" * 80 + "A"] * 3 + ["x" * 80 + "B"] * 3), tmp_path)
    run = payload_of(page)["runs"][0]
    assert run["sources"]["class"] == [0, 0, 0, 1, 1, 1]
    assert len(set(run["panels"][0]["pairs"]["classes"])) == 2
    pairs = run["panels"][0]["pairs"]
    assert pairs["between"][0] / pairs["within"][0] == pytest.approx(0.1)
    assert shown("می\u200cخواهم 👩\u200d🔬 \u202eabc\x07") == "می\u200cخواهم 👩\u200d🔬 abc"


def test_what_cannot_be_shown_is_said(S, tmp_path):
    S.le.save(tmp_path / "half.zarr")
    (tmp_path / "half.zarr" / "zarr.json").write_text('{"zarr_for')
    (tmp_path / "empty.zarr").mkdir()
    xr.Dataset({"other": ("a", [1.0])}).to_zarr(tmp_path / "other.zarr", consolidated=False)
    (tmp_path / "paper").mkdir()
    (tmp_path / "paper" / "result.json").write_text('{"schema": 2}')
    for name, text in (("list.zarr", "[]"), ("null.zarr", '{"attributes": null}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "zarr.json").write_text(text)
    names = ("half.zarr", "empty.zarr", "other.zarr", "paper", "list.zarr", "null.zarr")
    paths = [tmp_path / name for name in names]
    page = written([*paths, S], tmp_path, about={"weights": np.arange(3)})
    assert "[0 1 2]" in page
    assert page.count('<li class="bad"><b>') >= 6
    assert "holds no similarity" in page
    assert "is not a result" in page
    only = written(paths, tmp_path)
    assert "What could not be shown" in only
    assert "<script" not in only
    with pytest.raises(FileNotFoundError, match="there is no"):
        le.write_report(tmp_path / "nowhere.zarr", tmp_path / "report.html")
    with pytest.raises(TypeError, match="int cannot be reported"):
        le.write_report([3], tmp_path / "report.html")
    with pytest.raises(TypeError, match="results: Sequential cannot be reported; give a similarity, a Monitor"):
        le.write_report(nn.Sequential(nn.Linear(2, 1)), tmp_path / "report.html")
    with pytest.raises(ValueError, match=r"holds no similarity, no history and no result\.json"):
        le.write_report(tmp_path / "empty.zarr", tmp_path / "nothing.html")
    assert not (tmp_path / "nothing.html").exists()
    with pytest.raises(ValueError, match="nothing to report"):
        le.write_report([], tmp_path / "report.html")


def test_matrices_without_numbers_and_single_examples_have_pages(tmp_path):
    nothing = le.as_similarity(np.full((4, 4), np.nan), source_labels=list("abab"), measure="kl")
    page = written(nothing, tmp_path)
    assert "Nothing was resolved" in page
    assert "No pair could be resolved" in page
    single = written(le.as_similarity(np.ones((1, 1)), source_labels=["a"]), tmp_path)
    assert "One step was taken on each of 1 examples" in single
    empty = written(le.as_similarity(np.ones((0, 3))), tmp_path)
    assert "it holds no measurement yet" in empty


def test_examples_that_do_not_fit_are_said(S, tmp_path):
    bare = S.drop_vars(["source_example", "target_example", "distance"])
    for examples in (["only one"], np.zeros((13, 4, 4))):
        page = written(bare, tmp_path, examples=examples)
        assert "The given examples are not shown" in page
        assert payload_of(page)["runs"][0]["sources"]["examples"] is None


def test_health_says_what_to_be_careful_with():
    run = random_run(square=True)
    own = np.ones(20)
    own[3] = 1e-5
    values = np.random.default_rng(0).random((1, 20, 20))
    values[0, 0, 1] = 1e6
    values[0, 5] = np.nan
    np.fill_diagonal(values[0], 1)
    share = 1 - np.isfinite(values).mean()
    findings = {f.title: f for f in examine(run, Panel("kl", values, (), own, own * np.linspace(0.1, 0.2, 20)))}
    harmless = ", which does not change the conclusion"
    assert findings[f"Some denominators are small{harmless}"].level == "good"
    assert findings[f"A few pairs are extreme{harmless}"].level == "good"
    assert findings["All sources are above the noise floor"].level == "good"
    assert findings[f"{percent(share)} of the pairs are unresolved"].level == "careful"
    below = {f.title: f.level for f in examine(run, Panel("kl", values, (), own, own * 10))}
    assert below["100 % of the sources are below the noise floor"] == "careful"
    assert "Their rows are not larger" in findings[f"Some denominators are small{harmless}"].words
    values[0, 3] *= 1e4
    (large,) = [f for f in examine(run, Panel("kl", values, (), own)) if f.title.startswith("Some denominators")]
    assert large.level == "good"
    assert "Their rows are larger (" in large.words
    assert "the conclusion does not rest on them." in large.words
    few = own.copy()
    few[: len(own) // 2] = 1e-5
    split = np.where(
        few[:, None] < 1, 1e4 * np.where(run.sources.classes[:, None] == run.targets.classes, 9.0, 1.0), 1.0
    )[None]
    (matters,) = [f for f in examine(run, Panel("kl", split, (), few)) if f.title == "Some denominators are small"]
    assert matters.level == "careful"
    assert "the conclusion depends on them." in matters.words
    (alone,) = [
        f
        for f in examine(dataclasses.replace(run, sources=Side(np.arange(20))), Panel("kl", values, (), own))
        if f.title == "Some denominators are small"
    ]
    assert "trust medians alone" in alone.words
    assert "The diagonal is not 1" in {f.title for f in examine(run, Panel("kl", 3 * values)) if f.level == "bad"}
    kernel = {f.title for f in examine(run, Panel("kernel", values))}
    assert "No denominators" in kernel


def test_a_paper_is_shown_with_its_verdicts(tmp_path):
    from local_elasticity.papers.runner import find_experiment, run_experiment

    folder = tmp_path / "fig1"
    result = run_experiment(find_experiment("he2020local/fig1"), folder, scale="smoke", seeds=2)
    page = written(folder, tmp_path)
    for claim in result["claims"]:
        assert claim["verdict"] in page
        assert f'data-name="paper">{printed(claim)}</td>' in page
        assert f'data-name="measured (95 %)">{effect(claim)}</td>' in page
    assert page.count('src="data:image/png;base64,') == sum(name.endswith(".png") for name in result["figures"])
    assert "local-elasticity run he2020local/fig1 --scale smoke" in page
    assert "he2020local/fig1, as defined, smoke scale, 2 seeds.</figcaption>" in re.sub(r"\s+</", "</", page)
    for name in result["figures"]:
        (folder / name).unlink()
    assert "is missing" in written(folder, tmp_path)


def test_papers_have_a_legend_and_small_scales_are_said(tmp_path):
    result = {
        "schema": 2,
        "experiment": "he2020local/table1",
        "scale": "smoke",
        "reading": "as_released",
        "seeds": [0],
        "environment": {"device": "cpu", "torch": "2"},
        "commit": "a",
        "seconds": 1.0,
        "cells": [],
        "claims": [],
        "figures": [],
    }
    said = "scale: this shows that it runs; verdicts count at paper scale"
    for scale in ("smoke", "small", "paper"):
        (tmp_path / scale).mkdir()
        (tmp_path / scale / "result.json").write_text(json.dumps({**result, "scale": scale}))
        page = written(tmp_path / scale, tmp_path)
        assert (f"{scale} {said}" in page) == (scale != "paper")
        assert all(word in page for word in ("as defined", "as released", "undecided", "tolerance", "unadjusted"))
    page = written(tmp_path, tmp_path / "out")
    assert page.count('class="legend"') == 1
    assert 'data-name="numbers"' in page


def a_claim(**options):
    """As it stands in a result.json."""
    units = [0.7, 0.8, 0.9]
    one = Claim("falls", "It falls.", "§1", "statistic", lambda _: [{"a − b": units}], **options)
    return judge([one], None)[0].as_json()


def test_a_claim_leads_to_the_figure_it_names(tmp_path):
    from local_elasticity.report.paper import Figure, _claim

    figures = [Figure("fig11", "", ""), Figure("fig12 13", "", ""), Figure("loss 13", "", "")]
    claim = a_claim()
    assert _claim({**claim, "place": "Figs 11, 13"}, figures)["figures"] == [1, 2]
    assert _claim(claim, figures)["figures"] == []
    assert _claim(claim, figures[:1])["figures"] == [1]


def test_many_results_are_titled_by_their_papers(tmp_path):
    from local_elasticity.papers.runner import find_experiment, run_experiment

    run_experiment(find_experiment("he2020local/fig1"), tmp_path / "a", scale="smoke", seeds=1)
    for name in "bcd":
        shutil.copytree(tmp_path / "a", tmp_path / name)
    assert "<title>Local elasticity: 4 results of he2020local</title>" in written(tmp_path, tmp_path / "out")


def test_a_claim_shows_the_papers_value_the_interval_and_the_test():
    from local_elasticity.report.paper import _claim

    shown = _claim({**a_claim(), "paper": [0.97, 0.2]}, [])
    assert (shown["text"], shown["verdict"], shown["paper"]) == ("It falls. (§1)", "supported", "0.97")
    assert shown["measured"] == "0.8 (0.552 … 1.05)"
    tested = "p before correction 0.00258 for, 0.997 against"
    assert shown["evidence"] == f"statistic; claimed: above 0; a − b; 3 units; {tested}"
    assert _claim(a_claim(kind="exact"), [])["evidence"] == "statistic; claimed: above 0; a − b; no chance involved"


def test_a_result_of_another_schema_says_how_to_read_it(tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "result.json").write_text('{"schema": 1}')
    assert "expected schema 2, got 1; judge it again with" in written(tmp_path / "old", tmp_path)


def test_labels_are_ordered_as_people_do():
    assert in_order([10, 9, 1.0]) == ["1", "9", "10"]
    assert in_order(["b", "a", "b"]) == ["a", "b"]
    assert in_order(["class 10", "class 9", "nan", "0.5", "-2"]) == ["-2", "0.5", "class 9", "class 10", "nan"]
    assert in_order(["a" + "9" * 9, "a" + "0" * 20 + "8"])[0].endswith("8")


def test_the_command_writes_a_page(S, tmp_path):
    S.drop_vars(["source_example", "target_example", "distance"]).le.save(tmp_path / "run.zarr")
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(0).random((12, 4, 4)))
    command = [sys.executable, "-m", "local_elasticity", "report"]
    out = tmp_path / "page.html"
    answer = subprocess.run(
        [*command, str(tmp_path / "run.zarr"), "--out", str(out), "--examples", str(tmp_path / "x.npz")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"wrote {out}" in answer.stdout
    page = out.read_text(encoding="utf-8")
    assert len(payload_of(page)["runs"][0]["sources"]["examples"]) == 12
    assert "local-elasticity report" in page
    again = subprocess.run([*command, str(tmp_path / "run.zarr"), "--out", str(out)], capture_output=True, text=True)
    assert f"replaced {out}" in again.stdout
    missing = subprocess.run([*command, str(tmp_path / "nowhere")], capture_output=True, text=True, cwd=tmp_path)
    assert missing.returncode == 2
    assert "there is no" in missing.stderr
    np.savez(tmp_path / "other.npz", images=np.ones(3))
    with pytest.raises(ValueError, match="no array x"):
        read_examples(tmp_path / "other.npz")


def test_a_title_may_hold_any_text(tmp_path):
    x, y = torch.randn(4, 3), torch.arange(4) % 2
    S = le.similarity(torch.nn.Linear(3, 2), (x, y), loss="cross_entropy", class_names=["caf\udce9", "%%SIZE%%"])
    out = le.write_report(S, tmp_path / "page.html", title="T %%SIZE%%", about={})
    text = out.read_text()
    assert "T %%SIZE%%</h1>" in text
    assert re.search(r'<span id="size">[0-9.]+ [kM]B</span>', text)
    assert list(S.source_class.values[:2]) == ["caf\\udce9", "%%SIZE%%"]
    S.le.save(tmp_path / "s.zarr")
    assert list(le.load(tmp_path / "s.zarr").source_class.values) == list(S.source_class.values)
    with pytest.raises(TypeError, match=r"about: expected a dict of facts, got \[1\]"):
        le.write_report(S, tmp_path / "page.html", about=[1])
