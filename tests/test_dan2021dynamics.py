"""The experiments of Dan et al.: the released formulas, the images, and the orderings that one run must show."""

import functools
import json
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import local_elasticity as le
from local_elasticity.papers.dan2021dynamics import readings
from local_elasticity.papers.dan2021dynamics.claims import ARMS, Runs, cells, claims_of
from local_elasticity.papers.dan2021dynamics.classifier import cropped_and_flipped
from local_elasticity.papers.experiment import Values
from local_elasticity.statistics.correlation import spearman
from local_elasticity.statistics.judging import judge


@pytest.fixture
def response():
    net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3)).double()
    x, y = torch.randn(6, 4).double(), torch.arange(6) % 3
    return le.respond(le.Problem.of(net, "cross_entropy"), (x, y), update=le.Adam(1e-2))


def test_the_released_formula_is_what_kl_div_makes_of_probabilities(response):
    """Word for word: probabilities where log-probabilities belong, mean over the outputs, ε below."""
    q, p = response.target_before.softmax(-1), response.target_after.softmax(-1)
    expected = torch.empty(6, 6, dtype=torch.float64)
    for i in range(6):
        below = F.kl_div(p[i, i], q[i], reduction="sum") / 3 + 1e-8
        for j in range(6):
            expected[i, j] = F.kl_div(p[i, j], q[j], reduction="sum") / 3 / below
    assert torch.allclose(readings.released_kl(response), expected)
    entropy = -(q * q.log()).sum(-1)
    assert torch.allclose(
        readings._kl_of_probabilities(response.target_before, response.target_after), -(entropy + (q * p).sum(-1)) / 3
    )


def test_released_readings_are_not_one_on_the_diagonal_and_definitions_are(response):
    for measure in (readings.kl, readings.root_kl, readings.l1, readings.l2, readings.logits):
        assert torch.allclose(measure(response).diagonal(), torch.ones(6, dtype=torch.float64))
    assert (readings.released_l1(response).diagonal() - 1).abs().min() > 1e-3
    assert torch.allclose(readings.root_kl(response).square(), readings.kl(response))


def test_the_released_formula_begins_at_one_whatever_the_step():
    """Before training predictions are nearly uniform: the formula compares entropies, not movements."""
    net = le.models.ResNet18(3, width=8)
    nn.init.normal_(net.head.weight, std=1e-3)
    x, y = torch.randn(9, 3, 32, 32), torch.arange(9) % 3
    for update in (le.SGD(1e-4), le.SGD(1e-2)):
        response = le.respond(le.Problem.of(net, "cross_entropy"), (x, y), update=update)
        assert (readings.released_kl(response) - 1).abs().max() < 0.02


def test_images_are_cropped_and_flipped_once():
    x = torch.arange(2 * 3 * 6 * 6.0).reshape(2, 3, 6, 6) + 1
    x = x.repeat(50, 1, 1, 1)
    made = cropped_and_flipped(x, torch.Generator().manual_seed(0))
    wide = F.pad(x, (4,) * 4)
    shifts = set()
    for before, after in zip(wide, made, strict=True):
        found = [
            (i, j, flip)
            for i in range(9)
            for j in range(9)
            for flip in (False, True)
            if torch.equal(after.flip(-1) if flip else after, before[:, i : i + 6, j : j + 6])
        ]
        assert found
        shifts.add(found[0])
    assert len(shifts) > 50
    assert torch.equal(made, cropped_and_flipped(x, torch.Generator().manual_seed(0)))


def run_of(kl, released, *, l1=None, logits=None, seed=0):
    """A measured run whose curves are given as functions of time, (intra, inter), a little different at every seed."""
    t, rng = np.linspace(0, 1, 21), np.random.default_rng(seed)
    noise = np.exp(0.01 * rng.normal(size=(4, 2, len(t))))

    def every(pair, place):
        intra, inter = (f(t) * factor for f, factor in zip(pair, noise[place], strict=True))
        tables = [(np.eye(3) * a + (1 - np.eye(3)) * b).tolist() for a, b in zip(intra, inter, strict=True)]
        return {"mean": tables, "median apart": tables, "within": intra.tolist(), "between": inter.tolist()}

    l1 = l1 or kl
    root = tuple(partial(lambda t, f: np.sqrt(f(t)), f=f) for f in kl)
    measures = {
        "kl": every(kl, 0),
        "root_kl": every(root, 0),
        "l1": every(l1, 1),
        "l2": every(l1, 1),
        "logits": every(logits or l1, 2),
    }
    both = {**measures, "released_kl": every(released, 3), "released_l1": every(released, 3)}
    probes = {step: {"similarity": both} for step in ("sgd", "adam")}
    return {
        "classes": ["a", "b", "c"],
        "steps": (100 * t).tolist(),
        "arms": {"epochs": 50, "steps": 100},
        "moments": {"epochs": {"best": 8, "end": 10}, "steps": {"best": 12, "end": 20}},
        "test loss": (1 - t).tolist(),
        "test accuracy": (0.33 + 0.5 * np.minimum(1, 2 * t)).tolist(),
        "probes": {"training": probes, "held out": {"sgd": {"similarity": measures}}},
    }


def verdicts(*curves, **options):
    runs = Runs([run_of(*curves, seed=seed, **options) for seed in range(5)])
    values = Values([cell.as_json() for cell in cells(runs)], seeds=5)
    return {claim.id: claim.verdict for claim in judge(claims_of(ARMS), values)}


FALLS = (lambda t: 0.5 + 0 * t, lambda t: 0.5 - 0.4 * np.minimum(1, 8 * t))
FLAT = (lambda t: 1 + 0 * t, lambda t: 1 + 0 * t)
RISES = (lambda t: 0.8 + 0 * t, lambda t: 1 + 6 * t)


def test_verdicts_follow_the_curves():
    found = verdicts(FALLS, RISES)
    assert list(found) == [claim.id for claim in claims_of(ARMS)]
    for name in ("intra_larger", "pooled", "pooled_held_out", "pooled_best", "definition_3", "intra_constant"):
        assert found[name] == "supported", name
    assert found["inter_decreases"] == found["early"] == "supported"
    assert found["inter_decreases_definition_3"] == found["intra_constant_definition_3"] == "supported"
    assert found["intra_larger_released"] == found["inter_decreases_released"] == "contradicted"
    assert found["not_by_definition_1"] == "contradicted"
    assert found["not_by_definition_1_released"] == "supported"
    assert found["starts_at_one"] == "contradicted"
    reverse = verdicts(RISES, FLAT, l1=FALLS)
    for name in ("intra_larger", "pooled", "inter_decreases", "sharper"):
        assert reverse[name] == "contradicted", name
    assert reverse["starts_at_one"] != "contradicted"


def test_sharper_and_better_are_said_of_locality_only():
    """Less of the reverse order is no locality."""
    less, more = ((lambda t: 1 + 0 * t, lambda t, top=top: 1 + top * np.minimum(1, 8 * t)) for top in (1, 4))
    assert verdicts(less, FLAT, l1=more)["sharper"] == "contradicted"
    assert verdicts(FLAT, FLAT, l1=less, logits=more)["softmax_better"] == "contradicted"
    local = (lambda t: 1 + 0 * t, lambda t: 1 - 0.8 * np.minimum(1, 8 * t))
    assert verdicts(FLAT, FLAT, l1=local, logits=less)["softmax_better"] == "supported"
    assert verdicts(local, FLAT, l1=less)["sharper"] == "supported"


def test_one_pair_decides_for_all_pairs_and_not_when_pooled():
    """A class whose steps hardly move itself: one of six pairs is reversed."""
    runs = [run_of(FALLS, FLAT, seed=seed) for seed in range(5)]
    for run in runs:
        for table in run["probes"]["training"]["sgd"]["similarity"]["kl"]["median apart"]:
            table[0][0] = 0.01
    values = Values([cell.as_json() for cell in cells(Runs(runs))], seeds=5)
    found = {claim.id: claim.verdict for claim in judge(claims_of(ARMS), values)}
    assert (found["intra_larger"], found["pooled"]) == ("contradicted", "supported")


def test_moments_outside_of_the_papers_setting_do_not_count():
    """Locality that is lost in the longer arm alone."""
    late = (lambda t: 0.5 + 0 * t, lambda t: np.where(t <= 0.5, 0.1, 2.0))
    runs = [run_of(late, FLAT, seed=seed) for seed in range(5)]
    values = Values([cell.as_json() for cell in cells(Runs(runs))], seeds=5)
    found = [{claim.id: claim.verdict for claim in judge(claims_of(arms), values)} for arms in (["epochs"], ARMS)]
    assert [one["pooled"] for one in found] == ["supported", "contradicted"]


def test_the_mean_of_definition_3_is_judged_apart_from_medians():
    """A few pairs with a tiny denominator: means rise while medians fall."""
    runs = [run_of(FALLS, FLAT, seed=seed) for seed in range(5)]
    for run in runs:
        table = np.array(run["probes"]["training"]["sgd"]["similarity"]["kl"]["mean"])
        rise = np.linspace(1, 40, len(table))[:, None, None]
        run["probes"]["training"]["sgd"]["similarity"]["kl"]["mean"] = (table * rise).tolist()
    values = Values([cell.as_json() for cell in cells(Runs(runs))], seeds=5)
    found = {claim.id: claim.verdict for claim in judge(claims_of(ARMS), values)}
    assert (found["inter_decreases"], found["inter_decreases_definition_3"]) == ("supported", "contradicted")
    assert (found["intra_constant"], found["intra_constant_definition_3"]) == ("supported", "contradicted")


def test_norms_are_compared_to_the_end_of_the_arm():
    """Norms that part in the longer arm alone."""
    runs = [run_of(FALLS, FLAT, seed=seed) for seed in range(5)]
    for seed, run in enumerate(runs):
        probe = run["probes"]["training"]["sgd"]["similarity"]["l2"]
        for reduction in ("mean", "median apart"):
            table = np.array(probe[reduction]) * (1.01 + 0.002 * seed)
            table[11:] *= 1.5
            probe[reduction] = table.tolist()
    values = Values([cell.as_json() for cell in cells(Runs(runs))], seeds=5)
    found = [{claim.id: claim.verdict for claim in judge(claims_of(arms), values)} for arms in (["epochs"], ARMS)]
    assert [one["norms_alike"] for one in found] == ["supported", "contradicted"]


def test_the_papers_sentences_do_not_read_medians():
    """They are about Definition 3, a mean with self-pairs."""

    def judged(runs):
        values = Values([cell.as_json() for cell in cells(Runs(runs))], seeds=5)
        return [claim for claim in judge(claims_of(ARMS), values) if not claim.ours]

    runs = [run_of(FALLS, RISES, l1=RISES, logits=FLAT, seed=seed) for seed in range(5)]
    before = judged(runs)
    for run in runs:
        for points in run["probes"].values():
            for step in points.values():
                for probe in step["similarity"].values():
                    probe["median apart"] = (3 * np.array(probe["median apart"]) ** 2).tolist()
                    probe["between"] = (3 * np.array(probe["between"]) ** 2).tolist()
    assert [(one.id, one.p_for, one.p_against) for one in judged(runs)] == [
        (one.id, one.p_for, one.p_against) for one in before
    ]


@pytest.fixture(scope="module")
def bare_units(tmp_path_factory):
    """Units of an experiment at smoke scale, by part and seed, measured where torch, NumPy and scikit-learn (for the
    packaged digits) are all there is."""

    def measured(name):
        folder = tmp_path_factory.mktemp(name)
        script = (
            "import sys\n"
            "heavy = ['pandas', 'xarray', 'zarr', 'matplotlib', 'typer', 'rich', 'mlxtend']\n"
            "sys.modules.update(dict.fromkeys(heavy))\n"
            "from pathlib import Path\n"
            "from local_elasticity.papers.runner import find_experiment, measure_units\n"
            f"experiment = find_experiment('dan2021dynamics/{name}')\n"
            f"measure_units(experiment, Path({str(folder / 'run')!r}), scale='smoke', seeds=1)"
        )
        answer = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True)
        assert answer.returncode == 0, answer.stderr
        return {file.stem: json.loads(file.read_text()) for file in (folder / "run" / "units").glob("*.json")}

    return functools.cache(measured)


@pytest.mark.parametrize("name", ["svhn", "regression"])
def test_units_are_measured_on_a_bare_machine(name, bare_units):
    assert bare_units(name)


def test_one_run_passes_both_arms_and_probes_at_drawn_points(bare_units):
    """Moments are where the recorded test loss says; held-out points are probed beside training points."""
    found = bare_units("svhn")["training-seed-0"]["measured"]
    assert found["steps"][-1] == found["arms"]["steps"] >= found["arms"]["epochs"]
    for arm, last in found["arms"].items():
        best, end = found["moments"][arm]["best"], found["moments"][arm]["end"]
        assert found["steps"][end] == last
        assert found["test loss"][best] == min(found["test loss"][: end + 1])
        for points in ("training", "held out"):
            interval = found["intervals"][points][str(end)]
            low, high = interval["ratio"][1:]
            assert low <= interval["ratio"][0] <= high
            assert len(interval["pairs"]) == 9
    assert set(found["probes"]["training"]) == {"sgd", "adam"}
    assert set(found["probes"]["held out"]) == {"sgd"}


def test_spearman_is_scipys():
    from scipy.stats import spearmanr

    rng = np.random.default_rng(0)
    a, b = rng.random(30), rng.random(30)
    assert spearman(a, b) == pytest.approx(spearmanr(a, b).statistic)
