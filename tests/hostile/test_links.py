"""Links in foreign folders, predictable names, paths that lead outside (items 4 to 6)."""

import base64
import os
from pathlib import Path

import numpy as np
import pytest
import yaml  # type: ignore[import-untyped, unused-ignore]

from tests.hostile.conftest import PRETRAIN
from tests.hostile.harness import Sandbox, sometimes
from tests.hostile.writing import SMALL, STUDY, scenes, write_photos

FILES = (
    ".lock",
    "views.png",
    "encoder.safetensors",
    "status.json",
    "metrics.jsonl",
    "config.yaml",
    "environment.json",
    "data.json",
    "images.npz",
)
FOLDERS = ("checkpoints", "tensorboard", "evaluations")
RESUME = ("pretrain", "--resume", "--out", "run", "--epochs", "2")


def redirect(path: Path, target: Path) -> None:
    """A link in the place of a file or folder, which holds what was there."""
    if path.exists():
        target.write_bytes(path.read_bytes())
        path.unlink()
    path.symlink_to(target)


@pytest.mark.parametrize("name", FILES)
def test_a_link_to_a_file_in_a_foreign_run(name: str, box: Sandbox, run: Path) -> None:
    redirect(run / name, box.canary / "precious.txt")
    box.run(*RESUME, writes=["run"]).answered()


@pytest.mark.parametrize("name", FOLDERS)
def test_a_link_to_a_folder_in_a_foreign_run(name: str, box: Sandbox, run: Path) -> None:
    if (run / name).exists():
        for path in (run / name).iterdir():
            path.rename(box.canary / "inner" / path.name)
        (run / name).rmdir()
    (run / name).symlink_to(box.canary / "inner")
    command = ("evaluate", "knn", "run", *SMALL, *scenes(32))
    box.run(
        *(command if name == "evaluations" else (*RESUME, "--monitor.loggers", "tensorboard")), writes=["run"]
    ).answered()


@pytest.mark.parametrize("name", [".lock", "config.yaml", "checkpoints", "encoder.safetensors", "evaluations"])
def test_a_dangling_link_in_a_new_run(name: str, box: Sandbox) -> None:
    (box.work / "out" / name).symlink_to(box.canary / "new")
    box.run(*PRETRAIN, "--out", "out").answered()


@pytest.mark.parametrize("name", [".lock", "status.json", "checkpoints"])
def test_a_hard_link_or_a_device_in_a_foreign_run(name: str, box: Sandbox, run: Path) -> None:
    if name == "checkpoints":
        for path in (run / name).iterdir():
            path.unlink()
        os.mkfifo(run / name / "step-2.pt")
    else:
        (run / name).unlink(missing_ok=True)
        os.mkfifo(run / name)
    box.run(*RESUME, writes=["run"]).answered()


def test_the_run_folder_itself_may_be_a_link(box: Sandbox, run: Path) -> None:
    """The user's own: a folder on a larger disk."""
    run.rename(box.work / "large")
    (box.work / "run").symlink_to("large")
    box.run(*RESUME, writes=["run", "large"]).succeeded()


def guessed(name: str, process: str) -> list[str]:
    """The names of temporary files that could be guessed before the process began."""
    return [f".{name}.{process}.mixview-tmp", f"{name}.tmp", f".{name}.tmp", f"{name}.{process}"]


def write_over_links(folder: str, canary: str) -> None:
    """Runs in a sandbox: write a file where every name that can be guessed leads to the canary."""
    from mixview.io.atomic import atomic_write

    target = Path(folder) / "status.json"
    for name in guessed("status.json", str(os.getpid())):
        (target.parent / name).symlink_to(Path(canary) / "precious.txt")
    with atomic_write(target) as file:
        file.write(b"{}")


def test_temporary_names_cannot_be_guessed(box: Sandbox) -> None:
    outcome = box.start(
        {
            "call": "tests.hostile.test_links:write_over_links",
            "options": {"folder": str(box.work / "out"), "canary": str(box.canary)},
        },
        ["write"],
    )
    outcome.succeeded()


@pytest.mark.parametrize("command", ["report", "embed", "figure", "export", "data-show", "neighbors"])
def test_a_link_where_a_command_writes(command: str, box: Sandbox, run: Path) -> None:
    """The user names a folder that somebody else has put links into."""
    names = {
        "report": "a.html",
        "embed": "a.npy",
        "figure": "a.png",
        "export": "model.pth",
        "data-show": "a.png",
        "neighbors": "a.png",
    }
    (box.work / "out" / names[command]).symlink_to(box.canary / "precious.txt")
    lines = {
        "report": ("report", "run", "--out", "out/a.html", *SMALL),
        "embed": ("embed", "pixels", *scenes(8), "--out", "out/a.npy", *SMALL),
        "figure": ("figure", "beta", "run", "--out", "out/a"),
        "export": ("export", "run", "--format", "torchvision", "--out", "out"),
        "data-show": ("data", "show", "scenes", "--count", "2", "--out", "out/a.png"),
        "neighbors": ("neighbors", "pixels", *scenes(8), "--find", "outliers", "--out", "out/a.png", *SMALL),
    }
    box.run(*lines[command], writes=["out", "run"]).answered()


LABELS = (
    "../../canary/x",
    "../escaped",
    "/proc/mixview-escaped",
    "..",
    ".",
    "a/b",
    "a\\b",
    "con",
    "x" * 300,
    "\x00",
    "-rf",
    "$(id)",
    "a\nb",
)


@pytest.mark.parametrize("axis", ["data", "methods", "objectives", "evaluate"])
@pytest.mark.parametrize("label", sometimes(LABELS, LABELS[:4]), ids=lambda label: ascii(label)[:20])
def test_labels_of_a_study_that_lead_outside(label: str, axis: str, box: Sandbox) -> None:
    first = next(iter(STUDY[axis].values()))
    study = STUDY | {axis: {label: first}} | ({"baseline": label} if axis == "objectives" else {})
    box.write("study/a/study.yaml", yaml.safe_dump(study))
    box.run("study", "show", "study", writes=["study"]).answered()
    written = [path for path in box.folder.rglob("*") if path.suffix in (".svg", ".png", ".md", ".html")]
    assert all((box.work / "study") in path.parents for path in written)


PICTURES = (
    "![x](../secret.txt)",
    "![x](../../canary/precious.txt)",
    "![x](/etc/passwd)",
    "![x](file:///etc/passwd)",
    "<img src='../secret.txt'>",
    "![x](http://127.0.0.1:1/x.png)",
    "[![x](../secret.txt)](x)",
    "![x][r]\n\n[r]: ../secret.txt",
    "<script>alert(1)</script>",
    "[x](javascript:alert(1))",
)


@pytest.mark.parametrize("picture", sometimes(PICTURES, PICTURES[:3] + PICTURES[-2:]), ids=lambda text: text[:22])
@pytest.mark.parametrize("where", ["about", "label"])
def test_pictures_and_scripts_in_the_text_of_a_study(where: str, picture: str, box: Sandbox) -> None:
    secret = "a secret of the user's that is on no page"
    box.write("secret.txt", secret)
    study = STUDY | (
        {"about": {"what": picture, "cost": picture}}
        if where == "about"
        else {"objectives": {picture: {"objective": "sim"}}, "baseline": picture}
    )
    box.write("study/a/study.yaml", yaml.safe_dump(study))
    box.run("study", "show", "study", writes=["study"]).answered()
    page = box.work / "study" / "results.html"
    text = page.read_text() if page.exists() else ""
    assert secret not in text
    for hidden in (secret, "precious", "root:x:0"):
        for shift in range(3):  # as base64, wherever it begins
            inner = base64.b64encode(b"x" * shift + hidden.encode()).decode().rstrip("=")[4 * bool(shift) : -2]
            assert inner not in text
    assert "<script>alert" not in text
    assert 'href="javascript:' not in text


ADDRESSES = ("http://127.0.0.1:9/x-{000..009}.tar", "https://example.invalid/x.tar", "http://localhost:9/x.tar")


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("command", ["report", "figure-tsne", "evaluate-show"])
def test_the_address_in_a_foreign_run_is_not_fetched(command: str, address: str, box: Sandbox, run: Path) -> None:
    config = yaml.safe_load((run / "config.yaml").read_text())
    config |= {"data": address, "validation": address, "data_options": {"retries": 0, "timeout": 1}}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    lines = {
        "report": ("report", "run", "--out", "out/a.html", *SMALL),
        "figure-tsne": ("figure", "tsne-classes", "run", "--out", "out/a"),
        "evaluate-show": ("evaluate", "show", "run"),
    }
    box.run(*lines[command], writes=["out", "run"]).answered()


@pytest.mark.parametrize("command", ["report", "resume"])
@pytest.mark.parametrize("cache", ["../canary/made", "made", "/proc/mixview-made"])
def test_a_foreign_run_does_not_say_where_caches_are(cache: str, command: str, box: Sandbox, run: Path) -> None:
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["data_options"] = {"count": 32, "size": 16, "cache": cache}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    lines = {"report": ("report", "run", "--out", "out/a.html", *SMALL), "resume": RESUME}
    box.run(*lines[command], writes=["out", "run"]).answered()


@pytest.mark.parametrize("target", ["/etc/passwd", "../../canary", "/dev/zero", "loop"])
def test_links_in_a_folder_of_images(target: str, box: Sandbox) -> None:
    photos = write_photos(box.work / "photos")
    (photos / "cat" / "link.png").symlink_to("link.png" if target == "loop" else target)
    (photos / "loop").symlink_to(photos)
    box.run("embed", "pixels", "--size", "16", "--data", "photos", "--out", "out/a.npy", *SMALL).answered()


@pytest.mark.parametrize("name", ["../../canary/inner/precious.bin", "/etc/passwd", "../escape.png", "~/x.png"])
@pytest.mark.parametrize("kind", ["coco", "list", "voc"])
def test_paths_in_annotations_that_lead_outside(kind: str, name: str, box: Sandbox) -> None:
    """Reading is harmless, and says that it is no image; nothing is written."""
    if kind == "list":
        box.write("files.txt", f"{name}\n")
    elif kind == "coco":
        box.write(
            "set/annotations/instances_train2017.json",
            {
                "images": [{"id": 1, "file_name": name, "height": 8, "width": 8}],
                "annotations": [],
                "categories": [{"id": 1, "name": "x"}],
            },
        )
        (box.work / "set" / "train2017").mkdir()
    else:
        box.write("set/VOC2007/ImageSets/Main/trainval.txt", f"{name}\n")
        (box.work / "set" / "VOC2007" / "JPEGImages").mkdir()
    data = "files.txt" if kind == "list" else "set"
    box.run("embed", "pixels", "--size", "16", "--data", data, "--out", "out/a.npy", *SMALL).rejected()


def test_an_archive_does_not_unpack(box: Sandbox) -> None:
    """Members of a shard may be called anything: they are read, and never written."""
    from tests.data.writing import encode, tar

    box.write("a.tar", tar({"../../canary/x.png": encode(0), "/etc/x.png": encode(1)}))
    box.run("embed", "pixels", "--size", "16", "--data", "a.tar", "--out", "out/a.npy", *SMALL).succeeded()


def test_names_of_images_on_the_page_and_in_lists(box: Sandbox) -> None:
    box.write("a.npz", b"")
    np.savez(
        box.work / "a.npz",
        images=np.zeros((4, 8, 8, 3), np.uint8),
        classes=np.array(["../x", "<b>"]),
        labels=np.array([0, 1, 0, 1]),
    )
    box.run("embed", "pixels", "--data", "a.npz", "--out", "out/a.npy", *SMALL).succeeded()
