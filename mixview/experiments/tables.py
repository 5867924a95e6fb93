"""The tables of a study in Markdown: metrics, and paired differences to the baseline."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from mixview.experiments.plan import ADDED, PLANNED, compare_rows, decide, missing_rows, plan_hash, plan_status
from mixview.experiments.results import RunResult
from mixview.experiments.spec import IMAGES, Study
from mixview.experiments.stats import compare, summarize
from mixview.experiments.study_run import StudyRun
from mixview.io.terminal import inline


class Row(NamedTuple):
    """The seeds of one combination of data, method, variant and objective."""

    data: str
    method: str
    variant: str
    objective: str
    runs: tuple[StudyRun, ...]
    results: tuple[RunResult, ...]

    @property
    def group(self) -> tuple[str, str, str]:
        return self.data, self.method, self.variant

    @property
    def label(self) -> str:
        return join_labels(self.method, self.variant, self.objective)

    @property
    def trained(self) -> bool:
        return self.runs[0].encoder is None

    @property
    def is_matched_baseline(self) -> bool:
        """True if it is a baseline that was added to match the compute of another row."""
        return self.runs[0].is_matched_baseline

    def values(self, column: str) -> dict[int, float]:
        """A column by seed, where it is a number."""
        values = {each.seed: each.metrics[column] for each in self.results if column in each.metrics}
        return {seed: value for seed, value in values.items() if math.isfinite(value)}


def rows_of(study: Study, results: dict[str, RunResult]) -> list[Row]:
    """The rows of a study in its own order, baselines of equal compute next to the others of their group."""
    members: dict[tuple[str, str, str, str], list[StudyRun]] = {}
    for run in study.runs:
        members.setdefault((*run.group, run.objective), []).append(run)
    groups = list(dict.fromkeys(key[:3] for key in members))

    def sort_key(key: tuple[str, str, str, str]) -> tuple[int, int, float]:
        extra = members[key][0].is_matched_baseline
        rank = 0 if key[3] == study.baseline else 1 if extra else 2
        return groups.index(key[:3]), rank, members[key][0].epochs if extra else 0

    return [
        Row(*key, tuple(members[key]), tuple(results[run.name] for run in members[key] if run.name in results))
        for key in sorted(members, key=sort_key)
    ]


def render(study: Study, results: dict[str, RunResult]) -> str:
    """The whole study in Markdown."""
    rows = rows_of(study, results)
    done, total = len(results), len(study.runs)
    seeds = sorted({run.seed for run in study.runs})
    lines = [f"## {inline(study.name)}", ""]
    if what := study.about.get("what"):
        lines += [inline(what), ""]
    complete = done == total and not study.waiting
    others = ", and others wait for earlier studies" if study.waiting else ""
    state = "Complete" if complete else f"**Partial: {done} of {total} runs are done{others}**"
    dates = sorted(inline(result.made[:10]) for result in results.values())
    when = f"; measured {' to '.join(dict.fromkeys((dates[0], dates[-1])))}" if dates else ""
    hours = core_hours(results.values())
    lines += [f"{state}; seeds {', '.join(map(str, seeds))}{when}; {hours:.1f} core-hours in total.", ""]
    lines += plan_notes(study)
    if not results:
        return "\n".join([*lines, "No results yet.", ""])
    if study.plan is not None and study.plan.confirmatory:
        lines += verdict_table(rows, study)
    for data in dict.fromkeys(row.data for row in rows):
        part = [row for row in rows if row.data == data]
        lines += [
            f"### {inline(data or study.name)}",
            "",
            *regime_note(data, study),
            *metric_table(part, study),
            "",
            *above_random(part, study.baseline),
        ]
        if study.baseline is not None:
            lines += difference_tables(part, study)
    lines += notes(study, results.values())
    return "\n".join(lines)


def core_hours(results: Iterable[RunResult]) -> float:
    """CPU hours of training and evaluation."""
    return sum(result.cpu_seconds + result.evaluation_seconds for result in results) / 3600


def plan_notes(study: Study) -> list[str]:
    """Lines on the plan, its date, and the parts that wait for an earlier study."""
    lines = []
    if (plan := study.plan) is not None:
        document = f", explained in {plan.document}" if plan.document else ""
        digest = study.runs[0].plan if study.runs else plan_hash(study.definition)
        kind = "" if plan.confirmatory else " It chooses, and confirms nothing."
        lines += [inline(f"Planned on {plan.date} (plan {digest}{document}).{kind}"), ""]
    if study.waiting:
        lines += [f"Not run before their earlier studies are: {inline('; '.join(study.waiting))}.", ""]
    return lines


def verdict_table(rows: Sequence[Row], study: Study) -> list[str]:
    """The planned comparisons with their verdicts, and the defaults that follow from them."""
    plan = study.plan
    assert plan is not None
    comparisons = compare_rows(study, rows)
    if not any(each.difference for each in comparisons):
        return ["**Nothing is confirmed yet**: no planned comparison has a result that is confirmatory.", ""]
    table = [["", *map(inline, plan.columns)]]
    for row in dict.fromkeys((each.row.data, each.row.label) for each in comparisons):
        cells = {
            each.column: f"{str(each.difference).replace('*', '') if each.difference else ''} {each.verdict}".strip()
            for each in comparisons
            if (each.row.data, each.row.label) == row
        }
        texts = [cells[column] for column in plan.columns]
        shown = [f"**{text}**" if text.endswith(("ahead", "behind")) else text for text in texts]
        table.append([inline(join_labels(*row)), *shown])
    for missing in missing_rows(study, comparisons):
        label = join_labels(missing.data, missing.method, f"not chosen yet ({missing.number})")
        table.append([inline(label), *("open" for _ in plan.columns)])
    correction = {"holm": "Holm's method", "bonferroni": "Bonferroni's"}[plan.correction]
    lines = [
        f"Planned comparisons with {inline(study.baseline)} at equal compute: mean of the paired differences, its "
        f"{100 * plan.level:g} % interval, and the verdict, corrected by {correction} for all that are planned.",
        "",
        *markdown(table),
        "",
    ]
    if plan.rule:
        for each in decide(study, comparisons):
            state = "" if each.final else f" so far, with {each.done} of {each.planned} comparisons"
            lines.append(f"- {inline(f'Default of {each.method}{state}: {each.objective} ({each.reason}).')}")
        lines.append("")
    return lines


def regime_note(data: str, study: Study) -> list[str]:
    """The regime that a dataset of the study represents, where it decides defaults."""
    text = study.plan.regimes.get(data) if study.plan is not None and study.plan.rule else None
    return [] if text is None else [f"{inline(text)}.", ""]


def plan_status_of(row: Row, study: Study) -> str:
    """The plan status of a row's results; without results, planned or added later."""
    by_seed = {run.seed: run for run in row.runs}
    statuses = [plan_status(study, by_seed[each.seed], each) for each in row.results]
    return ", ".join(dict.fromkeys(statuses or [PLANNED if row.runs[0].planned else ADDED]))


def metric_table(rows: Sequence[Row], study: Study) -> list[str]:
    """Mean ± standard deviation of every column."""
    columns = [column for column in study.columns if any(column in row.runs[0].evaluate for row in rows)]
    ranked = any(rank_of(row) for row in rows)
    planned = study.plan is not None
    table = [
        [
            "",
            *(["plan"] if planned else []),
            "seeds",
            "steps",
            "passes",
            "CPU min",
            *(["rank"] if ranked else []),
            *map(inline, columns),
        ]
    ]
    for row in rows:
        rank = [rank_of(row)] if ranked else []
        plan = [plan_status_of(row, study)] if planned else []
        table.append([inline(row.label), *plan, count_seeds(row), *cost_of(row, rows, study.baseline), *rank])
        for column in columns:
            values = list(row.values(column).values())
            table[-1].append(str(summarize(values)) if values else "")
    return markdown(table)


def above_random(rows: Sequence[Row], baseline: str | None, column: str = "linear", enough: float = 10.0) -> list[str]:
    """The gains of the baselines over a random encoder: comparing with one that has hardly learned is meaningless."""
    untrained = [
        row.values(column)
        for row in rows
        if row.runs[0].encoder == "random" and row.runs[0].evaluate.get(column, {}).get("protocol") != "supervised"
    ]
    chance = [value for values in untrained for value in values.values()]
    if baseline is None or not any(row.values(column) for row in rows):
        return []
    if not chance:
        return ["How far the baselines are above a random encoder is unknown: none was evaluated here (yet).", ""]
    floor = summarize(chance).mean
    learned = {
        inline(row.label): summarize(list(row.values(column).values())).mean - floor
        for row in rows
        if row.objective == baseline and row.values(column)
    }
    if not learned:
        return []
    few = [label for label, gain in learned.items() if gain < enough]
    gains = ", ".join(f"{label} {gain:+.1f}" for label, gain in learned.items())
    warning = f" **Less than {enough:g} points, too little for a comparison: {', '.join(few)}.**" if few else ""
    return [f"Above the random encoder ({inline(column)}): {gains}.{warning}", ""]


def count_seeds(row: Row) -> str:
    """`5`, or `2 of 5` when seeds are missing."""
    return count_of(len(row.results), len(row.runs))


def count_of(done: int, wanted: int) -> str:
    """A count, with the wanted count if that is larger."""
    return str(done) if done == wanted else f"{done} of {wanted}"


def cost_of(row: Row, rows: Sequence[Row], baseline: str | None) -> list[str]:
    """Steps, passes relative to the baseline of the group, and CPU minutes of training."""
    if not row.results or not row.trained:
        return ["", "", ""]
    base = next(
        (each for each in rows if each.group == row.group and each.objective == baseline and each.results), None
    )
    first = row.results[0]
    relative = f"{first.work / base.results[0].work:.2f}" if base is not None and base.results[0].work else ""
    minutes = summarize([each.cpu_seconds / 60 for each in row.results]).mean
    return [f"{first.steps:,}", relative, f"{minutes:.1f}"]


def rank_of(row: Row) -> str:
    """The effective rank at the last online evaluation: few dimensions are the first sign of a collapse."""
    ranks = [
        each.collapse_metrics["effective_rank"] for each in row.results if "effective_rank" in each.collapse_metrics
    ]
    return f"{summarize(ranks).mean:.0f}" if ranks else ""


def difference_tables(rows: Sequence[Row], study: Study) -> list[str]:
    """Paired differences to the baselines of equal steps and of equal compute: once, if they are the same."""
    assert study.baseline is not None
    by_name = {(*row.group, row.objective): row for row in rows}
    others = [row for row in rows if row.trained and not row.is_matched_baseline and row.objective != study.baseline]
    steps = differences(others, by_name, study, same_steps(study.baseline, by_name))
    compute = differences(others, by_name, study, same_compute)
    tables = {"at equal steps, which are equal compute": steps}
    if steps != compute:
        tables = {"at equal steps": steps, "at equal compute": compute}
    lines = []
    for title, table in tables.items():
        if len(table) > 1:
            lines += [
                f"Difference to {inline(study.baseline)} {title}: mean of the paired differences and its 95 % interval "
                "over seeds.",
                "",
                *markdown(table),
                "",
            ]
    alone = [inline(row.label) for row in others if row.results and row.runs[0].matched is None]
    if alone:
        lines += [f"No {inline(study.baseline)} of equal compute was run for: {', '.join(alone)}.", ""]
    return lines


def differences(
    rows: Sequence[Row],
    by_name: dict[tuple[str, str, str, str], Row],
    study: Study,
    baseline_of: Callable[[Row], str | None],
) -> list[list[str]]:
    """A table of the paired differences of rows to the baseline that `baseline_of` names, where there are pairs."""
    columns = [column for column in study.columns if any(column in row.runs[0].evaluate for row in by_name.values())]
    table = [["", "pairs", *map(inline, columns)]]
    for row in rows:
        base = by_name.get((*row.group, str(baseline_of(row))))
        if base is None:
            continue
        paired = [compare(row.values(column), base.values(column)) for column in columns]
        pairs = max((each.pairs for each in paired if each is not None), default=0)
        if pairs:
            against = f" (vs. {base.objective})" if base.objective != study.baseline else ""
            texts = ["" if each is None else str(each) for each in paired]
            wanted = len({run.seed for run in row.runs} & {run.seed for run in base.runs})
            table.append([inline(f"{row.label}{against}"), count_of(pairs, wanted), *texts])
    return table


def same_steps(baseline: str, by_name: dict[tuple[str, str, str, str], Row]) -> Callable[[Row], str | None]:
    """The baseline of a row, where both make equally many steps."""

    def of_row(row: Row) -> str | None:
        base = by_name.get((*row.group, baseline))
        same = base is not None and length_of(base) == length_of(row)
        return baseline if same else None

    return of_row


def length_of(row: Row) -> tuple[Any, ...]:
    """The settings that decide how many steps a row makes."""
    run = row.runs[0]
    return run.epochs, run.pretraining.batch_size, *(run.settings.get(name) for name in IMAGES)


def same_compute(row: Row) -> str | None:
    """The baseline that costs as much as a row, where one was run."""
    return row.runs[0].matched


def notes(study: Study, results: Iterable[RunResult]) -> list[str]:
    """Descriptions of the columns, and warnings."""
    results = list(results)
    lines = []
    if any("effective_rank" in result.collapse_metrics for result in results):
        lines += [
            "Rank: effective rank of the projections at the run's last online evaluation; few are a sign of collapse.",
            "",
        ]
    if study.baseline is not None:
        lines += [
            "Bold: the interval excludes zero. Passes: counted, relative to the baseline, a backward pass as two.",
            "",
        ]
    lines += lam_note(results)
    several = len({result.data for result in results}) > 1
    for column in study.columns:
        rows_by_description: dict[str, dict[str, None]] = {}
        for result in results:
            if column in result.descriptions:
                row = join_labels(result.data if several else "", result.method, result.variant, result.objective)
                rows_by_description.setdefault(general(result.descriptions[column]), {}).setdefault(row)
        most = max((len(rows) for rows in rows_by_description.values()), default=0)
        for description, rows in rows_by_description.items():
            where = f" ({', '.join(rows)})" if len(rows) < most else ""
            lines.append(f"- {inline(f'{column}{where}: {description}')}")
    warnings = dict.fromkeys(
        [*(each for result in results for each in result.warnings), *consistency_warnings(results)]
    )
    return [*lines, *(f"- Warning: {inline(warning)}" for warning in warnings), ""]


def other_results(results: Iterable[RunResult], shown: Iterable[RunResult]) -> list[str]:
    """The results in the folder of a study that are in none of its rows, so that none is hidden."""
    known = {(each.identity, each.made) for each in shown}
    others = [each for each in results if (each.identity, each.made) not in known]
    if not others:
        return []
    columns = list(dict.fromkeys(column for each in others for column in each.metrics))
    table = [["", "seed", "measured", *map(inline, columns)]]
    for each in others:
        values = [f"{each.metrics[column]:.1f}" if column in each.metrics else "" for column in columns]
        label = join_labels(each.data, each.method, each.variant, each.objective)
        table.append([inline(label), str(each.seed), inline(each.made[:10]), *values])
    return [
        "Results outside the current study definition (different settings, or superseded):",
        "",
        *markdown(table),
        "",
    ]


SCOPES = {"image": "one λ per image", "pair": "one λ per pair", "batch": "one λ per batch"}


def lam_note(results: Iterable[RunResult]) -> list[str]:
    """A sentence on whether mixtures have one λ per image, per pair or, as in the paper, per batch."""
    rows: dict[str, dict[str, None]] = {}
    for result in results:
        if result.settings.get("objective", "sim") != "sim" and "mixing.lam_per" in result.settings:
            label = join_labels(result.method, result.variant, result.objective)
            rows.setdefault(str(result.settings["mixing.lam_per"]), {}).setdefault(label)
    if not rows:
        return []
    if set(rows) == {"batch"}:
        return ["Mixtures have one λ per batch, as in the paper.", ""]
    main = "pair" if "pair" in rows else "image"
    others = [
        f", with {SCOPES[scope]}: {'; '.join(rows[scope])}" for scope in SCOPES if scope in rows and scope != main
    ]
    exception = f"; the exceptions{'; those'.join(others)}" if others else ""
    return [inline(f"Mixtures have {SCOPES[main]}, not the paper's one λ per batch{exception}."), ""]


def general(description: str) -> str:
    """A protocol's description without what differs from run to run: weight decays that were chosen, the seed."""
    return re.sub(r"weight decay [0-9.e+-]+ chosen", "weight decay chosen", re.sub(r" of seed \d+", "", description))


def join_labels(*parts: str) -> str:
    """Several labels as one."""
    return " · ".join(part for part in parts if part)


def consistency_warnings(results: Iterable[RunResult]) -> list[str]:
    """Warnings where results that are compared come from different images or versions."""
    prints: dict[tuple[str, str], dict[str, None]] = {}
    torches: dict[str, None] = {}
    for result in results:
        if "fingerprint" in result.images:
            part = [item for item in result.settings.items() if item[0].partition(".")[0] in ("split", "data_options")]
            prints.setdefault((result.data, str(part)), {}).setdefault(str(result.images["fingerprint"])[:12])
        if "torch" in result.versions:
            torches.setdefault(str(result.versions["torch"]))
    warnings = [
        f"rows of {data or 'this study'} were trained on different images (fingerprints {', '.join(each)}): remove the "
        "results of one, and run the study again"
        for (data, _), each in prints.items()
        if len(each) > 1
    ]
    return warnings + ([f"measured with torch {' and '.join(torches)}"] if len(torches) > 1 else [])


def markdown(table: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as a Markdown table, the first its head."""
    head, *body = [f"| {' | '.join(row)} |" for row in table]
    return [head, "|" + "---|" * len(table[0]), *body]
