"""What theory and the abstract promise, at full size over eight seeds; docs/results has the figures."""

import numpy as np
import pytest

from local_elasticity.papers.emergence2024 import alignment, emergence, metric_learning, rank_one, retrieval
from local_elasticity.papers.experiment import Unit

pytestmark = pytest.mark.slow
SEEDS = range(8)


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
    return {claim.id: claim for claim in experiment.find(found).claims}


def test_design_two_rises_and_theory_gives_it():
    claims = claims_of(alignment.Alignment(), [alignment.MAIN])
    for name in ("alignment", "elasticity", "theory"):
        assert claims[name].verdict == "holds", claims[name].evidence


def test_rise_curves_coincide():
    claims = claims_of(emergence.Emergence(), ["relu"])
    assert claims["identical"].verdict == "holds", claims["identical"].evidence
    assert claims["identical"].effect < 0.05


def test_the_rest_of_the_gradient_falls_like_the_root_of_the_dimension():
    claims = claims_of(rank_one.RankOne(), ["relu"])
    assert claims["operator"].effect == pytest.approx(-0.5, abs=0.1)


def test_recall_rises_but_not_on_one_side():
    claims = claims_of(retrieval.Retrieval(), [retrieval.MAIN, retrieval.SAME_SIDE])
    for name in ("recall", "same_side"):
        assert claims[name].verdict == "holds", claims[name].evidence


def test_centred_alignment_goes_with_recall_in_metric_learning():
    experiment = metric_learning.MetricLearning()
    settings = experiment.scales["small"]
    found = [experiment.measure(Unit("noisy MNIST, proxy", s), settings, "as_defined", "cpu") for s in range(3)]
    tables = [run["unseen digits"] for run in found]
    correlations = [np.corrcoef(table["centred cosine"], table["recall"])[0, 1] for table in tables]
    assert min(correlations) > 0.8
