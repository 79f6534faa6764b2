"""Two processes under torchrun measure what one measures."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from pandas.testing import assert_frame_equal

from local_elasticity.training.history import History
from tests.distributed_worker import MEASURES, train

ROOT = Path(__file__).parent.parent


def test_two_processes_measure_what_one_measures(tmp_path):
    """Seven sources on two ranks; a budget and a schedule that only rank 0 may decide on; fewer sources than ranks;
    and a rank that runs out of memory or fails otherwise, which costs probes on both, and leaves none waiting."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=0", "--standalone"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    answer = subprocess.run(
        [*command, str(ROOT / "tests" / "distributed_worker.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
    )
    assert answer.returncode == 0, answer.stderr
    found = torch.load(tmp_path / "found.pt", weights_only=True)
    assert found["steps"] == [0, 2, 4]
    assert found["tight"] == [0]  # the first is always taken, and rank 1 was not asked
    alone = train(None)
    shared = History.open(tmp_path / "shared.zarr")
    for one, other in zip(alone.history, shared, strict=True):
        for name in MEASURES:
            assert np.allclose(one.similarity[name], other.similarity[name], rtol=1e-9, atol=1e-12), name
    assert_frame_equal(shared.frame(), alone.frame())
    single = train(None, sources=1)
    for one, other in zip(single.history, found["few"], strict=True):
        assert np.allclose(one.similarity["relative"], other["similarity"]["relative"].numpy())
