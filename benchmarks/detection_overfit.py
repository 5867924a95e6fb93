"""Do masks lie where the objects are, on photographs? A Mask R-CNN overfits a few images of COCO.

    MIXVIEW_DATA=… python benchmarks/detection_overfit.py [--recipe small-fpn] [--images 8] [--iterations 640]

Images of one to three large objects, trained and evaluated on: ResNet-18 from random initialization, shorter side
256, batches of 2. A check of coordinates, boxes and masks from the file to the picture, and no measure of quality. Ten
minutes of a core, twenty with C4.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

RECIPES = {
    "small-fpn": ["--model.anchors", "[16, 32, 64, 128, 256]", "--lr", "1e-3"],
    "coco-c4-2x": ["--model.regions", "32", "--model.proposals", "50", "--model.pooled", "7", "--lr", "0.01"],
}
"""Further options of each recipe."""
LARGE = 0.08
"""The least share of an image that each of its objects covers."""


def choose(known: dict[str, Any], count: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The first images of few and large objects, and their annotations."""
    objects: dict[int, list[dict[str, Any]]] = {}
    for each in known["annotations"]:
        objects.setdefault(each["image_id"], []).append(each)
    images = []
    for image in known["images"]:
        mine, area = objects.get(image["id"], []), image["width"] * image["height"]
        if 1 <= len(mine) <= 3 and not any(each["iscrowd"] or each["area"] < LARGE * area for each in mine):
            images.append(image)
    return images[:count], [each for image in images[:count] for each in objects[image["id"]]]


def write(source: Path, folder: Path, count: int) -> None:
    """A COCO of `count` images, the same ones to train on and to test on."""
    known = json.loads((source / "annotations" / "instances_train2017.json").read_text())
    images, annotations = choose(known, count)
    content = json.dumps({"images": images, "annotations": annotations, "categories": known["categories"]})
    (folder / "annotations").mkdir(parents=True)
    for split in ("train2017", "val2017"):
        (folder / split).mkdir()
        (folder / "annotations" / f"instances_{split}.json").write_text(content)
        for image in images:
            shutil.copy(source / "train2017" / image["file_name"], folder / split)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", choices=RECIPES, default="small-fpn")
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=640)
    parser.add_argument("--out", type=Path, default=Path("by-heart"), help="must not exist")
    options = parser.parse_args()
    if "MIXVIEW_DATA" not in os.environ:
        sys.exit("the images are found through MIXVIEW_DATA: set it to the folder that has coco in it")
    data = options.out / "coco"
    write(Path(os.environ["MIXVIEW_DATA"]) / "coco", data, options.images)
    command = [sys.executable, "-m", "mixview.cli", "evaluate", "detection", "random", "--recipe", options.recipe]
    command += ["--backbone", "resnet18", "--size", "224", "--data", str(data), "--out", str(options.out)]
    command += ["--batch_size", "2", "--iterations", str(options.iterations), "--workers", "0", "--precise-bn", "20"]
    command += ["--scales.train", "[256]", "--scales.test", "256", "--scales.longest", "480"]
    command += RECIPES[options.recipe]
    if subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}).returncode:
        sys.exit(1)
    for picture in options.out.glob("detection/*/detections.png"):
        print(f"Look at {picture}")


if __name__ == "__main__":
    main()
