"""The files that the report's pages are put together from."""

import re
from collections.abc import Mapping
from importlib.resources import files


def asset(name: str) -> str:
    """A file of a page."""
    return (files("mixview.report") / "page" / name).read_text(encoding="utf-8")


def fill(template: str, parts: Mapping[str, str]) -> bytes:
    """A template with its `{{names}}` replaced, in one go: what a part holds is not looked at again."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], asset(template)).encode()
