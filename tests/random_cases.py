"""Tests on random cases: a few by default, many in the slow suite."""

import pytest
from hypothesis import HealthCheck, given, settings

SUPPRESSED = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


def random_cases(few, many, *strategies):
    """Run a test on `few` cases that the strategies draw, and with `-m slow` on `many`.

    @random_cases(30, 500, st.integers())
    def test_squares(n): ...
    """

    def decorate(test):
        def run(examples):
            drawn = settings(max_examples=examples, deadline=None, suppress_health_check=SUPPRESSED)
            drawn(given(*strategies)(test))()

        run.__name__, run.__doc__ = test.__name__, test.__doc__
        return pytest.mark.parametrize("examples", [few, pytest.param(many, marks=pytest.mark.slow)])(run)

    return decorate
