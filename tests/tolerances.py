"""Every tolerance in one place, by name."""

SAME_IN_FLOAT64 = 1e-9
"""Exact engines against the oracle loop, relative to the norm of a row."""

SAME_IN_FLOAT32 = 2e-3
"""Rows that are called resolved, chunked or ordered differently, in float32, relative to the norm of a row."""

ROUNDING = 1e-12
"""Closed forms in float64 against higher precision, relative."""

STRUCTURED_IN_FLOAT32 = 2e-6
"""What nothing was subtracted in, in float32 against float64, relative to the norm of a row."""

SAME_AT_SMALL_STEPS = 1e-5
"""Linearized against the loop at a step of 1e-7 in float64, relative to the norm of a row."""

CANCELLED = 1e-4
"""The difference of one function, a millionth of its argument, in float32, relative: a subtraction leaves no digit."""

RESOLVED_ERROR = 0.01
"""A value that is called resolved is right to this share of itself or of the source's own change."""

SLOPE = 0.1
"""An order of convergence, against its whole number."""

FLOW = 1e-9
"""Closed forms of gradient flows against a numerical integrator, relative to the largest weight."""
STANDARD_ERRORS = 4.0
"""A mean over fixed draws, against what it estimates, in its own standard errors."""

QUADRATURE = 2e-4
"""Theory by quadrature against closed forms, relative: the trapezoid over ReLU's kink."""

FINITE_SIZE = 0.1
"""Theory of the proportional regime against simulations of a few hundred units, relative, on the mean of seeds."""


def most_false(count: int) -> int:
    """The most false positives of so many tests at a nominal 5 %: two standard errors above the expected number; 64 of
    1000."""
    return round(0.05 * count + 2 * (0.05 * 0.95 * count) ** 0.5)
