"""How Sphinx builds the site: `make docs`, into site/RELEASE/. Pages are MyST Markdown; nothing is fetched."""

import sys
import tempfile
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "extensions"), str(HERE.parent / "src")]

import inventories  # noqa: E402

project = "local_elasticity"
author = "The local_elasticity developers"
project_copyright = author
release = version = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]["version"]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.intersphinx",
    "mathml",
    "docstrings",
    "images",
    "versions",
]
exclude_patterns = ["results/**/units", "results/**/about.md", "site"]
default_role = "code"
templates_path = ["templates"]
suppress_warnings = ["myst.xref_ambiguous"]

myst_enable_extensions = ["dollarmath", "attrs_inline", "attrs_block"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True}
autodoc_inherit_docstrings = False
python_use_unqualified_type_names = True
maximum_signature_line_length = 88
add_module_names = False
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_attr_annotations = False
intersphinx_mapping = inventories.mapping(Path(tempfile.mkdtemp(prefix="inventories")))

html_theme = "furo"
html_title = f"local_elasticity {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["versions.js"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_search_summary = False
html_show_sphinx = False
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/release.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
pygments_style = "tango"
