"""The tables of a study in Markdown: what was measured, and how it differs from the baseline, seed by seed."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mixview.study.grid import Cell, Study
from mixview.study.results import CellResult
from mixview.study.statistics import compare, summarise


class Row(NamedTuple):
    """The seeds of one combination of data, method, knob and objective."""

    data: str
    method: str
    knob: str
    objective: str
    cells: tuple[Cell, ...]
    results: tuple[CellResult, ...]

    @property
    def group(self) -> tuple[str, str, str]:
        return self.data, self.method, self.knob

    @property
    def label(self) -> str:
        return " · ".join(part for part in (self.method, self.knob, self.objective) if part)

    def figures(self, column: str) -> dict[int, float]:
        """A column by seed."""
        return {each.seed: each.metrics[column] for each in self.results if column in each.metrics}


def rows_of(study: Study, found: dict[str, CellResult]) -> list[Row]:
    """The rows of a study in its own order, baselines that were added for compute beside the others of their group."""
    members: dict[tuple[str, str, str, str], list[Cell]] = {}
    for cell in study.cells:
        members.setdefault((*cell.group, cell.objective), []).append(cell)
    groups = list(dict.fromkeys(key[:3] for key in members))

    def place(key: tuple[str, str, str, str]) -> tuple[int, int, float]:
        extra = study.baseline is not None and key[3].startswith(f"{study.baseline} × ")
        level = 0 if key[3] == study.baseline else 1 if extra else 2
        return groups.index(key[:3]), level, members[key][0].epochs if extra else 0

    return [
        Row(*key, tuple(members[key]), tuple(found[cell.name] for cell in members[key] if cell.name in found))
        for key in sorted(members, key=place)
    ]


def render(study: Study, found: dict[str, CellResult]) -> str:
    """The whole study in Markdown."""
    rows = rows_of(study, found)
    done, total = len(found), len(study.cells)
    seeds = sorted({cell.seed for cell in study.cells})
    lines = [f"## {study.name}", ""]
    if what := study.about.get("what"):
        lines += [what, ""]
    state = "Complete" if done == total else f"**Partial: {done} of {total} cells are done**"
    dates = sorted(result.made[:10] for result in found.values())
    when = f"; measured {' to '.join(dict.fromkeys((dates[0], dates[-1])))}" if dates else ""
    spent = sum(result.cpu_seconds + result.judging_seconds for result in found.values()) / 3600
    lines += [f"{state}; seeds {', '.join(map(str, seeds))}{when}; {spent:.1f} core-hours in all.", ""]
    if not found:
        return "\n".join([*lines, "No figures yet.", ""])
    for data in dict.fromkeys(row.data for row in rows):
        part = [row for row in rows if row.data == data]
        lines += [f"### {data or study.name}", "", *measured(part, study), "", *above_random(part, study.baseline)]
        if study.baseline is not None:
            lines += difference_tables(part, study)
    lines += notes(study, found.values())
    return "\n".join(lines)


def measured(rows: Sequence[Row], study: Study) -> list[str]:
    """Mean ± standard deviation of every column."""
    columns = [column for column in study.columns if any(column in row.cells[0].evaluate for row in rows)]
    table = [["", "seeds", "steps", "passes", "CPU min", "rank", *columns]]
    for row in rows:
        table.append([row.label, of_seeds(row), *cost_of(row, rows, study.baseline), rank_of(row)])
        for column in columns:
            values = list(row.figures(column).values())
            table[-1].append(str(summarise(values)) if values else "")
    return markdown(table)


def above_random(rows: Sequence[Row], baseline: str | None, column: str = "linear", enough: float = 10.0) -> list[str]:
    """How far the baselines are above a random encoder: a comparison with one that has hardly learned says nothing."""
    untrained = [
        row.figures(column)
        for row in rows
        if row.cells[0].encoder == "random" and row.cells[0].evaluate.get(column, {}).get("protocol") != "supervised"
    ]
    chance = [value for figures in untrained for value in figures.values()]
    if baseline is None or not chance:
        return []
    floor = summarise(chance).mean
    learned = {
        row.label: summarise(list(row.figures(column).values())).mean - floor
        for row in rows
        if row.objective == baseline and row.figures(column)
    }
    if not learned:
        return []
    few = [label for label, gain in learned.items() if gain < enough]
    told = ", ".join(f"{label} {gain:+.1f}" for label, gain in learned.items())
    warning = f" **Less than {enough:g} points, and no ground to compare on: {', '.join(few)}.**" if few else ""
    return [f"Above the random encoder ({column}): {told}.{warning}", ""]


def of_seeds(row: Row) -> str:
    """`5`, or `2 of 5` when seeds are missing."""
    done, wanted = len(row.results), len(row.cells)
    return str(done) if done == wanted else f"{done} of {wanted}"


def cost_of(row: Row, rows: Sequence[Row], baseline: str | None) -> list[str]:
    """Steps, passes relative to the baseline's of the group, and processor minutes of training."""
    if not row.results or row.cells[0].encoder is not None:
        return ["", "", ""]
    base = next(
        (each for each in rows if each.group == row.group and each.objective == baseline and each.results), None
    )
    first = row.results[0]
    relative = f"{first.work / base.results[0].work:.2f}" if base is not None and base.results[0].work else ""
    minutes = summarise([each.cpu_seconds / 60 for each in row.results]).mean
    return [f"{first.steps:,}", relative, f"{minutes:.1f}"]


def rank_of(row: Row) -> str:
    """The effective rank of what was learned, by the last look: few dimensions are the first sign of a collapse."""
    ranks = [each.signs["effective_rank"] for each in row.results if "effective_rank" in each.signs]
    return f"{summarise(ranks).mean:.0f}" if ranks else ""


def difference_tables(rows: Sequence[Row], study: Study) -> list[str]:
    """Paired differences to the baseline of as many steps, and to that of as much compute."""
    assert study.baseline is not None
    columns = [column for column in study.columns if any(column in row.cells[0].evaluate for row in rows)]
    by_name = {(*row.group, row.objective): row for row in rows}
    lines = []
    for title, of_row in (
        (f"Less {study.baseline} at equal steps", lambda row: study.baseline),
        (f"Less {study.baseline} at equal compute", lambda row: row.cells[0].matched),
    ):
        table = [["", "pairs", *columns]]
        for row in rows:
            base = by_name.get((*row.group, str(of_row(row))))
            if (
                base is None
                or base is row
                or row.cells[0].encoder is not None
                or re.search(" × [0-9.]+$", row.objective)
            ):
                continue
            found = [compare(row.figures(column), base.figures(column)) for column in columns]
            pairs = max((each.pairs for each in found if each is not None), default=0)
            if pairs:
                against = f" (less {base.objective})" if base.objective != study.baseline else ""
                texts = ["" if each is None else str(each) for each in found]
                table.append([f"{row.label}{against}", str(pairs), *texts])
        if len(table) > 1:
            lines += [f"{title}: mean of the paired differences and its 95 % interval over seeds.", ""]
            lines += [*markdown(table), ""]
    return lines


def notes(study: Study, found: Iterable[CellResult]) -> list[str]:
    """How the columns were measured, and what to be warned of."""
    found = list(found)
    lines = ["Rank: effective dimensions of the projections by the run's last look; few are a sign of collapse.", ""]
    if study.baseline is not None:
        lines += [
            "Bold: the interval leaves out zero. Passes: counted, relative to the baseline, a backward one as two.",
            "",
        ]
    words: dict[str, None] = {}
    for column in study.columns:
        told = [result.protocols[column] for result in found if column in result.protocols]
        # Weight decays that were chosen run by run are no part of the protocol.
        general = [re.sub(r"weight decay [0-9.e+-]+ chosen", "weight decay chosen", each) for each in told]
        words |= dict.fromkeys(f"- {column}: {each}" for each in dict.fromkeys(general[:1]))
    lines += [*words, ""]
    warnings = dict.fromkeys(warning for result in found for warning in result.warnings)
    lines += [f"- Warning: {warning}" for warning in warnings] + ([""] if warnings else [])
    return lines


def markdown(table: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as a Markdown table, the first its head."""
    head, *body = [f"| {' | '.join(row)} |" for row in table]
    return [head, "|" + "---|" * len(table[0]), *body]
