"""What torch functions are given and give, flattened. A network calls hundreds of them, on whose way this lies."""

from __future__ import annotations

from typing import Any


def flatten_tree(value: Any) -> list[Any]:
    """What tuples, lists and dicts hold, however nested; anything else is itself.

    >>> flattened(((1, [2, 3]), {"stride": (4, 5)}))
    [1, 2, 3, 4, 5]
    """
    if isinstance(value, dict):
        value = tuple(value.values())
    if not isinstance(value, (tuple, list)):
        return [value]
    found = []
    for one in value:
        if isinstance(one, (tuple, list, dict)):
            found += flatten_tree(one)
        else:
            found.append(one)
    return found
