"""Plans: what was there before the results, what is decided by them, and what earlier studies choose."""

import itertools
import shutil
import subprocess
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import yaml

from mixview.experiments import definitions, plots, results, tables
from mixview.experiments import plan as plans
from mixview.experiments import spec as grid
from mixview.experiments.results import RunResult
from mixview.experiments.stats import adjust
from tests.experiments.trials import invented, trial

ROOT = Path(__file__).parents[2]
DATE, LATER, EARLIER = "2026-01-02T00:00:00+00:00", "2026-01-03T00:00:00+00:00", "2026-01-01T00:00:00+00:00"
SEEDS = list(range(8))


def planned(**changes: Any) -> dict[str, Any]:
    """The trial with a plan: two candidates that cost what SIM costs."""
    text = trial(seeds=SEEDS, match_compute="epochs")
    text["objectives"] |= {"BSIM": {"objective": "bsim"}, "half": {"objective": "bsim", "mixing": {"prob": 0.5}}}
    text["grids"] = [{"objectives": ["SIM", "BSIM", "half"]}]
    text["plan"] = {"date": DATE, "columns": ["k-NN"], "confirmatory": True, "rule": "The best."}
    return text | changes


def made(study: grid.Study, gains: dict[str, float], noise: float = 0.2, **changes: Any) -> dict[str, RunResult]:
    """Results of all runs, so much better than the baseline, with differences that vary a little."""
    found = {}
    for run in study.runs:
        value = 50.0 + run.seed + gains.get(run.objective, 0.0) * (1 + noise * (-1) ** run.seed)
        found[run.name] = replace(invented(run, value), **{"plan": run.plan, "began": LATER} | changes)
    return found


def verdicts(study: grid.Study, found: dict[str, RunResult]) -> dict[str, str]:
    rows = tables.rows_of(study, found)
    return {each.row.objective: each.verdict for each in plans.compare_rows(study, rows)}


def decision(study: grid.Study, found: dict[str, RunResult]) -> plans.Decision:
    (only,) = plans.decide(study, plans.compare_rows(study, tables.rows_of(study, found)))
    return only


def test_what_is_ahead_behind_or_undecided() -> None:
    study = grid.expand("trial", planned())
    assert verdicts(study, made(study, {"BSIM": -2.0, "half": 2.0})) == {"BSIM": "behind", "half": "ahead"}
    assert verdicts(study, made(study, {"BSIM": 0.1, "half": 2.0}, noise=20.0)) == {
        "BSIM": "undecided",
        "half": "undecided",
    }
    decided = decision(study, made(study, {"BSIM": -2.0, "half": 2.0}))
    assert (decided.method, decided.objective, decided.final) == ("MoCo v2", "half", True)
    assert decision(study, made(study, {"BSIM": 1.0, "half": 2.0})).objective == "half"
    assert decision(study, made(study, {"BSIM": 0.0, "half": 0.0})).objective == "SIM"


def test_a_default_is_nowhere_behind_by_more_than_the_margin() -> None:
    text = planned()
    text["data"]["other"] = text["data"]["scenes"] | {"data_options": {"count": 32, "size": 16}}
    study = grid.expand("trial", text)

    def decided(other: float) -> plans.Decision:
        found = made(study, {"half": 2.0})
        other_found = made(study, {"half": other}, noise=3.0)  # so that nothing is decided there
        for run in study.runs:
            if run.data == "other":
                found[run.name] = other_found[run.name]
        return decision(study, found)

    assert decided(-0.4).objective == "half"
    assert decided(-0.6).objective == "SIM"
    assert "half is 0.6 points behind somewhere" in decided(-0.6).reason


def test_a_default_is_not_chosen_by_comparisons_that_are_open() -> None:
    """Ahead in one regime, and not yet measured in all of the other: it is not known to be nowhere behind."""
    text = planned()
    text["data"]["other"] = text["data"]["scenes"] | {"data_options": {"count": 32, "size": 16}}
    study = grid.expand("trial", text)
    found = made(study, {"BSIM": -2.0, "half": 2.0})
    assert decision(study, found).objective == "half"
    partial = {run.name: found[run.name] for run in study.runs if run.data != "other" or run.seed < 7}
    decided = decision(study, partial)
    assert (decided.objective, decided.done, decided.planned) == ("SIM", 2, 4)
    assert decided.reason == "BSIM is 2.0 points behind somewhere; 1 of the 2 comparisons of half are open"
    shown = tables.render(study, partial)
    assert "\n- Default of MoCo v2 so far, with 2 of 4 comparisons: SIM (BSIM is" in shown


def test_rows_that_are_not_chosen_yet_are_open(tmp_path: Path) -> None:
    """They are in the table, the figure and the correction, and without them nothing becomes the default."""
    first = trial(seeds=[100], match_compute="epochs")
    first["objectives"] |= {"half": {"objective": "bsim", "mixing": {"prob": 0.5}}}
    name = str(tmp_path / "screen.yaml")
    text = planned()
    text["data"]["other"] = first["data"]["other"] = text["data"]["scenes"]
    Path(name).write_text(yaml.safe_dump(first | {"grids": [{"objectives": ["SIM", "half"], "data": ["other"]}]}))
    chosen = [{"best_of": name}, {"best_of": name}]
    text["grids"] = [
        {"data": ["scenes"], "objectives": ["SIM", "half"]},
        {"data": ["other"], "objectives": ["SIM", *chosen]},
    ]
    study = grid.expand("trial", text)
    found = made(study, {"half": 2.0})
    comparisons = plans.compare_rows(study, tables.rows_of(study, found))
    (one,) = comparisons
    assert one.verdict == "ahead"
    assert one.difference is not None
    assert one.adjusted == pytest.approx(3 * (one.difference.p or 0))
    assert plans.missing_rows(study, comparisons) == [("MoCo v2", "other", 2)]
    (decided,) = plans.decide(study, comparisons)
    assert decided[1:] == ("SIM", "no candidate has a row in every regime", 1, 3)
    assert "| other · MoCo v2 · not chosen yet (2) | open |" in tables.render(study, found)
    axis = plots.plot_differences(comparisons, "SIM", 0.5, plans.missing_rows(study, comparisons)).axes[0]
    assert [label.get_text() for label in axis.get_yticklabels()] == [
        "MoCo v2 · scenes · half",
        "MoCo v2 · other · not chosen yet (2)",
    ]
    assert [text.get_text() for text in axis.texts] == ["open"]


def test_verdicts_agree_with_a_slow_reference() -> None:
    """Holm's method is closed testing with Bonferroni's: the largest corrected value of all sets that a test is in."""
    text = planned(evaluate={name: {"protocol": "knn", "k": 5, "metric": "top-1"} for name in "abcd"})
    text["plan"]["columns"] = list("abcd")
    study = grid.expand("trial", text)
    generator = np.random.default_rng(1)
    for _ in range(10):
        gains = {name: dict(zip("abcd", generator.normal(0, 0.8, 4), strict=True)) for name in ("BSIM", "half")}
        found = made(study, {})
        for run in study.runs:
            values = {
                column: 50 + gains.get(run.objective, {}).get(column, 0) + generator.normal() for column in "abcd"
            }
            found[run.name] = replace(found[run.name], metrics=values)
        tests = {}
        for objective, column in itertools.product(("BSIM", "half"), "abcd"):
            ours, theirs = (
                [found[run.name].metrics[column] for run in study.runs if run.objective == name]
                for name in (objective, "SIM")
            )
            tests[objective, column] = scipy.stats.ttest_rel(ours, theirs)
        sets = [chosen for size in range(1, 9) for chosen in itertools.combinations(tests, size)]
        for each in plans.compare_rows(study, tables.rows_of(study, found)):
            key = each.row.objective, each.column
            reference = max(
                min(1.0, len(chosen) * min(tests[one].pvalue for one in chosen)) for chosen in sets if key in chosen
            )
            assert each.difference is not None
            assert each.difference.p == pytest.approx(tests[key].pvalue)
            interval = tests[key].confidence_interval(0.95)
            assert (each.difference.low, each.difference.high) == pytest.approx((interval.low, interval.high))
            assert each.adjusted == pytest.approx(reference)
            expected = ("ahead" if tests[key].statistic > 0 else "behind") if reference < 0.05 else "undecided"
            assert each.verdict == expected


def test_missing_seeds_leave_a_comparison_open_and_count_in_the_correction() -> None:
    study = grid.expand("trial", planned())
    found = made(study, {"BSIM": -2.0, "half": 2.0})
    found = {name: each for name, each in found.items() if (each.objective, each.seed) != ("BSIM", 3)}
    assert verdicts(study, found) == {"BSIM": "open", "half": "ahead"}
    assert not decision(study, found).final
    by_name = {each.row.objective: each for each in plans.compare_rows(study, tables.rows_of(study, found))}
    assert by_name["BSIM"].difference is not None
    assert by_name["half"].difference is not None
    assert by_name["half"].adjusted == pytest.approx(2 * (by_name["half"].difference.p or 0))


def test_corrections_for_multiple_comparisons() -> None:
    assert adjust([0.01, 0.04, 0.03], 3) == pytest.approx([0.03, 0.06, 0.06])  # as R's p.adjust
    assert adjust([0.01, 0.04, 0.03], 3, bonferroni=True) == pytest.approx([0.03, 0.12, 0.09])
    assert adjust([0.01], 4) == pytest.approx([0.04])  # three are open
    assert adjust([0.9, 0.8], 2) == [1.0, 1.0]
    text = planned()
    text["plan"] |= {"correction": "bonferroni", "family": "study"}
    study = grid.expand("trial", text)
    assert study.plan is not None
    assert plans.count_comparisons(study, study.plan) == {"": 2}
    every = plans.compare_rows(study, tables.rows_of(study, made(study, {"BSIM": 1.0, "half": 2.0})))
    assert all(each.difference and each.adjusted == pytest.approx(2 * (each.difference.p or 0)) for each in every)


def test_a_result_that_is_older_than_the_plan_is_not_confirmatory() -> None:
    study = grid.expand("trial", planned())
    for changes, plan_status in (
        ({}, "planned"),
        ({"began": EARLIER}, "older than the plan"),
        ({"began": "", "made": EARLIER}, "older than the plan"),
        ({"plan": ""}, "older than the plan"),
        ({"plan": "0123456789"}, "another plan"),
    ):
        found = made(study, {"BSIM": -2.0, "half": 2.0}, **changes)
        text = tables.render(study, found)
        assert f"| MoCo v2 · half | {plan_status} | 8 |" in text
        assert ("2.0 [+1.6, +2.4] ahead**" in text) == (plan_status == "planned"), text
        assert ("Nothing is confirmed yet" in text) == (plan_status != "planned")


def test_rows_that_were_added_later_are_marked_and_decide_nothing() -> None:
    text = planned()
    before = grid.expand("trial", text)
    text["objectives"]["quarter"] = {"objective": "bsim", "mixing": {"prob": 0.25}}
    text["grids"].append({"objectives": ["quarter"], "added": "out of curiosity"})
    study = grid.expand("trial", text)
    assert {run.plan for run in study.runs} == {run.plan for run in before.runs}
    found = made(study, {"half": 2.0, "quarter": 5.0})
    shown = tables.render(study, found)
    assert "| MoCo v2 · quarter | added later | 8 |" in shown
    assert "| MoCo v2 · half | planned | 8 |" in shown
    assert set(verdicts(study, found)) == {"BSIM", "half"}
    assert "- Default of MoCo v2: half (ahead in 1 comparisons, +2.0 points in the mean)." in shown


def test_studies_of_one_document_share_what_they_confirm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that two stages ask for is done once, under the plan of one of them, and counts in both."""
    plan = planned()["plan"] | {"document": "plan.md"}
    for name, changes in {"first": {}, "second": {"baseline": "half"}, "chooses": {"confirmatory": False}}.items():
        own = {key: value for key, value in changes.items() if key == "confirmatory"}
        text = planned(plan=plan | own, **{key: value for key, value in changes.items() if key == "baseline"})
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(text))
    monkeypatch.setattr(definitions, "FOLDER", tmp_path)
    first, second, chooses = (grid.read(name) for name in ("first", "second", "chooses"))
    assert len({study.runs[0].plan for study in (first, second, chooses)}) == 3
    gains = {"BSIM": -2.0, "half": 2.0}
    for study, counts in ((first, True), (chooses, False)):
        matched = results.match(second.runs, {study.name: list(made(study, gains).values())})
        assert len(matched) == len(second.runs)
        assert (
            "ahead" in verdicts(second, matched).values() or "behind" in verdicts(second, matched).values()
        ) == counts


def test_the_hash_is_of_all_that_was_planned() -> None:
    def hashed(**changes: Any) -> str:
        return plans.plan_hash(planned(**changes))

    assert hashed() == hashed()
    assert hashed(about={"what": "in other words"}) == hashed()
    assert hashed(settings=planned()["settings"] | {"workers": 4, "monitor": {"keep": 3}}) == hashed()
    assert hashed(settings=planned()["settings"] | {"epochs": 5}) != hashed()
    assert hashed(seeds=[0]) != hashed()
    assert hashed(plan=planned()["plan"] | {"margin": 1.0}) != hashed()
    changed = planned()
    changed["objectives"]["half"]["mixing"]["prob"] = 0.4
    assert plans.plan_hash(changed) != hashed()


def test_the_figure_has_every_method_and_regime(tmp_path: Path) -> None:
    study = grid.expand("trial", planned())
    found = made(study, {"BSIM": -2.0, "half": 2.0})
    comparisons = plans.compare_rows(study, tables.rows_of(study, found))
    axis = plots.plot_differences(comparisons, "SIM", 0.5).axes[0]
    assert [label.get_text() for label in axis.get_yticklabels()] == [
        "MoCo v2 · scenes · BSIM",
        "MoCo v2 · scenes · half",
    ]
    assert "trial-differences.png" in {path.name for path in plots.draw(study, found, tmp_path)}
    text = planned(variants={"short": {}, "long": {"epochs": 8}})
    text["grids"] = [{"objectives": ["SIM", "half"], "variants": ["short", "long"]}]
    study = grid.expand("trial", text)
    comparisons = plans.compare_rows(study, tables.rows_of(study, made(study, {})))
    labels = plots.plot_differences(comparisons, "SIM", 0.5).axes[0].get_yticklabels()
    assert [label.get_text().partition("scenes · ")[2] for label in labels] == ["short · half", "long · half"]


def earlier_study(folder: Path) -> dict[str, Any]:
    """A study in a file that chooses, and the definition of one that it chooses for."""
    text = trial(seeds=[0], match_compute=False)
    text["variants"] = {"cold": {"method": {"temperature": 0.1}}, "hot": {"method": {"temperature": 0.5}}}
    tune = text | {"grids": [{"objectives": ["SIM"], "variants": ["cold", "hot"]}]}
    (folder / "tune.yaml").write_text(yaml.safe_dump(tune))
    name = str(folder / "tune.yaml")
    return text | {"grids": [{"variants": [{"best_of": name}], "objectives": ["SIM", "WBSIM"]}], "seeds": [1]}


def test_an_earlier_study_chooses(tmp_path: Path) -> None:
    text = earlier_study(tmp_path)
    name = text["grids"][0]["variants"][0]["best_of"]
    waiting = grid.expand("second", text)
    assert waiting.runs == ()
    assert waiting.waiting == (f"{name} (scenes, MoCo v2: 0 of 2 runs)",)
    assert "Not run before their earlier studies are" in tables.render(waiting, {})
    tune = grid.read(name)
    values = {"cold": 40.0, "hot": 60.0}
    records = {"tune": [invented(run, values[run.variant]) for run in tune.runs]}
    assert grid.expand("second", text, {"tune": records["tune"][:1]}).runs == ()  # until it is complete
    study = grid.expand("second", text, records)
    assert [(run.variant, run.objective) for run in study.runs] == [("hot", "SIM"), ("hot", "WBSIM")]
    assert not study.waiting
    text["grids"][0]["variants"].append({"best_of": name})
    assert {run.variant for run in grid.expand("second", text, records).runs} == {"cold", "hot"}  # the best of the rest
    text["grids"][0]["variants"].append({"best_of": name})
    with pytest.raises(ValueError, match="nothing left to choose from"):
        grid.expand("second", text, records)


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "no date": ({"plan": {"columns": []}}, "a plan needs a date"),
    "no zone": ({"plan": {"date": "2026-01-01"}}, "a time with its zone, got '2026-01-01'"),
    "no time": ({"plan": {"date": "soon"}}, "a time with its zone"),
    "a name": ({"plan": {"date": DATE, "colums": []}}, "a plan has no 'colums'"),
    "a column": ({"plan": {"date": DATE, "columns": ["x"]}}, "the plan has a column 'x'"),
    "a correction": ({"plan": {"date": DATE, "correction": "none"}}, r"Invalid enum value 'none' - at `\$.correction`"),
    "a level": ({"plan": {"date": DATE, "level": 95.0}}, "level of the plan should be between 0 and 1"),
    "columns": ({"plan": {"date": DATE, "columns": 5}}, "the plan does not have its form: Expected `array`"),
    "an earlier study": ({"grids": [{"variants": [{"best_of": "tun"}]}]}, "there is no study tun: did you mean tune"),
    "no columns": ({"plan": {"date": DATE, "confirmatory": True}}, "a confirmatory plan needs columns"),
    "an addition": ({"grids": [{"added": True}]}, "added should be a reason"),
    "a choice": ({"grids": [{"objectives": [{"best": "tune"}]}]}, "can be chosen by an earlier study"),
    "a choice of data": ({"grids": [{"data": [{"best_of": "tune"}]}]}, "can be chosen by an earlier study"),
    "an option": ({"grids": [{"variants": [{"best_of": "tune", "top": 2}]}]}, "best_of has no 'top'"),
    "an encoder": ({"settings": {"weights": "@first"}}, "no 'first' among its encoders"),
    "compute": ({"match_compute": "time"}, "match_compute should be true, false or epochs"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named(name: str) -> None:
    changes, words = MISTAKES[name]
    with pytest.raises(ValueError, match=words):
        grid.expand("trial", trial() | changes)


def test_a_study_does_not_choose_by_its_own_results(tmp_path: Path) -> None:
    name = str(tmp_path / "own.yaml")
    text = trial(grids=[{"objectives": ["SIM", {"best_of": name}]}])
    Path(name).write_text(yaml.safe_dump(text))
    with pytest.raises(ValueError, match="chooses by its own results"):
        grid.read(name)


def test_compute_is_matched_by_epochs() -> None:
    text = trial(settings={"epochs": 70}, match_compute="epochs", seeds=[0])
    runs = {run.objective: run for run in grid.expand("trial", text).runs}
    assert (runs["SIM"].epochs, runs["WBSIM"].epochs) == (70, 40)
    assert runs["WBSIM"].matched == "SIM"
    assert set(runs) == {"SIM", "WBSIM", "random"}


def test_every_plan_that_comes_with_mixview_has_eight_fresh_seeds() -> None:
    seeds: dict[bool, set[int]] = {True: set(), False: set()}
    for name in definitions.names():
        definition = definitions.read_definition(name)
        confirmatory = definition.get("plan", {}).get("confirmatory", False)
        if confirmatory:
            assert all(len(each.get("seeds", definition["seeds"])) >= 8 for each in definition["grids"])
        seeds[confirmatory] |= {
            seed for each in definition.get("grids", [{}]) for seed in each.get("seeds", definition.get("seeds", [0]))
        }
    assert seeds[True]
    assert not seeds[True] & seeds[False]


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_the_commit_of_the_plan_is_older_than_every_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For every plan under which something was measured there is a commit that has it, from before the first result."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("this is not a clone of the repository")
    if git("rev-parse", "--is-shallow-repository").strip() == "true":
        pytest.skip("the history is not here")
    first: dict[tuple[str, str], datetime] = {}
    for study, records in results.read_all(ROOT / "study").items():
        for result in records:
            if result.plan:
                began = datetime.fromisoformat(result.began)
                first[study, result.plan] = min(began, first.get((study, result.plan), began))
    commits = git("log", "--reverse", "--format=%H %cI", "--diff-filter=A", "--", "study/plan.md").splitlines()
    since = commits[0].split()[0]
    commits += git("log", "--reverse", "--format=%H %cI", f"{since}..", "--", "mixview/studies").splitlines()
    for number, line in enumerate(commits):
        commit, date = line.split()
        folder = tmp_path / str(number)
        folder.mkdir()
        for path in git("ls-tree", "--name-only", commit, "mixview/studies/").split():
            (folder / Path(path).name).write_text(git("show", f"{commit}:{path}"), encoding="utf-8")
        monkeypatch.setattr(definitions, "FOLDER", folder)
        for study, digest in list(first):
            if (folder / f"{study}.yaml").exists():
                definition = definitions.read_definition(study)
                if "plan" in definition and plans.plan_hash(definition) == digest:
                    assert datetime.fromisoformat(date) < first.pop((study, digest)), (study, digest)
    assert not first, "results of plans that were never committed"
