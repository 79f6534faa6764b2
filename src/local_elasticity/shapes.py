"""Shape letters in annotations: ``Float[Tensor, "n m k"]``.

n sources, m targets, k outputs, p parameters, d inputs, t times, b any batch. The tests check every annotation at run
time (jaxtyping + beartype); at run time outside the tests they are documentation, and where jaxtyping is not
installed (a bare GPU machine) they stay plain tensors.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, Shaped
else:
    try:
        from jaxtyping import Bool, Float, Int, Shaped
    except ImportError:

        class _Unchecked:
            def __class_getitem__(cls, item: tuple[Any, str]) -> Any:
                return item[0]

        Bool = Float = Int = Shaped = _Unchecked

__all__ = ["Bool", "Float", "Int", "Shaped"]
