"""Files that version 0.1.0 wrote are read, and gone on with where nothing has changed."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import local_elasticity as le
from local_elasticity.store.result import verify
from local_elasticity.training.history import History
from tests.compatibility import SOURCES, network
from tests.tolerances import SAME_IN_FLOAT32

FILES = Path(__file__).parent / "fixtures" / "0.1.0"
MEASURES = ("kl", "normalized_kernel", "activation")


def asked(measure):
    steps = {} if measure == "activation" else {"engine": "looped"}
    return {"problem": le.Problem.of(network(), "cross_entropy"), "sources": SOURCES, "measure": measure, **steps}


@pytest.mark.parametrize("measure", MEASURES)
def test_a_finished_store_is_read(measure, tmp_path):
    S = le.load(FILES / f"{measure}.zarr")
    now = le.similarity(**asked(measure))
    np.testing.assert_allclose(S.values, now.values, rtol=SAME_IN_FLOAT32, atol=1e-6)
    assert S["source_class"].values.tolist() == SOURCES[1].tolist()
    assert S.attrs["measure"] == measure
    path = shutil.copytree(FILES / f"{measure}.zarr", tmp_path / "s.zarr")
    again = le.similarity(**asked(measure), store=path, progress=lambda *_: pytest.fail("computed again"))
    assert again.identical(S)


@pytest.mark.parametrize("measure", MEASURES)
def test_a_store_that_was_begun_is_gone_on_with(measure, tmp_path):
    path = shutil.copytree(FILES / f"{measure}-begun.zarr", tmp_path / "s.zarr")
    assert len(verify(path)["finished"]) == 2
    S = le.similarity(**asked(measure), store=path)
    assert not verify(path)["missing"]
    np.testing.assert_allclose(S.values, le.load(FILES / f"{measure}.zarr").values, rtol=SAME_IN_FLOAT32, atol=1e-6)


def test_a_saved_result_is_read():
    S = le.load(FILES / "saved.zarr")
    assert {"source_change", "source_floor", "source_class"} <= set(S.coords)
    assert S.le.classes().value.notna().all()


def test_a_history_is_read_and_gone_on_with(tmp_path):
    history = History.open(FILES / "history.zarr")
    assert history.steps == [0, 1, 2]
    assert set(history.frame(resamples=0).measure) == {"kl", "stiffness_cos"}
    path = shutil.copytree(FILES / "history.zarr", tmp_path / "history.zarr")
    state = torch.load(FILES / "checkpoint.pt", weights_only=True)
    net = network()
    net.load_state_dict(state["net"])
    options = {"measure": ("kl", "stiffness_cos"), "every": 1, "budget": None, "engine": "looped"}
    monitor = le.Monitor(net, SOURCES, loss="cross_entropy", store=path, **options)
    monitor.load_state_dict(state["monitor"])
    assert monitor.step(3)
    assert History.open(path).steps == [0, 1, 2, 3]


def test_a_report_shows_them(tmp_path):
    page = le.write_report([str(FILES / "kl.zarr"), str(FILES / "history.zarr")], tmp_path / "page.html")
    assert "stiffness_cos" in page.read_text()
