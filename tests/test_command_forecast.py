"""`local-elasticity forecast` and `influence`: what the functions give, for the user's own model and data."""

import json
import re

import numpy as np
import pandas as pd
import pytest
import torch

import local_elasticity as le
from local_elasticity.cli.app import in_options
from tests.test_command_measure import project as project

MODEL = ["--model", "own_nets:make", "--weights", "late.safetensors"]


def net():
    from safetensors.torch import load_file

    made = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3))
    made.load_state_dict(load_file("late.safetensors"))
    return made


def points():
    with np.load("points.npz") as held:
        return torch.tensor(held["x"]), torch.tensor(held["y"])


def fine_tune(*more, new="points.npz", old="photos"):
    return ["forecast", *MODEL, "--new", new, "--old", old, "--steps", "5", *more]


def test_forecast_gives_what_the_function_gives(project, command):
    more = ("--step-size", "0.05", "--out", "rows.csv", "--figure", "margins.png", "--simulate", "--virtual", "2")
    status, out, err = command(*fine_tune(*more))
    assert status == 0, err
    x, y = points()
    options = {"loss": "cross_entropy", "update": le.SGD(0.05), "steps": 5, "virtual": 2, "simulate": True}
    expected = le.forecast(net(), (x, y), (x, y), **options).frame()
    rows = pd.read_csv("rows.csv")
    np.testing.assert_allclose(rows["margin_forecast"], expected["margin_forecast"], rtol=1e-5)
    assert rows["lost"].tolist() == expected["lost"].tolist()
    assert rows["file"][0] == "a/00.png"
    assert "Forecast of 5 steps" in out
    assert "most at risk" in out
    assert "simulated, all steps" in out
    assert (project / "margins.png").read_bytes().startswith(b"\x89PNG")


def test_forecast_takes_all_steps_where_as_many_are_named(project, command):
    arguments = [*fine_tune("--step-size", "0.05", "--json")[:-1], "--steps", "7", "--virtual", "7", "--json"]
    status, out, err = command(*arguments)
    assert status == 0, err
    told = json.loads(out)
    assert told["virtual"] == 7
    assert told["old"]["lost_range"] == [told["old"]["lost"]] * 2


def test_a_refusal_names_the_options(monkeypatch):
    monkeypatch.setattr("sys.argv", ["local-elasticity", *fine_tune()])
    told = "update: the step is too large for a forecast. Take every step in a copy: virtual=steps, max_virtual=steps"
    assert in_options(told).startswith("--step-size: the step is too large for a forecast.")
    assert in_options(told).endswith("in a copy: pass --virtual as large as --steps")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (fine_tune(), "--step-size: name that of the fine-tune"),
        (fine_tune("--step-size", "x"), "--step-size: expected a number or auto"),
        (fine_tune("--step-size", "0.1", new="unlabelled.npz"), "--new: unlabelled.npz has no labels"),
        (fine_tune("--step-size", "0.1", old="nothing"), "--old: there is no nothing"),
        (fine_tune("--step-size", "0.1", new="wide.npz"), "--new: own_nets:make does not take inputs of shape"),
        (
            fine_tune("--step-size", "0.1", "--virtual", "9"),
            "virtual: expected at most 5, got 9; each is a training step. Take",
        ),
        (fine_tune("--step-size", "0.1", "--out", "rows.txt"), "--out: expected a name that ends with .csv"),
        (fine_tune("--step-size", "0.1", "--figure", "rows.txt"), "--figure: expected a name that ends with .png"),
    ],
)
def test_bad_forecasts_are_one_line(arguments, sentence, project, command):
    status, _, err = command(*arguments)
    assert status == 2
    assert sentence in err
    assert len(err.splitlines()) == 1


def ask(*more, data="points.npz", targets="photos", weights=("late.safetensors",)):
    files = [part for file in weights for part in ("--weights", file)]
    given = ["--data", data, "--targets", targets, "--store", "index.zarr", "--dimension", "512"]
    return ["influence", "--model", "own_nets:make", *files, *given, *more]


@pytest.mark.parametrize("data", ["points.npz", "photos", "own_nets:Points"])
def test_influence_gives_what_the_function_gives(data, project, command):
    status, out, err = command(*ask("--out", "rows.csv", "--step-size", "0.1", data=data))
    assert status == 0, err
    x, y = points()
    train = (x, y)
    if data == "own_nets:Points":
        import own_nets

        train = own_nets.Points()
    made = le.influence_index(
        net(), train, loss="cross_entropy", store="other.zarr", dimension=512, step_size=0.1, progress=False
    )
    rows = torch.tensor([0, 1, 2, 3, 4, 5, 6, 8, 9, 10])  # ten of twelve, as even by class as can be
    expected = made.query((x[rows], y[rows]), top=3).frame()
    found = pd.read_csv("rows.csv")
    assert found["source"].tolist() == expected["source"].tolist()
    np.testing.assert_allclose(found["value"], expected["value"], rtol=1e-4)
    assert found["target_file"][0] == "a/00.png"
    assert ("source_file" in found) == (data == "photos")
    assert "rank correlation with exact responses" in out


def test_influence_is_drawn_with_the_names_of_files(project, command):
    status, out, err = command(*ask("--figure", "bars.svg", data="photos"))
    assert status == 0, err
    assert "wrote bars.svg" in out
    drawn = (project / "bars.svg").read_text()
    assert "a/00.png" in drawn
    assert "change of the target's loss by the step" in drawn
    status, out, err = command(*ask("--figure", "bars.txt"))
    assert status == 2
    assert "--figure: expected a name that ends with .png" in err


def test_influence_and_forecast_write_pages(project, command):
    status, out, err = command(*ask("--report", "page.html", data="photos"))
    assert status == 0, err
    assert "wrote page.html: open it in a browser" in out
    page = (project / "page.html").read_text()
    assert "a/00.png" in page
    assert 'src="data:image/' in page
    assert "local-elasticity influence" in page
    status, out, err = command(*fine_tune("--step-size", "0.05", "--simulate", "--report", "risk.html"))
    assert status == 0, err
    page = (project / "risk.html").read_text()
    assert "which examples are at risk" in page
    assert "What came true" in page
    assert re.search(r"#\d+ [abc]/0\d\.png", page)
    for arguments in (ask(), fine_tune("--step-size", "0.05")):
        status, out, err = command(*arguments, "--report", "empty")
        assert status == 2
        assert "--report: empty is a folder" in err


def test_influence_sums_checkpoints(project, command):
    both = ("late.safetensors", "early.pt")
    status, out, err = command(*ask("--step-size", "0.1", "--step-size", "0.2", weights=both))
    assert status == 0, err
    assert "at 2 checkpoints" in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (ask(data="unlabelled.npz"), "--data: unlabelled.npz has no labels"),
        (ask(targets="unlabelled.npz"), "--targets: unlabelled.npz has no labels"),
        (ask(*(["--step-size", "0.1"] * 3)), "--step-size: expected one, or one for each of the 1 --weights, got 3"),
        (ask(weights=("nothing.pt",)), "there is no nothing.pt"),
        (ask(data="own_nets:Broken"), "--data: the Dataset of own_nets:Broken cannot be read (ZeroDivisionError"),
        (ask(data="own_nets:Uneven"), "--data: the items of own_nets:Uneven do not make one batch"),
    ],
)
def test_bad_influences_are_one_line(arguments, sentence, project, command):
    status, _, err = command(*arguments)
    assert status == 2
    assert sentence in err
    assert len(err.splitlines()) == 1


def test_forecast_and_influence_have_json_and_quiet(project, command):
    commands = fine_tune("--step-size", "0.05"), ask()
    for arguments, rows in zip(commands, ("examples", "influences"), strict=True):
        status, out, err = command(*arguments, "--json")
        assert status == 0, err
        told = json.loads(out)
        frame = command(*arguments, "--quiet", "--out", f"{rows}.csv")
        assert frame == (0, "", "")
        kept = pd.read_csv(f"{rows}.csv")
        assert list(told[rows][0]) == list(kept.columns)
        column = {"examples": "margin_forecast", "influences": "value"}[rows]
        np.testing.assert_allclose([row[column] for row in told[rows]], kept[column], rtol=1e-6)
