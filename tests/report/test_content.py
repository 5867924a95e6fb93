"""The parts of a page: confusions, curves, table, sprites, strips."""

import base64
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mixview.encoders.search import Neighbors
from mixview.evaluate import results
from mixview.evaluate.paper import PaperKey
from mixview.report.confusions import confuse
from mixview.report.curves import follow, thin_out, time_shares
from mixview.report.runs import gather, read_run
from mixview.report.sprites import make_sprites
from mixview.report.strips import detection_strips, make_strip
from mixview.report.table import tabulate
from tests.evaluate.published import result_of
from tests.report.written import make_result, write_run


def test_confusions_are_counted_by_class() -> None:
    labels = np.array([0, 0, 0, 0, 1, 1, -1])
    nearest = torch.tensor([[1], [0], [4], [5], [5], [4], [0]])
    confusions = confuse(Neighbors(torch.ones(7, 1), nearest), labels)
    assert confusions is not None
    assert (confusions.correct, confusions.queries) == (4, 6)
    (worst,) = confusions.worst
    assert (worst.true, worst.predicted, worst.mistakes, worst.total, worst.examples) == (0, 1, 2, 4, [2, 3])
    assert confuse(Neighbors(torch.ones(2, 1), nearest[:2]), np.array([0, 0])) is None


def test_curves_are_over_epochs_and_leave_out_what_is_no_number(tmp_path: Path) -> None:
    curves = follow(read_run(write_run(tmp_path / "a", "scenes", encoder=False)), points=100)
    assert len(curves["loss"].values) == 15
    assert curves["loss"].epochs[-1] == 4
    assert curves["knn"].values[-1] == pytest.approx(0.4)
    assert "mixture_larger" not in curves


def test_the_parts_of_the_time_are_summed_over_the_whole_run(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a", "scenes", encoder=False))
    assert time_shares(run) == {}
    logged = {"time/seconds": 3.0, "time/data": 0.5, "time/forward": 0.5}
    resumed = {"time/seconds": 1.0, "time/data": 0.25, "time/backward": 0.75, "time/other": None, "time/mine": 1.0}
    damaged = {"time/seconds": "long", "time/data": 1.0}
    run.metrics.extend([{"step": 17} | logged, {"step": 18} | resumed, {"step": 19} | damaged])
    assert time_shares(run) == {
        "data": 0.4375,
        "forward": 0.375,
        "backward": 0.1875,
        "update": 0,
        "evaluation": 0,
        "other": 0,
    }


def test_thinned_curves_keep_their_mean_and_their_end() -> None:
    points = [(float(step), 10.0) for step in range(999)] + [(999.0, 3.0)]
    thin = thin_out(points, 50)
    assert len(thin) == 50
    assert thin[-1] == (999.0, 3.0)
    assert thin[0][1] == 10.0


def test_seeds_are_averaged_and_other_settings_are_not(tmp_path: Path) -> None:
    scores = {"0": (0, 1.0, 40.0), "1": (1, 1.0, 44.0), "alpha": (0, 0.5, 50.0)}
    paths = [
        write_run(tmp_path / name, "scenes", "bsim", seed=seed, alpha=alpha, encoder=False, results_of={"top-1": value})
        for name, (seed, alpha, value) in scores.items()
    ]
    table = tabulate(gather(paths).runs, [make_result("raw pixels", {"top-1": 12.0, "top-5": 30.0})])
    both, other, pixels = table.lines
    assert both.name == "simclr bsim, 2 runs (mixing.alpha 1.0)"
    assert both.cells[0] is not None
    assert (both.cells[0].text, both.cells[0].runs, both.cells[0].best) == ("42.0 ± 2.8 %", 2, False)
    assert both.cells[0].paper is None  # which is of ImageNet, and these are scenes
    assert other.name == "alpha"
    assert other.cells[0] is not None
    assert other.cells[0].best
    assert pixels.cells[0] is not None
    assert pixels.cells[0].paper is None
    assert pixels.cells[1] is not None
    assert not pixels.cells[1].best  # a single value is not the best


def test_lines_are_distinguished_and_results_of_other_encoders_have_their_own(tmp_path: Path) -> None:
    paths = [
        write_run(
            tmp_path / name / "same", "scenes", "bsim", backbone=backbone, encoder=False, results_of={"top-1": 1.0}
        )
        for name, backbone in (("x", "small"), ("y", "resnet18"))
    ]
    (own,) = results.read(paths[0])
    results.save(replace(own, about=own.about | {"epoch": "2"}), paths[0])
    results.save(make_result("random small, seed 0", {"top-1": 9.0}), paths[0])
    lines = tabulate(gather(paths).runs, []).lines
    assert {line.name: line.runs for line in lines} == {
        "x/same (backbone small)": ["x/same"],
        "x/same (backbone small, epoch 2)": ["x/same"],
        "random small": [],
        "y/same": ["y/same"],
    }
    # Seeds of two experiments: what they differ in is in their names.
    other = write_run(
        tmp_path / "z", "scenes", "bsim", backbone="resnet18", seed=1, encoder=False, results_of={"top-1": 3.0}
    )
    last = tabulate(gather([*paths, other]).runs, []).lines[-1]
    assert (last.name, last.runs) == ("simclr bsim, 2 runs (backbone resnet18)", ["y/same", "z"])
    assert last.cells[0] is not None
    assert last.cells[0].text == "2.0 ± 1.4 %"


def test_the_papers_number_stands_beside_a_run_of_its_settings_only() -> None:
    result = result_of(PaperKey("simclr", "bsim", "cutmix", "1", "200", "probe", "res5 top-1"))
    (line,) = tabulate([], [result]).lines
    assert line.cells[0] is not None
    assert line.cells[0].paper is not None
    assert line.cells[0].paper.printed == "62.3 (+0.7↑)"


def test_sprites_keep_their_budget() -> None:
    noise = np.random.default_rng(0).integers(0, 255, (300, 100, 120, 3), dtype=np.uint8)
    rich, poor = make_sprites(list(noise), 10**7), make_sprites(list(noise), 200_000)
    assert rich.tile == 96
    assert poor.tile < 48
    assert sum(len(sheet) for sheet in poor.sheets) < 1.4 * 200_000


def test_a_tile_shows_its_image() -> None:
    colors = np.zeros((1030, 20, 20, 3), np.uint8)
    colors[:, :, :, 0] = (np.arange(1030) % 250)[:, None, None]
    sprites = make_sprites(list(colors), 10**7)
    assert (sprites.tile, len(sprites.sheets)) == (20, 2)
    sheet = Image.open(io.BytesIO(base64.b64decode(sprites.sheets[1].partition(",")[2])))
    red = sheet.getpixel((5 * 20 + 10, 10))
    assert isinstance(red, tuple)
    assert abs(red[0] - (1024 + 5) % 250) < 4


def test_the_strip_has_a_name_for_every_row(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a", "scenes", "bsim"))
    strip = make_strip(run, [np.zeros((30, 40, 3), np.uint8)] * 8, 10**6)
    assert strip is not None
    assert strip.rows == ["images", "one view", "another view", "mixtures of the first views (CutMix)"]
    assert strip.height > strip.width * 3 / 8
    (run.path / "views.png").write_bytes(b"torn")
    assert make_strip(run, [], 10**6) is None


def test_the_first_trial_of_each_detector_is_shown(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a", "scenes", "bsim"))
    assert detection_strips(run, 10**6) == []
    for name, side in (("voc-c4-voc-seed-0", 10), ("voc-c4-voc-seed-1", 20), ("small-fpn-scenes-seed-3", 30)):
        (run.path / "detection" / name).mkdir(parents=True)
        Image.new("RGB", (side, side)).save(run.path / "detection" / name / "detections.png")
    shown = detection_strips(run, 10**6)
    assert [(strip.rows, strip.width) for strip in shown] == [(["small-fpn-scenes"], 30), (["voc-c4-voc"], 10)]
