"""Settings from YAML files, which anybody may have written: plain values within limits, and errors in one sentence.

`yaml.safe_load` runs no code, but nine short lines of aliases stand for a billion values, and 20,000 brackets exhaust
the stack. Nothing else in mixview parses YAML that is not its own.
"""

import itertools
import re
from pathlib import Path
from typing import Any, Literal

import yaml  # type: ignore[import-untyped, unused-ignore]

from mixview.io.atomic import read_regular

MAX_BYTES = 1 << 16
"""More take PyYAML seconds."""
MAX_VALUES = 100_000
MAX_DEPTH = 50

CONSENT = "trust_remote_code"
"""The option by which the user allows a file to name code. A file cannot give that consent itself."""


class SettingsError(ValueError):
    """Settings that cannot be used: one sentence with the file, the cause and the remedy."""


def read_yaml(path: Path, consent: Literal["raise", "drop"] = "raise") -> Any:
    """The content of a YAML file. "drop" is for evaluations of early versions, which wrote the consent into theirs."""
    return parse_yaml(read_text(path), str(path), consent=consent)


def read_text(path: Path) -> str:
    """The text of a file of settings."""
    try:
        return read_regular(path, MAX_BYTES, follow=True).decode("utf-8-sig")
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}; pass another file") from None
    except UnicodeDecodeError as error:
        raise SettingsError(
            f"{path} is not text: byte {error.start} is not UTF-8; save it as UTF-8, or pass another file"
        ) from None


def parse_yaml(text: str, name: str, *, consent: Literal["raise", "drop"] = "raise") -> Any:
    """The content of YAML text.

    Args:
        name: source of the text, for errors.
        consent: reaction to a text that gives itself consent.
    """
    if len(text) > MAX_BYTES:
        raise SettingsError(f"{name} has more than {MAX_BYTES // 1024} kB: that is not a file of settings: pass one")
    if count_open(text) > 2 * MAX_DEPTH:  # which would take PyYAML seconds to find
        raise SettingsError(f"{name} nests its values too deeply: write them on fewer levels")
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SettingsError(f"{name} is not valid YAML{describe(error)}") from None
    except RecursionError:
        raise SettingsError(f"{name} nests its values too deeply: write them on fewer levels") from None
    except (ValueError, OverflowError, KeyError, AttributeError, TypeError) as error:  # of PyYAML's own constructors
        raise SettingsError(f"{name} holds a value that YAML does not have ({error}): correct it") from None
    if consent == "drop" and isinstance(content, dict):
        content.pop(CONSENT, None)
    check(content, name)
    return content


def count_open(text: str) -> int:
    """The maximum number of brackets that are open at once."""
    steps = (1 if bracket in "[{" else -1 for bracket in re.findall(r"[\[\]{}]", text))
    return max(itertools.accumulate(steps), default=0)


def describe(error: Any) -> str:
    """The place and reason of a YAML error."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None) or str(error)
    if "'\\t'" in problem:
        problem = "a tab; indent with spaces"
    where = f", line {mark.line + 1}" if mark is not None else ""
    return f"{where}: {' '.join(problem.split())}"


def check(content: Any, name: str) -> None:
    """Raise if the content is larger than its text can honestly be, or gives itself consent."""
    waiting: list[tuple[Any, int]] = [(content, 0)]
    visited = 0
    while waiting:
        value, depth = waiting.pop()
        visited += 1
        if visited > MAX_VALUES or depth > MAX_DEPTH:
            raise SettingsError(
                f"{name} stands for more than {MAX_VALUES} values, or nests them more than {MAX_DEPTH} deep: write "
                "them out, without aliases"
            )
        if isinstance(value, dict):
            if value.get(CONSENT):
                raise SettingsError(
                    f"{name} sets {CONSENT}, which no file can: pass --{CONSENT} on the command line if you trust it"
                )
            waiting.extend((item, depth + 1) for pair in value.items() for item in pair)
        elif isinstance(value, list):
            waiting.extend((item, depth + 1) for item in value)
        elif not isinstance(value, str | int | float | None):
            raise SettingsError(
                f"{name} holds a {type(value).__name__}, {str(value)[:100]}: write text, numbers, lists and groups"
            )
