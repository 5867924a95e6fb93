"""The files that the report's pages are put together from."""

import re
from collections.abc import Mapping
from importlib.resources import files


def asset(name: str) -> str:
    """A file of a page."""
    return (files("mixview.report") / "page" / name).read_text(encoding="utf-8")


def frame(body: str, parts: Mapping[str, str], *, style: str, scripts: bool = False) -> bytes:
    """A page around a body.

    Args:
        body: the name of its template.
        parts: its contents by name, the title among them.
        style: all of its CSS.
        scripts: allow the scripts inside the page; others are never allowed.
    """
    allowed = "; script-src 'unsafe-inline'" if scripts else ""
    parts_of_page = {"title": parts["title"], "style": style, "scripts": allowed, "body": fill(body, parts)}
    # A file name that is no Unicode is spelled out, which in a string of JSON means the same.
    return fill("frame.html", parts_of_page).encode(errors="backslashreplace")


def fill(template: str, parts: Mapping[str, str]) -> str:
    """A template with its `{{names}}` replaced in one pass: the contents of a part are never expanded."""
    return re.sub(r"\{\{(\w+)\}\}", lambda name: parts[name[1]], asset(template))
