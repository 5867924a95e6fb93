"""How README, documentation, notebook and help are written: short, in plain American English."""

import json
import re
from pathlib import Path

import pytest

from tests.test_documents import DOCUMENTS, PAGES, ROOT

NOTEBOOK = ROOT / "examples" / "quickstart.ipynb"
SIMPLE = [ROOT / "README.md", NOTEBOOK, *(ROOT / "docs" / f"{name}.md" for name in (
    "start", "your-images", "your-loop", "does-mixing-pay", "choosing", "collapse", "index", "studies", "study",
    "from-lightly", "from-solo-learn", "from-moco", "from-imix", "comparison",
))]  # fmt: skip
"""What is read first, and what has to be easy to read."""
MAX_WORDS = 40
"""Of a sentence."""

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
    """Its sentences. A heading, an item of a list and a paragraph end one, too."""
    blocks = re.split(r"\n\s*\n|\n(?=\s*(?:[-*#]|\d+\.) )", text)
    return [each for block in blocks for each in re.split(r"(?<=[.!?:;])[*)\"]*\s+", " ".join(block.split()))]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


@pytest.mark.parametrize("path", SIMPLE, ids=lambda path: path.name)
def test_sentences_are_short(path: Path) -> None:
    for sentence in sentences(prose(path)):
        assert len(sentence.split()) <= MAX_WORDS, f"{len(sentence.split())} words: {sentence}"


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


@pytest.mark.parametrize(
    ("text", "count"),
    [("One. Two words.", 2), ("- item one\n- item two", 2), ("a `b. c` d", 1), ("See [x](y.z). Next one", 2)],
)
def test_sentences_are_told_apart(text: str, count: int) -> None:
    path_text = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "X", text))
    assert len(sentences(path_text)) == count
