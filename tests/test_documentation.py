"""Every code block of the README, every example and every docstring runs; every public name is documented."""

import doctest
import importlib.util
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import local_elasticity as le
from tests.extras import skip_beside_a_broken_torchvision

ROOT = Path(__file__).parent.parent
MODULES = [
    m.name
    for m in pkgutil.walk_packages(le.__path__, "local_elasticity.")
    if not m.name.endswith(("__main__", "_triton"))
]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
INCLUDED = sorted({name for page in PAGES for name in re.findall(r'--8<-- "(.*?)"', page.read_text())})
"""Files that pages show; they are examples, which are run as such."""
TUTORIAL = ROOT / "docs" / "tutorial.md"
BLOCKS = [(page, block) for page in PAGES for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)]


EXTRAS = ("local_elasticity.training.lightning", "local_elasticity.training.transformers")
"""Modules that need an extra."""


def imported(name):
    """A module; skipped where its extra is missing."""
    if name in EXTRAS:
        skip_beside_a_broken_torchvision()
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if name not in EXTRAS:
            raise
        pytest.skip(str(error))


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name):
    outcome = doctest.testmod(imported(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert outcome.failed == 0


def typed(page):
    """The blocks of a page run one after another, as a reader would type them; the names they leave."""
    names: dict[str, object] = {}
    for other, block in BLOCKS:
        if other == page:
            exec(compile(block, str(page), "exec"), names)
    return names


@pytest.mark.parametrize("page", sorted({page for page, _ in BLOCKS} - {TUTORIAL}), ids=lambda page: page.name)
def test_code_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    typed(page)


def test_the_tutorial_prints_what_it_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = typed(TUTORIAL)
    classes = names["before"].le.classes()
    own = classes.source_class == classes.target_class
    assert classes.value[own].between(0.85, 0.95).all()
    assert classes.value[~own].between(0.45, 0.8).all()
    logits, probabilities = names["ratios"]["relative"], names["ratios"]["kl"]
    assert 0.6 < logits[0] < 0.7
    assert logits[100] < 0.5
    assert logits.diff().max() < 0.01
    assert 0.35 < probabilities[0] < 0.5
    assert probabilities[100] < 0.1
    zeros, ones, twos = (names["sure"][names["kinds"] == digit].median() for digit in range(3))
    assert min(zeros, twos) > 0.99
    assert ones < 0.5
    late = names["late"].pivot(index="source_class", columns="target_class", values="value")
    assert (late.loc[[0, 2], 1] > 2).all()
    assert (late.loc[1, [0, 2]] < 0.01).all()


def test_the_performance_page_holds_what_was_measured():
    spec = importlib.util.spec_from_file_location("page", ROOT / "benchmarks" / "page.py")
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    assert page.updated(page.PAGE.read_text()) == page.PAGE.read_text()


@pytest.mark.parametrize("name", INCLUDED)
def test_what_pages_include_are_examples(name):
    assert ROOT / name in (ROOT / "examples").glob("*.py")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site; building it strictly finds every link, anchor, included file and documented name."""
    pytest.importorskip("mkdocs", reason="pip install 'local-elasticity[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-W", "ignore", "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    answer = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert answer.returncode == 0, answer.stderr[-3000:]
    return folder


def test_the_site_asks_nothing_of_others(site):
    """No font or script comes from elsewhere, and no formula waits for a script."""
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        assert not re.search(r'<(script|link|img)[^>]+(src|href)="https?://', page.read_text()), page.name
        assert "arithmatex" not in page.read_text(), page.name
    formulas = (site / "maths.html").read_text()
    assert formulas.count("<math") > 50
    assert not re.search(r"<m[ion][^>]*>\\", formulas)  # a command that was not understood


@pytest.mark.browser
def test_the_site_is_searched_from_a_file(site, browser):
    page, elsewhere = browser.new_page(), []
    page.on("request", lambda request: elsewhere.append(request.url))
    page.goto(f"file://{site}/how-to/model.html")
    page.click("input.md-search__input")
    page.keyboard.type("locality ratio")
    page.locator("a.md-search-result__link[href*='maths.html']").first.wait_for(timeout=20_000)
    assert not [url for url in elsewhere if url.startswith("http")]


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_examples_run(example, tmp_path):
    for name in EXTRAS:
        if f"from {name} import" in example.read_text():
            imported(name)
    together = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "--master-port=0"]
    how = together if "torchrun" in example.read_text() else []
    answer = subprocess.run([sys.executable, *how, str(example)], capture_output=True, text=True, cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.strip()


@pytest.mark.parametrize("name", [name for name in le.__all__ if name != "__version__"])
def test_public_names_are_there_and_documented(name):
    thing = getattr(le, name)
    assert inspect.getdoc(thing)
    if inspect.isfunction(thing):
        assert ">>>" in (thing.__doc__ or ""), f"le.{name} has no example"


ROOMS = [name for name in le.__all__ if inspect.ismodule(getattr(le, name, None))]
ELSEWHERE = [
    *(f"training.{place}.MonitorCallback" for place in ("lightning", "transformers")),
    *(f"training.language.{name}" for name in ("sequences", "sequence_problem", "token_problem", "token_kl")),
    "training.checkpoints.watch",
]
"""What users import from where it is."""


@pytest.mark.parametrize("room", ["", *ROOMS])
def test_every_public_name_is_in_the_reference(room):
    reference = (ROOT / "docs" / "api.md").read_text()
    names = getattr(le, room).__all__ if room else [name for name in le.__all__ if name not in ("__version__", *ROOMS)]
    place = rf"local_elasticity\.(?:{room}|statistics)\S*" if room else r"\S+"
    missing = [name for name in names if not re.search(rf"^::: {place}\.{name}$", reference, re.MULTILINE)]
    assert not missing


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_is_imported_from_its_place_is_in_the_reference(name):
    assert f"\n::: local_elasticity.{name}\n" in (ROOT / "docs" / "api.md").read_text()


def test_the_reference_has_short_headings(site):
    headings = re.findall(r"<h3[^>]*>(.*?)</h3>", (site / "api.html").read_text(), re.DOTALL)
    assert len(headings) > 100
    assert not [heading for heading in headings if "local_elasticity." in re.sub("<a.*", "", heading)]


def test_every_guarantee_names_a_test_that_exists():
    page = (ROOT / "docs" / "guarantees.md").read_text()
    rows = re.findall(r"^\| (?!guarantee|---)(.*?) \| `(test_\w+\.py)::(test_\w+)` \|$", page, re.MULTILINE)
    assert len(rows) == len([line for line in page.splitlines() if line.startswith("| ")]) - page.count("| guarantee |")
    for guarantee, file, name in rows:
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(), guarantee


def test_functions_are_not_shadowed_by_modules():
    """Importing every module leaves le.similarity and its like callable."""
    for name in MODULES:
        if name not in EXTRAS:
            importlib.import_module(name)
    for name in ("similarity", "respond", "estimate", "kernel", "relative", "load"):
        assert callable(getattr(le, name))


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="no attribute 'elasticity'"):
        le.elasticity  # noqa: B018


def test_the_import_is_light():
    """`import local_elasticity` needs torch and numpy only, and not even those until a name is used."""
    script = (
        "import sys; heavy = ['pandas', 'xarray', 'zarr', 'matplotlib', 'scipy', 'sklearn', 'mlxtend', 'typer', 'rich',"
        " 'jaxtyping']\n"
        "sys.modules.update(dict.fromkeys(heavy))\n"
        "import torch, local_elasticity as le\n"
        "net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))\n"
        "response = le.respond(le.Problem.of(net, 'mse'), (torch.randn(8, 3), torch.randn(8)))\n"
        "print(le.relative(response), le.kernel(response), le.ntk(le.Problem.of(net, 'mse'), torch.eye(3)))"
    )
    answer = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
