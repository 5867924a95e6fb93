"""Do the detectors train on photographs? The subsets of VOC2007 and COCO: losses, average precision, pictures.

    MIXVIEW_DATA=… python benchmarks/detection_photographs.py [--only voc coco persons] [--out photographs]

voc and coco: the paper's protocols on a ResNet-18 from random initialization, shorter side 256, batches of 2, a few
hundred iterations: a check that everything runs, and no measure of quality. persons: the images of COCO that show
people, people being the only class, as a Mask R-CNN of an FPN: with one class this is enough for
something that can be seen in the picture. One core each; some ten minutes per line.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from mixview.runs.run_directory import read_metrics

SHOWN = ["--scales.train", "[256]", "--scales.test", "256", "--scales.longest", "480"]
C4 = ["--model.regions", "32", "--model.proposals", "50", "--model.pooled", "7", "--lr", "0.01"]
FPN = ["--model.anchors", "[16, 32, 64, 128, 256]", "--model.pooled", "7", "--lr", "5e-4"]
CASES = {
    "voc": ("voc-c4", C4, 300),
    "coco": ("coco-c4-2x", C4, 300),
    "persons": ("small-fpn", FPN, 800),
}
"""Protocol, changes to it, iterations."""
MEAN_OF = 50
"""Iterations at the beginning and at the end over which the loss is averaged."""
PRINTED = ("AP", "AP50", "11-point AP50", "mask AP", "mask AP50")


def write_persons(source: Path, folder: Path) -> None:
    """A COCO of the images that show people, and of nothing but people."""
    for split in ("train2017", "val2017"):
        known: dict[str, Any] = json.loads((source / "annotations" / f"instances_{split}.json").read_text())
        persons = [each for each in known["categories"] if each["name"] == "person"]
        found = [each for each in known["annotations"] if each["category_id"] == persons[0]["id"]]
        shown = {each["image_id"] for each in found if not each["iscrowd"]}
        known["categories"], known["annotations"] = persons, [each for each in found if each["image_id"] in shown]
        known["images"] = [each for each in known["images"] if each["id"] in shown]
        (folder / "annotations").mkdir(parents=True, exist_ok=True)
        (folder / "annotations" / f"instances_{split}.json").write_text(json.dumps(known))
        (folder / split).mkdir()
        for image in known["images"]:
            shutil.copy(source / split / image["file_name"], folder / split)


def train(name: str, data: Path, out: Path, iterations: int | None) -> None:
    """Train and evaluate one detector, and print what became of it."""
    recipe, changes, usual = CASES[name]
    command = [sys.executable, "-m", "mixview.cli", "evaluate", "detection", "random", "--recipe", recipe]
    command += ["--backbone", "resnet18", "--size", "224", "--data", str(data), "--out", str(out / name)]
    command += [
        "--batch_size",
        "2",
        "--iterations",
        str(iterations or usual),
        "--max_test_images",
        "100",
        "--precise-bn",
        "20",
    ]
    command += [*SHOWN, *changes, "--logging.log_every", "1", "--logging.loggers", "none", "--workers", "0"]
    if subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL).returncode:
        sys.exit(1)
    (picture,) = (out / name).glob("detection/*/detections.png")
    records = read_metrics(picture.parent)
    losses = [each["loss"] for each in records if "loss" in each]
    first, last = statistics.fmean(losses[:MEAN_OF]), statistics.fmean(losses[-MEAN_OF:])
    metrics = ", ".join(f"{metric} {records[-1][metric]:.2f}" for metric in PRINTED if metric in records[-1])
    print(f"{name}: {recipe}, {len(losses)} iterations of 2: loss {first:.2f} → {last:.2f}; {metrics}", flush=True)
    print(f"  look at {picture}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--iterations", type=int, help="another number of them, for all")
    parser.add_argument("--out", type=Path, default=Path("photographs"), help="must not exist")
    options = parser.parse_args()
    if "MIXVIEW_DATA" not in os.environ:
        sys.exit("the images are found through MIXVIEW_DATA: set it to the folder that has VOCdevkit and coco in it")
    source = Path(os.environ["MIXVIEW_DATA"])
    options.out.mkdir(parents=True)
    places = {"voc": source / "VOCdevkit", "coco": source / "coco", "persons": options.out / "coco-persons"}
    if "persons" in options.only:
        write_persons(source / "coco", places["persons"])
    for name in options.only:
        train(name, places[name], options.out, options.iterations)


if __name__ == "__main__":
    main()
