"""One folder for each release beside the others, and in every page a choice among them that needs no server.

    site/index.html       opens the newest release
    site/versions.js      the releases that are there; every page of every release reads it
    site/0.1.0/index.html one release

A build writes its own folder and the two files, and leaves other folders as they are.
"""

import json
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version
from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def write(app: Sphinx, failed: Exception | None) -> None:
    if failed is None and app.builder.format == "html":
        write_around(Path(app.outdir).parent)


def write_around(site: Path) -> None:
    """The list of releases and the page that opens the newest one."""
    releases = sorted(
        (page.parent.name for page in site.glob("*/index.html") if _number(page.parent.name)), key=Version
    )
    (site / "versions.js").write_text(f"window.RELEASES = {json.dumps(releases[::-1])};\n")
    if releases:
        newest = f'<meta http-equiv="refresh" content="0; url={releases[-1]}/index.html">'
        (site / "index.html").write_text(f"<!doctype html><title>local_elasticity</title>{newest}\n")


def _number(name: str) -> bool:
    try:
        Version(name)
    except InvalidVersion:
        return False
    return True
