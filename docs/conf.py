"""The documentation site: `make docs` builds it, offline, and any warning is an error."""

import inspect
import re
import sys
from pathlib import Path

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.ext.napoleon import Config, GoogleDocstring

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]  # the code beside the pages, whatever is installed; and generating.py

import generating  # noqa: E402

import mixview  # noqa: E402

project = "mixview"
author = "The mixview authors"
copyright = "2026, the mixview authors"
version = release = mixview.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
nitpicky = True
# Annotations name other libraries and private modules, which have no page. Links of the pages are still checked.
nitpick_ignore_regex = [("py:.*", r".*")]

html_theme = "furo"
html_title = f"mixview {version}"
html_math_renderer = "mathml"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "undoc-members": False, "show-inheritance": True}
autodoc_inherit_docstrings = False
default_role = "code"


def read_docstring(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """From how docstrings are written here to what Sphinx reads: indented examples are code, `Args:` are fields."""
    text = mark_code(inspect.cleandoc("\n".join(lines)).splitlines())
    if what not in ("attribute", "data"):  # whose first words before a colon would be taken for a type
        text = str(GoogleDocstring(text, Config(), app, what, name, thing, options)).splitlines()
    lines[:] = [*text, ""]


def mark_code(lines: list[str]) -> list[str]:
    """Indented blocks after an empty line become code blocks, as a reader of the source takes them to be."""
    out: list[str] = []
    last = ""
    inside = False
    for line in lines:
        begins = line.startswith("    ") and bool(out) and not out[-1].strip()
        if begins and not inside and last and not last.startswith(" ") and last not in ("Args:", "Returns:", "Raises:"):
            out += [".. code-block:: text", ""]
            inside = True
        if line.strip():
            inside = inside and line.startswith("    ")
            last = line
        out.append(line if inside else re.sub(r"\|(\w+)\|", r"\\|\1\\|", line))
    return out


def drop_absent_pages(app: Sphinx, page: str, source: list[str]) -> None:
    """Leave out patterns of the contents that no page matches: Sphinx would warn."""
    if page == "index":
        lines = source[0].splitlines()
        kept = [line for line in lines if not re.fullmatch(r"[\w/-]+\*", line) or any(HERE.glob(f"{line}.md"))]
        source[0] = "\n".join(kept) + "\n"


def visit_math(self, node: nodes.math) -> None:  # type: ignore[no-untyped-def]
    self.body.append(str(tex2mathml(node.astext(), as_block=False)))
    raise nodes.SkipNode


def visit_displaymath(self, node: nodes.math_block) -> None:  # type: ignore[no-untyped-def]
    self.body.append(f'<div class="math">{tex2mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    # MathML, which browsers draw themselves: no script from elsewhere, so that the site works without a network.
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_displaymath, None))
    app.connect("autodoc-process-docstring", read_docstring)
    app.connect("source-read", drop_absent_pages)
    app.connect("builder-inited", lambda app: generating.write_all(HERE / "generated"))
