"""Every code block of the README, every example and every docstring runs; every public name is documented."""

import doctest
import functools
import html
import importlib.util
import inspect
import itertools
import pkgutil
import re
import runpy
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
INCLUDED = sorted(
    {
        str((page.parent / name).resolve().relative_to(ROOT))
        for page in PAGES
        for name in re.findall(r"```\{literalinclude\} (\S+)", page.read_text())
    }
)
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


def script(path):
    """A script of the repository as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


outputs = script(ROOT / "docs" / "outputs.py")
reference = script(ROOT / "docs" / "reference.py")


@functools.lru_cache(maxsize=1)
def typed(page):
    """The blocks of a page run one after another, as a reader would type them; what each gave, and the names they
    leave."""
    names: dict[str, object] = {}
    return list(outputs.run(page.read_text(), names)), names


@pytest.mark.parametrize("page", sorted({page for page, _ in BLOCKS}), ids=lambda page: page.name)
def test_code_blocks_run_and_print_what_pages_show(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks, _ = typed(page)
    if not outputs.shows_outputs(page.read_text()):
        return
    for block in blocks:
        if "depends on your machine" not in block.found["code"]:
            shown = (block.found["shown"] or "").rstrip()
            assert outputs.agree(shown, block.printed), f"{page.name} shows\n{shown}\nbut prints\n{block.printed}"
        assert (block.figure is None) == (block.found["file"] is None)


@pytest.mark.parametrize(
    ("printed", "agrees"),
    [
        ("ratio 0.70 (0.63 to 0.74), local: 0.5 s", True),
        ("ratio  0.71 (0.63 to 0.74), local: 12 s", True),
        ("ratio 0.70 (0.63 to 0.99), local: 0.5 s", False),
        ("ratio 0.70 (0.63 to 0.74), undecided: 0.5 s", False),
        ("", False),
    ],
)
def test_outputs_agree_where_words_are_equal_and_numbers_close(printed, agrees):
    assert outputs.agree("ratio 0.70 (0.63 to 0.74), local: 0.1 s", printed) == agrees


def test_the_tutorial_prints_what_it_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, names = typed(TUTORIAL)
    classes = names["before"].le.classes()
    own = classes.source_class == classes.target_class
    assert classes.value[own].between(0.85, 0.95).all()
    assert classes.value[~own].between(0.45, 0.8).all()
    logits, probabilities = names["times"]["relative"], names["times"]["kl"]
    assert 1.43 < logits[0] < 1.67
    assert logits[100] > 2
    assert logits.diff().min() > -0.05
    assert 1.4 < probabilities[0] < 1.7
    assert probabilities[100] > 3
    zeros, ones, twos = (names["sure"][names["kinds"] == digit].median() for digit in range(3))
    assert min(zeros, twos) > 0.99
    assert ones < 0.5
    late = names["late"].pivot(index="source_class", columns="target_class", values="value")
    assert (late.loc[[0, 2], 1] > 2).all()
    assert (late.loc[1, [0, 2]] < 0.01).all()


def test_pages_hold_what_was_measured():
    made = script(ROOT / "benchmarks" / "page.py")
    for page in made.PAGES:
        assert made.updated(page.read_text()) == page.read_text()
        assert "Error" not in page.read_text()


def test_the_pages_of_names_are_up_to_date():
    """If not: python docs/reference.py."""
    for page in reference.pages():
        assert reference.updated(page.read_text()) == page.read_text(), page.name


@pytest.mark.parametrize("name", INCLUDED)
def test_what_pages_include_are_examples(name):
    assert ROOT / name in (ROOT / "examples").glob("*.py")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site; building it strictly finds every link, anchor, included file and documented name."""
    pytest.importorskip("sphinx", reason="pip install 'local-elasticity[docs]'")
    folder = tmp_path_factory.mktemp("site") / "0.1.0"
    command = [sys.executable, "-W", "ignore", "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet"]
    answer = subprocess.run([*command, "docs", str(folder)], capture_output=True, text=True, cwd=ROOT)
    assert answer.returncode == 0, answer.stderr[-3000:]
    return folder


def test_the_site_asks_nothing_of_others(site):
    """No font, script or picture comes from elsewhere, and no formula waits for a script."""
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        assert not re.search(r'<(script|link|img)[^>]+(src|href)="(https?:)?//', page.read_text()), page.name
    formulas = (site / "maths.html").read_text()
    assert formulas.count("<math") > 50
    assert not re.search(r"<m[ion][^>]*>\\", formulas)  # a command that was not understood
    styles = "".join(file.read_text() for file in site.rglob("*.css"))
    assert not re.search(r"url\([\"']?https?:|@import", styles)


def test_releases_lie_beside_each_other(site):
    """Each release has a folder, the newest is opened, and every page offers the others."""
    versions = script(ROOT / "docs" / "extensions" / "versions.py")
    around = site.parent
    for release in ("0.10.0", "0.9.1"):
        (around / release).mkdir()
        (around / release / "index.html").write_text("")
    (around / "pictures").mkdir()
    (around / "pictures" / "index.html").write_text("")
    versions.write_around(around)
    assert (around / "versions.js").read_text() == 'window.RELEASES = ["0.10.0", "0.9.1", "0.1.0"];\n'
    assert "url=0.10.0/index.html" in (around / "index.html").read_text()
    page = (site / "how-to" / "model.html").read_text()
    assert "<option selected>0.1.0</option>" in page
    assert 'src="../../versions.js"' in page


def test_signatures_have_types_and_links(site):
    page = (site / "api" / "ask.html").read_text()
    signature = re.search(r'<dt class="sig[^>]*id="local_elasticity.similarity">.*?</dt>', page, re.DOTALL)[0]
    words = html.unescape(re.sub(r"<[^>]+>|\s", "", signature))
    assert "sources:Sources" in words
    assert "source_batch_size:int|None=None" in words
    assert 'href="https://docs.xarray.dev/en/stable/generated/xarray.DataArray.html#xarray.DataArray"' in signature


@pytest.mark.browser
def test_the_site_is_searched_from_a_file(site, browser):
    page, elsewhere, said = browser.new_page(), [], []
    page.on("request", lambda request: elsewhere.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.goto(f"file://{site}/how-to/model.html")
    page.fill("input.sidebar-search", "locality ratio")
    page.keyboard.press("Enter")
    page.locator("ul.search a[href*='maths.html']").first.wait_for(timeout=20_000)
    assert not [url for url in elsewhere if not url.startswith(("file:", "data:"))]
    assert not said


@pytest.mark.browser
def test_the_home_page_shows_decisions_and_code_without_scrolling(site, browser):
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(f"file://{site}/index.html")
    pictures = page.locator("article table img")
    assert pictures.count() == 3
    for at in range(3):
        box = pictures.nth(at).bounding_box()
        assert box["width"] > 150
        assert box["y"] + box["height"] < 900
    assert page.locator("article div.highlight").first.bounding_box()["y"] < 900
    blocks = page.locator("article div.highlight pre")
    assert blocks.evaluate_all("(all) => all.every((one) => one.scrollWidth <= one.clientWidth)")


@pytest.mark.browser
def test_pages_fit_a_phone(site, browser):
    page = browser.new_page(viewport={"width": 390, "height": 800})
    page.goto(f"file://{site}/index.html")
    pictures = [page.locator("article table img").nth(at).bounding_box() for at in range(3)]
    assert all(box["width"] > 300 for box in pictures)  # one below the other, each wide enough to be read
    assert all(one["y"] + one["height"] < other["y"] for one, other in itertools.pairwise(pictures))
    for name in ("index", "choose", "performance", "api/ask", "how-to/forecast"):
        page.goto(f"file://{site}/{name}.html")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, name


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_examples_run(example, tmp_path, monkeypatch, capsys):
    """Here, or in processes of their own where they need several, or a trainer that sets up logging."""
    needed = [name for name in EXTRAS if f"from {name} import" in example.read_text()]
    for name in needed:
        imported(name)
    monkeypatch.chdir(tmp_path)
    together = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "--master-port=0"]
    how = together if "torchrun" in example.read_text() else []
    if needed or how:
        answer = subprocess.run([sys.executable, *how, str(example)], capture_output=True, text=True)
        assert answer.returncode == 0, answer.stderr
        assert answer.stdout.strip()
    else:
        runpy.run_path(str(example), run_name="__main__")
        assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("name", [name for name in le.__all__ if name != "__version__"])
def test_public_names_are_there_and_documented(name):
    thing = getattr(le, name)
    assert inspect.getdoc(thing)
    if inspect.isfunction(thing):
        assert ">>>" in (thing.__doc__ or ""), f"le.{name} has no example"


PARTS = [name for name in le.__all__ if inspect.ismodule(getattr(le, name, None))]
ELSEWHERE = [
    *(f"training.{place}.MonitorCallback" for place in ("lightning", "transformers")),
    *(f"training.language.{name}" for name in ("sequences", "sequence_problem", "token_problem", "token_kl")),
    "training.checkpoints.watch",
    "training.token_changes.token_changes",
]
"""What users import from where it is."""


LISTED = {
    (place, name)
    for page in sorted((ROOT / "docs" / "api").glob("*.md"))
    for place, names in re.findall(r"<!-- names: (\S+): (.*?) -->", page.read_text())
    for name in names.split()
}


@pytest.mark.parametrize("part", ["", *PARTS])
def test_every_public_name_is_in_the_reference(part):
    names = getattr(le, part).__all__ if part else [name for name in le.__all__ if name not in ("__version__", *PARTS)]
    places = [f"local_elasticity.{part}" if part else "local_elasticity", "local_elasticity"]
    assert not [name for name in names if not any((place, name) in LISTED for place in places)]


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_is_imported_from_its_place_is_in_the_reference(name):
    place, _, last = f"local_elasticity.{name}".rpartition(".")
    assert (place, last) in LISTED


def test_every_guarantee_names_tests_that_exist():
    page = (ROOT / "docs" / "guarantees.md").read_text()
    test = r"`test_\w+\.py::test_\w+`"
    rows = re.findall(rf"^\| (?!guarantee|---)(.*?) \| ({test}(?:, {test})*) \|$", page, re.MULTILINE)
    assert len(rows) == len([line for line in page.splitlines() if line.startswith("| ")]) - page.count("| guarantee |")
    for guarantee, tests in rows:
        for file, name in re.findall(r"`(test_\w+\.py)::(test_\w+)`", tests):
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
