"""Formulas become MathML when the site is built, so that pages need no script for them."""

from typing import Any

from latex2mathml.converter import convert
from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def inline(writer: Any, node: Any) -> None:
    writer.body.append(convert(node.astext(), display="inline"))
    raise _done()


def block(writer: Any, node: Any) -> None:
    writer.body.append(f'<div class="math">{convert(node.astext(), display="block")}</div>')
    raise _done()


def _done() -> Exception:
    """What tells docutils that the node's children are written."""
    from docutils.nodes import SkipNode

    return SkipNode()
