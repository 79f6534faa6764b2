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
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for target in targets:
            names += [one.id for one in ast.walk(target) if isinstance(one, ast.Name) and one.id.isupper()]
    assert len(names) == len(set(names))


def mapped():
    """The files in the map of docs/design.md: names with .py, under the last folder that is less indented."""
    text = DESIGN.read_text()
    start = text.index("src/local_elasticity/\n")
    found, folders = set(), {0: PACKAGE}
    for line in text[start : text.index("```", start)].splitlines()[1:]:
        depth = len(line) - len(line.lstrip())
        if not depth:
            break
        folders = {at: folder for at, folder in folders.items() if at < depth}
        folder = folders[max(folders)]
        head = re.match(r"(\w+)/", line.lstrip())
        if head:
            folder = folders[depth] = folder / head[1]
        found |= {folder / name for name in re.findall(r"\w+\.py\b", line)}
    return found


def test_the_map_of_the_package_is_complete():
    there = {file for file in FILES if file.name != "__init__.py" or file.parent == PACKAGE}
    assert mapped() == there
