"""`local-elasticity measure` and `compare`: the user's own model, weights and data."""

import json
import os
import pickle
import re
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import local_elasticity as le
from local_elasticity.cli.app import in_options
from local_elasticity.data.own import of_dataset, read_own
from local_elasticity.engine.causes import ROUNDING
from local_elasticity.engine.nonlinearity import in_words
from local_elasticity.statistics.class_pairs import MORE_RESOLVED
from tests.tolerances import RESOLVED_ERROR

NETS = """
import torch
from torch import nn
def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
def deep():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3))
class Points(torch.utils.data.Dataset):
    classes = ["a", "b", "c"]
    def __init__(self):
        self.x = torch.randn(30, 1, 4, 4, generator=torch.Generator().manual_seed(1))
        self.targets = [i // 10 for i in range(30)]
    def __len__(self): return 30
    def __getitem__(self, i): return self.x[i], self.targets[i]
class Uneven(Points):
    def __getitem__(self, i): return torch.zeros(i + 1), 0
class Broken(Points):
    def __getitem__(self, i): return 1 / 0
def fails(): raise RuntimeError("two\\nlines")
def refuses(): raise ValueError("bad dims 3 != 4")
def double(): return make().double()
def number(): return 3
def tensors(): return torch.randn(8, 1, 4, 4), torch.arange(8) % 3
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with a module, two sets of weights, and the same points as .npz, .safetensors and images."""
    save_file = pytest.importorskip("safetensors.torch", reason="safetensors is not installed").save_file
    (tmp_path / "own_nets.py").write_text(NETS)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3))
    torch.save(net.state_dict(), tmp_path / "early.pt")
    torch.nn.init.normal_(net[1].weight)
    save_file(net.state_dict(), tmp_path / "late.safetensors")
    grey = np.random.default_rng(0).integers(0, 256, (12, 1, 4, 4), dtype=np.uint8)
    x, y = grey.astype(np.float32) / 255, np.repeat(np.arange(3), 4)
    np.savez(tmp_path / "points.npz", x=x, y=y)
    np.savez(tmp_path / "unlabelled.npz", x=x)
    np.savez(tmp_path / "objects.npz", x=np.array([{}], dtype=object), y=np.array([0]))
    np.savez(tmp_path / "wide.npz", x=np.zeros((4, 7), np.float32), y=np.zeros(4, int))
    save_file({"x": torch.tensor(x), "y": torch.tensor(y)}, tmp_path / "points.safetensors")
    for number, (image, label) in enumerate(zip(grey, y, strict=True)):
        folder = tmp_path / "photos" / "abc"[label]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[0]).save(folder / f"{number:02}.png")
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("hello")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_nets", raising=False)
    return tmp_path


def measure(data, *more, weights="late.safetensors", model="own_nets:make"):
    return ["measure", "--model", model, "--weights", weights, "--data", data, *more]


@pytest.mark.parametrize("data", ["points.npz", "points.safetensors", "photos"])
def test_measure_gives_what_similarity_gives_whatever_the_data_lie_in(data, project, command):
    status, out, err = command(*measure(data, "--out", "run.zarr", "--report", "run.html", "--n", "9"))
    assert status == 0, err
    S = le.load("run.zarr")
    with np.load("points.npz") as file:
        held = dict(file)
    rows = [0, 1, 2, 4, 5, 6, 8, 9, 10]
    assert S.source.values.tolist() == rows
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3))
    from safetensors.torch import load_file

    net.load_state_dict(load_file("late.safetensors"))
    x, y = torch.tensor(held["x"][rows]), torch.tensor(held["y"][rows])
    expected = le.similarity(net, (x, y), loss="cross_entropy")
    np.testing.assert_allclose(S.values, expected.values, rtol=RESOLVED_ERROR)
    assert "9 sources × 9 targets" in out
    assert "engine" in out
    assert "wrote run.zarr" in out
    assert "run.html" in out
    assert (project / "run.html").stat().st_size > 10_000
    if data == "photos":
        assert S.source_class.values.tolist() == list("aaabbbccc")
        assert S.source_file.values[3] == "b/04.png"


def test_measure_reads_a_dataset_and_writes_npz_without_pickle(project, command):
    arguments = measure("own_nets:Points", "--out", "run.npz", "--n", "6", "--measure", "loss", "--step-size", "auto")
    status, _, err = command(*arguments)
    assert status == 0, err
    with np.load("run.npz", allow_pickle=False) as held:
        assert held["similarity"].shape == (6, 6)
        assert held["source_class"].tolist() == list("aabbcc")
        assert held["source"].tolist() == [0, 1, 10, 11, 20, 21]
        assert '"measure": "loss"' in str(held["about"])


def test_measure_takes_other_targets_predicted_labels_and_a_pair_of_tensors(project, command):
    more = ("--targets", "own_nets:tensors", "--labels", "predicted", "--out", "run.zarr", "--update", "adam")
    status, out, err = command(*measure("unlabelled.npz", *more))
    assert status == 0, err
    assert le.load("run.zarr").shape == (12, 8)
    assert "Adam" in out


def test_measure_takes_a_network_in_float64(project, command):
    status, out, _ = command("measure", "--model", "own_nets:double", "--data", "points.npz")
    assert status == 0
    assert out


@pytest.mark.filterwarnings("default:update. the step is so large:UserWarning")
def test_a_large_step_is_one_line(project, command):
    arguments = ("--model", "own_nets:deep", "--data", "points.npz", "--step-size", "50", "--measure", "relative")
    status, _, err = command("measure", *arguments)
    assert status == 0
    assert err.startswith("warning: --step-size: the step is so large")
    assert err.endswith("pass --step-size auto\n")
    assert len(err.splitlines()) == 1


def test_step_says_whether_a_step_is_small(project, command):
    asked = ("step", "--model", "own_nets:deep", "--data", "points.npz", "--step-size")
    status, out, err = command(*asked, "1e-4", "--out", "steps.csv", "--figure", "steps.png", "--report", "s.html")
    assert status == 0, err
    assert out.startswith("step size 0.0001 is small: ")
    assert "--step-size auto takes" in out
    assert (project / "steps.csv").read_text().count("small") >= 3
    assert (project / "steps.png").stat().st_size > 10_000
    assert "step: is the step small?" in (project / "s.html").read_text()
    found = json.loads(command(*asked, "1000", "--json")[1])
    assert found["verdict"] == "large"
    assert 1000.0 in [trial["step_size"] for trial in found["trials"]]
    status, out, err = command(*asked, "1e38")
    assert (status, err) == (0, "")
    assert out.startswith(
        "step size 1e+38 is large: the step changes predictions so much that they or their squares ov"
    )
    assert "unknown" not in out


def test_measure_help_has_an_example(project, command):
    for name in ("measure", "compare", "step"):
        status, out, _ = command(name, "--help")
        assert status == 0
        assert f"local-elasticity {name} " in " ".join(out.split())


def test_compare_weights_and_results(project, command):
    models = ("early.pt", "late.safetensors", "--model", "own_nets:make", "--data", "photos")
    status, out, err = command("compare", *models, "--out", "c.csv", "--report", "c.html", "--top", "2")
    assert status == 0, err
    assert "relative of 12 × 12 pairs: median" in out
    assert "relative (change at the target / at the source), by classes: what changed most" in out
    assert "median of differences" in out
    assert "nan" not in out
    assert "9 of 9 class pairs are not tested: too few examples per class. A p-value needs at least 5 sources" in out
    assert len((project / "c.csv").read_text().splitlines()) == 1 + 9
    assert (project / "c.html").exists()
    for name in ("early.pt", "late.safetensors"):
        command(*measure("photos", "--out", f"{name}.zarr", weights=name))
    status, again, err = command("compare", "early.pt.zarr", "late.safetensors.zarr", "--by", "pairs")
    assert status == 0, err
    told, before = (
        [*map(float, re.findall(r"[-+]?\d+\.?\d*", " ".join(said.splitlines()[:2])))] for said in (again, out)
    )
    assert told == pytest.approx(before, rel=RESOLVED_ERROR, abs=RESOLVED_ERROR)
    assert "by pairs" in again


def test_compare_takes_several_seeds_of_each_setting(project, command):
    x, y = torch.randn(12, 4), torch.arange(12) % 2
    for name in ("a0.zarr", "a1.zarr", "b0.zarr", "b1.zarr"):
        le.similarity(torch.nn.Linear(4, 2), (x, y), loss="cross_entropy", store=name, progress=False)
    sides = ("--before", "a0.zarr", "--before", "a1.zarr", "--after", "b0.zarr", "--after", "b1.zarr")
    status, out, err = command("compare", *sides, "--out", "rows.csv", "--report", "seeds.html")
    assert status == 0, err
    assert "2 seeds before, 2 after" in out
    assert "Welch's t test over seeds, not paired" in out
    assert len((project / "rows.csv").read_text().splitlines()) == 1 + 4
    assert "two settings" in (project / "seeds.html").read_text()
    status, out, err = command("compare", *sides, "--paired", "--by", "seeds", "--json")
    assert status == 0, err
    told = json.loads(out)
    assert [row["side"] for row in told["seeds"]] == ["before", "before", "after", "after"]
    assert [row["statistic"] for row in told["overall"]] == ["times", "within", "between", "median"]
    assert command("compare", *sides, "--by", "overall")[0] == 0
    for arguments, words in {
        sides[:4]: "--after: 0 seeds; a comparison of two settings needs at least 2 seeds on each side",
        ("--before", "a0.zarr", *sides[4:]): "--before: 1 seed; ",
        (*sides[:6], "--after", "b0.zarr"): "--after b0.zarr, --after b0.zarr: the same numbers twice",
        (*sides, "--by", "pairs"): "--by: expected one of classes, overall, seeds, got 'pairs'",
        (*sides, "--model", "own_nets:make"): "--before, --after: they take stored results; leave out BEFORE",
        ("a0.zarr", "b0.zarr", "--paired"): "BEFORE, AFTER: name two results; to compare several seeds, repeat",
        ("a0.zarr",): "BEFORE, AFTER: name two results",
        (*sides, "--before", "gone.zarr"): "--before: there is no gone.zarr",
    }.items():
        status, _, err = command("compare", *arguments)
        assert status == 2
        assert err.startswith(f"error: {words}"), err


def test_compare_takes_histories(project, command):
    x, y = torch.randn(6, 4), torch.arange(6) % 2
    for name in ("one.zarr", "two.zarr"):
        monitor = le.Monitor(torch.nn.Linear(4, 2), (x, y), loss="cross_entropy", every=1, budget=None, store=name)
        monitor.step(0)
        monitor.close()
    status, out, err = command("compare", "one.zarr", "two.zarr")
    assert status == 0, err
    assert "relative of 6 × 6 pairs" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (measure("missing.npz"), "--data: missing.npz cannot be read (No such file or directory)"),
        (measure("missing"), "--data: there is no missing; expected an .npz or .safetensors file"),
        (measure("notes.txt"), "--data: notes.txt cannot be read; expected an .npz"),
        (measure("objects.npz"), "--data: objects.npz cannot be read as arrays"),
        (measure("wide.npz"), "--data: own_nets:make does not take inputs of shape (4, 7)"),
        (measure("empty"), "--data: the folder empty holds no images; expected one folder for each class"),
        (measure("unlabelled.npz"), "--data: it has no labels (y); add them, or pass --labels predicted"),
        (measure("own_nets:fails"), "--data: own_nets:fails makes no Dataset."),
        (measure("own_nets:number"), "--data: own_nets:number makes a int, not a Dataset"),
        (measure("own_nets:nothing"), "--data: own_nets:nothing is not there"),
        (measure("own_nets:Uneven"), "--data: the items of own_nets:Uneven do not make one batch"),
        (measure("points.npz", "--targets", "gone.npz"), "--targets: gone.npz cannot be read"),
        (measure("points.npz", "--image-size", "8,8"), "--image-size: points.npz is not a folder of images"),
        (measure("photos", "--image-size", "8"), "--image-size: expected a height and a width"),
        (measure("photos", "--image-size", "8,8"), "--data: own_nets:make does not take inputs of shape (12, 1, 8, 8)"),
        (measure("points.npz", weights="missing.pt"), "--weights: there is no missing.pt"),
        (measure("points.npz", weights="points.npz"), "--weights: points.npz cannot be read as weights alone"),
        (measure("points.npz", weights="points.safetensors"), "--weights: points.safetensors lacks 1.bias"),
        (measure("points.npz", weights="empty"), "--weights: the folder empty holds no model.safetensors"),
        (measure("points.npz", "--out", "run.txt"), "--out: expected a name that ends with .zarr or .npz"),
        (measure("points.npz", "--out", "points.npz"), "--out: points.npz is there already"),
        (measure("points.npz", "--report", "empty"), "--report: empty is a folder"),
        (measure("points.npz", "--loss", "l3"), "--loss: 'l3' is not one of"),
        (measure("points.npz", "--measure", "kll"), "--measure: "),
        (measure("points.npz", "--update", "lion"), "--update: expected one of sgd, adam, got 'lion'"),
        (measure("points.npz", "--step-size", "big"), "--step-size: expected a number or auto, got 'big'"),
        (measure("points.npz", "--step-size", "1e300"), "--step-size: expected a number up to 1e+38, got 1e300"),
        (
            ["measure", "--model", "own_nets:refuses", "--data", "points.npz"],
            "--model: own_nets:refuses makes no model",
        ),
        (measure("points.npz", "--step-size", "auto", "--update", "adam"), "--step-size: auto is for sgd"),
        (measure("points.npz", "--labels", "guessed"), "--labels: expected one of given, predicted"),
        (
            ["step", "--model", "own_nets:make", "--data", "points.npz", "--measure", "stiffness_cos"],
            "--measure: stiffness_cos takes no step",
        ),
        (
            ["step", "--model", "own_nets:make", "--data", "points.npz", "--figure", "steps.txt"],
            "--figure: expected a name that ends with .png or .pdf or .svg",
        ),
        (["compare", "gone.zarr", "gone.zarr"], "BEFORE: there is no gone.zarr"),
        (
            ["compare", "early.pt", "early.pt"],
            "BEFORE: early.pt is no stored result (a .zarr folder); to compare",
        ),
        (["compare", "early.pt", "early.pt", "--data", "photos"], "--data, --model-after: they need --model"),
        (
            ["compare", "early.pt", "early.pt", "--model", "own_nets:make"],
            "--data: two models are measured at the same",
        ),
        (["compare", "empty", "empty"], "path: empty is not a result"),
        (["compare", "a.zarr", "b.zarr", "--by", "rows"], "--by: expected one of classes, pairs"),
    ],
)
def test_mistakes_are_one_line(arguments, words, project, command):
    before = sorted(project.rglob("*"))
    status, _, err = command(*arguments)
    assert err.startswith(f"error: {words}")
    assert len(err.splitlines()) == 1
    assert status == 2
    assert [file for file in sorted(project.rglob("*")) if "__pycache__" not in str(file)] == before


def test_images_of_several_sizes_and_colours(tmp_path):
    for name, size, mode in (("a/0.png", (6, 4), "RGB"), ("b/0.png", (8, 8), "L")):
        (tmp_path / name).parent.mkdir()
        Image.new(mode, size, 255 if mode == "L" else (255, 0, 0)).save(tmp_path / name)
    with pytest.raises(ValueError, match="--data: images are from 4 × 6 to 8 × 8; pass --image-size 4,6"):
        read_own(str(tmp_path), 5)
    both = read_own(str(tmp_path), 5, size=(4, 6))
    assert both.inputs.shape == (2, 3, 4, 6)
    assert both.inputs[0, :, 0, 0].tolist() == [1, 0, 0]
    assert both.inputs[1, :, 0, 0].tolist() == [1, 1, 1]
    assert both.class_names == ("a", "b")


def test_sixteen_bits_of_grey_become_numbers_up_to_one(tmp_path):
    Image.fromarray(np.array([[0, 65535]], dtype=np.uint16)).save(tmp_path / "0.png")
    found = read_own(str(tmp_path), 1)
    assert found.inputs.flatten().tolist() == [0, 1]
    assert found.labels is None


def test_images_whose_range_is_not_known_are_refused(tmp_path):
    Image.fromarray(np.random.default_rng(0).random((4, 4)).astype(np.float32)).save(tmp_path / "0.tiff")
    with pytest.raises(ValueError, match=r"--data: .*0.tiff has pixels of 32 bits"):
        read_own(str(tmp_path), 1)


@pytest.mark.parametrize("kind", [">f4", ">f8", np.longdouble])
def test_arrays_of_other_machines(kind, tmp_path):
    np.savez(tmp_path / "points.npz", x=np.arange(6).reshape(3, 2).astype(kind), y=np.array([1, 0, 1], dtype=">i8"))
    found = read_own(str(tmp_path / "points.npz"), 3)
    assert found.inputs.tolist() == [[2, 3], [0, 1], [4, 5]]
    assert found.labels.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    "labels", [["b", "a", "b", "a"], (1, 0, 1, 0), torch.tensor([5, 2, 5, 2])], ids=["names", "numbers", "tensor"]
)
def test_a_dataset_is_read_evenly_by_any_classes(labels):
    data = torch.utils.data.TensorDataset(torch.arange(4.0))
    data.targets = labels
    assert of_dataset(data, 2, "data").rows.tolist() == [1, 0]


@pytest.mark.parametrize("labels", [[None] * 4, [[1], [1, 2], [3], [4]], {0: 1, 1: 1, 2: 1, 3: 1}, [0.5] * 4])
def test_labels_that_are_no_classes_are_passed_over(labels):
    data = torch.utils.data.TensorDataset(torch.arange(4.0))
    data.targets = labels
    assert of_dataset(data, 2, "data").rows.tolist() == [0, 3]


def test_a_pair_of_tensors_of_any_precision():
    pair = torch.arange(4.0).bfloat16()[:, None].requires_grad_(), torch.arange(4) % 2
    assert of_dataset(pair, 4, "pair").inputs.flatten().tolist() == [0, 2, 1, 3]


def test_a_dict_is_no_dataset():
    with pytest.raises(ValueError, match="--data: made makes a dict, not a Dataset"):
        of_dataset({"x": torch.zeros(2, 1), "y": torch.zeros(2)}, 2, "made")


def test_a_dataset_without_labels_that_are_known_is_read_at_even_distances():
    class Plain:
        def __len__(self):
            return 100

        def __getitem__(self, place):
            return {"ids": torch.tensor([place]), "labels": place % 2}

    few = of_dataset(Plain(), 5, "Plain")
    assert few.rows.tolist() == [0, 25, 50, 74, 99]
    assert few.labels.tolist() == [0, 1, 0, 0, 1]
    assert few.inputs["ids"].flatten().tolist() == few.rows.tolist()


def test_json_has_numbers(project, command):
    status, out, err = command(*measure("points.npz", "--json", "--step-size", "0.01"))
    assert status == 0, err
    about = json.loads(out)["about"]
    assert about["step_size"] == 0.01
    assert isinstance(about["unresolved"], float)
    assert about["targets_are_sources"] is True
    assert isinstance(about["notes"], list)


@pytest.mark.parametrize("advice", [MORE_RESOLVED, ROUNDING, in_words(1.0)])
def test_advice_speaks_of_options(advice):
    assert in_options(advice) != advice
    assert not any(word in in_options(advice) for word in ("problem.to", "le.", "update", "engine", "="))


def test_errors_of_functions_name_the_options(project, command):
    status, _, err = command(*measure("points.npz", "--step-size", "-1"))
    assert status == 2
    assert err.startswith("error: --step-size: ")


class Evil:
    def __reduce__(self):
        return os.mkdir, ("owned",)


def saved_as_pickle(path):
    path.write_bytes(pickle.dumps(Evil(), protocol=4))


def saved_by_torch(path):
    torch.save({"1.weight": Evil()}, path)


def saved_by_numpy(path):
    np.savez(path, x=np.array([Evil()], dtype=object), y=np.array([0]))


WITH_OBJECTS = {
    "weights": (("evil.pt", saved_as_pickle), measure("points.npz", "--weights", "evil.pt"), "--weights: "),
    "weights of torch": (("evil.pt", saved_by_torch), measure("points.npz", "--weights", "evil.pt"), "--weights: "),
    "safetensors": (
        ("evil.safetensors", saved_as_pickle),
        measure("points.npz", "--weights", "evil.safetensors"),
        "--weights: ",
    ),
    "data": (("evil.npz", saved_by_numpy), measure("evil.npz"), "--data: "),
    "data that is a pickle": (("evil.npy", saved_as_pickle), measure("evil.npy"), "--data: "),
    "a result": (("evil.npz", saved_by_numpy), ("report", "evil.npz", "--out", "page.html"), ""),
    "a result that is a pickle": (("evil.npz", saved_as_pickle), ("report", "evil.npz", "--out", "page.html"), ""),
}


@pytest.mark.filterwarnings("always")
@pytest.mark.parametrize("name", WITH_OBJECTS)
def test_files_are_never_unpickled(name, project, command, recwarn):
    """The error is all that is said, without a warning of torch before it."""
    (file, save), arguments, words = WITH_OBJECTS[name]
    save(project / file)
    status, out, err = command(*arguments)
    assert (status, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith(f"error: {words}")
    assert not recwarn.list
    assert not (project / "owned").exists()


@pytest.mark.parametrize("at", ["similarity", "block_digest", "source"])
def test_stores_are_never_unpickled(at, tmp_path, monkeypatch):
    """Also if an array in one names a codec that unpickles."""
    monkeypatch.chdir(tmp_path)
    x, y = torch.randn(6, 4), torch.arange(6) % 3
    le.similarity(torch.nn.Linear(4, 3), (x, y), loss="cross_entropy", store="own.zarr")
    description = tmp_path / "own.zarr" / at / "zarr.json"
    about = json.loads(description.read_text())
    about["codecs"] = [{"name": "numcodecs.pickle", "configuration": {"protocol": 4}}]
    description.write_text(json.dumps(about))
    for chunk in (tmp_path / "own.zarr" / at / "c").rglob("*"):
        if chunk.is_file():
            saved_as_pickle(chunk)
    with pytest.raises(ValueError, match=r"^path: .*own\.zarr"):
        le.load("own.zarr").load()
    assert not (tmp_path / "owned").exists()
