"""`mixview evaluate …`, from images and an encoder to a result on disk."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mixview.cli import main
from mixview.data.synthetic.scenes import Scenes
from mixview.data.synthetic.writers import write as write_layout
from mixview.evaluate import evaluate, evaluate_all, results, show
from mixview.evaluate.base import protocols
from mixview.evaluate.results import Result
from tests.evaluate.small_encoders import colors, run_folder

QUICK: dict[str, Any] = {"workers": 0, "device": "cpu"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three colors."""
    return colors(tmp_path_factory.mktemp("colors") / "set", 20, 8)


@pytest.fixture(scope="module")
def voc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scenes with several objects, as VOC."""
    root = tmp_path_factory.mktemp("voc") / "set"
    write_layout([Scenes(40, 16, 0, split, "multiple") for split in ("train", "test")], root, "voc")  # type: ignore[arg-type]
    return next(root.rglob("ImageSets")).parent


def run(protocol: str, encoder: str, data: Path, **options: Any) -> Result:
    return evaluate(encoder, protocol, data=str(data), **(QUICK | options))


def brute_force(folder: Path, k: int) -> float:
    """k-NN accuracy of raw pixels, image by image."""

    def read(split: str) -> list[tuple[np.ndarray, str]]:
        mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
        files = sorted((folder / split).rglob("*.png"))
        return [
            (((np.asarray(Image.open(file)) / 255 - mean) / std).transpose(2, 0, 1).ravel(), file.parent.name)
            for file in files
        ]

    bank, right = read("train"), 0
    for query, truth in read("val"):
        near = sorted(bank, key=lambda each: -each[0] @ query / math.sqrt((each[0] @ each[0]) * (query @ query)))[:k]
        votes: dict[str, float] = {}
        for features, label in near:
            cosine = features @ query / math.sqrt((features @ features) * (query @ query))
            votes[label] = votes.get(label, 0.0) + math.exp(cosine / 0.07)
        right += max(votes, key=lambda label: votes[label]) == truth
    return 100 * right / len(read("val"))


def test_knn_of_pixels_is_a_brute_force_loop(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run("knn", "pixels", folder, k=5)
    assert result.metrics == {"top-1": pytest.approx(brute_force(folder, 5))}
    assert result.description == (
        "the 5 nearest training images by cosine vote with exp(cosine / 0.07), features of a center crop of 20 pixels."
    )
    text = capsys.readouterr().out
    assert "raw pixels" in text
    assert "results not saved: pass --out FOLDER" in text


def test_results_are_kept_in_the_run_and_seeds_averaged(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run_folder(tmp_path / "first")
    result = run("linear", str(path), folder, fast=True)
    (kept,) = results.read(path)
    assert kept.metrics == result.metrics
    assert kept.settings["fast"]
    assert kept.about["method"] == "mocov2"
    assert kept.details["data"]["train"].startswith("60 images")
    assert "fast mode" in kept.description
    run("linear", str(path), folder, fast=True, seed=1)
    text = capsys.readouterr().out
    assert "Together with earlier results:" in text
    assert "±" in text
    assert "paper" not in text  # whose numbers are of other images
    show([str(path)])
    assert "mocov2 bsim" in capsys.readouterr().out
    with pytest.raises(ValueError, match="there are no results in"):
        show([str(tmp_path)])


def test_the_two_fast_solvers(folder: Path) -> None:
    optimum = run("linear", "small", folder, fast=True, size=16)
    assert optimum.metrics["top-1"] > 90
    assert "optimum of multinomial logistic regression" in optimum.description
    descent = run("linear", "small", folder, fast=True, solver="sgd", epochs=10, size=16)
    assert "fast mode" in descent.description
    assert "10 epochs" in descent.description
    with pytest.raises(ValueError, match="the optimum, which has no epochs"):
        run("linear", "small", folder, fast=True, epochs=10)


def test_everything_that_labels_allow(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run_folder(tmp_path / "first")
    found = evaluate_all(str(path), data=str(folder), epochs=1, batch_size=30, **QUICK)
    others = ("segmentation", "detection")
    assert [result.protocol for result in found] == [each.name for each in protocols() if each.name not in others]
    text = capsys.readouterr().out
    assert "left out detection: it needs boxes and a recipe" in text
    assert "left out segmentation: it needs a class for every pixel, and the training images of" in text
    assert text.count("left out") == 2
    assert len(results.read(path)) == 7
    by_name = {result.protocol: result for result in found}
    assert list(by_name["semi-supervised"].metrics) == ["1 % top-1", "10 % top-1"]
    assert by_name["semi-supervised"].details["images"] == {"1 %": 3, "10 %": 6}
    assert list(by_name["probe"].metrics)[-1] == "avgpool top-1"
    assert "mAP" in by_name["svm"].metrics
    assert "trained from scratch" in by_name["supervised"].description
    assert all(0 <= value <= 100 for result in found for value in result.metrics.values())
    assert all(math.isfinite(value) for result in found for value in result.std.values())


def test_everything_of_pixels_leaves_out_what_has_to_be_trained(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = evaluate_all("pixels", data=str(folder), fast=True, skip=["low-shot"], **QUICK)
    assert [result.protocol for result in found] == ["knn", "svm", "linear"]
    text = capsys.readouterr().out
    assert "left out low-shot: skipped" in text
    assert "left out probe: --fast trains nothing on images" in text
    assert "left out semi-supervised:" in text
    with pytest.raises(ValueError, match="there is no protocol 'svn' to skip: did you mean svm"):
        evaluate_all("pixels", data=str(folder), skip=["svn"])
    with pytest.raises(ValueError, match="semi-supervised cannot be used: raw pixels have no network to train"):
        run("semi-supervised", "pixels", folder)


def test_label_sets_are_for_svms_and_masks_for_segmentation(voc: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = evaluate_all("small", data=str(voc), fast=True, **QUICK)
    assert [result.protocol for result in found] == ["svm", "low-shot", "segmentation"]
    assert "left out knn: it needs one class per image, and the images of" in capsys.readouterr().out
    with pytest.raises(ValueError, match="knn cannot be used: it needs one class per image"):
        run("knn", "small", voc)
    notes = " ".join(found[1].notes)
    assert "fewer than 96 positives, all of which were drawn" in notes
    assert found[0].settings["fit"]["folds"] == 3
    json.dumps(found[0].details)


def test_notes_of_one_protocol_are_not_those_of_another(voc: Path) -> None:
    svm, low_shot = evaluate_all("pixels", data=str(voc), fast=True, **QUICK)
    assert "fewer than 96 positives" in " ".join(low_shot.notes)
    assert "fewer than 96 positives" not in " ".join(svm.notes)
    assert sum("the features are its output" in note for note in low_shot.notes) == 1


def relabel(voc: Path, split: str, name: str, change: dict[int, str]) -> None:
    """Change what the file of a class says of some images."""
    file = next((voc / "ImageSets" / "Main").glob(f"{name}_{split}.txt"))
    lines = file.read_text().splitlines()
    for place, presence in change.items():
        lines[place] = f"{lines[place].split()[0]} {presence}"
    file.write_text("\n".join(lines) + "\n")


def test_difficult_empty_and_absent(voc: Path, tmp_path: Path) -> None:
    copy = tmp_path / "VOC2007"
    shutil.copytree(voc, copy)
    names = sorted(file.stem.removesuffix("_test") for file in (copy / "ImageSets" / "Main").glob("*_test.txt"))
    for name in names:
        relabel(copy, "trainval", name, {0: "-1"})  # an image of nothing
        relabel(copy, "test", name, {1: "-1"})
    relabel(copy, "test", names[0], dict.fromkeys(range(40), "-1"))  # absent from test
    relabel(copy, "trainval", names[1], {3: "0", 4: "0"})
    relabel(copy, "test", names[1], {5: "0"})
    result = run("svm", "small", copy)
    assert result.details["AP"][0] is None
    assert f"No test image shows {names[0]}" in " ".join(result.notes)
    assert f"mean over {len(names) - 1} classes" in result.description
    ignoring = run("svm", "small", copy, difficult="ignored")
    assert "difficult objects ignored in training" in ignoring.description
    assert ignoring.metrics != result.metrics


def test_stages_and_transforms_of_the_svm(voc: Path) -> None:
    res5 = run("svm", "small", voc)
    assert "features res5 (512-d), whole image squashed to 16×16 pixels" in res5.description
    res4 = run("svm", "small", voc, stage="res4", resize="crop")
    assert "features res4 (576-d), center crop of 16 pixels" in res4.description
    pixels = run("svm", "pixels", voc)
    assert "the features are its output (avgpool)" in " ".join(pixels.notes)


def test_semi_takes_a_list_of_files(folder: Path, tmp_path: Path) -> None:
    chosen = tmp_path / "some.txt"
    chosen.write_text("".join(f"{name}/00{number}.png\n" for name in ("red", "green", "blue") for number in range(4)))
    result = run("semi-supervised", "small", folder, files=[str(chosen)], epochs=1, size=16)
    assert result.details["images"] == {"some": 12}
    assert "given lists" in result.description


def test_an_image_that_cannot_be_read_is_left_out_by_name(tmp_path: Path) -> None:
    root = colors(tmp_path / "set", 6, 3)
    (root / "val" / "red" / "001.png").write_bytes(b"no image")
    result = run("knn", "pixels", root)
    assert "1 test images cannot be read and are left out: red/001.png." in result.notes


def test_the_same_command_gives_the_same_figures(folder: Path) -> None:
    once, again = (run("linear", "small", folder, epochs=2, batch_size=16, size=16, seed=3) for _ in range(2))
    assert once.metrics == again.metrics
    assert once.file_name() == again.file_name()


def test_a_checkpoint_that_does_not_fit_is_one_sentence(folder: Path, tmp_path: Path) -> None:
    torch.save({"state_dict": {"module.encoder_q.conv1.weight": torch.rand(3, 3)}}, tmp_path / "x.pth")
    with pytest.raises(SystemExit) as caught:
        main(["evaluate", "knn", str(tmp_path / "x.pth"), "--data", str(folder)])
    assert str(caught.value.code).startswith(f"mixview: {tmp_path}/x.pth fits none of resnet50, resnet18")


def test_on_the_command_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--data", str(folder), "--workers", "0", "--out", str(tmp_path / "out")]
    main(["evaluate", "linear", "pixels", "--fast", *arguments])
    assert "raw pixels" in capsys.readouterr().out
    main(["evaluate", "show", str(tmp_path / "out"), str(tmp_path / "out")])
    assert "linear" in capsys.readouterr().out
    with pytest.raises(SystemExit) as caught:
        main(["evaluate", "knn", "pixels"])
    assert caught.value.code == "mixview: no evaluation data: pass labeled images as --data (scenes, to try it out)"


@pytest.mark.parametrize("command", ["linear", "low-shot", "all"])
def test_help_teaches_in_80_columns(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as caught:
        main(["evaluate", command, "--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "A run's folder, a file of weights" in " ".join(text.split())
