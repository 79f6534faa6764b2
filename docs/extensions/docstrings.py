"""Docstrings use backticks for code and no other markup; Sphinx reads reStructuredText. This translates. Types in
signatures stay as the source has them: `Sources` says more than the union that it stands for."""

import inspect
import re
from typing import Any

from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer

BEFORE_NAPOLEON = 100
CODE = re.compile(r"`+([^`]+)`+")
SPECIAL = re.compile(r"([\\*|]|_(?!\w)|(?<!\w)_)")


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", translate, priority=BEFORE_NAPOLEON)
    app.connect("autodoc-process-signature", as_written)
    analyze = ModuleAnalyzer.analyze

    def without_overloads(analyzer: ModuleAnalyzer) -> None:
        """Overloads are for type checkers and leave out arguments; readers want the function's own signature."""
        analyze(analyzer)
        analyzer.overloads = {}

    ModuleAnalyzer.analyze = without_overloads  # type: ignore[method-assign]
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def translate(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Code in backticks becomes a literal, an example a paragraph of its own; other signs stand for themselves."""
    made: list[str] = []
    example = False
    for line in lines:
        begins = line.lstrip().startswith(">>>")
        if begins and not example and made and made[-1].strip():
            made.append("")
        example = begins or (example and bool(line.strip()))
        made.append(line if example else literal(line))
    lines[:] = made


def literal(line: str) -> str:
    """One line of prose as reStructuredText."""
    pieces = CODE.split(line)
    return "".join(f"``{piece}``\\" if at % 2 else SPECIAL.sub(r"\\\1", piece) for at, piece in enumerate(pieces))


class _Written(str):
    """An annotation as its source has it."""

    def __repr__(self) -> str:
        return str(self)


def as_written(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str, str | None] | None:
    """The signature with unevaluated annotations; None leaves it as Sphinx has it."""
    if signature is None or what == "property":
        return None
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return None
    parameters = [one.replace(annotation=_written(one.annotation)) for one in found.parameters.values()]
    if parameters and parameters[0].name in ("self", "cls"):
        del parameters[0]
    shown = [one for one in parameters if not one.name.startswith("_")]
    returned = None if what == "class" or found.return_annotation is found.empty else found.return_annotation
    text = None if returned is None else inspect.formatannotation(_written(returned))
    return str(found.replace(parameters=shown, return_annotation=found.empty)), text


def _written(annotation: Any) -> Any:
    return _Written(annotation) if isinstance(annotation, str) else annotation
