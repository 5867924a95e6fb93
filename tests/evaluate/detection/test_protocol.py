"""`mixview evaluate detection`, whole: tiny detectors on tiny scenes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixview import cli, recipes
from mixview.data.synthetic.scenes import Scenes
from mixview.data.synthetic.writers import write
from mixview.evaluate import evaluate, paper, results
from mixview.evaluate import training_loop as supervised
from mixview.evaluate.base import TrainingStopped
from mixview.evaluate.detection.protocol import Detection
from mixview.evaluate.results import Result
from mixview.runs.checkpoints import Checkpoints
from mixview.runs.run_directory import RunDirectory, RunDirectoryError, read_metrics
from tests.evaluate.detection.tiny import C4, FPN, SCALES, SCENES
from tests.evaluate.published import result_of
from tests.evaluate.small_encoders import run_folder
from tests.train.running import StopAt, assert_same


def detect(encoder: str, **options: Any) -> Result:
    return evaluate(encoder, "detection", **options)


def tiny(out: Path, **options: Any) -> dict[str, Any]:
    """A run of 4 iterations of 2 images."""
    settings: dict[str, Any] = {
        "encoder": "random",
        "recipe": "small-c4",
        "backbone": "small",
        "data": "scenes",
        "data_options": SCENES,
        "model": C4 | {"proposals": 10},
        "scales": SCALES,
        "iterations": 4,
        "batch_size": 2,
        "precise_bn": 2,
        "max_test_images": 3,
        "workers": 0,
        "logging": {"log_every": 1, "checkpoint_every": 2, "loggers": "none", "pictures": 2},
        "device": "cpu",
        "out": str(out),
    }
    return settings | options


def trial(out: Path, seed: int = 0, name: str = "small-c4-scenes") -> Path:
    return out / "detection" / f"{name}-seed-{seed}"


def last(out: Path) -> dict[str, Any]:
    found = Checkpoints(out / "checkpoints").load_latest()
    assert found is not None
    return found[0]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two trials, never interrupted."""
    out = tmp_path_factory.mktemp("whole")
    result = detect(**tiny(out, trials=2))
    each = results.read(out)
    assert len(each) == 2
    assert result.metrics["AP50"] == (each[0].metrics["AP50"] + each[1].metrics["AP50"]) / 2
    return out


def test_a_trial_leaves_everything(whole: Path) -> None:
    folder = trial(whole)
    assert RunDirectory.open(folder).status["state"] == "finished"
    records = read_metrics(folder)
    assert [r["step"] for r in records if "loss" in r] == [1, 2, 3, 4]
    losses = {"loss_classifier", "loss_box_reg", "loss_mask", "loss_objectness", "loss_rpn_box_reg"}
    assert losses | {"lr"} <= set(records[0])
    assert {"AP", "AP50", "AP75", "mask AP", "11-point AP50", "all-points AP50"} <= set(records[-1])
    rows = json.loads((folder / "detections.json").read_text())
    assert all({"image_id", "category_id", "bbox", "score", "segmentation"} <= set(row) for row in rows)
    assert (folder / "detections.png").stat().st_size > 1000
    assert RunDirectory.open(folder).config["schedule"]["batch_size"] == 2


def test_trials_are_results_of_their_own_shown_as_mean_and_std(whole: Path) -> None:
    found = results.read(whole)
    assert [result.seed for result in found] == [0, 1]
    assert {result.protocol for result in found} == {"detection"}
    assert {result.settings["recipe"] for result in found} == {"small-c4"}
    assert {result.settings["precision"] for result in found} == {"32-true"}
    rows = {row.metric: row for row in results.summarize(found)}
    assert rows["AP50"].runs == 2
    assert rows["AP50"].std is not None
    assert "Mask R-CNN C4" in found[0].description
    assert "101-point" in found[0].description
    assert (
        last(trial(whole, 0))["network"]["rpn.head.cls_logits.weight"]
        .ne(last(trial(whole, 1))["network"]["rpn.head.cls_logits.weight"])
        .any()
    )


def test_stopped_and_resumed_is_never_stopped(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped between two checkpoints and resumed: the same weights and optimizer, bit for bit, the same metrics."""
    StopAt.step = 3
    monkeypatch.setattr(supervised, "GracefulStop", StopAt)
    with pytest.raises(TrainingStopped, match="the same command with --resume continues it"):
        detect(**tiny(tmp_path))
    assert results.read(tmp_path) == []
    assert RunDirectory.open(trial(tmp_path)).status["state"] == "interrupted"
    StopAt.step = 0
    result = detect(**tiny(tmp_path, resume=True))
    assert_same(last(trial(tmp_path)), last(trial(whole)))
    assert read_metrics(trial(tmp_path)) == read_metrics(trial(whole))
    assert result.metrics == results.read(whole)[0].metrics


def test_a_finished_trial_stays_as_it_is(whole: Path) -> None:
    before = (trial(whole) / "metrics.jsonl").stat().st_mtime_ns
    before_metrics = [result.metrics for result in results.read(whole)]
    detect(**tiny(whole, trials=2, resume=True))
    assert [result.seed for result in results.read(whole)] == [0, 1]
    assert [result.metrics for result in results.read(whole)] == before_metrics
    assert (trial(whole) / "metrics.jsonl").stat().st_mtime_ns == before


def test_another_experiment_is_not_resumed(whole: Path) -> None:
    with pytest.raises(RunDirectoryError, match="already holds a run"):
        detect(**tiny(whole))
    with pytest.raises(RunDirectoryError, match=r"model\.regions was 8 .* and is 16 now"):
        detect(**tiny(whole, model=C4 | {"proposals": 10, "regions": 16}, resume=True))


def test_nan_fails_and_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="not finite"):
        detect(**tiny(tmp_path, lr=1e30))
    status = RunDirectory.open(trial(tmp_path)).status
    assert status["state"] == "failed"
    assert "not finite" in status["message"]


@pytest.mark.parametrize("layout", ["voc", "coco"])
def test_scenes_on_disk_in_both_layouts_from_the_command_line(layout: str, tmp_path: Path) -> None:
    """The FPN, accumulation, and a run folder to evaluate, in which the results end up."""
    held = "test" if layout == "voc" else "val"
    parts = [Scenes(6, 32, 0, split, "multiple", 3, cache=False) for split in ("train", held)]  # type: ignore[arg-type]
    data = tmp_path / "scenes"
    write(parts, data, layout)  # type: ignore[arg-type]
    run = run_folder(tmp_path / "run")
    model = [
        f"--model.{name}={json.dumps(value)}" for name, value in FPN.items() if name not in ("architecture", "masks")
    ]
    assert FPN["masks"] is True
    model.append("--model.masks")
    scales = [f"--scales.{name}={json.dumps(value)}" for name, value in SCALES.items()]
    arguments = ["evaluate", "detection", str(run), "--data", str(data), "--recipe", "small-fpn", *model, *scales]
    arguments += [
        "--iterations",
        "2",
        "--batch_size",
        "2",
        "--accumulate_grad_batches",
        "2",
        "--precise-bn",
        "1",
        "--workers",
        "0",
    ]
    arguments += ["--max_test_images", "4"]
    cli.main([*arguments, "--logging.loggers", "none", "--device", "cpu", "--logging.pictures", "0"])
    (result,) = results.read(run)
    assert "Mask R-CNN FPN" in result.description
    assert "2 iterations, batch 2" in result.description
    assert result.description.endswith("last iteration, 4 of the test images.")
    assert result.about["method"] == "mocov2"
    assert {"AP50", "mask AP50", "11-point AP50"} <= set(result.metrics)
    assert not any((run / "detection").rglob("detections.png"))


def test_bfloat16_and_evaluation_on_the_way(tmp_path: Path) -> None:
    options = tiny(tmp_path, precision="bf16-mixed", iterations=2, model=C4 | {"masks": False, "proposals": 10})
    options["logging"] = options["logging"] | {"eval_every": 1, "pictures": 0}
    result = detect(**options)
    assert [r["step"] for r in read_metrics(trial(tmp_path)) if "AP50" in r] == [1, 2]
    assert "mask AP" not in result.metrics


def test_two_processes(tmp_path: Path) -> None:
    """Each trains on its part of a batch and asks about its part of the images; the first counts and writes."""
    model = C4 | {"proposals": 10}
    options = tiny(tmp_path, devices=2, model=model, iterations=2, trials=2)
    code = f"from mixview.evaluate import evaluate; evaluate(protocol='detection', **{options!r})"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3]), "CUDA_VISIBLE_DEVICES": ""}
    (tmp_path / "go.py").write_text(code)
    done = subprocess.run([sys.executable, str(tmp_path / "go.py")], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Batch norm is synchronized over 2 processes: " in done.stderr
    assert [result.seed for result in results.read(tmp_path)] == [0, 1]
    found = json.loads((trial(tmp_path) / "detections.json").read_text())
    assert len({row["image_id"] for row in found}) <= 3


@pytest.mark.parametrize("name", recipes.names(detection=True))
def test_a_recipe_says_what_it_is_and_sets_what_can_be_set(name: str) -> None:
    recipe = recipes.read(name)
    assert set(recipe.about) == {"what", "cost", "paper"}
    text = recipes.text_of(name)
    assert text.startswith(f"# {recipe.about['what'].split(',')[0]}")
    assert f"--recipe {name.removeprefix('detection/')}" in text
    assert name not in recipes.names()
    with pytest.raises(ValueError, match="pass --out"):
        detect("random", recipe=name.removeprefix("detection/"), data="scenes")  # every setting was understood


def test_published_settings() -> None:
    voc = Detection.read_recipe("voc-c4")
    assert voc["schedule"] == {
        "iterations": 24000,
        "batch_size": 16,
        "lr": 0.02,
        "steps": [18000, 22000],
        "warmup": 100,
    }
    assert (voc["scales"]["train"][0], voc["scales"]["train"][-1], voc["scales"]["test"]) == (480, 800, 800)
    coco = Detection.read_recipe("coco-c4-2x")
    assert (coco["schedule"]["iterations"], coco["schedule"]["steps"]) == (180000, [120000, 160000])
    assert (coco["scales"]["train"][0], coco["scales"]["train"][-1], coco["model"]["masks"]) == (640, 800, True)


def test_the_papers_figures_stand_beside() -> None:
    def printed(
        protocol: str, metric: str, method: str = "mocov2", objective: str = "wbsim", epochs: str = "200"
    ) -> str:
        result = result_of(paper.PaperKey(method, objective, "cutmix", "1", epochs, protocol, metric))
        cell = paper.find(result, metric)
        return "nothing" if cell is None else f"{cell.printed} {cell.label}"

    assert printed("detection-voc-c4", "11-point AP50") == "83.0 T9"
    assert printed("detection-voc-c4", "11-point AP75", objective="bsim") == "64.0 T9"
    assert printed("detection-voc-c4", "11-point AP", epochs="800") == "58.3 T13"
    assert printed("detection-voc-c4", "AP50") == "nothing"  # at 101 points, and Detectron2 counts at 11
    assert printed("detection-coco-c4-2x", "AP") == "41.1 T10"
    assert printed("detection-coco-c4-2x", "mask AP50", method="byol") == "57.2 T10"
    assert printed("detection-small-c4", "AP50") == "nothing"
    assert printed("detection-voc-c4", "all-points AP50") == "nothing"


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="stages of a ResNet"):
        detect(**tiny(tmp_path / "a", backbone="tests.train.running:backbone", size=32))
    with pytest.raises(ValueError, match="at least 1"):
        Detection(encoder="random", trials=0).run()
    with pytest.raises(ValueError, match="there is no recipe detection/voc-c5: did you mean detection/voc-c4"):
        detect("random", recipe="voc-c5")
    with pytest.raises(ValueError, match="accumulate_grad_batches 3 is more than the 2 images"):
        detect(**tiny(tmp_path / "b", accumulate_grad_batches=3))
    np.savez(tmp_path / "x.npz", images=np.zeros((8, 8, 8, 3), np.uint8), labels=np.arange(8) % 2)
    arrays = str(tmp_path / "x.npz")
    with pytest.raises(ValueError, match="no boxes"):
        detect(**tiny(tmp_path / "c", data=arrays, test_data=arrays, data_options={}))
