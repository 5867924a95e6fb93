"""What came from outside steers no terminal."""

import ast
import io
import warnings
from pathlib import Path

import pytest
from rich.console import Console

import mixview
from mixview.io.terminal import escape_control_chars, inline, print_warnings_plainly, say, to_rich_text

ESCAPE = "\x1b]0;title\x07\x1b[2J\rname\u202e\x9b31m"


def test_control_characters_are_spelled_out() -> None:
    assert escape_control_chars("a\x1b[31m\n\u202e\udcff") == "a\\x1b[31m\\n\\u202e\\udcff"
    assert escape_control_chars("Größe 日本 100 % [x] 🦊") == "Größe 日本 100 % [x] 🦊"
    assert escape_control_chars(escape_control_chars(ESCAPE)) == escape_control_chars(ESCAPE)
    assert escape_control_chars("a\nb", keep="\n") == "a\nb"


def test_what_is_said_and_what_rich_prints(capsys: pytest.CaptureFixture[str]) -> None:
    say(f"one\n{ESCAPE}")
    assert capsys.readouterr().out == f"one\n{escape_control_chars(ESCAPE)}\n"
    shown = io.StringIO()
    Console(file=shown, force_terminal=True, width=200).print(to_rich_text(f"[red]:smile:{ESCAPE}[/nothing]"))
    assert "[red]:smile:\\x1b]0;title" in shown.getvalue()
    assert "\x07" not in shown.getvalue()


def test_warnings_are_text_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # put back afterwards
    print_warnings_plainly()
    assert warnings.formatwarning(ESCAPE, UserWarning, "a.py", 1, "").startswith(
        f"a.py:1: UserWarning: {escape_control_chars(ESCAPE)}"
    )


def test_text_is_itself_in_markdown() -> None:
    assert inline("![x](/etc/passwd)\n\n## <b>|") == "!\\[x\\](/etc/passwd) ## \\<b>\\|"
    assert inline("# 100 %") == "\\# 100 %"


SPOKEN = {"to_rich_text", "Markdown", "table", "names", "kinds"}
"""What rich prints here: texts made by `to_rich_text`, and tables, whose cells are."""


def test_nothing_is_printed_by_any_other_way() -> None:
    """`print` is only in `say`; what rich is given is a constant, or went through `to_rich_text`."""
    found = []
    folder = Path(mixview.__file__).parent
    for path in sorted(folder.rglob("*.py")):
        if path.name in ("terminal.py", "cli.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            alone = isinstance(node.func, ast.Name)
            strange = [each for each in node.args if not is_plain(each)]
            if name == "print" and (alone or strange):
                found.append(f"{path.relative_to(folder)}:{node.lineno}")
    assert found == []


def is_plain(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        value = value.func
    return isinstance(value, ast.Constant) or (isinstance(value, ast.Name) and value.id in SPOKEN)
