"""The structure of the package: one name for one thing, and a map that shows every file."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "local_elasticity"
FILES = sorted(PACKAGE.rglob("*.py"))
DESIGN = Path(__file__).parent.parent / "docs" / "design.md"

ONE_FOR_EACH_LIBRARY = {"MonitorCallback"}
"""The same name under Lightning and under Transformers."""


def test_a_public_class_is_defined_once():
    found = defaultdict(list)
    for file in FILES:
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(file.relative_to(PACKAGE)))
    twice = {name: files for name, files in found.items() if len(files) > 1 and name not in ONE_FOR_EACH_LIBRARY}
    assert not twice


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_a_constant_is_assigned_once(file):
    names = []
    for node in ast.parse(file.read_text()).body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        for target in targets:
            names += [one.id for one in ast.walk(target) if isinstance(one, ast.Name) and one.id.isupper()]
    assert len(names) == len(set(names))


def test_the_map_of_the_package_is_complete():
    """docs/design.md names every file and folder, and nothing that is not there."""
    text = DESIGN.read_text()
    start = text.index("src/local_elasticity/\n")
    lines = text[start : text.index("```", start)].splitlines()[1:]
    named, folder = set(), Path()
    for line in lines:
        head = re.match(r"^  ((?:\S+/ ?)+|\S+\.py)", line)
        folders = re.findall(r"^  ((?:[\w/]+/ )+)", line + " ")
        if folders:
            folder = Path(folders[0].split()[0])
            named |= {Path(one) / "__init__.py" for one in folders[0].split()}
        elif head and head[1].endswith(".py"):
            folder = Path()
        words = re.findall(r"[\w]+(?:\.py)?", line)
        named |= {folder / (word if word.endswith(".py") else f"{word}.py") for word in words}
        if folders and len(folders[0].split()) > 1:
            named |= {Path(one) / f"{word}.py" for one in folders[0].split() for word in words}
    missing = [str(path) for path in (file.relative_to(PACKAGE) for file in FILES) if path not in named]
    assert not missing
