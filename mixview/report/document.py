"""A Markdown file, such as the results of studies, as one HTML page in the style of the report, in one file."""

import base64
import html
import re
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.common.utils import unescapeAll

from mixview.atomic import atomic_write
from mixview.records import RecordError, read_bytes
from mixview.report.assets import asset, frame


def write_page(markdown: Path) -> Path:
    """Write the page of a Markdown file beside it: a section for each of its second headings, pictures inside.

    Args:
        markdown: one heading of the first level, then headings of the second; pictures are paths from its folder.
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
    """Markdown as HTML: what looks like HTML in it is text, tables can be scrolled, pictures are inside."""
    made = str(MarkdownIt("commonmark", {"html": False}).enable("table").render(text))
    made = made.replace("<table>", '<div class="scroll"><table>').replace("</table>", "</table></div>")
    return re.sub(r'<img src="([^"]*)" alt="([^"]*)"[^>]*>', lambda found: embedded(folder, found[1], found[2]), made)


def embedded(folder: Path, source: str, words: str) -> str:
    """A PNG below the folder as an element that holds it; in place of anything else its words, already escaped."""
    name = PurePosixPath(unquote(html.unescape(source)))
    try:
        if name.is_absolute() or ".." in name.parts or ":" in str(name) or has_link(folder, name):
            raise RecordError(folder / name, "it is not below the page")
        content = read_bytes(folder / name)
    except RecordError:
        return words
    if not content.startswith(b"\x89PNG\r\n"):
        return words
    return f'<img src="data:image/png;base64,{base64.b64encode(content).decode()}" alt="{words}">'


def has_link(folder: Path, name: PurePosixPath) -> bool:
    """Whether a link, which may lead elsewhere, is on the way to a file."""
    return any((folder / part).is_symlink() for part in (name, *name.parents[:-1]))


def anchor(name: str) -> str:
    """A heading as the end of an address."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
