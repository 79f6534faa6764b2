"""Shape annotations are checked while the tests run; one thread, and no global random state left behind."""

import os
import resource
import shutil
import sys
import warnings
from contextlib import contextmanager
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from jaxtyping import install_import_hook

import tests.checking  # noqa: F401 (the hook looks it up)

ENGINE = Path(__file__).parents[1] / "src" / "local_elasticity" / "engine"

install_import_hook(
    [
        # Triton compiles its functions from their source and their module's names, which a wrapper does not have.
        *[f"local_elasticity.engine.{part.stem}" for part in ENGINE.iterdir() if part.stem != "fast_paths"],
        *[f"local_elasticity.engine.fast_paths.{name}" for name in ("flips", "replay", "two_layer")],
        "local_elasticity.measures.relative",
        "local_elasticity.measures.kernel",
        "local_elasticity.measures.stiffness",
        "local_elasticity.measures.activation",
        "local_elasticity.measures.loss",
        "local_elasticity.data.manifolds",
        "local_elasticity.emergence",
    ],
    "tests.checking.checked",
)

import jaxtyping
import pytest
import torch

from local_elasticity.training import MonitorWarning

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _monitors_raise():
    """With all warnings turned into errors, monitors only log theirs."""
    warnings.filterwarnings("error", category=MonitorWarning, append=True)


@pytest.fixture
def racing(monkeypatch):
    """auto tries every way, however little there is to do."""
    monkeypatch.setattr("local_elasticity.engine.choose.SECONDS_WORTH_A_RACE", 0)
    monkeypatch.setattr("local_elasticity.engine.choose.SECONDS_WORTH_AN_IMPORT", 0)


@pytest.fixture
def full_disk():
    """`with full_disk(size):` no file can grow beyond so many bytes, like a full disk."""

    @contextmanager
    def limited(size):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limited


@pytest.fixture
def command(monkeypatch, capsys):
    """`command(*arguments)` runs `local-elasticity` in this process: its exit status, stdout and stderr."""
    from local_elasticity.cli import main

    def run(*arguments, columns=200):
        monkeypatch.setattr(sys, "argv", ["local-elasticity", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", str(columns))
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err

    return run


@pytest.fixture
def unchecked():
    """Without the annotation checks, for what users may hand in against the annotations."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def browser():
    """Chromium, as the distribution packages it."""
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("Chromium is not here: apt-get install chromium, or name it in CHROMIUM")
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install 'local-elasticity[browser]'")
    with playwright.sync_playwright() as driver:
        made = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield made
        made.close()
