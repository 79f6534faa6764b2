"""Whether optional libraries can be used here."""

from importlib.util import find_spec

import pytest


def skip_beside_a_broken_torchvision():
    """Lightning and transformers import torchvision where it is installed; a build for another torch breaks both."""
    if find_spec("torchvision") is None:
        return
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"torchvision is installed but does not import beside this torch ({error}); uninstall it")
