import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mixview.data.dataset import ImageDataset
from mixview.data.loader import EpochSampler
from mixview.data.sources.base import SourceError
from mixview.data.sources.coco import Coco
from mixview.data.synthetic.scenes import Scenes
from mixview.evaluate.detection.targets import (
    Annotated,
    Sample,
    align_classes,
    clean,
    flip,
    training_loader,
    with_objects,
)
from tests.evaluate.detection.tiny import objects


def test_crowds_are_left_out() -> None:
    found = clean(objects([[0, 0, 5, 5], [2, 2, 8, 8]], crowd=[True, False], classes=[0, 3]), 10, 10, masks=False)
    assert found["boxes"].tolist() == [[2, 2, 8, 8]]
    assert found["labels"].tolist() == [4]  # 0 is background


def test_boxes_are_clipped_and_those_outside_left_out() -> None:
    boxes = [[-3, -2, 5, 5], [8, 8, 20, 30], [12, 0, 20, 5], [-9, -9, 0, 0], [0, 0, 10, 10]]
    found = clean(objects(boxes), 10, 10, masks=False)
    assert found["boxes"].tolist() == [[0, 0, 5, 5], [8, 8, 10, 10], [0, 0, 10, 10]]
    assert clean(objects([[0, 0, 50, 50]]), 10, 20, masks=False)["boxes"].tolist() == [[0, 0, 20, 10]]  # a wide image


def test_boxes_without_area_are_left_out() -> None:
    boxes = [[1, 1, 1, 5], [1, 5, 4, 5], [4, 4, 2, 2], [np.nan, 0, 5, 5], [1, 1, 2, 2]]
    assert clean(objects(boxes), 10, 10, masks=False)["boxes"].tolist() == [[1, 1, 2, 2]]


def test_an_image_may_be_empty() -> None:
    found = clean(objects([]), 10, 12, masks=True)
    assert found["boxes"].shape == (0, 4)
    assert found["masks"].shape == (0, 10, 12)
    assert found["labels"].dtype == torch.int64
    everything_out = clean(objects([[0, 0, 5, 5]], crowd=[True]), 10, 12, masks=False)
    assert everything_out["boxes"].shape == (0, 4)


def test_masks_go_with_their_boxes() -> None:
    masks = np.zeros((3, 10, 10), np.bool_)
    masks[0, 1:3, 1:3] = masks[2, 5:9, 5:9] = True  # the second is empty
    found = clean(objects([[1, 1, 3, 3], [2, 2, 4, 4], [5, 5, 9, 9]], masks=masks), 10, 10, masks=True)
    assert found["boxes"].tolist() == [[1, 1, 3, 3], [5, 5, 9, 9]]
    assert found["masks"][1].sum() == 16
    with pytest.raises(SourceError, match="boxes and no masks"):
        clean(objects([[0, 0, 2, 2]]), 10, 10, masks=True)
    with pytest.raises(SourceError, match=r"12×10 pixels and its masks are 10×10"):
        clean(objects([[0, 0, 2, 2]], masks=masks[:1]), 10, 12, masks=True)


def test_a_flip_swaps_left_and_right() -> None:
    masks = torch.zeros(1, 4, 10, dtype=torch.uint8)
    masks[0, 1:3, 2:5] = 1
    sample = Sample(torch.arange(10).expand(3, 4, 10), {"boxes": torch.tensor([[2.0, 1.0, 5.0, 3.0]]), "masks": masks})
    flipped = flip(sample)
    assert flipped.target["boxes"].tolist() == [[5, 1, 8, 3]]
    rows, columns = flipped.target["masks"][0].nonzero().unbind(1)
    assert (columns.min(), columns.max() + 1, rows.min(), rows.max() + 1) == (5, 8, 1, 3)
    assert flipped.image[0, 0, 0] == 9
    again = flip(flipped)
    assert torch.equal(again.image, sample.image)
    assert torch.equal(again.target["boxes"], sample.target["boxes"])


def test_samples_are_the_same_with_any_number_of_workers() -> None:
    scenes = Scenes(8, 32, objects="multiple", cache=False)

    def all_samples(workers: int) -> list[Sample]:
        batches = EpochSampler(8, 2, seed=3)
        batches.set_epoch(2)
        loader = training_loader(scenes, batches, channels=3, masks=True, seed=3, workers=workers, pin_memory=False)
        return [sample for batch in loader for sample in batch]

    here, there = all_samples(0), all_samples(2)
    assert len(here) == len(there) == 8
    for one, other in zip(here, there, strict=True):
        assert torch.equal(one.image, other.image)
        assert all(torch.equal(one.target[key], other.target[key]) for key in ("boxes", "labels", "masks"))
    plain = Annotated(ImageDataset(scenes), masks=True, seed=3)
    flips = {not torch.equal(plain.sample(0, n).image, plain.sample(1, n).image) for n in range(8)}
    assert flips == {True, False}


def write_coco(root: Path, categories: list[int]) -> Path:
    """Four images, the last without objects; ids with gaps."""
    (root / "annotations").mkdir(parents=True)
    (root / "train2017").mkdir()
    images, annotations = [], []
    for number in range(4):
        Image.fromarray(np.full((20, 24, 3), 40 * number, np.uint8)).save(root / "train2017" / f"{number}.jpg")
        images.append({"id": 100 + 7 * number, "file_name": f"{number}.jpg", "height": 20, "width": 24})
        if number < 3:
            box = [2.0, 3.0, 10.0, 8.0]
            polygon = [[2.0, 3.0, 12.0, 3.0, 12.0, 11.0, 2.0, 11.0]]
            row = {"id": number + 1, "image_id": 100 + 7 * number, "category_id": categories[number], "bbox": box}
            annotations.append(row | {"area": 80.0, "iscrowd": 0, "segmentation": polygon})
    content = {
        "images": images,
        "annotations": annotations,
        "categories": [{"id": each, "name": f"kind {each}"} for each in sorted(set(categories))],
    }
    (root / "annotations" / "instances_train2017.json").write_text(json.dumps(content))
    return root


def test_categories_with_gaps_become_labels_without(tmp_path: Path) -> None:
    source = Coco(write_coco(tmp_path / "coco", [90, 1, 17]))
    samples = Annotated(ImageDataset(source), masks=True, seed=0)
    labels = [samples.sample(0, number).target["labels"].tolist() for number in range(4)]
    assert labels == [[3], [1], [2], []]
    assert source.objects(0).areas.tolist() == [80.0]  # type: ignore[union-attr]


def test_images_without_objects_can_be_left_out(tmp_path: Path) -> None:
    source = Coco(write_coco(tmp_path / "coco", [90, 1, 17]))
    part, empty = with_objects(source)
    assert (len(part), empty) == (3, 1)
    assert with_objects(part) == (part, 0)


def test_classes_of_another_part_go_by_name() -> None:
    scenes = Scenes(4, 32, objects="multiple", classes=2, cache=False)
    assert align_classes(scenes, ("heart", "key", "star")).tolist() == [2, 0]
    with pytest.raises(SourceError, match="the class 'heart'"):
        align_classes(scenes, ("star", "key"))
