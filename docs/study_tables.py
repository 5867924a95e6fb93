"""The table and the figures of "Does mixing pay?", from the results of the studies.

    python docs/study_tables.py

Rewrites the table in docs/does-mixing-pay.md and draws its two figures. A new study drops in as lines of
`COMPARISONS`.
"""

import argparse
import re
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parent.parent))  # the code beside the pages, whatever is installed

from mixview.experiments import results, spec, tables
from mixview.experiments.stats import Difference, compare
from mixview.io.yaml_files import read_yaml

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "does-mixing-pay.md"
COLUMNS = {"k-NN 20": "k-NN", "linear": "linear", "10-shot": "10-shot mAP"}
"""The metrics of the table, by their names in the studies."""


class Comparison(NamedTuple):
    """A row of a study beside the row that it is compared with."""

    setting: str
    """Description of the settings that the runs share."""
    against: str
    """Description of the comparison."""
    study: str
    method: str
    objective: str
    baseline: str
    epochs: int
    """Epochs of the row; the baseline may train longer."""


CIFAR, PHOTOS, OFTEN = "2,500 of CIFAR-10", "1,500 of Imagenette", "5,000 of CIFAR-10"
STEPS, COMPUTE, BOTH = "SIM, equal steps", "SIM, equal compute", "SIM, equal steps and compute"
HALF = "half of the images mixed"
COMPARISONS = [
    Comparison(CIFAR, STEPS, "paper-small", "SimCLR", "WBSIM", "SIM", 40),
    Comparison(CIFAR, COMPUTE, "paper-small", "SimCLR", "WBSIM", "SIM × 2", 40),
    Comparison(CIFAR, STEPS, "paper-small", "MoCo v2", "WBSIM", "SIM", 48),
    Comparison(CIFAR, COMPUTE, "paper-small", "MoCo v2", "WBSIM", "SIM × 1.75", 48),
    Comparison(CIFAR, BOTH, "paper-small", "MoCo v2", "BSIM", "SIM", 48),
    Comparison(CIFAR, STEPS, "paper-small", "BYOL", "WBSIM", "SIM", 72),
    Comparison(CIFAR, COMPUTE, "paper-small", "BYOL", "WBSIM", "SIM × 1.75", 72),
    Comparison(CIFAR, BOTH, "paper-small", "BYOL", "BSIM", "SIM", 72),
    Comparison(CIFAR, STEPS, "paper-small", "SimSiam", "WBSIM", "SIM", 80),
    Comparison(CIFAR, COMPUTE, "paper-small", "SimSiam", "WBSIM", "SIM × 2", 80),
    Comparison(PHOTOS, STEPS, "paper-small-imagenette", "SimCLR", "WBSIM, one-sided", "SIM", 40),
    Comparison(PHOTOS, COMPUTE, "paper-small-imagenette", "SimCLR", "WBSIM, one-sided", "SIM × 1.5", 40),
    Comparison(PHOTOS, STEPS, "paper-small-imagenette", "MoCo v2", "WBSIM", "SIM", 48),
    Comparison(PHOTOS, COMPUTE, "paper-small-imagenette", "MoCo v2", "WBSIM", "SIM × 1.75", 48),
    Comparison(OFTEN, BOTH, "crossover", "MoCo v2", "BSIM", "SIM", 13),
    Comparison(OFTEN, BOTH, "crossover", "MoCo v2", "BSIM", "SIM", 38),
    Comparison(OFTEN, BOTH, "crossover", "MoCo v2", "BSIM", "SIM", 128),
    Comparison(OFTEN, BOTH, "confirm", "MoCo v2", HALF, "SIM", 128),
    Comparison(OFTEN, "SIM at temperature 0.1", "confirm", "MoCo v2", HALF, "SIM, temperature 0.1", 128),
]
"""The rows of the table."""


@cache
def read(study: str) -> list[tables.Row]:
    """The rows of a study."""
    definition = spec.expand(study, read_yaml(ROOT / "study" / study / "study.yaml"))
    return tables.rows_of(definition, results.match(definition.runs, results.read_all(ROOT / "study")))


def find(each: Comparison, objective: str, epochs: int | None = None) -> tables.Row:
    """The row of an objective; of several lengths, the one with this number of epochs."""
    rows = [row for row in read(each.study) if (row.method, row.objective) == (each.method, objective)]
    (row,) = [row for row in rows if len(rows) == 1 or row.runs[0].epochs == epochs]
    return row


def difference(each: Comparison, column: str) -> Difference:
    """The paired difference of a metric."""
    ours, theirs = find(each, each.objective, each.epochs), find(each, each.baseline, each.epochs)
    found = compare(ours.values(column), theirs.values(column))
    assert found is not None, f"{each} has no pairs in {column}"
    return found


def table() -> str:
    """The table in Markdown."""
    lines = [["runs", "mixed", "compared with", *COLUMNS.values()]]
    above = ""
    for each in COMPARISONS:
        found = [difference(each, column) for column in COLUMNS]
        runs = f"{each.method}, {each.setting}, {each.epochs} epochs, {found[0].pairs} seeds"
        mixed = each.objective.replace(HALF, "BSIM, half of the images")
        texts = [str(value).replace(", ", ",\N{NO-BREAK SPACE}") for value in found]
        lines.append(["" if runs == above else runs, mixed, each.against, *texts])
        above = runs
    return "\n".join(tables.markdown(lines))


def fill(text: str) -> str:
    """The page with its table made from the current results."""
    return re.sub(f"(?<={START}\n).*?(?=\n{END})", lambda _: table(), text, flags=re.DOTALL)


START, END = "<!-- table: python docs/study_tables.py -->", "<!-- end of table -->"


def draw_methods(path: Path) -> None:
    """Linear accuracy of WBSIM compared with SIM of equal steps, and of equal compute, method by method."""
    chosen = [each for each in COMPARISONS if each.study == "paper-small" and each.objective == "WBSIM"]
    figure, axes = plt.subplots(figsize=(7, 2.6))
    for place, each in enumerate(reversed(chosen)):
        found = difference(each, "linear")
        color = COLORS[each.against == COMPUTE]
        axes.plot([found.low, found.high], [place, place], color=color, linewidth=2)
        axes.plot(found.mean, place, "o", color=color)
    axes.set_yticks(range(len(chosen)), [f"{each.method}, {each.against[5:]}" for each in reversed(chosen)])
    axes.axvline(0, color="gray", linewidth=1)
    axes.set_xlabel("linear accuracy: WBSIM minus SIM, points, with the 95 % interval")
    save(figure, path)


def draw_epochs(path: Path) -> None:
    """BSIM minus SIM over the number of epochs."""
    chosen = [each for each in COMPARISONS if each.study == "crossover"]
    figure, axes = plt.subplots(figsize=(7, 3))
    epochs = [each.epochs for each in chosen]
    for column, shift, color in (("linear", 0.97, COLORS[0]), ("10-shot", 1.03, COLORS[1])):
        found = [difference(each, column) for each in chosen]
        places = [shift * each for each in epochs]
        axes.plot(places, [each.mean for each in found], "o-", color=color, label=COLUMNS[column])
        axes.vlines(places, [each.low or 0 for each in found], [each.high or 0 for each in found], color=color)
    axes.axhline(0, color="gray", linewidth=1)
    axes.set_xscale("log")
    axes.set_xticks(epochs, [str(each) for each in epochs])
    axes.minorticks_off()
    axes.set_xlabel("epochs over 5,000 images")
    axes.set_ylabel("BSIM minus SIM, points")
    axes.legend(frameon=False, loc="upper left")
    save(figure, path)


COLORS = ("#2b6cb0", "#c05621")


def save(figure: Figure, path: Path) -> None:
    """Write a figure without frame and date."""
    for side in ("top", "right"):
        figure.axes[0].spines[side].set_visible(False)
    figure.savefig(path, dpi=150, bbox_inches="tight", metadata={"Software": None})
    plt.close(figure)
    print(f"wrote {path}")


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    draw_methods(ROOT / "docs" / "mixing-methods.png")
    draw_epochs(ROOT / "docs" / "mixing-epochs.png")


if __name__ == "__main__":
    main()
