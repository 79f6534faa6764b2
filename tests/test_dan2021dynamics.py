"""The experiments of Dan et al.: the released formulas, the images, and the orderings that one run must show."""

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
from local_elasticity.papers.dan2021dynamics.claims import CLAIMS, Runs, judge
from local_elasticity.papers.dan2021dynamics.classifier import cropped_and_flipped
from local_elasticity.statistics.correlation import spearman


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


def run_of(kl, released, *, l1=None, logits=None):
    """A measured run whose curves are given as functions of time: (intra, inter)."""
    t = np.linspace(0, 1, 20)

    def matrices(intra, inter):
        return [(np.eye(3) * a + (1 - np.eye(3)) * b).tolist() for a, b in zip(intra(t), inter(t), strict=True)]

    def every(pair):
        return {reduction: matrices(*pair) for reduction in readings.REDUCTIONS}

    l1 = l1 or kl
    root = tuple(partial(lambda t, f: np.sqrt(f(t)), f=f) for f in kl)
    measures = {
        "kl": every(kl),
        "root_kl": every(root),
        "l1": every(l1),
        "l2": every(l1),
        "logits": every(logits or l1),
    }
    both = {**measures, "released_kl": every(released), "released_l1": every(released)}
    probes = {step: {"similarity": both} for step in ("sgd", "adam")}
    accuracy = (0.33 + 0.5 * np.minimum(1, 2 * t)).tolist()
    steps = (100 * t).tolist()
    return {"classes": ["a", "b", "c"], "steps": steps, "loss": accuracy, "accuracy": accuracy, "probes": probes}


def test_verdicts_follow_the_curves():
    falls = (lambda t: 0.5 + 0 * t, lambda t: 0.5 - 0.4 * np.minimum(1, 8 * t))
    flat = (lambda t: 1 + 0 * t, lambda t: 1 + 0 * t)
    verdicts = {claim.id: claim.verdict for claim in judge(Runs.of([run_of(falls, flat)] * 3))}
    assert list(verdicts) == [claim.id for claim in CLAIMS]
    assert verdicts["intra_larger"] == "holds"
    assert verdicts["intra_larger_released"] == "fails"
    assert verdicts["intra_constant"] == verdicts["intra_constant_released"] == "holds"
    assert verdicts["inter_decreases"] == "holds"
    assert verdicts["inter_decreases_released"] == "fails"
    assert verdicts["not_by_definition_1"] == "fails"
    assert verdicts["not_by_definition_1_released"] == "holds"
    assert verdicts["norms_alike"] == "holds"
    assert verdicts["early"] == "holds"
    assert verdicts["starts_at_one"] == "holds"
    reversed_order = (lambda t: 0.8 + 0 * t, lambda t: 1 + 6 * t)
    verdicts = {claim.id: claim.verdict for claim in judge(Runs.of([run_of(reversed_order, flat, l1=falls)] * 3))}
    assert verdicts["intra_larger"] == verdicts["inter_decreases"] == verdicts["sharper"] == "fails"
    mixed = judge(Runs.of([run_of(falls, flat), run_of(reversed_order, flat)]))
    assert mixed[0].verdict == "depends"
    assert (mixed[0].low, mixed[0].high) == pytest.approx((0.8 / 6.2, 5), rel=0.1)
    assert mixed[0].effect == pytest.approx(np.sqrt(mixed[0].low * mixed[0].high))
    assert mixed[-1].paper == 1


def test_sharper_and_early_are_said_of_locality_only():
    """Less of the reverse order is no locality, and a rise of inter/intra is no fall of it."""
    flat = (lambda t: 1 + 0 * t, lambda t: 1 + 0 * t)
    less, more = ((lambda t: 1 + 0 * t, lambda t, top=top: 1 + top * np.minimum(1, 8 * t)) for top in (1, 4))
    rises = run_of(less, flat, l1=more)
    claims = {claim.id: claim for claim in judge(Runs.of([rises] * 3))}
    assert claims["sharper"].verdict == claims["early"].verdict == "fails"
    assert "Definition 2 in 0, its root in 0 of 3" in claims["sharper"].evidence
    assert "falls in 0 of 3 runs" in claims["early"].evidence
    assert claims["early"].effect is None
    local = (lambda t: 1 + 0 * t, lambda t: 1 - 0.8 * np.minimum(1, 8 * t))
    claims = {claim.id: claim for claim in judge(Runs.of([rises, run_of(local, flat, l1=more)]))}
    assert claims["sharper"].verdict == claims["early"].verdict == "depends"


def test_the_softmax_is_better_only_where_it_shows_locality():
    """Less of the reverse order is no better; and what holds for medians but not for means depends."""
    flat = (lambda t: 1 + 0 * t, lambda t: 1 + 0 * t)
    less, more = ((lambda t: 1 + 0 * t, lambda t, top=top: 1 + top * np.minimum(1, 8 * t)) for top in (1, 4))
    local = (lambda t: 1 + 0 * t, lambda t: 1 - 0.8 * np.minimum(1, 8 * t))

    def verdict(run):
        return next(claim for claim in judge(Runs.of([run] * 3)) if claim.id == "softmax_better").verdict

    assert verdict(run_of(flat, flat, l1=less, logits=more)) == "fails"
    run = run_of(flat, flat, l1=local, logits=less)
    assert verdict(run) == "holds"
    similarity = run["probes"]["sgd"]["similarity"]
    similarity["l1"]["mean"] = similarity["logits"]["mean"]
    assert verdict(run) == "depends"


def test_spearman_is_scipys():
    from scipy.stats import spearmanr

    rng = np.random.default_rng(0)
    a, b = rng.random(30), rng.random(30)
    assert spearman(a, b) == pytest.approx(spearmanr(a, b).statistic)


@pytest.mark.parametrize("name", ["svhn", "regression"])
def test_units_are_measured_on_a_bare_machine(name, tmp_path):
    """torch, NumPy and scikit-learn (for the packaged digits) suffice to measure."""
    script = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(['pandas', 'xarray', 'zarr', 'matplotlib', 'typer', 'rich', 'mlxtend']))\n"
        "from pathlib import Path\n"
        "from local_elasticity.papers.runner import find_experiment, measure_units\n"
        f"experiment = find_experiment('dan2021dynamics/{name}')\n"
        f"measure_units(experiment, Path({str(tmp_path / 'run')!r}), scale='smoke', seeds=1)"
    )
    answer = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert list((tmp_path / "run" / "units").iterdir())
