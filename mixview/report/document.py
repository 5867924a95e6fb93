"""A Markdown file, such as the results of studies, as a single HTML file in the style of the report."""

import base64
import html
import re
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.common.utils import unescapeAll

from mixview.io.atomic import atomic_write
from mixview.io.records import RecordError, read_bytes
from mixview.report.assets import asset, frame


def write_page(markdown: Path) -> Path:
    """Write the HTML page of a Markdown file next to it: a section per second-level heading, pictures embedded.

    Args:
        markdown: one first-level heading, then second-level ones; pictures are paths relative to its folder.
    """
    head, *parts = re.split(r"^## ", markdown.read_text(encoding="utf-8"), flags=re.MULTILINE)
    title = html.escape(head.lstrip("# ").partition("\n")[0])
    names = [unescapeAll(part.partition("\n")[0]) for part in parts]
    sections = [
        f'<section id="{anchor(name)}">{to_html(f"## {part}", markdown.parent)}</section>'
        for name, part in zip(names, parts, strict=True)
    ]
    content = {
        "title": title,
        "links": "".join(f'<a href="#{anchor(name)}">{html.escape(name)}</a>' for name in names),
        "sections": "\n".join(sections),
    }
    path = markdown.with_suffix(".html")
    with atomic_write(path) as file:
        file.write(frame("document.html", content, style=asset("style.css") + asset("document.css")))
    return path


def to_html(text: str, folder: Path) -> str:
    """Markdown as HTML: what looks like HTML in it stays text, tables can be scrolled, pictures are embedded."""
    page = str(MarkdownIt("commonmark", {"html": False}).enable("table").render(text))
    page = page.replace("<table>", '<div class="scroll"><table>').replace("</table>", "</table></div>")
    return re.sub(r'<img src="([^"]*)" alt="([^"]*)"[^>]*>', lambda image: embed(folder, image[1], image[2]), page)


def embed(folder: Path, source: str, description: str) -> str:
    """A PNG below the folder as an element that contains it; for anything else its description, already escaped."""
    name = PurePosixPath(unquote(html.unescape(source)))
    try:
        if name.is_absolute() or ".." in name.parts or ":" in str(name) or has_link(folder, name):
            raise RecordError(folder / name, "it is not below the page")
        content = read_bytes(folder / name)
    except RecordError:
        return description
    if not content.startswith(b"\x89PNG\r\n"):
        return description
    return f'<img src="data:image/png;base64,{base64.b64encode(content).decode()}" alt="{description}">'


def has_link(folder: Path, name: PurePosixPath) -> bool:
    """Return True if the path to a file contains a symbolic link, which may lead elsewhere."""
    return any((folder / part).is_symlink() for part in (name, *name.parents[:-1]))


def anchor(name: str) -> str:
    """The fragment of a URL for a heading."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
