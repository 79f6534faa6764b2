"""Similarities in blocks on disk: the same as in memory, resumed to the same bytes, refused where something differs."""

import gzip
import json
import logging
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import xarray as xr
import zarr
from hypothesis import given
from hypothesis import strategies as st
from numcodecs.zstd import Zstd
from torch import nn
from typer.testing import CliRunner

import local_elasticity as le
from local_elasticity.cli import app
from local_elasticity.engine.update import DEFAULT_UPDATE
from local_elasticity.store import provenance
from local_elasticity.store.atomic import whole_folder
from local_elasticity.store.blocks import OURS, BlockStore, Grid
from local_elasticity.store.fingerprint import fingerprint
from local_elasticity.store.result import verify
from tests.tolerances import SAME_IN_FLOAT32, STRUCTURED_IN_FLOAT32

SGD = le.SGD(0.1)
MEASURES = ["relative", "relative_l1", "kl", "kernel", "normalized_kernel"]
SYMMETRIC = ["stiffness_cos", "stiffness_sign", "activation"]


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 3))


def problem():
    return le.Problem.of(network(), "cross_entropy")


def data(n=10):
    generator = torch.Generator().manual_seed(2)
    return torch.randn(n, 4, generator=generator), torch.arange(n) % 3


def chunks(path):
    """The bytes of the array's chunks, by name."""
    folder = path / "similarity" / "c"
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("measure", MEASURES + SYMMETRIC)
def test_blocks_make_the_same_matrix(tmp_path, measure):
    x, y = data()
    options = {"measure": measure, **({} if measure in SYMMETRIC else {"update": SGD})}
    whole = le.similarity(problem(), (x, y), **options)
    S = le.similarity(problem(), (x, y), **options, store=tmp_path / "s.zarr", block=4)
    np.testing.assert_allclose(S.values, whole.values, rtol=STRUCTURED_IN_FLOAT32, atol=STRUCTURED_IN_FLOAT32)
    assert S.dims == whole.dims
    assert S.attrs["measure"] == measure
    assert S.attrs["block"] == 4
    assert S["source_class"].values.tolist() == whole["source_class"].values.tolist()
    if "source_change" in whole.coords:
        np.testing.assert_allclose(S["source_change"], whole["source_change"], rtol=STRUCTURED_IN_FLOAT32)
    assert len(S.le.classes()) == 9
    assert S.le.nearest(3, top=2).target.tolist() == whole.le.nearest(3, top=2).target.tolist()


def test_other_targets_minibatches_and_engines(tmp_path):
    x, y = data()
    for place, options in enumerate(
        (
            {"targets": x[:5] + 1},
            {"source_batch_size": 2},
            {"engine": "looped"},
            {"engine": le.Vmapped(2), "targets": x[:5] + 1},
            {"approximate": True},
            {"update": le.Adam(1e-2)},
            {"measure": lambda response: le.relative(response, change=le.manhattan)},
        )
    ):
        options = {"update": SGD, **options}
        whole = le.similarity(problem(), (x, y), **options)
        S = le.similarity(problem(), (x, y), **options, store=tmp_path / f"{place}.zarr", block=3)
        np.testing.assert_allclose(S.values, whole.values, rtol=SAME_IN_FLOAT32, atol=1e-5)
    labels = (x[:5] + 1, y[:5])
    S = le.similarity(problem(), (x, y), labels, measure="stiffness_cos", store=tmp_path / "st.zarr", block=3)
    np.testing.assert_allclose(S.values, le.stiffness(problem(), (x, y), labels).numpy(), atol=1e-6)


def test_plain_xarray_opens_it(tmp_path):
    x, y = data()
    S = le.similarity(problem(), (x, y), update=SGD, store=tmp_path / "s.zarr", block=4)
    with xr.open_zarr(tmp_path / "s.zarr", consolidated=False) as plain:
        assert np.array_equal(plain["similarity"].values, S.values)
        assert plain["similarity"].dims == ("source", "target")
        assert plain["source_class"].values.tolist() == y.tolist()
        assert np.array_equal(plain["source_change"].values, S["source_change"].values)
        assert {"source_class", "target_class", "source_change"} <= set(plain.coords)


def test_half_of_a_symmetric_measure_is_kept_and_all_of_it_read(tmp_path):
    x, y = data()
    whole = le.similarity(problem(), (x, y), measure="stiffness_cos").values
    path = tmp_path / "s.zarr"
    S = le.similarity(problem(), (x, y), measure="stiffness_cos", store=path, block=4)
    assert len(chunks(path)) == 6
    np.testing.assert_allclose(S.values, whole, atol=1e-6)
    assert np.array_equal(S.values[:4, 4:], S.values[4:, :4].T)
    lazy = le.load(path, lazy=True)
    rows = [7, 0, 9]
    for part in (lazy[5], lazy[:, 2], lazy[9, 0], lazy[3:8, ::2], lazy[rows], lazy[rows, 1:4], lazy.isel(target=rows)):
        assert np.array_equal(part.values, S.sel(source=part.source, target=part.target).values)


@given(n=st.integers(1, 40), m=st.integers(1, 40), side=st.integers(1, 50), square=st.booleans(), half=st.booleans())
def test_blocks_cover_every_pair_once(n, m, side, square, half):
    grid = Grid(n, n if square else m, side, square, square and half)
    covered = np.zeros((grid.n, grid.m), dtype=int)
    own = np.zeros(grid.n, dtype=int)
    for at in grid.blocks():
        covered[grid.region(at)] += 1
        if grid.symmetric and at[0] != at[1]:
            covered.T[grid.region(at)] += 1
        own[grid.region(at)[0]] += grid.holds_own(at)
    assert (covered == 1).all()
    assert (own == 1).all()


def test_a_large_result_stays_on_disk(tmp_path, monkeypatch):
    x, y = data()
    path = tmp_path / "s.zarr"
    le.similarity(problem(), (x, y), update=SGD, store=path, block=4)
    monkeypatch.setattr("local_elasticity.store.result.available", lambda device: 100)
    S = le.load(path)
    assert not isinstance(S.variable._data, np.ndarray)
    assert np.array_equal(S[2:4].values, le.load(path, lazy=False).values[2:4])


def test_a_finished_store_is_read_and_nothing_is_computed(tmp_path):
    x, y = data()
    S = le.similarity(problem(), (x, y), update=SGD, store=tmp_path / "s.zarr", block=4)
    again = le.similarity(
        problem(), (x, y), update=SGD, store=tmp_path / "s.zarr", progress=lambda *_: pytest.fail("computed again")
    )
    assert again.identical(S)


def _interrupted(path, after, **options):
    """Stop after some blocks, as a crash would."""
    x, y = data()

    def failing(done, total):
        if done == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        le.similarity(problem(), (x, y), **{"update": SGD, **options}, store=path, block=4, progress=failing)


@pytest.mark.parametrize("measure", ["kl", "normalized_kernel", "activation"])
def test_finished_blocks_are_skipped(tmp_path, measure):
    x, y = data()
    path, options = tmp_path / "s.zarr", {"measure": measure, **({} if measure == "activation" else {"update": SGD})}
    _interrupted(path, 4, measure=measure, update=options.get("update", DEFAULT_UPDATE))
    with pytest.raises(ValueError, match=r"not finished: 4 of \d blocks"):
        le.load(path)
    computed = []
    le.similarity(problem(), (x, y), **options, store=path, progress=lambda done, total: computed.append(done))
    assert len(computed) == (6 if measure == "activation" else 9) - 4
    le.similarity(problem(), (x, y), **options, store=tmp_path / "other.zarr", block=4)
    assert chunks(path) == chunks(tmp_path / "other.zarr")


def test_what_was_half_written_is_swept_away(tmp_path):
    x, y = data()
    path = tmp_path / "s.zarr"
    _interrupted(path, 2)
    leftover = path / "similarity" / "c" / "0" / "1.0123456789abcdef.partial"
    leftover.parent.mkdir(parents=True, exist_ok=True)
    leftover.write_bytes(b"half")
    le.similarity(problem(), (x, y), update=SGD, store=path)
    assert not leftover.exists()


seen_by_engine = []


class Noting(le.Looped):
    """Notes the threads and the memory that it works with."""

    def runner(self, job):
        seen_by_engine.append((torch.get_num_threads(), job.memory))
        return super().runner(job)


def test_resume_uses_the_recorded_threads_and_memory(tmp_path):
    x, y = data()
    path = tmp_path / "s.zarr"
    _interrupted(path, 2, memory=1 << 22, engine=Noting())
    seen_by_engine.clear()
    torch.set_num_threads(2)
    try:
        le.similarity(problem(), (x, y), update=SGD, engine=Noting(), store=path)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert set(seen_by_engine) == {(1, 1 << 22)}


def _killed_at_a_random_time(path, seconds, run):
    """Run in another process, kill -9 it, and tell whether it was still at work."""
    child = os.fork()
    if child == 0:
        run(path)
        os._exit(0)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def _fills_forever(path):
    """Another process that fills a folder and never ends; and that folder, once it is there."""
    child = os.fork()
    if child == 0:
        with whole_folder(path) as unfinished:
            (unfinished / "begun").touch()
            time.sleep(600)
    while not (found := [*path.parent.glob(f".{path.name}.*.partial/begun")]):
        time.sleep(0.01)
    os.utime(found[0].parent, (0, 0))
    return child, found[0].parent


def test_what_a_killed_process_left_unfinished_is_removed_by_the_next_one(tmp_path):
    """And what a living one is filling stays."""
    child, left = _fills_forever(tmp_path / "killed")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    living, filled = _fills_forever(tmp_path / "living")
    for name in ("killed", "living"):
        with whole_folder(tmp_path / name):
            pass
    try:
        assert not left.exists()
        assert filled.exists()
    finally:
        os.kill(living, signal.SIGKILL)
        os.waitpid(living, 0)


def _survives(tmp_path, kills):
    x, y = data(60)
    wide = le.Problem.of(nn.Sequential(nn.Linear(4, 2000), nn.ReLU(), nn.Linear(2000, 3)), "cross_entropy")

    def run(path):
        return le.similarity(wide, (x, y), measure="kl", update=SGD, store=path, block=12, progress=False)

    expected = run(tmp_path / "whole.zarr")
    began = time.monotonic()
    run(tmp_path / "timed.zarr")
    seconds = time.monotonic() - began
    assert chunks(tmp_path / "timed.zarr") == chunks(tmp_path / "whole.zarr")
    draw, stopped = random.Random(3), 0
    for kill in range(kills):
        path = tmp_path / f"{kill}.zarr"
        stopped += _killed_at_a_random_time(path, draw.uniform(0, seconds), run)
        S = run(path)
        assert chunks(path) == chunks(tmp_path / "whole.zarr"), f"kill {kill}"
        assert np.array_equal(S["source_change"], expected["source_change"])
        assert not verify(path)["damaged"]
    return stopped


def test_kill_9_at_a_random_time_changes_no_byte(tmp_path):
    assert _survives(tmp_path, 3) >= 1


@pytest.mark.slow
def test_kill_9_twenty_times_changes_no_byte(tmp_path):
    assert _survives(tmp_path, 20) >= 10


def test_what_differs_is_said(tmp_path):
    x, y = data()
    path = tmp_path / "s.zarr"
    _interrupted(path, 3)
    other = problem()
    with torch.no_grad():
        other.model[0].weight[0, 0] += 1e-6
    moved = x.clone()
    moved[3, 1] += 1e-6
    given = {"update": SGD, "store": path}
    for words, call in {
        "weights differ": lambda: le.similarity(other, (x, y), **given),
        "sources differ": lambda: le.similarity(problem(), (moved, y), **given),
        "labels, source_labels, target_labels differ": lambda: le.similarity(problem(), (x, y.flip(0)), **given),
        "targets": lambda: le.similarity(problem(), (x, y), x[:3] + 0, **given),
        r"measure \(relative there, kl here\)": lambda: le.similarity(problem(), (x, y), measure="kl", **given),
        r"update \(SGD\(step_size=0.1.*SGD\(step_size=0.2": lambda: le.similarity(
            problem(), (x, y), update=le.SGD(0.2), store=path
        ),
        "engine": lambda: le.similarity(problem(), (x, y), engine="looped", **given),
        "network": lambda: le.similarity(
            replace(problem(), model=nn.Sequential(*network()[:1], nn.Tanh(), network()[2])), (x, y), **given
        ),
        "block: .* was begun with blocks of 4": lambda: le.similarity(problem(), (x, y), block=5, **given),
    }.items():
        with pytest.raises(ValueError, match=words):
            call()
    assert len(verify(path)["finished"]) == 3


class Divided(nn.Module):
    """The same weights, whatever they are divided by."""

    def __init__(self, by):
        super().__init__()
        self.net, self.by = network(), by

    def forward(self, x):
        return self.net(x) / self.by


class Privately(nn.Module):
    """The same with its number where only it looks: an object in a list."""

    def __init__(self, by):
        super().__init__()
        self.net, self._factors = network(), [{"of": Halved(by)}]

    def forward(self, x):
        return self.net(x) / self._factors[0]["of"]._by


class Halved:
    __slots__ = ("_by",)

    def __init__(self, by):
        self._by = by

    def hook(self, net, args, out):
        return out / self._by


def _hooked(hook):
    net = network()
    net.register_forward_hook(hook)
    return net


def _hooked_before(by):
    net = network()
    net[2].register_forward_pre_hook(lambda net, args: (args[0] / by,))
    return net


class Scaled:
    def __init__(self, by):
        self.by = by

    def __call__(self, response):
        return self.by * le.relative(response)


def _scaled(by):
    return lambda response: by * le.relative(response)


def _with_default(by):
    def measure(response, by=by):
        return by * le.relative(response)

    return measure


def _on_a_line(by):
    return (lambda response: le.relative(response), lambda response: 2 * le.relative(response))[by - 1]


def _smoothed(by):
    return le.Problem.of(network(), partial(nn.functional.cross_entropy, label_smoothing=by / 4), kind="logits")


@pytest.mark.parametrize(
    ("what", "made"),
    [
        ("measure", lambda by: {"measure": partial(le.relative, change=le.euclidean if by == 1 else le.manhattan)}),
        ("measure", lambda by: {"measure": _scaled(by)}),
        ("measure", lambda by: {"measure": Scaled(by)}),
        ("measure", lambda by: {"measure": _with_default(by)}),
        ("measure", lambda by: {"measure": _on_a_line(by)}),
        ("network", lambda by: {"problem": le.Problem.of(Divided(by), "cross_entropy")}),
        ("output", lambda by: {"problem": le.Problem.of(network(), "cross_entropy", output=lambda out: out / by)}),
        ("loss", lambda by: {"problem": _smoothed(by)}),
        ("network", lambda by: {"problem": le.Problem.of(Privately(by), "cross_entropy")}),
        ("network", lambda by: {"problem": le.Problem.of(_hooked(lambda net, args, out: out / by), "cross_entropy")}),
        ("network", lambda by: {"problem": le.Problem.of(_hooked(Halved(by).hook), "cross_entropy")}),
        ("network", lambda by: {"problem": le.Problem.of(_hooked_before(by), "cross_entropy")}),
    ],
)
def test_what_functions_and_modules_hold_belongs_to_it(tmp_path, what, made):
    x, y = data()

    def run(by):
        return le.similarity(
            **{"problem": problem(), **made(by)}, sources=(x, y), update=SGD, store=tmp_path / "s.zarr"
        )

    first = run(1)
    assert run(1).identical(first)
    with pytest.raises(ValueError, match=f"another measurement: {what}.* differ"):
        run(2)


def test_what_no_fingerprint_shows_is_measured(tmp_path, monkeypatch):
    x, y = data()
    weighed = lambda out: out * torch.tensor([1.0, 1.0, float(os.environ["WEIGHT"])])
    read_elsewhere = le.Problem.of(network(), "cross_entropy", output=weighed)
    for measure in ("kernel", "normalized_kernel", "stiffness_cos"):
        monkeypatch.setenv("WEIGHT", "1")
        given = {"sources": (x, y), "measure": measure, "store": tmp_path / f"{measure}.zarr"}
        le.similarity(read_elsewhere, **given)
        le.similarity(read_elsewhere, **given)
        monkeypatch.setenv("WEIGHT", "9")
        with pytest.raises(ValueError, match="other values when they are measured again"):
            le.similarity(read_elsewhere, **given)


def fingerprint_of_many():
    return fingerprint([Scaled(2), Divided(3), _scaled(4), {"a", "b", "c"}, SGD])


def test_a_fingerprint_is_the_same_in_every_process():
    script = [sys.executable, "-c", "from tests import test_store; print(test_store.fingerprint_of_many())"]
    other_hashes = os.environ | {"PYTHONHASHSEED": "1"}
    there = subprocess.run(script, capture_output=True, text=True, check=True, env=other_hashes)
    assert there.stdout.strip() == fingerprint_of_many()


def _numbered(module):
    """The same weights with every version of torch."""
    with torch.no_grad():
        for place, p in enumerate(module.parameters()):
            p.copy_((torch.arange(p.numel()) % 7 - 3 + place).reshape(p.shape) / 8)
    return module


@pytest.mark.parametrize(
    ("value", "known"),
    [
        (nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), "08425fc978741cc7"),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.GELU(), nn.Linear(8, 2)), "99b7490afea50d4b"),
        (nn.LSTM(3, 2), "6f5b5510a8e19213"),
        (nn.MultiheadAttention(4, 2), "2baa15279a12e415"),
        (nn.Embedding(5, 2), "e3f168d16020ee64"),
        (partial(round, ndigits=2), "cbb4ef044014217f"),
        (np.arange(3), "60476cb8e6b6b06f"),
        (torch.relu, "81d04e25ba0c23f6"),
        (nn.Parameter(torch.ones(2)), "d26362632141b19b"),
    ],
)
def test_fingerprints_of_earlier_stores_are_still_those(value, known):
    """Computed before hooks and private attributes counted: what has none keeps its fingerprint."""
    value = _numbered(value) if isinstance(value, nn.Module) else value
    assert fingerprint(value) == known


def test_hooks_count_by_their_order_and_how_they_are_called():
    first, second = (lambda net, args, out: out * 2), (lambda net, args, out: out + 1)
    with_kwargs = lambda net, args, kwargs, out: out * 2
    made = []
    for hooks in ((), (first,), (second,), (first, second), (second, first)):
        net = network()
        for hook in hooks:
            net.register_forward_hook(hook)
        made.append(net)
    for options in ({"always_call": True}, {"with_kwargs": True}):
        made.append(network())
        made[-1].register_forward_hook(with_kwargs if "with_kwargs" in options else first, **options)
    made += [network(), network()]
    made[-2].register_full_backward_hook(lambda net, inputs, outputs: None)
    made[-1][0].weight.register_hook(lambda gradient: 2 * gradient)
    fingerprints = [fingerprint(net) for net in made]
    assert len(set(fingerprints)) == len(made)
    handle = made[0].register_forward_hook(first)
    handle.remove()
    assert fingerprint(made[0]) == fingerprints[0]


def test_what_belongs_to_a_run_does_not_count():
    one, other = Privately(1), Privately(1)
    one._logger, other._logger = logging.getLogger("one"), logging.getLogger("other")
    one._lock, other._lock = threading.Lock(), threading.Lock()
    assert fingerprint(one) == fingerprint(other)


def test_what_cannot_be_fingerprinted_is_said(caplog):
    fingerprint(torch.Generator())
    assert "Generator cannot be fingerprinted" in caplog.text
    fingerprint(torch.ones(2, device="meta"))
    assert "tensor on meta, torch.strided cannot be fingerprinted" in caplog.text


def test_the_state_of_a_live_optimizer_belongs_to_it(tmp_path):
    x, y = data()
    net = network()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    live = le.Problem.of(net, "cross_entropy")

    def run():
        return le.similarity(live, (x, y), update=le.FromOptimizer(optimizer), store=tmp_path / "s.zarr")

    run()
    weights = {name: p.clone() for name, p in net.state_dict().items()}
    nn.functional.cross_entropy(net(x), y).backward()
    optimizer.step()
    net.load_state_dict(weights)
    with pytest.raises(ValueError, match="update"):
        run()


def _decaying(decayed, others):
    groups = [{"params": list(decayed.parameters())}, {"params": list(others.parameters()), "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.1)


def test_which_parameters_are_in_which_group_belongs_to_it(tmp_path):
    x, y = data()
    net = network()
    live = le.Problem.of(net, "cross_entropy")
    path = tmp_path / "s.zarr"

    def run(optimizer):
        return le.similarity(live, (x, y), update=le.FromOptimizer(optimizer), store=path)

    first = run(_decaying(net[0], net[2]))
    assert run(_decaying(net[0], net[2])).identical(first)
    with pytest.raises(ValueError, match="another measurement: optimizer_groups differ"):
        run(_decaying(net[2], net[0]))
    described = json.loads((path / "zarr.json").read_text())
    del described["attributes"]["local_elasticity"]["provenance"][
        "optimizer_groups"
    ]  # as in stores of earlier versions
    (path / "zarr.json").write_text(json.dumps(described))
    assert run(_decaying(net[0], net[2])).identical(first)


class Clipping(torch.optim.SGD):
    """Holds a number that its state does not."""

    def __init__(self, params, largest):
        super().__init__(params, lr=0.1)
        self.largest = largest

    def step(self, closure=None):
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], self.largest)
        return super().step(closure)


def test_what_an_optimizers_class_adds_belongs_to_it(tmp_path):
    x, y = data()
    net = network()
    live = le.Problem.of(net, "cross_entropy")
    path = tmp_path / "s.zarr"

    def run(largest):
        optimizer = Clipping(net.parameters(), largest)
        torch.optim.lr_scheduler.StepLR(optimizer, 1)  # it puts its own attributes there
        return le.similarity(live, (x, y), update=le.FromOptimizer(optimizer), store=path)

    first = run(1.0)
    assert run(1.0).identical(first)
    with pytest.raises(ValueError, match="another measurement: optimizer_attributes differ"):
        run(1e9)
    described = json.loads((path / "zarr.json").read_text())
    del described["attributes"]["local_elasticity"]["provenance"]["optimizer_attributes"]
    (path / "zarr.json").write_text(json.dumps(described))
    assert run(1.0).identical(first)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "Adafactor"])
@pytest.mark.parametrize("extended", [False, True])
def test_what_torch_keeps_on_an_optimizer_does_not_count(name, extended):
    """Its own bookkeeping changes with the first step, and when a scheduler comes."""
    kind = getattr(torch.optim, name)
    net = network()
    optimizer = (type("Mine", (kind,), {}) if extended else kind)(net.parameters(), lr=0.1)
    live = le.Problem.of(net, "cross_entropy")

    def found():
        return provenance.of_optimizer(le.FromOptimizer(optimizer), live)["optimizer_attributes"]

    assert found() == fingerprint({})
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    net(data()[0]).sum().backward()
    optimizer.step()
    assert found() == fingerprint({})


def test_measures_that_look_at_all_pairs_are_refused(tmp_path):
    x, y = data()
    with pytest.raises(ValueError, match=r"measure: .*S.le.save"):
        le.similarity(problem(), (x, y), measure=lambda r: le.relative(r).softmax(1), store=tmp_path / "s.zarr")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a" * 300, "a/" * 3000, "a\0b"])
def test_a_path_that_nothing_can_have_is_refused(tmp_path, name):
    path, (x, y) = f"{tmp_path}/{name}", data()
    S = le.similarity(problem(), (x, y))
    asked = {
        "store": lambda: le.similarity(problem(), (x, y), store=path),
        "store: ": lambda: S.le.save(path),
        "store: /": lambda: le.Monitor(network(), (x, y), loss="cross_entropy", store=path),
        "path": lambda: le.load(path),
        "path: ": lambda: le.training.History.open(path),
        "out": lambda: le.write_report(S, path),
        "results": lambda: le.write_report(path, tmp_path / "page.html"),
    }
    for argument, call in asked.items():
        with pytest.raises(ValueError, match=f"^{argument}.* is no possible path"):
            call()
    assert list(tmp_path.iterdir()) == []


def _endless(file, how):
    """In place of a file, something that reading waits for, or that fills the memory."""
    file.unlink()
    if how == "fifo":
        os.mkfifo(file)
    elif how == "endless":
        file.symlink_to("/dev/zero")
    elif how == "nested":
        file.write_text("[" * 100_000)
    else:
        with file.open("wb") as sparse:
            sparse.truncate(1 << 40)


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """A similarity and a history."""
    folder = tmp_path_factory.mktemp("stores")
    x, y = data()
    le.similarity(problem(), (x, y), update=SGD, store=folder / "similarity.zarr")
    monitor = le.Monitor(network(), (x, y), loss="cross_entropy", every=1, budget=None, store=folder / "history.zarr")
    monitor.step(0)
    monitor.close()
    return folder


CHUNKS = [
    "similarity.zarr/target/c/0",
    "similarity.zarr/source_class/c/0",
    "similarity.zarr/source_change/c/0",
    "similarity.zarr/block_digest/c/0/0/0",
    "similarity.zarr/similarity/c/0/0",
    "history.zarr/step/c/0",
    "history.zarr/seconds/c/0",
]
DESCRIPTIONS = [f"{kind}.zarr/{of}zarr.json" for kind in ("similarity", "history") for of in ("", "similarity/")]


@pytest.mark.parametrize(
    ("file", "how"),
    [
        *((file, how) for file in CHUNKS + DESCRIPTIONS for how in ("fifo", "endless", "sparse")),
        *((file, "nested") for file in DESCRIPTIONS),
    ],
)
def test_a_file_that_cannot_be_read_at_once_is_refused(tmp_path, stores, file, how):
    shutil.copytree(stores, tmp_path, dirs_exist_ok=True)
    _endless(tmp_path / file, how)
    path = tmp_path / file.partition("/")[0]
    with pytest.raises(ValueError, match=f"path: .*{path.name} (is damaged|cannot be read)"):
        le.training.History.open(path) if "history" in path.name else le.load(path)
    le.write_report(path, tmp_path / "page.html")
    assert "cannot be read" in (tmp_path / "page.html").read_text()


def _damage(path, chunk, how):
    file = path / chunk
    content = bytearray(file.read_bytes())
    if how == "truncated":
        del content[10:]
    elif how == "flipped":
        content[5] ^= 1
    file.unlink() if how == "removed" else file.write_bytes(content)


@pytest.mark.parametrize("how", ["truncated", "flipped", "removed"])
def test_damaged_chunks_are_found_and_computed_again(tmp_path, how, caplog):
    x, y = data()
    path = tmp_path / "s.zarr"
    le.similarity(problem(), (x, y), update=SGD, store=path, block=4)
    before = chunks(path)
    _damage(path, "similarity/c/1/2", how)
    assert verify(path)["damaged"] == [(1, 2)]
    answer = CliRunner().invoke(app, ["verify-store", str(path)])
    assert answer.exit_code == 1
    assert "damaged: (1, 2)" in answer.stdout
    with pytest.raises(ValueError, match=r"damaged: block \(1, 2\) is not what was written"):
        le.load(path)
    lazy = le.load(path, lazy=True)
    assert np.isfinite(lazy[:4].values).all()
    with pytest.raises(ValueError, match=r"damaged: block \(1, 2\)"):
        _ = lazy[5].values
    le.similarity(problem(), (x, y), update=SGD, store=path)
    assert "block (1, 2)" in caplog.text
    assert chunks(path) == before


@pytest.mark.parametrize("how", ["truncated", "flipped", "removed"])
@pytest.mark.parametrize("lazy", [False, True])
def test_damaged_labels_are_not_handed_out(tmp_path, how, lazy):
    x, y = data()
    path = tmp_path / "s.zarr"
    S = le.similarity(problem(), (x, y), update=SGD, store=path, block=4)
    S.le.save(tmp_path / "whole.zarr")
    for store, chunk, words in (
        (path, "source_change/c/1", r"block \(1, 1\)"),
        (path, "source_class/c/0", "source_class|labels"),
        (tmp_path / "whole.zarr", "source_change/c/0", "source_change|labels"),
    ):
        _damage(store, chunk, how)
        with pytest.raises(ValueError, match=f"is damaged.*{words}"):
            le.load(store, lazy=lazy)
    with pytest.raises(ValueError, match="source_class|labels"):
        verify(path)


@pytest.mark.parametrize("array", ["similarity", "block_digest", "source_change"])
@pytest.mark.parametrize("how", ["truncated", "removed"])
def test_damaged_descriptions_are_a_clear_error(tmp_path, array, how):
    x, y = data()
    path = tmp_path / "s.zarr"
    le.similarity(problem(), (x, y), update=SGD, store=path, block=4)
    _damage(path, f"{array}/zarr.json", how)
    for call in (
        lambda: le.load(path),
        lambda: verify(path),
        lambda: le.similarity(problem(), (x, y), update=SGD, store=path),
    ):
        with pytest.raises(ValueError, match="cannot be read as a zarr store"):
            call()


def test_verify_store_says_that_all_is_well(tmp_path):
    x, y = data()
    S = le.similarity(problem(), (x, y), update=SGD, store=tmp_path / "s.zarr", block=4)
    S.le.save(tmp_path / "whole.zarr")
    for name, words in (("s.zarr", "9 of 9 blocks"), ("whole.zarr", "1 of 1 blocks")):
        answer = CliRunner().invoke(app, ["verify-store", str(tmp_path / name)])
        assert answer.exit_code == 0
        assert words in answer.stdout


def test_a_dataset_of_measures_says_what_they_share(tmp_path):
    several = ("relative", "loss")
    S = le.similarity(problem(), data(8), measure=several, update=SGD)
    assert {"engine", "update", "step_size", "notes", "loss", "versions"} <= set(S.attrs)
    assert all(S[name].attrs[shared] == value for name in several for shared, value in S.attrs.items())
    assert "measure" not in S.attrs
    S.le.save(tmp_path / "s.zarr")
    assert le.load(tmp_path / "s.zarr").attrs == S.attrs


def test_what_is_not_ours_is_refused_and_left_alone(tmp_path):
    x, y = data()
    (tmp_path / "folder").mkdir()
    xr.Dataset({"other": ("a", [1.0])}).to_zarr(tmp_path / "other.zarr", consolidated=False)
    (tmp_path / "file").write_text("hello")
    (tmp_path / "broken.zarr").mkdir()
    (tmp_path / "broken.zarr" / "zarr.json").write_text('{"zarr_format": 3, "node')
    S = le.similarity(problem(), (x, y), update=SGD)
    S.le.save(tmp_path / "whole.zarr")
    for name, words in {
        "folder": "not a result",
        "file": "not a result",
        "other.zarr": "holds no similarity",
        "broken.zarr": "cannot be read",
        "whole.zarr": "saved whole",
    }.items():
        with pytest.raises((ValueError, FileNotFoundError, FileExistsError), match=words):
            le.similarity(problem(), (x, y), update=SGD, store=tmp_path / name)
    assert le.load(tmp_path / "whole.zarr").identical(S)


def _edit(file, change):
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def _claim(path, n, m, side):
    """Let every description of a store tell of n × m pairs in blocks of `side`."""
    grid = Grid(n, m, side)
    shapes = {
        "similarity": ((n, m), grid.chunks),
        "block_digest": ((*grid.shape, 32), (1, 1, 32)),
        "source_change": ((n,), grid.chunks[:1]),
        **dict.fromkeys(("source", "source_class"), ((n,), (n,))),
        **dict.fromkeys(("target", "target_class"), ((m,), (m,))),
    }
    for name, (shape, chunk) in shapes.items():

        def change(about, shape=shape, chunk=chunk):
            about["shape"], about["chunk_grid"]["configuration"]["chunk_shape"] = shape, chunk

        _edit(path / name / "zarr.json", change)
        if name not in ("similarity", "block_digest", "source_change"):
            shutil.rmtree(path / name / "c", ignore_errors=True)
    _edit(path / "zarr.json", lambda about: about["attributes"][OURS].update(grid=vars(grid)))


@pytest.mark.parametrize("consistent", [False, True], ids=["record alone", "every description"])
@pytest.mark.parametrize(("n", "m", "side"), [(10**9, 10**9, 1), (10**9, 10**9, 10**9), (10**6, 10**6, 10**6)])
def test_a_store_that_claims_too_much_is_refused_in_little_memory(tmp_path, n, m, side, consistent):
    path = tmp_path / "s.zarr"
    le.similarity(problem(), data(8), update=SGD, store=path, block=4)
    if consistent:
        _claim(path, n, m, side)
    else:
        _edit(path / "zarr.json", lambda about: about["attributes"][OURS]["grid"].update(n=n, m=m, side=side))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for call in (le.load, verify, lambda path: le.similarity(problem(), data(8), update=SGD, store=path)):
        with pytest.raises(ValueError, match=r"(path|store): .* (blocks|shape|take|is damaged)") as refused:
            call(path)
        assert len(str(refused.value).splitlines()) == 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000


@pytest.mark.parametrize(
    "grid", [{"side": 0}, {"n": -8}, {"n": "8"}, {"n": 8.0}, {"m": True}, {"symmetric": 1}, {"other": 1}, {"m": 9}]
)
def test_a_grid_that_cannot_be_is_refused(tmp_path, grid):
    path = tmp_path / "s.zarr"
    le.similarity(problem(), data(8), update=SGD, store=path, block=4)
    _edit(path / "zarr.json", lambda about: about["attributes"][OURS]["grid"].update(grid))
    with pytest.raises(ValueError, match=r"path: .* cannot be read"):
        le.load(path)


@pytest.mark.parametrize("plan", [{"threads": 10**9}, {"threads": 0}, {"memory": "all"}, {"side": 3}, {"other": 1}])
def test_a_plan_that_cannot_be_is_refused(tmp_path, plan):
    path = tmp_path / "s.zarr"
    le.similarity(problem(), data(8), update=SGD, store=path, block=4)
    _edit(path / "zarr.json", lambda about: about["attributes"][OURS]["plan"].update(plan))
    with pytest.raises(ValueError, match=r"store: .* is damaged: its plan cannot be read"):
        le.similarity(problem(), data(8), update=SGD, store=path)


@pytest.mark.parametrize("names", [["kl"], [], ["kl", "kl"]])
def test_measures_that_a_store_was_not_begun_with_are_refused(tmp_path, names):
    path = tmp_path / "s.zarr"
    le.similarity(problem(), data(8), measure=("relative", "kl"), update=SGD, store=path, block=4)
    _edit(path / "zarr.json", lambda about: about["attributes"][OURS].update(measures=names))
    with pytest.raises(ValueError, match=r"store: .* is damaged: it names other measures"):
        le.similarity(problem(), data(8), measure=("relative", "kl"), update=SGD, store=path)


def test_too_many_blocks_are_refused_before_anything_is_computed(tmp_path):
    with pytest.raises(ValueError, match=r"block: 2,000 × 2,000 pairs in blocks of 1 are 4e\+06 blocks"):
        le.similarity(problem(), data(2000), update=SGD, store=tmp_path / "s.zarr", block=1)
    assert list(tmp_path.iterdir()) == []


def test_a_foreign_schema_is_refused(tmp_path):
    x, y = data()
    path = tmp_path / "s.zarr"
    le.similarity(problem(), (x, y), update=SGD, store=path)
    group = zarr.open_group(path, mode="r+")
    group.attrs[OURS] = {**group.attrs[OURS], "schema": 7}
    for call in (lambda: le.load(path), lambda: le.similarity(problem(), (x, y), update=SGD, store=path)):
        with pytest.raises(ValueError, match="schema 7, and this version reads schema 2"):
            call()


def test_two_writers_at_once(tmp_path):
    x, y = data()
    path = tmp_path / "s.zarr"
    _interrupted(path, 2)
    script = "import fcntl, os, sys\nfcntl.flock(os.open(sys.argv[1], os.O_RDONLY), 2)\nprint('locked', flush=True)\n"
    script += "sys.stdin.read()"
    other = subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(OSError, match="another process is writing"):
            le.similarity(problem(), (x, y), update=SGD, store=path)
    finally:
        other.kill()
        other.communicate()
    assert len(verify(path)["finished"]) == 2
    le.similarity(problem(), (x, y), update=SGD, store=path)


def test_a_full_disk_keeps_what_is_finished(tmp_path):
    """A limit on the size of files stands for the end of the disk: a real write that fails."""
    x, y = data(300)
    path = tmp_path / "s.zarr"

    def run():
        return le.similarity(problem(), (x, y), update=SGD, store=path, block=200)

    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            run()
        except OSError as error:
            os._exit(7 if "finished blocks are kept" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert not verify(path)["damaged"]
    S = run()
    assert S.shape == (300, 300)
    assert not verify(path)["missing"]


def test_a_full_disk_leaves_nothing_of_a_store_that_was_not_begun(tmp_path, full_disk):
    x, y = data(60)
    S = le.as_similarity(np.ones((60, 60)))
    for write in (
        lambda: S.le.save(tmp_path / "s.zarr"),
        lambda: le.similarity(problem(), (x, y), update=SGD, store=tmp_path / "s.zarr", block=30),
    ):
        with full_disk(300), pytest.raises(OSError, match=r"^store: .*s.zarr could not be written \(File too large\)"):
            write()
        assert list(tmp_path.iterdir()) == []


def test_a_full_disk_within_a_store_leaves_no_unfinished_file(tmp_path, full_disk):
    x, y = data(60)
    run = lambda: le.similarity(problem(), (x, y), update=SGD, store=tmp_path / "s.zarr", block=30)
    with full_disk(3000), pytest.raises(OSError, match=r"^store: block \(0, 0\) could not be written to .*the same"):
        run()
    assert not list(tmp_path.rglob("*.partial"))
    assert verify(tmp_path / "s.zarr")["damaged"] == []
    assert run().shape == (60, 60)


def test_a_store_may_lie_behind_a_link(tmp_path):
    (tmp_path / "large").mkdir()
    (tmp_path / "s.zarr").symlink_to("large/s.zarr")
    le.as_similarity(np.eye(3)).le.save(tmp_path / "s.zarr")
    assert (tmp_path / "s.zarr").is_symlink()
    assert le.load(tmp_path / "large" / "s.zarr").shape == (3, 3)


@pytest.mark.parametrize("side", [0, -3, 2.5])
def test_a_senseless_block_is_refused(tmp_path, side):
    x, y = data()
    with pytest.raises(ValueError, match="block"):
        le.similarity(problem(), (x, y), store=tmp_path / "s.zarr", block=side)
    with pytest.raises(ValueError, match="block: only a store"):
        le.similarity(problem(), (x, y), block=4)


def test_settled_ways_give_the_same_bits_again(tmp_path, racing):
    """auto races once, when the store is begun; the plan says what it chose."""
    x, y = data(12)
    net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 3))
    run = lambda path: le.similarity(le.Problem.of(net, "cross_entropy"), (x, y), update=SGD, store=path, block=6)
    run(tmp_path / "s.zarr")
    plan = BlockStore.open(tmp_path / "s.zarr").record["plan"]
    assert plan["settled"]["kind"] in ("looped", "vmapped", "structured")
    before = chunks(tmp_path / "s.zarr")
    _damage(tmp_path / "s.zarr", "similarity/c/0/1", "flipped")
    run(tmp_path / "s.zarr")
    assert chunks(tmp_path / "s.zarr") == before


def _text_with(content, place, new):
    return content[:place] + new + content[place + len(new) :]


@pytest.mark.parametrize("how", ["codec", "count", "size", "unknown"])
def test_labels_that_would_unpack_to_more_than_they_are_take_no_memory(tmp_path, how):
    x, y = data()
    path = tmp_path / "s.zarr"
    le.similarity(problem(), (x, y), update=SGD, store=path, class_names=["a", "b", "c"])
    name = "source" if how in ("codec", "size") else "source_class"
    description, chunk = path / name / "zarr.json", path / name / "c" / "0"
    if how == "codec":
        said = json.loads(description.read_text())
        said["codecs"][-1] = {"name": "gzip", "configuration": {"level": 5}}
        description.write_text(json.dumps(said))
        chunk.write_bytes(gzip.compress(bytes(1 << 24)))
        words = "packed by bytes, gzip"
    elif how == "size":
        chunk.write_bytes(Zstd().encode(bytes(1 << 24)))
        words = "unpacks to 16,777,216 bytes"
    elif how == "count":
        texts = Zstd().decode(chunk.read_bytes())
        chunk.write_bytes(Zstd().encode(_text_with(texts, 0, b"\xff\xff\xff\x7f")))
        words = "does not hold"
    else:
        chunk.write_bytes(_text_with(chunk.read_bytes(), 4, b"\x00"))
        words = "says its size"
    with pytest.raises(ValueError, match=f"damaged: its labels cannot be read .*{words}"):
        le.load(path)


def test_attributes_that_were_changed_are_not_handed_out(tmp_path):
    x, y = data()
    path = tmp_path / "s.zarr"
    le.similarity(problem(), (x, y), update=SGD, store=path)
    file = path / "similarity" / "zarr.json"
    file.write_text(file.read_text().replace('"unresolved": "0.0"', '"unresolved": "0.9"'))
    with pytest.raises(ValueError, match="damaged: the attributes of similarity"):
        le.load(path)
    answer = CliRunner().invoke(app, ["verify-store", str(path)])
    assert answer.exit_code != 0
