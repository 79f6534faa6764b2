"""What is refused, with words that say what to do, and what is NaN and why."""

import numpy as np
import pytest

from local_elasticity.theory import (
    DiagonalQuadratic,
    HomogeneousFeatures,
    PenalisedFeatures,
    ReluGate,
    StillSource,
    SymmetricPair,
    TwoLayerRelu,
    integrate,
    modified_sgd,
)

X = np.random.default_rng(0).normal(size=(6, 3))
ONE, EYE = np.ones(3), np.eye(3)
PENALISED = PenalisedFeatures(X, [0, 1] * 3, 1.0, 1.0)
QUADRATIC = DiagonalQuadratic([1.0, 2.0, 3.0], ONE, ONE, 1.0)
GATE = ReluGate(EYE, ONE, 0.5 * ONE, 1.0)
NOTHING, SAME = (lambda x: np.zeros(len(x))), (lambda x: x[:, None, :])

REFUSED = {
    "singular M": (lambda: PenalisedFeatures(X[:2], [0, 1], 0.0, 1.0), "singular.*Theorem 3.1 assumes λ > 0"),
    "negative penalty": (lambda: PenalisedFeatures(X, [0, 1] * 3, -1.0, 1.0), "penalty"),
    "rate 0": (lambda: PenalisedFeatures(X, [0, 1] * 3, 1.0, 0.0), "rate: expected a positive number"),
    "rate NaN": (lambda: DiagonalQuadratic(ONE, ONE, ONE, np.nan), "rate"),
    "gate rate": (lambda: ReluGate(EYE, ONE, ONE, -1.0), "rate"),
    "float classes": (lambda: PenalisedFeatures(X, [0.5] * 6, 1.0, 1.0), "labels: expected classes"),
    "labels too few": (lambda: PenalisedFeatures(X, [0, 1], 1.0, 1.0), "features"),
    "start of another shape": (lambda: PenalisedFeatures(X, [0, 1] * 3, 1.0, 1.0, ONE), "w0: expected \\[2, 3\\]"),
    "reading": (lambda: PenalisedFeatures(X, [0, 1] * 3, 1.0, 1.0, reading="as_wished"), "reading"),
    "no class": (lambda: PENALISED.relative(0.0, X[0], X[1]), "source: expected \\(features, classes\\)"),
    "class out of range": (lambda: PENALISED.relative(0.0, (X[0], 5), X[1]), "classes from 0 to 1"),
    "other dimension": (
        lambda: PENALISED.relative(0.0, (X[0], 0), np.ones(4)),
        "target: expected vectors of 3 numbers",
    ),
    "source of another dimension": (lambda: GATE.relative(0.0, np.ones(2), X), "source: expected vectors of 3 numbers"),
    "labels of another length": (lambda: QUADRATIC.relative(0.0, (X, ONE), X), "source: labels of shape"),
    "times unsorted": (lambda: GATE.w([1.0, 0.0]), "t: times must be in order"),
    "times negative": (lambda: QUADRATIC.w([-1.0, 0.0]), "t: times begin at 0"),
    "times infinite": (lambda: PENALISED.w(np.inf), "t: times begin at 0"),
    "no times": (lambda: PENALISED.w([]), "t: expected a time or a vector"),
    "times of two axes": (lambda: integrate(GATE, ONE, [[0.0]]), "t: expected a time or a vector"),
    "step negative": (lambda: GATE.relative(0.0, ONE, ONE, step_size=-1.0), "step_size"),
    "gate's M singular": (lambda: ReluGate(np.diag([1.0, 1.0, 0.0]), ONE, ONE, 1.0), "Theorem 4.1 assumes"),
    "too few inputs": (lambda: ReluGate.of_inputs(X[:2], ONE, ONE, 1.0), "Theorem 4.1 assumes"),
    "M not symmetric": (lambda: ReluGate(np.triu(np.ones((3, 3))), ONE, ONE, 1.0), "symmetric"),
    "M of another size": (lambda: ReluGate(np.eye(2), ONE, ONE, 1.0), "second_moment: expected \\[3, 3\\]"),
    "w0 = 0": (lambda: DiagonalQuadratic(ONE, ONE, np.zeros(3), 1.0), "w0: coordinate 0, 1, 2 starts at 0, a fixed"),
    "one w0 = 0": (lambda: DiagonalQuadratic(ONE, ONE, [1.0, 0.0, 1.0], 1.0), "w0: coordinate 1 starts at 0"),
    "b = 0": (lambda: DiagonalQuadratic(ONE, 0 * ONE, ONE, 1.0), "b: second moments"),
    "lengths": (lambda: DiagonalQuadratic(ONE, ONE, np.ones(2), 1.0), "a, b, w0: expected three vectors of one length"),
    "degree": (lambda: HomogeneousFeatures(0, NOTHING, SAME, X, ONE, [ONE], 1.0), "degree"),
    "beta": (
        lambda: HomogeneousFeatures(2, NOTHING, SAME, X, np.ones(6), [np.ones(2)], 1.0),
        "beta: expected \\[N, r, q\\]",
    ),
    "step without label": (
        lambda: HomogeneousFeatures(2, NOTHING, SAME, X, np.ones(6), [ONE], 1.0).relative(0.0, X, X, step_size=0.1),
        "a finite step depends on the label",
    ),
    "pair of three": (lambda: SymmetricPair(ONE, 1.0, 1.0, 1.0), "a: expected two positive numbers"),
    "pair without beta": (lambda: SymmetricPair((1.0, 1.0), 1.0, 0.0, 1.0), "alpha, beta"),
    "orthogonal pair": (
        lambda: SymmetricPair((1.0, 1.0), 1.0, 1.0, 1.0).late_bound(0.0, [1.0, 0.0], [0.0, 1.0]),
        "orthogonal.*Theorem 5.3 excludes",
    ),
    "signs": (lambda: TwoLayerRelu(np.ones((2, 4)), [1.0, 0.5], X, np.ones(6), 1.0), "signs: the second layer"),
    "net labels": (lambda: TwoLayerRelu(np.ones((2, 4)), [1, -1], X, ONE, 1.0), "labels: expected \\[6\\]"),
    "modified step": (lambda: next(modified_sgd(ONE, ONE, X, step_size=0.0)), "step_size"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused_in_one_line_that_names_the_argument(what):
    work, words = REFUSED[what]
    with pytest.raises(ValueError, match=words) as caught:
        work()
    assert "\n" not in str(caught.value)


STILL = {
    "far side of w*": (lambda: GATE.relative([0.0, 1.0], -ONE, ONE), "far side of w\\*"),
    "no features": (lambda: PENALISED.relative(0.0, (0 * ONE, 0), X[0]), "its features are zero"),
    "no quadratic features": (lambda: QUADRATIC.relative(0.0, 0 * ONE, ONE), "its features β\\(x\\) are zero"),
    "no neuron on": (
        lambda: TwoLayerRelu(-np.ones((2, 4)), [1, -1], X, np.ones(6), 1.0).relative(0.0, (ONE, 1.0), ONE),
        "no neuron is on",
    ),
}


@pytest.mark.parametrize("what", STILL)
def test_a_source_that_does_not_move_is_nan_and_says_why(what):
    work, words = STILL[what]
    with pytest.warns(StillSource, match=words):
        assert np.isnan(work()).all()
