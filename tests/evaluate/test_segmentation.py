"""A linear layer on patch features: the metric, the crops, the windows, and what is learned from masks."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torchmetrics.classification import MulticlassJaccardIndex

from mixview.data.augment.policies import Normalize
from mixview.data.dataset import ImageDataset
from mixview.data.sources.base import IGNORED, ClassMap, Source, SourceError
from mixview.data.synthetic.scenes import Scenes
from mixview.encoders.loading import LoadedEncoder
from mixview.evaluate import evaluate, evaluate_all
from mixview.evaluate.base import Protocol, TrainingStopped, build
from mixview.evaluate.results import Result, read
from mixview.evaluate.segmentation import (
    SCHEDULE,
    SegmentedImages,
    SegmentedViews,
    Windows,
    choose_crop,
    confuse,
    merge_windows,
    nearest,
    score,
    segmentation_loss,
    starts,
)
from tests.evaluate.small_encoders import SIZE, Means, run_folder

SCENES = {"data": "scenes", "data_options": {"count": 24, "size": 32}, "workers": 0, "device": "cpu", "size": 32}


def test_published_settings() -> None:
    assert (SCHEDULE.epochs, SCHEDULE.batch_size, SCHEDULE.lr, SCHEDULE.weight_decay) == (60, 16, 1e-3, 1e-4)
    assert [SCHEDULE.lr_factor(60 * step / 40000) for step in (0, 750, 1500, 20000, 40000)] == pytest.approx(
        [0, 0.5 * (1 - 750 / 40000), 1 - 1500 / 40000, 0.5, 0]
    )
    assert isinstance(SCHEDULE.build_optimizer([torch.nn.Parameter(torch.zeros(2))]), torch.optim.AdamW)


@pytest.mark.parametrize("present", [5, 3])
def test_the_metric_is_that_of_torchmetrics(present: int) -> None:
    """Over several images, with pixels that do not count, and classes that neither occur nor are predicted."""
    generator = torch.Generator().manual_seed(0)
    metric = MulticlassJaccardIndex(num_classes=5, ignore_index=IGNORED, average="macro")
    each = MulticlassJaccardIndex(num_classes=5, ignore_index=IGNORED, average="none")
    confusion = torch.zeros(5, 5, dtype=torch.long)
    for _ in range(3):
        classes = torch.randint(IGNORED, present, (9, 7), generator=generator)
        scores = torch.rand(5, 9, 7, generator=generator)
        scores[present:] = 0
        confusion += confuse(scores, classes)
        metric.update(scores.argmax(0)[None], classes[None])
        each.update(scores.argmax(0)[None], classes[None])
    names = tuple("abcde")
    metrics, per_class = score(confusion, names)
    assert metrics["mIoU"] == pytest.approx(float(metric.compute()), abs=1e-6)
    assert per_class == pytest.approx(dict(zip(names[:present], each.compute().tolist(), strict=False)), abs=1e-6)
    assert metrics["pixel accuracy"] == pytest.approx(float(confusion.trace() / confusion.sum()))


def test_no_pixel_with_a_class_is_an_error() -> None:
    with pytest.raises(ValueError, match="no pixel of the test images has a class: provide masks"):
        score(torch.zeros(2, 2, dtype=torch.long), ("background", "star"))
    scores = torch.zeros(1, 2, 2, 2)
    assert float(segmentation_loss(scores, torch.full((1, 4, 4), IGNORED))) == 0  # a crop within an outline


class Bars(Source):
    """Images of another size than their windows: gray says the class, the left edge is unknown."""

    kind = "bars"
    classes = ("light",)

    def __init__(self, height: int = 20, width: int = 30) -> None:
        self.shape = (height, width)

    def __len__(self) -> int:
        return 2

    def read(self, index: int) -> np.ndarray:
        return np.repeat(np.where(self.class_map(index) == 1, 200, 40).astype(np.uint8)[:, :, None], 3, axis=2)

    def name(self, index: int) -> str:
        return f"bars-{index}"

    def fingerprint(self) -> str:
        return "bars"

    def segmentation(self) -> Source:
        return self

    def class_map(self, index: int) -> ClassMap:
        classes = np.zeros(self.shape, np.int16)
        classes[:, self.shape[1] // (2 + index) :] = 1
        return classes


def test_crops_and_labels_stay_together_and_are_repeatable() -> None:
    """The gray of every pixel says its class: a flip or a crop of only one of the two would show."""
    bars = Bars()
    numbers = np.array([0, 1, IGNORED], np.int16)
    views = SegmentedViews(ImageDataset(bars), SegmentedImages(bars, numbers), SIZE, Normalize((0,) * 3, (1,) * 3), 0)
    keys = [(epoch, index) for epoch in range(20) for index in range(2)]
    images, labels = views.__getitems__(keys)
    assert images.shape == (40, 3, SIZE, SIZE)
    assert labels.shape == (40, SIZE, SIZE)
    flipped = 0
    for image, classes in zip(images.mean(1), labels, strict=True):
        if len(classes.unique()) == 2:  # otherwise the crop was of one class only
            light, dark = image[classes == 1], image[classes == 0]
            assert light.median() > dark.median()
            flipped += int(classes[0, 0] == 1)
            agree = ((image > (light.median() + dark.median()) / 2) == (classes == 1)).float().mean()
            assert agree > 0.9, agree
    assert 5 < flipped < 35
    again, same = views.__getitems__(keys)
    assert torch.equal(images, again)
    assert torch.equal(labels, same)
    assert not torch.equal(images[0], images[2])


def test_crops_are_a_third_to_all_of_the_shorter_side_and_avoid_a_single_class() -> None:
    classes = np.zeros((40, 60), np.int16)
    classes[:, 30:] = 1
    mixed = []
    for seed in range(200):
        top, left, side = choose_crop(classes, torch.Generator().manual_seed(seed))
        assert 40 / 3 - 1 <= side <= 40
        assert 0 <= top <= 40 - side
        assert 0 <= left <= 60 - side
        share = (classes[top : top + side, left : left + side] == 1).mean()
        mixed.append(0.25 < share < 0.75)
    assert np.mean(mixed) > 0.9


def test_windows_cover_the_image_and_their_scores_are_averaged() -> None:
    assert starts(32, 32) == [0]
    assert starts(43, 32) == [0, 11]
    assert starts(70, 32) == [0, 16, 32, 38]
    corners = [(0, 0), (0, 4)]
    windows = Windows(torch.zeros(2, 3, 8, 8), corners, 8, 12, torch.zeros(8, 12, dtype=torch.long), 0)
    scores = torch.stack([torch.zeros(1, 2, 2), torch.ones(1, 2, 2)])
    merged = merge_windows(scores, windows, 8)
    assert merged.shape == (1, 8, 12)
    assert merged[0, 0].tolist() == [0] * 4 + [0.5] * 4 + [1] * 4


def test_nearest_takes_the_class_at_the_center() -> None:
    classes = np.arange(12, dtype=np.int16).reshape(3, 4)
    assert nearest(classes, 3, 4).tolist() == classes.tolist()
    assert nearest(classes, 6, 8).tolist() == classes.repeat(2, 0).repeat(2, 1).tolist()
    assert nearest(classes, 1, 2).tolist() == [[5, 7]]


class Colors(Means):
    """Each pixel is a patch, and its color the feature: what segments colors perfectly."""

    num_prefix_tokens = 0

    def forward_features(self, images: Tensor) -> Tensor:
        return images


def colorful(root: Path, split: str, count: int) -> None:
    """COCO of red and green rectangles on gray, as polygons, with a photograph's aspect ratio."""
    folder = root / f"{split}2017"
    folder.mkdir(parents=True)
    generator = np.random.default_rng(len(split))
    images, annotations = [], []
    for number in range(count):
        pixels = np.full((20, 28, 3), 128, np.uint8)
        images.append({"id": number, "file_name": f"{number}.png", "height": 20, "width": 28})
        for category in range(2):
            left, top = int(generator.integers(0, 8)) + 14 * category, int(generator.integers(0, 10))
            pixels[top : top + 10, left : left + 6] = [230, 20, 20] if category == 0 else [20, 230, 20]
            ring = [left, top, left + 6, top, left + 6, top + 10, left, top + 10]
            box = [left, top, 6, 10]
            annotations.append({"image_id": number, "category_id": category, "bbox": box, "segmentation": [ring]})
        Image.fromarray(pixels).save(folder / f"{number}.png")
    (root / "annotations").mkdir(exist_ok=True)
    categories = [{"id": 0, "name": "red"}, {"id": 1, "name": "green"}]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (root / "annotations" / f"instances_{split}2017.json").write_text(json.dumps(content))


@pytest.fixture(scope="module")
def coco(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("coco")
    colorful(root, "train", 12)
    colorful(root, "val", 6)
    return root


@pytest.mark.parametrize("fast", [True, False])
def test_colors_are_segmented(
    fast: bool, coco: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Features that say the class give (nearly) all pixels theirs, at the resolution of the labels."""
    loaded = LoadedEncoder(Colors().eval(), "colors", SIZE, 3, 3)
    monkeypatch.setattr(Protocol, "load_for", lambda *_: loaded)
    options: dict[str, Any] = {"data": str(coco), "workers": 0, "device": "cpu", "out": str(tmp_path)}
    result = evaluate("colors", "segmentation", fast=fast, epochs=40, lr=0.1, **options)
    assert result.metrics["mIoU"] > 80, result.metrics
    assert result.metrics["pixel accuracy"] > 90
    assert list(result.details["IoU"]) == ["background", "red", "green"]
    assert np.mean(list(result.details["IoU"].values())) == pytest.approx(result.metrics["mIoU"])
    assert "12 training and 6 test images with masks" in result.description
    assert ("fast mode" in result.description) == fast
    assert "mIoU" in capsys.readouterr().out
    assert [each.metrics for each in read(tmp_path)] == [result.metrics]


def test_a_vit_and_a_stage_of_a_resnet(tmp_path: Path) -> None:
    found: list[Result] = [
        evaluate("small-vit", "segmentation", fast=True, epochs=1, out=str(tmp_path), **SCENES),
        evaluate("small", "segmentation", fast=True, epochs=1, stage="res3", out=str(tmp_path), **SCENES),
    ]
    for result in found:
        assert 0 < result.metrics["mIoU"] < result.metrics["pixel accuracy"] < 100
    assert "maps of res3" in found[1].description


def test_a_stopped_training_resumes(tmp_path: Path, coco: Path) -> None:
    options = {"data": str(coco), "workers": 0, "device": "cpu", "epochs": 2, "batch_size": 6}
    run = run_folder(tmp_path / "run")
    with pytest.raises(TrainingStopped, match="--resume continues it"):
        build("segmentation", {"encoder": str(run), "max_time": "0.001s", **options}).run()
    resumed = evaluate(str(run), "segmentation", resume=True, max_time=None, **options)
    whole = evaluate(str(run), "segmentation", out=str(tmp_path / "other"), **options)
    assert resumed.metrics == whole.metrics
    again = evaluate(str(run), "segmentation", resume=True, **options)  # what is finished stays
    assert again.details == resumed.details


def test_all_runs_it_where_there_are_masks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    skip = ["knn", "linear", "svm", "low-shot"]
    found = evaluate_all("small", fast=True, skip=skip, out=str(tmp_path), epochs=None, **SCENES)
    assert [each.protocol for each in found] == ["segmentation"]
    assert "left out segmentation" not in capsys.readouterr().out


def test_images_without_masks(tmp_path: Path) -> None:
    for split in ("train", "val"):
        for name in ("red", "green"):
            (tmp_path / split / name).mkdir(parents=True)
            Image.new("RGB", (20, 20), name).save(tmp_path / split / name / f"{split}.png")
    with pytest.raises(ValueError, match="needs a class for every pixel, and the training images of"):
        evaluate("small", "segmentation", data=str(tmp_path), workers=0, device="cpu", size=16)
    with pytest.raises(ValueError, match="Pixels has no patch features that mixview can find: use a ResNet or a ViT"):
        evaluate("pixels", "segmentation", **SCENES)
    with pytest.raises(SourceError, match=r"the mask of bars-0 is of 30×20 pixels, and the image of 31×20"):
        SegmentedImages(Bars(), np.array([0, 1, IGNORED], np.int16)).class_map(0, 20, 31)


def test_classes_of_the_test_split_are_those_of_the_training_split(tmp_path: Path) -> None:
    colorful(tmp_path, "train", 6)
    colorful(tmp_path, "val", 4)
    path = tmp_path / "annotations" / "instances_val2017.json"
    content = json.loads(path.read_text())
    for each in content["categories"] + content["annotations"]:  # the same names, numbered the other way round
        key = "id" if "name" in each else "category_id"
        each[key] = 1 - each[key]
    path.write_text(json.dumps(content))
    context = build("segmentation", {"encoder": "small", "data": str(tmp_path), "workers": 0, "size": 16}).open()
    from mixview.evaluate.segmentation import segmented_images

    splits = segmented_images(context)
    assert splits.classes == ("background", "red", "green")
    for part in (splits.train, splits.test):
        pixels = np.asarray(Image.open(tmp_path / part.source.name(0)))
        classes = part.class_map(0, 20, 28)
        assert (pixels[classes == 1] == [230, 20, 20]).all()
        assert (pixels[classes == 2] == [20, 230, 20]).all()
    content["categories"][0]["name"] = "blue"
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="has the class 'blue', which the training split lacks"):
        segmented_images(build("segmentation", {"encoder": "small", "data": str(tmp_path), "size": 16}).open())


def test_scenes_have_a_class_for_every_pixel() -> None:
    scenes = Scenes(4, 32, objects="multiple", cache=False)
    for index in range(4):
        objects, classes = scenes.objects(index), scenes.class_map(index)
        assert objects.masks is not None
        assert ((classes > 0) == objects.masks.any(0)).all()
        for mask, number in zip(objects.masks, objects.classes, strict=True):
            assert (classes[mask] == number + 1).all()
