"""What theory and the abstract promise: at half the size over three seeds, and (slow) at full size over eight;
docs/results has the figures.
"""

import numpy as np
import pytest

import local_elasticity.emergence as em
from local_elasticity.papers.emergence2024 import (
    alignment,
    emergence,
    many_steps,
    metric_learning,
    rank_one,
    retrieval,
    sweep,
)
from local_elasticity.papers.emergence2024.judging import mean_of
from local_elasticity.papers.experiment import Unit
from local_elasticity.papers.runner import judged_claims
from local_elasticity.papers.smallest_effects import NO_RISE
from local_elasticity.statistics.correlation import explained, spearman

SEEDS = range(8)
HALF = {"d": 128, "n": 256, "width": 256, "per_class": 200, "values": 6}


def turned(design):
    """Three seeds of a design at half the size."""
    found = []
    for seed in range(3):
        variant = sweep.Variant(design)
        trained = sweep.trained(variant, HALF, seed)
        rows = [
            sweep.sides(trained, seen)
            | sweep.features_row(seen)
            | sweep.theory_row(trained, seen)
            | {"recall": em.recall_at_k(seen.after, seen.labels)}
            for seen in sweep.turning(variant, HALF, trained, seed)
        ]
        found.append(sweep.columns(rows))
    return found


def test_at_half_the_size_what_is_promised_shows_already():
    runs = turned("II")
    for name in ("alignment", "elasticity", "recall"):
        assert min(spearman(run["s"], run[name]) for run in runs) > 0.95, name
    for name in ("alignment", "elasticity"):
        assert explained(mean_of(runs, name), mean_of(runs, f"theory {name}")) > 0.98, name
    gap = em.rise_curve(mean_of(runs, "alignment")) - em.rise_curve(mean_of(runs, "elasticity"))
    assert np.abs(gap).max() < 0.05
    one_side = turned("IIIb")
    assert np.diff(mean_of(one_side, "recall")[[0, -1]]) < NO_RISE.bound
    assert (np.diff(mean_of(one_side, "alignment")) > 0).all()


def test_steps_continued_are_steps_from_the_start():
    settings = {"d": 32, "n": 64, "width": 64, "per_class": 20, "values": 3, "steps": [1, 2, 4]}
    one, four = (sweep.trained(sweep.Variant(steps=steps), settings, 0) for steps in (1, 4))
    by_hand = one.step.after
    for _ in range(3):
        by_hand = em.one_step(by_hand, one.task.X, one.task.y, one.step.step_size).after
    assert np.array_equal(one.continued(2).continued(4).after.W, by_hand.W)
    assert np.array_equal(four.after.W, by_hand.W)
    experiment = many_steps.ManySteps()
    found = experiment.measure(Unit(many_steps.MAIN, 0), settings, "as_defined", "cpu")
    x = next(iter(sweep.turning(sweep.Variant(), settings, four, 0)))
    assert found["alignment"][-1][0] == em.alignment(x.after, x.labels)
    assert found["elasticity"][-1][0] == em.elasticity(x.before, x.after)
    assert found[many_steps.LOSS][-1] == float((one.task.y - by_hand(one.task.X)).square().mean() / 2)


def claims_of(experiment, parts, scale="paper"):
    """Only the parts that a claim needs are measured; the rest are filled with those, and not looked at."""
    settings = experiment.scales[scale]
    found = {
        Unit(part, seed): experiment.measure(Unit(part, seed), settings, "as_defined", "cpu")
        for seed in SEEDS
        for part in parts
    }
    for part in experiment.parts(settings):
        if part not in parts:
            found |= {Unit(part, seed): found[Unit(parts[0], seed)] for seed in SEEDS}
    cells = [cell.as_json() for cell in experiment.find(found).cells]
    return {claim["id"]: claim for claim in judged_claims(experiment, cells, len(SEEDS))}


@pytest.mark.slow
def test_design_two_rises_and_theory_gives_it():
    claims = claims_of(alignment.Alignment(), [alignment.MAIN])
    for name in ("alignment", "elasticity"):
        assert claims[name]["verdict"] == "supported"
    assert all(one["estimate"] < 0.01 for one in claims["theory"]["alternatives"][0])


@pytest.mark.slow
def test_rise_curves_coincide():
    claims = claims_of(emergence.Emergence(), ["relu"])
    assert claims["identical"]["verdict"] == "supported"
    assert claims["identical"]["decisive"]["estimate"] < 0.05


@pytest.mark.slow
def test_the_rest_of_the_gradient_falls_like_the_root_of_the_dimension():
    claims = claims_of(rank_one.RankOne(), ["relu"])
    assert claims["operator"]["decisive"]["estimate"] == pytest.approx(0, abs=0.1)


@pytest.mark.slow
def test_recall_rises_but_not_on_one_side():
    claims = claims_of(retrieval.Retrieval(), [retrieval.MAIN, retrieval.SAME_SIDE])
    for name in ("recall", "same_side"):
        assert claims[name]["verdict"] == "supported"


@pytest.mark.slow
def test_centred_alignment_goes_with_recall_in_metric_learning():
    experiment = metric_learning.MetricLearning()
    settings = experiment.scales["small"]
    found = [experiment.measure(Unit("noisy MNIST, proxy", s), settings, "as_defined", "cpu") for s in range(3)]
    tables = [run["unseen digits"] for run in found]
    correlations = [np.corrcoef(table["centred cosine"], table["recall"])[0, 1] for table in tables]
    assert min(correlations) > 0.8
