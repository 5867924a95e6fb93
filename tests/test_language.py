"""How README, documentation, notebook and help are written: short, in plain American English."""

import json
import re
from argparse import SUPPRESS
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
