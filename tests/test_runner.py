"""The runner: units are kept one by one, interrupted runs go on, and results have one schema."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

from local_elasticity.cli import app
from local_elasticity.papers.dan2021dynamics import classification, classifier
from local_elasticity.papers.experiment import Cell, Curve, Experiment, Findings
from local_elasticity.papers.runner import EXPERIMENTS, conclude, find_experiment, measure_units, run_experiment
from local_elasticity.report.figures import figure
from local_elasticity.report.page import results_page, write_page
from local_elasticity.report.scoreboard import power_of_agreement, scoreboard
from local_elasticity.statistics.claims import Claim

ROOT = Path(__file__).parent.parent
NEEDS_A_DOWNLOAD = ("ResNet-152",)


WHY = "it exploded"


class Toy(Experiment):
    name = "toy/one"
    title = "a toy"
    claims = (
        Claim("rises", "it rises", "§1", "end less start", lambda values: [{"end − start": values.of("a", "value")}]),
    )
    scales = {"smoke": {"add": 1}, "small": {"add": 2}}  # noqa: RUF012
    readings = ("as_defined", "as_released")

    def __init__(self):
        self.ran = []
        self.interrupt_at = None

    def parts(self, settings):
        return ["a", "b/c d"]

    def measure(self, unit, settings, reading, device):
        if len(self.ran) == self.interrupt_at:
            raise KeyboardInterrupt
        self.ran.append(unit.name)
        return {"value": unit.seed + settings["add"] + (reading == "as_released")}

    def find(self, measured):
        values = tuple(found["value"] for unit, found in measured.items() if unit.part == "a")
        made = figure()
        made.subplots().plot(values)
        return Findings(
            [Cell("a", "value", 2.0, values), Cell("b", "value", None, ()), Cell("c", "value", 1.0, (), reason=WHY)],
            [Curve("line", [0.0], [1.0], [0.5], [1.5])],
            {"toy": made},
        )


def test_a_result_has_the_one_schema(tmp_path):
    result = run_experiment(Toy(), tmp_path / "run", scale="smoke", seeds=3)
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == result
    keys = "schema experiment scale reading settings environment commit seeds seconds cells claims curves figures"
    assert set(result) == set(keys.split())
    assert result["schema"] == 2
    assert result["seeds"] == [0, 1, 2]
    assert result["cells"][0] == {
        "row": "a",
        "column": "value",
        "paper": 2.0,
        "values": [1, 2, 3],
        "mean": 2.0,
        "sd": 1.0,
        "tolerance": 0.0,
        "verdict": "agrees",
    }
    assert result["cells"][1]["verdict"] is None
    claim = result["claims"][0]
    assert (claim["verdict"], claim["paper"], claim["bound"]) == ("undecided", [2.0], 0)
    assert claim["alternatives"][0][0]["values"] == [1, 2, 3]
    assert claim["decisive"]["estimate"] == 2
    assert set(result["curves"][0]) == {"name", "x", "mean", "low", "high"}
    assert result["figures"] == ["figures/toy.png", "figures/toy.svg"]
    assert all((tmp_path / "run" / file).stat().st_size > 1000 for file in result["figures"])


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path):
    toy = Toy()
    toy.interrupt_at = 3
    with pytest.raises(KeyboardInterrupt):
        run_experiment(toy, tmp_path, scale="smoke", seeds=3)
    assert toy.ran == ["a-seed-0", "b-c-d-seed-0", "a-seed-1"]
    toy.interrupt_at = None
    seen = []
    result = run_experiment(
        toy,
        tmp_path,
        scale="smoke",
        seeds=3,
        report=lambda unit, done, total, how: seen.append((done, total, how != "was there already")),
    )
    assert toy.ran == ["a-seed-0", "b-c-d-seed-0", "a-seed-1", "b-c-d-seed-1", "a-seed-2", "b-c-d-seed-2"]
    assert seen == [(1, 6, False), (2, 6, False), (3, 6, False), (4, 6, True), (5, 6, True), (6, 6, True)]
    assert result["cells"][0]["values"] == [1, 2, 3]
    more = run_experiment(toy, tmp_path, scale="smoke", seeds=4)
    assert more["cells"][0]["values"] == [1, 2, 3, 4]


def test_folders_of_other_runs_are_refused(tmp_path):
    run_experiment(Toy(), tmp_path / "run", scale="smoke", seeds=1)
    with pytest.raises(ValueError, match="holds another run .scale, settings differ"):
        run_experiment(Toy(), tmp_path / "run", scale="small", seeds=1)
    with pytest.raises(ValueError, match="holds another run .reading differ"):
        run_experiment(Toy(), tmp_path / "run", scale="smoke", seeds=1, reading="as_released")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(ValueError, match="holds no run"):
        run_experiment(Toy(), tmp_path / "mine", scale="smoke", seeds=1)


def test_arguments_are_checked(tmp_path):
    for options, words in (
        ({"scale": "huge"}, "--scale"),
        ({"scale": "smoke", "seeds": 0}, "--seeds"),
        ({"scale": "smoke", "reading": "as_printed"}, "--reading"),
        ({"scale": "smoke", "device": "tpu"}, "--device"),
    ):
        with pytest.raises(ValueError, match=words):
            run_experiment(Toy(), tmp_path / "run", **options)
    with pytest.raises(ValueError, match="NAME"):
        find_experiment("he2020local/fig99")


def test_units_are_measured_on_one_machine_and_concluded_on_another(tmp_path):
    """Measuring writes units only; the result names what the units say, not where it was put together."""
    measure_units(Toy(), tmp_path, scale="smoke", seeds=2)
    assert not (tmp_path / "result.json").exists()
    for seed in (0, 1):
        file = tmp_path / "units" / f"a-seed-{seed}.json"
        unit = json.loads(file.read_text())
        unit["environment"]["device"] = "one H200"
        file.write_text(json.dumps(unit))
    result = conclude(Toy(), tmp_path)
    assert result["cells"][0]["values"] == [1, 2]
    assert result["environment"][0]["device"] == "one H200"
    assert len(result["environment"]) == 2


def test_a_unit_names_its_commit(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL_ELASTICITY_COMMIT", "abc123")
    assert run_experiment(Toy(), tmp_path / "named", scale="smoke", seeds=1)["commit"] == "abc123"
    monkeypatch.delenv("LOCAL_ELASTICITY_COMMIT")
    found = run_experiment(Toy(), tmp_path / "found", scale="smoke", seeds=1)["commit"]
    assert found is None or len(found.removesuffix("+changes")) == 40


class Batched(Toy):
    def batches(self, units, settings):
        return [list(units)] if units else []


class Killed(Batched):
    def measure(self, unit, settings, reading, device):
        if len(self.ran) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().measure(unit, settings, reading, device)


def test_units_can_be_measured_in_batches(tmp_path):
    toy = Batched()
    assert run_experiment(toy, tmp_path, scale="smoke", seeds=2)["cells"][0]["values"] == [1, 2]


def test_a_process_killed_within_a_batch_loses_only_the_unit_it_was_in(tmp_path):
    script = (
        "from pathlib import Path; from tests.test_runner import Killed, run_experiment; "
        f"run_experiment(Killed(), Path({str(tmp_path)!r}), scale='smoke', seeds=3)"
    )
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT).returncode == -signal.SIGKILL
    kept = {"a-seed-0.json", "b-c-d-seed-0.json", "a-seed-1.json"}
    assert {file.name for file in (tmp_path / "units").glob("[!.]*.json")} == kept
    toy = Batched()
    assert run_experiment(toy, tmp_path, scale="smoke", seeds=3)["cells"][0]["values"] == [1, 2, 3]
    assert toy.ran == ["b-c-d-seed-1", "a-seed-2", "b-c-d-seed-2"]


class Sibling(Toy):
    name = "toy/two"
    shares = ("toy/one",)


def test_shared_units_are_taken_over_from_folders_beside(tmp_path):
    run_experiment(Toy(), tmp_path / "one", scale="smoke", seeds=2)
    sibling = Sibling()
    result = run_experiment(sibling, tmp_path / "two", scale="smoke", seeds=3)
    assert sibling.ran == ["a-seed-2", "b-c-d-seed-2"]
    assert result["cells"][0]["values"] == [1, 2, 3]
    for options in ({"scale": "small"}, {"scale": "smoke", "reading": "as_released"}):
        other = Sibling()
        run_experiment(other, tmp_path / f"two {options}", seeds=1, **options)
        assert other.ran == ["a-seed-0", "b-c-d-seed-0"]
    alone = Toy()
    run_experiment(alone, tmp_path / "three", scale="smoke", seeds=1)
    assert alone.ran == ["a-seed-0", "b-c-d-seed-0"]


def test_the_command_says_where_units_and_seeds_come_from(tmp_path, monkeypatch):
    monkeypatch.setattr("local_elasticity.papers.runner.find_experiment", {"one": Toy(), "two": Sibling()}.get)
    monkeypatch.setenv("COLUMNS", "300")

    def said(name, seeds):
        return CliRunner().invoke(
            app, ["run", name, "--scale", "smoke", "--seeds", str(seeds), "--out", str(tmp_path / name)]
        )

    first = said("one", 1)
    assert "[1/2] a, seed 0: 0.0 s" in first.output
    assert "of all of them" not in first.output
    assert "[1/4] a, seed 0: taken from ../one" in said("two", 2).output
    again = said("two", 1)
    assert "[1/2] a, seed 0: was there already" in again.output
    assert "two holds the seeds 0, 1, and this result is of all of them" in again.output


def test_equal_units_make_equal_figures(tmp_path):
    files = []
    for name in ("one", "two"):
        run_experiment(Toy(), tmp_path / name, scale="smoke", seeds=1)
        files.append({file.name: file.read_bytes() for file in (tmp_path / name / "figures").iterdir()})
    assert files[0] == files[1]
    assert {"toy.png", "toy.svg"} == set(files[0])


def test_a_full_disk_leaves_the_earlier_result(tmp_path, full_disk):
    folder = tmp_path / "run"
    run_experiment(Toy(), folder, scale="smoke", seeds=1)
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    with full_disk(800), pytest.raises(OSError, match=r"^figure: .*toy.png could not be written \(.*\); free"):
        run_experiment(Toy(), folder, scale="smoke", seeds=1)
    with full_disk(100), pytest.raises(OSError, match=r"^--out: .*seed-1.json could not be written \(.*\); free some"):
        run_experiment(Toy(), folder, scale="smoke", seeds=2)
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before


def test_results_and_figures_behind_links_are_written(tmp_path):
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    run_experiment(Toy(), folder, scale="smoke", seeds=1)
    elsewhere.mkdir()
    links = [folder / "result.json", folder / "figures" / "toy.png"]
    for link in links:
        link.rename(elsewhere / link.name)
        link.symlink_to(elsewhere / link.name)
    run_experiment(Toy(), folder, scale="smoke", seeds=2)
    assert all(link.is_symlink() for link in links)
    assert json.loads((elsewhere / "result.json").read_text())["seeds"] == [0, 1]


def test_a_page_holds_what_the_results_hold(tmp_path):
    run_experiment(Toy(), tmp_path / "toy" / "one", scale="smoke", seeds=2)
    page = write_page(tmp_path / "toy").read_text()
    assert "| a | value | 2 | 1.5 ± 0.71 | 1 … 2 | agrees |" in page
    assert "| b | value |  | not measured |  |  |" in page
    assert "| sentence | verdict | paper | measured (unadjusted 95 % interval) | evidence |" in page
    assert "| it rises (§1) | **not measured** | 2 | – | end − start: 2 units, 3 needed |" in page
    assert "| of the paper, as defined at smoke scale | 0 | 0 | 0 | 1 |" in page
    assert "| c | value | 1 | not measured (it exploded) |  | not measured |" in page
    assert "![toy](toy/one/figures/toy.png)\n\n<details><summary>All 3 numbers</summary>\n\n| row | column |" in page
    with pytest.raises(ValueError, match="no result.json"):
        write_page(tmp_path / "toy" / "one" / "units")


def test_a_cell_for_every_row_and_column_makes_a_table_like_the_papers(tmp_path):
    class Grid(Toy):
        def find(self, measured):
            cells = [Cell("r", str(i), 1.0 if i else None, (1.0, 1.5) if i else ()) for i in range(3)]
            return Findings(cells)

    run_experiment(Grid(), tmp_path / "toy" / "one", scale="smoke", seeds=2)
    page = write_page(tmp_path / "toy").read_text()
    assert "| | 0 | 1 | 2 |" in page
    assert "| r | not measured | 1.25<br>1 … 1.5<br>paper 1 ✓ | 1.25<br>1 … 1.5<br>paper 1 ✓ |" in page


def test_cells_with_too_few_seeds_for_a_verdict_do_not_count_as_measured():
    cells = [
        Cell("K-means", "a vs b", 50.0, (50.0, 51.0, 52.0), 2.0, least=3),
        Cell("l2", "a vs b", 60.0, (59.0, None, 61.0), 2.0, least=3, reason="diverged at 1 of 3 seeds"),
        Cell("BCE", "a vs b", 60.0, (), 2.0, least=3, reason="diverged"),
    ]
    run = {"experiment": "paper/table1", "reading": "as_defined", "cells": [cell.as_json() for cell in cells]}
    head, _, *rows = power_of_agreement([run]).splitlines()
    assert head == "| cells of the tables | as defined |"
    assert [row.split(" | ")[-1] for row in rows] == [f"{count} |" for count in (3, 3, 1, 1, 1, 0, 0, 0, 0, 0)]


def test_the_scoreboard_has_a_line_for_each_sentence_and_counts_other_scales_by_themselves():
    def run(name, scale, verdict, ours=False):
        claim = {"id": "x", "sentence": "It rises", "place": "§1", "ours": ours, "verdict": verdict}
        return {"experiment": f"paper/{name}", "reading": "as_defined", "scale": scale, "claims": [claim]}

    runs = [run("one", "paper", "supported"), run("two", "paper", "undecided"), run("two", "small", "supported")]
    made = scoreboard([*runs, run("three", "paper", "contradicted", ours=True)])
    assert "| of the paper, as defined | 1 | 0 | 1 | 0 |" in made
    assert "| of the paper, as defined at small scale | 1 | 0 | 0 | 0 |" in made
    assert "| our own: variants and controls, as defined | 0 | 1 | 0 | 0 |" in made
    visible, _, below = made.partition("<details>")
    line = "| It rises (§1) | supported (one, two at small scale), undecided (two) | one, two, two at small scale |"
    assert line in visible
    assert line in below
    assert "| It rises (§1; ours) | contradicted | three |" not in visible
    assert "| It rises (§1; ours) | contradicted | three |" in below
    assert "<details>" not in scoreboard(runs)  # nothing of ours to add


def test_a_cell_with_a_scale_has_its_interval_over_seeds_on_the_page(tmp_path):
    class Ratios(Toy):
        def find(self, measured):
            known, lacking = (0.5, 1.0, 2.0), (0.5, None, 2.0)
            cells = [Cell("ratio", "end", None, known, scale="log"), Cell("lacking", "end", None, lacking, scale="log")]
            return Findings([*cells, Cell("plain", "end", None, known)])

    result = run_experiment(Ratios(), tmp_path / "toy" / "one", scale="smoke", seeds=3)
    log = np.log([0.5, 1.0, 2.0])
    low, high = np.exp(stats.t.interval(0.95, 2, log.mean(), stats.sem(log)))
    assert result["cells"][0]["interval"] == pytest.approx([low, 1.0, high])
    assert "interval" not in result["cells"][1]  # a seed is missing: the others alone are another statistic
    page = write_page(tmp_path / "toy").read_text()
    assert f"| ratio | end | 1.167 ± 0.76 | 0.5 … 2 | 1 ({low:.4g} … {high:.4g}) |" in page
    assert "| plain | end | 1.167 ± 0.76 | 0.5 … 2 |  |" in page


def test_the_pages_in_docs_are_made_from_their_results():
    for folder in {file.parents[1] for file in (ROOT / "docs" / "results").rglob("result.json")}:
        assert folder.with_name(f"{folder.name}.md").read_text() == results_page(folder)


def test_departures_of_he_and_su_are_explained():
    """K-means, PCA, linear nets, random weights, as released: each cell whose mean is over 1.5 points off the paper's
    value, and no other, has a line.
    """
    folder = ROOT / "docs" / "results" / "he2020local"
    lines = (folder / "about.md").read_text().splitlines()
    explained = {tuple(line.split(" | ")[:3]) for line in lines if line.startswith("| table") and " vs " in line}
    departed = set()
    for file in folder.glob("table*-as_released/result.json"):
        run = json.loads(file.read_text())
        for cell in run["cells"]:
            certain = cell["paper"] is not None and re.search(r"K-means|\(linear\)|\(random\)", cell["row"])
            if certain and cell["mean"] is not None and abs(cell["mean"] - cell["paper"]) > 1.5:
                departed.add((f"| {Path(run['experiment']).name}", cell["row"], cell["column"]))
    assert explained == departed


def test_numbers_in_the_prose_are_those_of_the_results():
    """Sentences that were once wrong, written from the results."""

    def cells(run):
        found = json.loads((ROOT / "docs" / "results" / run / "result.json").read_text())["cells"]
        return {(cell["row"], cell["column"]): cell for cell in found}

    def prose(paper):
        return " ".join((ROOT / "docs" / "results" / paper / "about.md").read_text().split())

    he = prose("he2020local")
    drawn = [cell["values"] for (row, _), cell in cells("he2020local/table1-as_defined").items() if row == "K-means"]
    *spread, largest = sorted(round(max(values) - min(values)) for values in drawn)
    assert f"moves by {spread[0]} to {spread[-1]} points with them, and by {largest} on 5 vs 9" in he
    silent = [
        value
        for reading in ("as_released", "as_defined")
        for (row, _), cell in cells(f"he2020local/table1-{reading}").items()
        if row.startswith("hidden units") and "(l2" in row
        for value in cell["values"]
    ]
    assert f"{min(silent):.0f} to {max(silent):.0f} percent of its hidden units fall silent" in he
    starts = "kernelized (linear regression), one random start"
    released = cells("he2020local/table1-as_released")
    low, high, low_9, high_9 = (
        round(least(released[starts, pair]["values"]))
        for pair in ("5 vs 8 (aux 3, 9)", "5 vs 9 (aux 4, 8)")
        for least in (min, max)
    )
    assert f"5 vs 8 gives {low} or {high} percent and 5 vs 9 {low_9} or {high_9}" in he
    dan, hundred = prose("dan2021dynamics"), cells("dan2021dynamics/cifar100-as_defined")
    best, end = (hundred["test loss", f"steps, {moment}"]["mean"] for moment in ("best", "end"))
    assert f"risen from {best:.2f} to {end:.2f}" in dan
    held_out = hundred["Definition 2, SGD, held out points: other/own", "steps, end"]["values"]
    assert sum(value > 1 for value in held_out) == 3
    below, above = {}, {}
    for points in ("training", "held out"):
        for dataset in ("svhn", "cifar10", "cifar100"):
            found = cells(f"dan2021dynamics/{dataset}-as_defined").values()
            start = f"Definition 2, SGD, {points} points: S("
            pairs = [cell["interval"] for cell in found if ")/S(" in cell["row"] and cell["row"].startswith(start)]
            assert len(pairs) == 24
            below.setdefault(points, []).append(sum(high < 1 for _, _, high in pairs))
            above.setdefault(points, []).append(sum(low > 1 for low, _, _ in pairs))
    assert above == {"training": [0, 0, 0], "held out": [1, 0, 0]}
    assert "{}, {} and {} lie below. At held-out points one of 72 does".format(*below["training"]) in dan
    assert "and {}, {} and {} lie below".format(*below["held out"]) in dan


def test_verdicts_follow_the_range_of_seeds():
    assert Cell("r", "c", 0.9, (0.5, 0.7, 0.9, 1.1)).verdict == "agrees"
    assert Cell("r", "c", 2.0, (0.5, 0.7, 0.9)).verdict == "differs"
    assert Cell("r", "c", 0.504, (0.5,), tolerance=0.005).verdict == "agrees"
    assert Cell("r", "c", 0.504, (0.5,)).verdict == "differs"
    assert Cell("r", "c", 0.5, ()).verdict == "not measured"
    assert Cell("r", "c", 0.5, (0.5, 0.5), least=3).verdict is None


@pytest.fixture(scope="module")
def watched_once():
    """What a network goes through on the packaged digits, which is the same in the three experiments at smoke scale."""
    found = {}

    def watched(split, settings, seed, device):
        key = json.dumps([settings, seed, device])
        if key not in found:
            found[key] = classifier.watched(split, settings, seed, device)
        return found[key]

    return watched


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiments_run_at_smoke_scale(name, tmp_path, monkeypatch, watched_once):
    monkeypatch.setattr(classification, "watched", watched_once)
    experiment = find_experiment(name)
    assert experiment.name == name
    assert experiment.title
    assert {"smoke", "small", "paper"} == set(experiment.scales)
    try:
        result = run_experiment(experiment, tmp_path, scale="smoke", seeds=1)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    assert [claim["id"] for claim in result["claims"]] == [claim.id for claim in experiment.claims]
    assert all(cell["values"] for cell in result["cells"] if cell["row"] not in NEEDS_A_DOWNLOAD)
    assert json.loads((tmp_path / "result.json").read_text(), parse_constant=pytest.fail) == result


def test_fig1_is_locally_elastic_even_at_smoke_scale(tmp_path):
    """The sign of the effect is large enough to show in a second of training."""
    result = run_experiment(find_experiment("he2020local/fig1"), tmp_path, scale="smoke", seeds=2)
    cells = {(cell["row"], cell["column"]): cell for cell in result["cells"]}
    for name in ("torus", "folded boxes"):
        relu, linear = (cells[f"{name}: correlation without diagonal", net] for net in ("relu", "linear"))
        assert all(a < b - 0.3 for a, b in zip(relu["values"], linear["values"], strict=True))
    assert result["claims"][2]["paper"] == pytest.approx([0.68 / 0.44])


def test_a_killed_process_loses_only_the_unit_it_was_in(tmp_path):
    """SIGKILL in the middle, then the same command again."""
    command = [sys.executable, "-m", "local_elasticity", "run", "he2020local/fig1", "--scale", "smoke", "--seeds", "2"]
    command += ["--out", str(tmp_path / "run")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    units = tmp_path / "run" / "units"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and len(list(units.glob("*.json"))) < 2:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = {file.name: file.stat().st_mtime_ns for file in units.glob("*.json")}
    assert 2 <= len(kept) < 8
    assert not (tmp_path / "run" / "result.json").exists()
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert again.stdout.count("was there already") == len(kept)
    assert {file.name: file.stat().st_mtime_ns for file in units.glob("*.json")}.items() >= kept.items()
    cells = json.loads((tmp_path / "run" / "result.json").read_text())["cells"]
    assert all(len(cell["values"]) == 2 for cell in cells)
