"""Pictures whose files have spaces in their names; Markdown writes them as %20."""

from typing import Any
from urllib.parse import unquote

from docutils import nodes
from sphinx.application import Sphinx

BEFORE_THEY_ARE_COLLECTED = 100


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("doctree-read", named_as_on_disk, priority=BEFORE_THEY_ARE_COLLECTED)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def named_as_on_disk(app: Sphinx, doctree: nodes.document) -> None:
    for image in doctree.findall(nodes.image):
        if "://" not in image["uri"]:
            image["uri"] = unquote(image["uri"])
