"""The results of studies as one HTML page in the style of `mixview report`, in one file that needs no network."""

import base64
import html
import re
from pathlib import Path

from markdown_it import MarkdownIt

from mixview.atomic import atomic_write
from mixview.report.page import asset

STYLE = """
main table { white-space: nowrap; }
main ul { padding-left: 1.2rem; color: var(--soft); font-size: .88rem; }
main img { display: block; max-width: 100%; margin: 1rem auto; border-radius: .4rem; }
main h3 { margin: 1rem 0 .3rem; }
section > p { margin: .6rem 0; }
"""
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header><h1>{title}</h1></header>
<nav aria-label="Studies"><div id="links">{links}</div></nav>
<main>
{sections}
</main>
</body>
</html>
"""


def write_page(markdown: Path) -> Path:
    """Write the page of a Markdown file beside it: a section for each of its second headings, pictures inside.

    Args:
        markdown: one heading of the first level, then headings of the second; pictures are paths from its folder.
    """
    head, *parts = re.split(r"^## ", markdown.read_text(encoding="utf-8"), flags=re.MULTILINE)
    title = html.escape(head.lstrip("# ").partition("\n")[0])
    names = [part.partition("\n")[0] for part in parts]
    sections = [
        f'<section id="{anchor(name)}">{to_html(f"## {part}", markdown.parent)}</section>'
        for name, part in zip(names, parts, strict=True)
    ]
    page = PAGE.format(
        title=title,
        style=asset("style.css") + STYLE,
        links="".join(f'<a href="#{anchor(name)}">{html.escape(name)}</a>' for name in names),
        sections="\n".join(sections),
    )
    path = markdown.with_suffix(".html")
    with atomic_write(path) as file:
        file.write(page.encode())
    return path


def to_html(text: str, folder: Path) -> str:
    """Markdown as HTML: what looks like HTML in it is text, tables can be scrolled, pictures are inside."""
    made = str(MarkdownIt("commonmark", {"html": False}).enable("table").render(text))
    made = made.replace("<table>", '<div class="scroll"><table>').replace("</table>", "</table></div>")
    return re.sub(r'<img src="([^"]+)"', lambda found: f'<img src="{embedded(folder / html.unescape(found[1]))}"', made)


def embedded(picture: Path) -> str:
    """A PNG as an address that holds it."""
    return f"data:image/png;base64,{base64.b64encode(picture.read_bytes()).decode()}"


def anchor(name: str) -> str:
    """A heading as the end of an address."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
