"""Optional parts of the package: an error that names the extra to install where one is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Around imports that an extra brings.

    >>> with extra("report"):
    ...     import no_such_plotting_library
    Traceback (most recent call last):
    ...
    ImportError: no_such_plotting_library is not installed; pip install 'local-elasticity[report]'
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "a library").partition(".")[0]
        raise ImportError(f"{missing} is not installed; pip install 'local-elasticity[{name}]'") from error
