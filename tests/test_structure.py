"""The structure of the package: one name for one thing, a map that shows every file, docstrings that say enough."""

import ast
import inspect
import re
from collections import defaultdict
from pathlib import Path

import jaxtyping
import pytest
import torch

import local_elasticity as le
from local_elasticity.engine.changes import LowRank
from local_elasticity.engine.job import Engine
from local_elasticity.engine.update import Update

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


@pytest.mark.parametrize(
    "call", [lambda: le.symmetrized(torch.ones(2, 3)), lambda: LowRank(torch.ones(2), torch.ones(2))]
)
def test_shapes_are_checked_while_the_tests_run(call):
    with pytest.raises(jaxtyping.TypeCheckError):
        call()


OF_A_PROTOCOL = {"runner": Engine.runner, "rule": Update.rule}
"""Methods that every engine and every update has; the protocol says once what they take and return."""


def public_functions():
    """Functions among the public names, and public methods of public classes, with what each is called."""
    for name in le.__all__:
        thing = getattr(le, name)
        if inspect.isclass(thing):
            for method, found in vars(thing).items():
                function = inspect.unwrap(getattr(found, "__func__", found))
                if not method.startswith("_") and inspect.isfunction(function):
                    yield f"{name}.{method}", OF_A_PROTOCOL.get(method, function)
        elif inspect.isroutine(thing):
            yield name, thing


@pytest.mark.parametrize(("name", "function"), list(public_functions()))
def test_public_functions_say_what_they_take_and_return(name, function):
    doc, signature = inspect.getdoc(function) or "", inspect.signature(function)
    arguments = [one for one in signature.parameters if one not in ("self", "cls")]
    described = doc.partition("Args:")[2]
    if arguments:
        assert "Args:" in doc
    for argument in arguments:
        assert re.search(rf"^\s+(\w+, )*\*{{0,2}}{argument}\b(, \w+)*:", described, re.MULTILINE), argument
    if signature.return_annotation not in (None, "None"):
        assert "Returns:" in doc
    if "." not in name:
        assert ">>>" in doc


@pytest.mark.parametrize("name", [name for name in le.__all__ if inspect.isclass(getattr(le, name))])
def test_public_classes_describe_their_arguments(name):
    found = getattr(le, name)
    doc = inspect.getdoc(found) or ""
    assert doc
    if not issubclass(found, BaseException):  # which take a message
        assert not inspect.signature(found).parameters or "Args:" in doc or "Attributes:" in doc


def test_published_results_name_no_folder():
    """Which folder a run read is its user's own matter."""
    root = PACKAGE.parent.parent
    results = [*(root / "docs" / "results").rglob("*.json"), *(root / "benchmarks" / "results").glob("*.json")]
    assert results
    assert not [str(file) for file in results if re.search(r'"(/|[A-Z]:\\)[^"]', file.read_text())]
