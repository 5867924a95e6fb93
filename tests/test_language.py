"""How README, documentation, notebook, help and docstrings are written: short, in plain American English."""

import ast
import itertools
import json
import re
from argparse import SUPPRESS
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.parsers import parsers
from tests.test_documents import DOCUMENTS, PAGES, ROOT

NOTEBOOK = ROOT / "examples" / "quickstart.ipynb"
READ_FIRST = [ROOT / "README.md", NOTEBOOK, *(ROOT / "docs" / f"{name}.md" for name in (
    "start", "your-images", "your-loop", "does-mixing-pay", "choosing", "collapse", "index", "studies", "install",
    "report", "faq", "faults", "processes", "from-lightly", "from-solo-learn", "from-moco", "from-imix", "comparison",
))]  # fmt: skip
"""What has to be easiest to read."""
MAX_WORDS = {True: 30, False: 40}
"""Words of a sentence: of what is read first, and of every other document."""
BRITISH = """analyse analysed analysing artefact behaviour behaviours cancelled cancelling catalogue centre centred
    centres colour coloured colourful colours customise defence dialogue favour favourite flavour fulfil generalise
    grey greyscale honour initialise initialised initialising initialisation judgement labelled labelling learnt licence
    maximise memorise metre minimise modelled modelling neighbour neighbourhood neighbours normalise normalised
    normalising normalisation optimise optimised optimiser optimisers optimising organise organised parametrise
    practise programme randomise recognise recognised regularise regularised regulariser regularisation sceptical
    serialise signalled skilful solarise specialise standardise standardised summarise summarised synchronise
    synchronised theatre travelled unlabelled utilise vectorise vectorised visualise visualised whilst"""


def prose(path: Path) -> str:
    """The text of a document without code, tables, formulas and addresses."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    text = re.sub(r"^```.*?^```$", "\n", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"^\|.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\$\$.*?\$\$|\$[^$\n]+\$", "X", text, flags=re.DOTALL)
    return re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "X", text))


def sentences(text: str) -> list[str]:
    """Its sentences. A heading, an item of a list and a paragraph end one, too; a semicolon does not."""
    blocks = re.split(r"\n\s*\n|\n(?=\s*(?:[-*#]|\d+\.) )", text)
    return [each for block in blocks for each in re.split(r"(?<=[.!?])[*)\"]*\s+", " ".join(block.split()))]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


@pytest.mark.parametrize("path", [*DOCUMENTS, NOTEBOOK], ids=lambda path: path.name)
def test_sentences_are_short(path: Path) -> None:
    for sentence in sentences(prose(path)):
        words = len(sentence.split())
        assert words <= MAX_WORDS[path in READ_FIRST], f"{words} words: {sentence}"


@pytest.mark.parametrize("path", [*DOCUMENTS, ROOT / "CHANGELOG.md", NOTEBOOK], ids=lambda path: path.name)
def test_spelling_is_american(path: Path) -> None:
    words = set(re.findall(r"[a-z]+", prose(path).lower()))
    assert not words & set(BRITISH.split())


def test_help_and_messages_are_spelled_american() -> None:
    # The names of settings of stored studies, and of a random number, that cannot change.
    exempt = {"renames.py", "rendering.py"}
    for path in (each for each in (ROOT / "mixview").rglob("*.py") if each.name not in exempt):
        strings = re.findall(r"[a-z]+", path.read_text(encoding="utf-8").lower())
        british = set(strings) & set(BRITISH.split())
        assert not british, f"{path.relative_to(ROOT)} has {british}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_words_of_the_field(path: Path) -> None:
    """An average is per something, and a difference is a difference to something."""
    text = prose(path)
    assert not re.search(r"\bless SIM\b|\b(?:images|steps|labels|pictures) a (?:second|class|step)\b", text)
    assert not re.search(r"\bso many (?:images|steps|epochs)\b|\bone's own\b", text)


def test_help_of_options_begins_with_a_noun_or_a_verb() -> None:
    """In a full sentence or a fragment with a capital, such as "View size in pixels.", and never with "Of …"."""
    for words, parser in parsers():
        for action in parser._actions:
            help_text = " ".join(str(action.help or "").split())
            if action.dest in ("help", "config", "print_config") or not help_text or action.help == SUPPRESS:
                continue
            assert re.match(r"[A-Z0-9]|\S+ \(|[\w-]+: |lam ", help_text), f"{words} --{action.dest}: {help_text}"
            assert not re.match(r"(?:Of|What|Which|How|Where)\b", help_text), f"{words} --{action.dest}: {help_text}"


QUESTION = re.compile(r"(?:what|whether|how|where|which|when|who|whose|why|of|did|is|are)\b", re.IGNORECASE)
"""The first word of a question or a fragment, which no docstring, attribute or argument begins with."""


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of the docstrings of a module, its classes, functions, attributes and arguments."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for first, second in itertools.pairwise(body if isinstance(body, list) else ()):
            attribute = isinstance(first, ast.Assign | ast.AnnAssign)
            if attribute and isinstance(second, ast.Expr) and isinstance(second.value, ast.Constant):
                yield second.lineno, str(second.value.value)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
            line = 1 if isinstance(node, ast.Module) else node.lineno
            yield line, text
            arguments = text.partition("\nArgs:\n")[2].partition("\n\n")[0]
            yield from ((line, each) for each in re.findall(r"^ {4}\*{0,2}\w+: (.*)", arguments, re.MULTILINE))


PARTS = sorted(path.stem for path in (ROOT / "mixview").iterdir() if path.is_dir() or path.suffix == ".py")


@pytest.mark.parametrize("part", [name for name in PARTS if name != "__pycache__"])
def test_docstrings_begin_with_a_noun_or_a_verb(part: str) -> None:
    folder = ROOT / "mixview" / part
    offenders = []
    for path in sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]:
        for line, text in docstrings(ast.parse(path.read_text(encoding="utf-8"))):
            if QUESTION.match(text):
                offenders.append(f"{path.relative_to(ROOT)}:{line}: {text.partition(chr(10))[0]}")
    assert not offenders, "\n".join(offenders)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("One. Two words.", 2),
        ("One; two: three", 1),
        ("- item one\n- item two", 2),
        ("a `b. c` d", 1),
        ("See [x](y.z). Next one", 2),
    ],
)
def test_sentences_are_told_apart(text: str, count: int) -> None:
    path_text = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "X", text))
    assert len(sentences(path_text)) == count
