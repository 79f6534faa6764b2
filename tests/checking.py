"""How annotations are checked while the tests run: those with shapes, by beartype; a whole number is a float.

Types without shapes are mypy's; to check them in every call as well would double the time of the tests.
"""

import inspect

import jaxtyping
from beartype import BeartypeConf, beartype

_SHAPED = tuple(f"{kind}[" for kind in ("Bool", "Float", "Int", "Shaped"))
_by_source = {}
_beartype = beartype(conf=BeartypeConf(is_pep484_tower=True))
_jaxtyped = jaxtyping.jaxtyped


def jaxtyped(*, typechecker):
    """The decorator that jaxtyping's import hook puts on every function and class; it leaves those without shapes as
    they are."""

    def decorated(thing):
        written = inspect.get_annotations(thing)
        shaped = any(kind in str(one) for one in written.values() for kind in _SHAPED)
        return _jaxtyped(thing, typechecker=typechecker) if shaped else thing

    return decorated


jaxtyping.jaxtyped = jaxtyped


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
