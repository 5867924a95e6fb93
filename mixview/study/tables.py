"""The tables of a study in Markdown: what was measured, and how it differs from the baseline, seed by seed."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from mixview.study.grid import IMAGES, Cell, Study
from mixview.study.results import CellResult
from mixview.study.statistics import compare, summarise
from mixview.terminal import inline


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
        return in_words(self.method, self.knob, self.objective)

    @property
    def trained(self) -> bool:
        return self.cells[0].encoder is None

    @property
    def longer(self) -> bool:
        """Whether it is a baseline that was added for the compute that another row costs."""
        return self.cells[0].longer

    def figures(self, column: str) -> dict[int, float]:
        """A column by seed, where it is a number."""
        found = {each.seed: each.metrics[column] for each in self.results if column in each.metrics}
        return {seed: value for seed, value in found.items() if math.isfinite(value)}


def rows_of(study: Study, found: dict[str, CellResult]) -> list[Row]:
    """The rows of a study in its own order, baselines that were added for compute beside the others of their group."""
    members: dict[tuple[str, str, str, str], list[Cell]] = {}
    for cell in study.cells:
        members.setdefault((*cell.group, cell.objective), []).append(cell)
    groups = list(dict.fromkeys(key[:3] for key in members))

    def place(key: tuple[str, str, str, str]) -> tuple[int, int, float]:
        extra = members[key][0].longer
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
    lines = [f"## {inline(study.name)}", ""]
    if what := study.about.get("what"):
        lines += [inline(what), ""]
    state = "Complete" if done == total else f"**Partial: {done} of {total} cells are done**"
    dates = sorted(inline(result.made[:10]) for result in found.values())
    when = f"; measured {' to '.join(dict.fromkeys((dates[0], dates[-1])))}" if dates else ""
    spent = core_hours(found.values())
    lines += [f"{state}; seeds {', '.join(map(str, seeds))}{when}; {spent:.1f} core-hours in all.", ""]
    if not found:
        return "\n".join([*lines, "No figures yet.", ""])
    for data in dict.fromkeys(row.data for row in rows):
        part = [row for row in rows if row.data == data]
        lines += [
            f"### {inline(data or study.name)}",
            "",
            *measured(part, study),
            "",
            *above_random(part, study.baseline),
        ]
        if study.baseline is not None:
            lines += difference_tables(part, study)
    lines += notes(study, found.values())
    return "\n".join(lines)


def core_hours(found: Iterable[CellResult]) -> float:
    """Processor time of training and judging."""
    return sum(result.cpu_seconds + result.judging_seconds for result in found) / 3600


def measured(rows: Sequence[Row], study: Study) -> list[str]:
    """Mean ± standard deviation of every column."""
    columns = [column for column in study.columns if any(column in row.cells[0].evaluate for row in rows)]
    looked = any(rank_of(row) for row in rows)
    table = [["", "seeds", "steps", "passes", "CPU min", *(["rank"] if looked else []), *map(inline, columns)]]
    for row in rows:
        rank = [rank_of(row)] if looked else []
        table.append([inline(row.label), of_seeds(row), *cost_of(row, rows, study.baseline), *rank])
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
    if baseline is None or not any(row.figures(column) for row in rows):
        return []
    if not chance:
        return ["How far the baselines are above a random encoder is not known: none was judged here (yet).", ""]
    floor = summarise(chance).mean
    learned = {
        inline(row.label): summarise(list(row.figures(column).values())).mean - floor
        for row in rows
        if row.objective == baseline and row.figures(column)
    }
    if not learned:
        return []
    few = [label for label, gain in learned.items() if gain < enough]
    told = ", ".join(f"{label} {gain:+.1f}" for label, gain in learned.items())
    warning = f" **Less than {enough:g} points, and no ground to compare on: {', '.join(few)}.**" if few else ""
    return [f"Above the random encoder ({inline(column)}): {told}.{warning}", ""]


def of_seeds(row: Row) -> str:
    """`5`, or `2 of 5` when seeds are missing."""
    return of_all(len(row.results), len(row.cells))


def of_all(done: int, wanted: int) -> str:
    """How many, and of how many if there are more."""
    return str(done) if done == wanted else f"{done} of {wanted}"


def cost_of(row: Row, rows: Sequence[Row], baseline: str | None) -> list[str]:
    """Steps, passes relative to the baseline's of the group, and processor minutes of training."""
    if not row.results or not row.trained:
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
    """Paired differences to the baseline of as many steps, and to that of as much compute: once, if the same."""
    assert study.baseline is not None
    by_name = {(*row.group, row.objective): row for row in rows}
    others = [row for row in rows if row.trained and not row.longer and row.objective != study.baseline]
    steps = differences(others, by_name, study, same_steps(study.baseline, by_name))
    compute = differences(others, by_name, study, same_compute)
    tables = {"at equal steps, which are equal compute": steps}
    if steps != compute:
        tables = {"at equal steps": steps, "at equal compute": compute}
    lines = []
    for title, table in tables.items():
        if len(table) > 1:
            told = "mean of the paired differences and its 95 % interval over seeds."
            lines += [f"Less {inline(study.baseline)} {title}: {told}", "", *markdown(table), ""]
    alone = [inline(row.label) for row in others if row.results and row.cells[0].matched is None]
    if alone:
        lines += [f"No {inline(study.baseline)} of equal compute was run for: {', '.join(alone)}.", ""]
    return lines


def differences(
    rows: Sequence[Row],
    by_name: dict[tuple[str, str, str, str], Row],
    study: Study,
    baseline_of: Callable[[Row], str | None],
) -> list[list[str]]:
    """A table of the paired differences of rows to what `baseline_of` says of each, where there are pairs."""
    columns = [column for column in study.columns if any(column in row.cells[0].evaluate for row in by_name.values())]
    table = [["", "pairs", *map(inline, columns)]]
    for row in rows:
        base = by_name.get((*row.group, str(baseline_of(row))))
        if base is None:
            continue
        found = [compare(row.figures(column), base.figures(column)) for column in columns]
        pairs = max((each.pairs for each in found if each is not None), default=0)
        if pairs:
            against = f" (less {base.objective})" if base.objective != study.baseline else ""
            texts = ["" if each is None else str(each) for each in found]
            wanted = len({cell.seed for cell in row.cells} & {cell.seed for cell in base.cells})
            table.append([inline(f"{row.label}{against}"), of_all(pairs, wanted), *texts])
    return table


def same_steps(baseline: str, by_name: dict[tuple[str, str, str, str], Row]) -> Callable[[Row], str | None]:
    """The baseline of a row, where both make as many steps."""

    def of_row(row: Row) -> str | None:
        base = by_name.get((*row.group, baseline))
        same = base is not None and length_of(base) == length_of(row)
        return baseline if same else None

    return of_row


def length_of(row: Row) -> tuple[Any, ...]:
    """What decides how many steps a row makes."""
    cell = row.cells[0]
    return cell.epochs, cell.pretraining.batch, *(cell.settings.get(name) for name in IMAGES)


def same_compute(row: Row) -> str | None:
    """The baseline that costs as much as a row, where one was run."""
    return row.cells[0].matched


def notes(study: Study, found: Iterable[CellResult]) -> list[str]:
    """How the columns were measured, and what to be warned of."""
    found = list(found)
    lines = []
    if any("effective_rank" in result.signs for result in found):
        lines += [
            "Rank: effective dimensions of the projections by the run's last look; few are a sign of collapse.",
            "",
        ]
    if study.baseline is not None:
        lines += [
            "Bold: the interval leaves out zero. Passes: counted, relative to the baseline, a backward one as two.",
            "",
        ]
    lines += how_lam_was_drawn(found)
    several = len({result.data for result in found}) > 1
    for column in study.columns:
        told: dict[str, dict[str, None]] = {}  # rows by what was done for them
        for result in found:
            if column in result.protocols:
                row = in_words(result.data if several else "", result.method, result.knob, result.objective)
                told.setdefault(general(result.protocols[column]), {}).setdefault(row)
        most = max((len(rows) for rows in told.values()), default=0)
        for words, rows in told.items():
            where = f" ({', '.join(rows)})" if len(told) > 1 and len(rows) < most else ""
            lines.append(f"- {inline(f'{column}{where}: {words}')}")
    warnings = dict.fromkeys([*(each for result in found for each in result.warnings), *mixed(found)])
    return [*lines, *(f"- Warning: {inline(warning)}" for warning in warnings), ""]


def how_lam_was_drawn(found: Iterable[CellResult]) -> list[str]:
    """A sentence on whether mixtures have one λ per image or, as in the paper, one per batch, if anything is mixed."""
    rows: dict[bool, dict[str, None]] = {True: {}, False: {}}
    for result in found:
        if result.settings.get("objective", "sim") != "sim" and "mixing.per_sample" in result.settings:
            per_image = bool(result.settings["mixing.per_sample"])
            rows[per_image].setdefault(in_words(result.method, result.knob, result.objective))
    if not rows[True]:
        return ["Mixtures have one λ per batch, as in the paper.", ""] if rows[False] else []
    exception = f"; the exceptions, with one λ per batch: {'; '.join(rows[False])}" if rows[False] else ""
    return [inline(f"Mixtures have one λ per image, not the paper's one λ per batch{exception}."), ""]


def general(words: str) -> str:
    """A protocol in words, without what was another run by run: weight decays that were chosen, the seed."""
    return re.sub(r"weight decay [0-9.e+-]+ chosen", "weight decay chosen", re.sub(r" of seed \d+", "", words))


def in_words(*parts: str) -> str:
    """Levels as a label."""
    return " · ".join(part for part in parts if part)


def mixed(found: Iterable[CellResult]) -> list[str]:
    """Warnings where results that are compared come from different images or versions."""
    prints: dict[tuple[str, str], dict[str, None]] = {}
    torches: dict[str, None] = {}
    for result in found:
        if "fingerprint" in result.images:
            part = [item for item in result.settings.items() if item[0].partition(".")[0] in ("split", "data_options")]
            prints.setdefault((result.data, str(part)), {}).setdefault(str(result.images["fingerprint"])[:12])
        if "torch" in result.versions:
            torches.setdefault(str(result.versions["torch"]))
    told = [
        f"rows of {data or 'this study'} were trained on different images (fingerprints {', '.join(each)}): remove the "
        "results of one, and run the study again"
        for (data, _), each in prints.items()
        if len(each) > 1
    ]
    return told + ([f"measured with torch {' and '.join(torches)}"] if len(torches) > 1 else [])


def markdown(table: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as a Markdown table, the first its head."""
    head, *body = [f"| {' | '.join(row)} |" for row in table]
    return [head, "|" + "---|" * len(table[0]), *body]
