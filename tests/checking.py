"""The type checker that the annotations meet while the tests run: a whole number is a float."""

from beartype import BeartypeConf, beartype

_by_source = {}
_beartype = beartype(conf=BeartypeConf(is_pep484_tower=True))


def checked(function):
    """A function with its annotations checked. A function inside another is defined at every call of that one; what
    jaxtyping hands over for it has the same signature each time, so that one check serves all of them.
    """
    if "<locals>" not in function.__qualname__:
        return _beartype(function)
    at = function.__module__, function.__qualname__, function.__code__.co_varnames, str(function.__annotations__)
    if at not in _by_source:
        _by_source[at] = _beartype(function)
    return _by_source[at]
