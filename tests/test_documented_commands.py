"""Every shell block of README and docs, and every example in a command's help, is run, line by line.

The folder that they run in has what they name.
Real data and full sizes would take weeks, so options that make a command small are added behind those of the document;
launchers get two processes on this machine. Scripts run in a copy of what they change. What cannot be run here is
looked up: `make` says what it would do, `pip` has the extra, and of `srun` the command behind it is run.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image

from mixview.cli import COMMANDS, Group, main
from mixview.data.synthetic.scenes import Scenes
from mixview.data.synthetic.writers import write
from mixview.extensions import PROTOCOLS
from tests.processes import run_mixview as run_mixview_in_process
from tests.test_documents import DOCUMENTS, ROOT, blocks

LEARN_LITTLE = "--size 16 --batch_size 8 --epochs 2 --backbone small --workers 0 --no_monitor.estimate"
EVALUATE_LITTLE = "--size 16 --workers 0"
DETECT_LITTLE = """--trials 1 --iterations 2 --batch_size 2 --devices 1 --precision 32-true --max_test_images 3
    --workers 0
    --precise_bn 1 --model.regions 8 --model.proposals 10 --scales.train [32] --scales.test 32 --scales.longest 64"""
CONTINUE_LITTLE = f"{LEARN_LITTLE} --epochs 3"
SMALLER = {
    "pretrain .*continue/vit": f"{CONTINUE_LITTLE} --size 28 --backbone small-vit --freeze 2 --weights runs/some-vit",
    "pretrain .*continue/": f"{CONTINUE_LITTLE} --backbone resnet18 --stem standard --weights runs/first",
    "pretrain .*--recipe vit/": f"{LEARN_LITTLE} --devices 1 --optimizer.warmup_epochs 0",
    "pretrain .*distillation": f"{LEARN_LITTLE} --size 32",
    "pretrain .*--resume": "--epochs 3",
    "pretrain .*--devices": f"{LEARN_LITTLE} --devices 1",
    "pretrain .*--profile": f"""{LEARN_LITTLE} --profile 5 --data-options '{{"count": 40, "size": 32}}'""",
    "pretrain": LEARN_LITTLE,
    "evaluate linear .*--fast": EVALUATE_LITTLE,
    "evaluate linear .*--devices": f"{EVALUATE_LITTLE} --epochs 1 --batch_size 16 --devices 1 --precision 32-true",
    "evaluate (linear|all|probe|semi-supervised|supervised)": f"{EVALUATE_LITTLE} --epochs 1 --batch_size 16",
    "evaluate detection": DETECT_LITTLE,
    "evaluate show": "",
    "evaluate": EVALUATE_LITTLE,
    "embed .*--devices": "--devices 2 --workers 0",
    "embed|neighbors|figure tsne-mixtures": "--workers 0",
    "report": "--workers 0 --images 20",
    "figure tsne-classes": "--workers 0 --classes 3 --images 4 --augmentations 2 --samples 1 --data imagenette/",
    "figure cost": "--methods [simclr] --backbone small --size 16 --rounds 1",
    "data make": "--count 20",
    "selftest": "--device cpu --checks [memory] --rounds 1",
    "study (show|list|merge)": "",
    "study .*--measure": "--only pixels",
    "study": "--max-time 1s",
}
"""What is added to a command that looks so; the first that fits."""

SCENES = ["--data-options", '{"count": 40, "size": 32}']
"""What is added to a command that draws scenes and does not say how many."""

LAUNCHED = {"--nnodes": "1", "--nproc-per-node": "2", "--rdzv-endpoint": "localhost:0"}
"""Options of torchrun that name machines."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the images, runs and files that documents speak of."""
    folder = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("MIXVIEW_CACHE", str(folder / "cache"))
        for place in ("photos", "queries", "scans", "cells"):
            Path(place).mkdir()
        scenes = Scenes(40, 32)
        for number in range(len(scenes)):
            Image.fromarray(scenes.read(number)).save(f"photos/{number}.jpg")
            deep = scenes.read(number).astype(np.int16) * 16
            np.save(f"scans/{number}.npy", deep.mean(2).astype(np.int16) - 1000)
            np.save(f"cells/{number}.npy", deep.astype(np.uint16))
        for copy in ("cat.jpg", "queries/one.jpg", "queries/two.jpg"):
            shutil.copy("photos/1.jpg", copy)
        shutil.copy("photos/2.jpg", "photos/one.jpg")
        write([Scenes(60, 32), Scenes(30, 32, split="val")], "imagenette", progress=False)
        for copy in ("labeled", "DATA/imagenet"):
            shutil.copytree("imagenette", copy)
        several = [Scenes(12, 32, 0, split, "multiple") for split in ("train", "test", "val")]
        write(several[:2], "voc", "voc", progress=False)
        shutil.move("voc/VOCdevkit", "VOCdevkit")
        shutil.copytree("VOCdevkit/VOC2007", "VOCdevkit/VOC2012")
        write([several[0], several[2]], "coco", "coco", progress=False)
        Path("study/confirm").mkdir(parents=True)
        for name in ("study.yaml", "results.jsonl"):
            shutil.copy(ROOT / "study" / "confirm" / name, "study/confirm")
        blank = np.zeros((20_000, 4, 4, 3), np.uint8)
        labels = np.arange(20_000) % 10
        np.savez_compressed("DATA/cifar10.npz", x_train=blank, y_train=labels, x_test=blank[:50], y_test=labels[:50])
        network = torchvision.models.resnet50()
        weights = {f"module.encoder_q.{name}": each for name, each in network.state_dict().items()}
        torch.save({"epoch": 200, "arch": "resnet50", "state_dict": weights}, "moco_v2_200ep_pretrain.pth.tar")
        save_weights()
        Path("policy.yaml").write_text("base: mocov2\ngrayscale: 0.1\n")
        Path("mine.yaml").write_text("base: small/cpu-simclr\ndata: photos/\nepochs: 3\n")
        learn = ["pretrain", "--data", "photos/", *LEARN_LITTLE.split()]
        labels = [f"{number}.jpg,{'oak' if number % 2 else 'ash'}" for number in range(len(scenes))]
        Path("labels.csv").write_text("\n".join(["path,label", *labels]) + "\n")
        main([*learn, "--backbone", "small-vit", "--objective", "sim", "--size", "28", "--out", "runs/some-vit"])
        main([*learn, "--backbone", "resnet18", "--stem", "standard", "--size", "32", "--out", "runs/first"])
        main(["evaluate", "knn", "runs/first", "--data", "imagenette/", *EVALUATE_LITTLE.split()])
        for name, objective, alpha in (
            ("sim", "sim", 1),
            ("bsim", "bsim", 1),
            ("alpha-0.5", "bsim", 0.5),
            ("alpha-1", "bsim", 1),
            ("second", "wbsim", 1),
        ):
            main([*learn, "--objective", objective, "--mixing.alpha", str(alpha), "--out", f"runs/{name}"])
            main(["evaluate", "knn", f"runs/{name}", "--data", "imagenette/", *EVALUATE_LITTLE.split()])
    return folder


def save_weights() -> None:
    """A ResNet-18 as a plain loop, lightly and solo-learn save it, and as torchvision keeps what it has downloaded."""
    network = torchvision.models.resnet18()
    weights = network.state_dict()
    torch.save(weights, "mine.pth")
    torch.save({"state_dict": {f"backbone.{name}": each for name, each in weights.items()}}, "mocov2plus-400ep.ckpt")
    trunk = torch.nn.Sequential(*list(network.children())[:-1]).state_dict()
    torch.save({"state_dict": {f"backbone.{name}": each for name, each in trunk.items()}}, "checkpoint.ckpt")
    kept = Path("torch/hub/checkpoints")
    kept.mkdir(parents=True)
    torch.save(weights, kept / Path(torchvision.models.ResNet18_Weights.DEFAULT.url).name)


@pytest.fixture
def folder(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that world to work in."""
    place = tmp_path / "world"
    shutil.copytree(world, place, copy_function=link_large)
    monkeypatch.chdir(place)
    for name, value in (
        ("HOME", "home"),
        ("MIXVIEW_CACHE", "cache"),
        ("MIXVIEW_DATA", "DATA"),
        ("TORCH_HOME", "torch"),
    ):
        monkeypatch.setenv(name, str(place / value))
    return place


def link_large(source: str, target: str) -> None:
    """Copy a file; weights, which programs replace and never change, are the same file."""
    if Path(source).stat().st_size > 1_000_000:
        os.link(source, target)
    else:
        shutil.copy(source, target)


def small(words: list[str]) -> list[str]:
    """A command of mixview's, less its name, with the options that make it small."""
    line = " ".join(words)
    options = next((options for form, options in SMALLER.items() if re.match(form, line)), "")
    scenes = SCENES if "--data scenes" in line and "--data-options" not in line else []
    return [*words, *shlex.split(options), *scenes]


def run(line: str) -> None:
    """Run a line of a shell block."""
    words = shlex.split(line, comments=True)
    if not words:
        return
    into = words[words.index(">") + 1] if ">" in words else None
    words = words[: words.index(">")] if into else words
    words = [word for each in words for word in (sorted(map(str, Path().glob(each))) if "*" in each else [each])]
    program, *rest = words
    if program == "srun":
        program, *rest = words[words.index("mixview") :]
    if program == "torchrun":
        start = rest.index("mixview.cli") + 1
        options = rest[:start]
        for place, option in enumerate(options):
            if option in LAUNCHED:
                options[place + 1] = LAUNCHED[option]
        start_process([sys.executable, "-m", "torch.distributed.run", *options, *small(rest[start:])])
    elif into is not None:
        printed = fork_mixview(rest)
        target = Path(into).expanduser()
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(printed)
        assert "mixview" in printed
    elif program == "mixview":
        run_mixview(small(rest))
    elif program == "make":
        start_process(["make", "--dry-run", "--directory", str(ROOT), *rest])
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        named = re.fullmatch(r"install (?:--constraint constraints.txt )?\.(?:\[([\w,]+)\])?", " ".join(rest))
        assert named, line
        assert set((named[1] or "embed").split(",")) <= extras.keys(), line
    elif program == "python":
        run_script(rest)
    else:
        pytest.fail(f"nobody knows whether {line} works")


def run_script(words: list[str]) -> None:
    """Run a script of the repository in a copy of what it reads and writes."""
    for name in ("docs", "study"):
        shutil.copytree(ROOT / name, f"repository/{name}", ignore=shutil.ignore_patterns("_build", "generated"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir("repository")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
        start_process([sys.executable, *words])


def run_mixview(arguments: list[str]) -> None:
    """Run a command of mixview's here, or in a process of its own where it starts others."""
    if "--devices" in arguments and arguments[len(arguments) - arguments[::-1].index("--devices")] != "1":
        fork_mixview(arguments)
        return
    try:
        main(arguments)
    except SystemExit as end:
        if end.code:
            pytest.fail(f"mixview {shlex.join(arguments)}: {end.code}")


def start_process(words: list[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{shlex.join(words)}: {done.stdout}{done.stderr}"


def fork_mixview(words: list[str]) -> str:
    done = run_mixview_in_process(Path.cwd(), *words)
    assert done.returncode == 0, f"mixview {shlex.join(words)}: {done.stdout}{done.stderr}"
    return done.stdout


def forget(line: str) -> None:
    """Remove the run that a line of a document is about to make anew."""
    made = re.search(r"(?:pretrain (?!.*--resume).*--out|data make) (\S+)", line)
    if made:
        shutil.rmtree(made[1], ignore_errors=True)


FOUND = {
    f"{path.relative_to(ROOT)}-{number}": block
    for path in DOCUMENTS
    for number, block in enumerate(blocks(path, "sh"), 1)
}


DOCUMENTED = {" ".join(line.partition("#")[0].split()) for block in FOUND.values() for line in block.splitlines()}
EXAMPLES = [
    f"mixview {example}"
    for command in COMMANDS.values()
    for each in (command.commands.values() if isinstance(command, Group) else [command])
    for example in each.examples
]
EXAMPLES += [
    f"mixview evaluate {name} {example}" for name in PROTOCOLS.names() for example in PROTOCOLS.load(name).examples
]
FOUND |= {example: example for example in EXAMPLES if example not in DOCUMENTED}


@pytest.mark.parametrize("name", FOUND)
def test_commands_run(name: str, folder: Path) -> None:
    for line in FOUND[name].replace("\\\n", " ").splitlines():
        line = line.replace("/shared/", f"{folder}/shared/")
        forget(line)
        run(line)


@pytest.mark.parametrize(
    "line", ["mixview embed runs/first --dta photos/", "mixview exprt x", "make nothing", "pip install .[all]"]
)
def test_a_wrong_command_would_be_noticed(line: str) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        run(line)
