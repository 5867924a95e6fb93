"""Options as people mistype them: each raises an error of one sentence that names it (items 14, 19 and 21)."""

import json
from pathlib import Path

import pytest

from tests.data.writing import encode
from tests.hostile.conftest import PRETRAIN
from tests.hostile.harness import Sandbox, sometimes
from tests.hostile.writing import KNN, SMALL, pretraining, scenes, write_encoder, write_photos

REFUSED: tuple[tuple[str, str], ...] = (
    ("--batch_size", "0"),
    ("--batch_size", "-1"),
    ("--batch_size", "1"),
    ("--batch_size", "33"),
    ("--batch_size", "1000000000"),
    ("--batch_size", "many"),
    ("--batch_size", "1.5"),
    ("--epochs", "0"),
    ("--epochs", "-1"),
    ("--epochs", "1e3x"),
    ("--epochs", "99999999999999999999"),
    ("--size", "0"),
    ("--size", "-5"),
    ("--size", "1000000"),
    ("--size", "7x7"),
    ("--channels", "0"),
    ("--channels", "-1"),
    ("--channels", "4"),
    ("--channels", "1000000"),
    ("--workers", "-1"),
    ("--workers", "x"),
    ("--workers", "100000"),
    ("--accumulate_grad_batches", "0"),
    ("--accumulate_grad_batches", "-1"),
    ("--accumulate_grad_batches", "1000"),
    ("--seed", "-1"),
    ("--seed", "1.5"),
    ("--seed", "99999999999999999999999"),
    ("--monitor.log_every", "0"),
    ("--monitor.log_every", "-1"),
    ("--monitor.eval_every", "-1"),
    ("--monitor.images", "-1"),
    ("--monitor.hold_out", "2"),
    ("--monitor.hold_out", "nan"),
    ("--monitor.hold_out", "-0.5"),
    ("--monitor.keep", "0"),
    ("--monitor.keep", "-1"),
    ("--monitor.checkpoint_every", "-1"),
    ("--accelerator", "cuda"),
    ("--accelerator", "tpu"),
    ("--accelerator", "gpux"),
    ("--accelerator", ""),
    ("--devices", "0"),
    ("--devices", "-1"),
    ("--devices", "0,1"),
    ("--devices", "x"),
    ("--nodes", "0"),
    ("--nodes", "-1"),
    ("--precision", "64"),
    ("--method", "mocov4"),
    ("--objective", "x"),
    ("--stem", "x"),
    ("--method.temperature", "0"),
    ("--method.temperature", "-1"),
    ("--method.temperature", "nan"),
    ("--method.temperature", "inf"),
    ("--method.dim", "0"),
    ("--method.dim", "-1"),
    ("--method.hidden", "0"),
    ("--method.hidden", "1000000000"),
    ("--method.bn_splits", "0"),
    ("--method.momentum", "2"),
    ("--method.momentum", "nan"),
    ("--method.queue_size", "-1"),
    ("--method.queue_size", "1000000000000"),
    ("--mixing.alpha", "0"),
    ("--mixing.alpha", "-1"),
    ("--mixing.alpha", "nan"),
    ("--mixing.alpha", "inf"),
    ("--mixing.prob", "2"),
    ("--mixing.prob", "nan"),
    ("--mixing.weight", "nan"),
    ("--mixing.weight", "inf"),
    ("--mixing.mix_groups", "0"),
    ("--mixing.mix_groups", "-1"),
    ("--mixing.mix_groups", "1000"),
    ("--mixing.mixer", "cut-mix"),
    ("--mixing.warmup", "[2, 1]"),
    ("--mixing.warmup", "[0.5]"),
    ("--mixing.warmup", "[nan, 1]"),
    ("--optimizer.lr", "-1"),
    ("--optimizer.lr", "nan"),
    ("--optimizer.lr", "inf"),
    ("--optimizer.name", "adamx"),
    ("--optimizer.weight_decay", "nan"),
    ("--optimizer.weight_decay", "-1"),
    ("--optimizer.momentum", "2"),
    ("--optimizer.warmup_epochs", "-1"),
    ("--optimizer.warmup_epochs", "10"),
    ("--optimizer.betas", "[2, 2]"),
    ("--optimizer.clip", "-1"),
    ("--optimizer.gamma", "nan"),
    ("--optimizer.milestones", "[-1]"),
    ("--min_crop_scale", "0"),
    ("--min_crop_scale", "2"),
    ("--min_crop_scale", "nan"),
    ("--min_crop_scale", "-1"),
    ("--augment", "simclrx"),
    ("--augment", ""),
    ("--augment_device", "gpu"),
    ("--max_time", "soon"),
    ("--max_time", "-1h"),
    ("--max_time", ""),
    ("--backbone", ""),
    ("--backbone", "resnet5000"),
    ("--backbone", "../x"),
    ("--backbone", ":"),
    ("--backbone", "a:b:c"),
    ("--weights", "absent.pth"),
    ("--weights", ""),
    ("--weights", "/dev/null"),
    ("--weights", "."),
    ("--data", ""),
    ("--data", "absent"),
    ("--data", "/dev/null"),
    ("--data", "/dev/zero"),
    ("--data", "\\x00"),
    ("--data", "~nobody/x"),
    ("--data", "http://"),
    ("--data", "file:///etc/passwd"),
    ("--data", "ftp://127.0.0.1/x.tar"),
    ("--data", "s3://bucket/x.tar"),
    ("--split", "nope"),
    ("--split", "train[5:2]"),
    ("--split", "train[a:b]"),
    ("--split", "train["),
    ("--split", ""),
    ("--split", "train[0:0]"),
    ("--split", "train[99999999999999999999:]"),
    ("--validation", "absent"),
    ("--validation_split", "nope"),
    ("--recipe", "absent.yaml"),
    ("--recipe", "no/such"),
    ("--recipe", ""),
    ("--recipe", "/dev/null"),
    ("--config", "absent.yaml"),
    ("--config", "/dev/null"),
    ("--config", "{"),
    ("--config", "[]"),
    ("--config", "3"),
    ("--data_options", "{"),
    ("--data_options", "[]"),
    ("--data_options", "3"),
    ("--data_options", '{"count": -1}'),
    ("--data_options", '{"count": "many"}'),
    ("--data_options", '{"count": null}'),
    ("--data_options", '{"count": [1]}'),
    ("--data_options", '{"count": 1e99}'),
    ("--data_options", '{"count": 99999999999999999}'),
    ("--data_options", '{"size": 0}'),
    ("--data_options", '{"size": 100000}'),
    ("--data_options", '{"size": "x"}'),
    ("--data_options", '{"cuont": 3}'),
    ("--data_options", '{"seed": "x"}'),
    ("--data_options", '{"kind": 3}'),
    ("--data_options", '{"spec": "x"}'),
    ("--out", ""),
    ("--out", "/dev/null"),
    ("--out", "/proc/x"),
    ("--out", "/dev/null/x"),
    ("--out", "x" * 5000),
    ("--out", "file.txt"),
    ("--compile", "maybe"),
    ("--resume", "maybe"),
    ("--bacth", "16"),
    ("--zero_init", "3"),
)


def name_of(case: tuple[str, str]) -> str:
    return f"{case[0]}={case[1][:24] or 'EMPTY'}".replace("/", "|")


@pytest.mark.parametrize("case", sometimes(REFUSED, REFUSED[::3] + REFUSED[:1]), ids=name_of)
def test_rejected(case: tuple[str, str], box: Sandbox) -> None:
    box.write("file.txt", "x")
    name, value = case
    line = [*list(PRETRAIN), "--out", "out"]
    if name in line:  # given once, so that the error is of it
        place = line.index(name)
        del line[place : place + 2]
    word = name.strip("-").rpartition(".")[2]
    box.run(*line, f"{name}={value}", writes=["out", *([value] if name == "--out" else [])]).rejected(
        f"{word}|{name}|{value[:10] or name}" if value.isalnum() else "mixview|error"
    )


def test_nothing_is_left_after_a_mistake(box: Sandbox) -> None:
    box.run(*PRETRAIN, "--out", "new/run", "--batch_size", "0", writes=["new"]).rejected("batch_size")
    assert not (box.work / "new").exists()


EVALUATED: tuple[tuple[str, str], ...] = (
    ("--device", "cuda"),
    ("--device", "x"),
    ("--device", ""),
    ("--device", "cuda:7"),
    ("--device", "meta"),
    ("--devices", "0"),
    ("--devices", "-1"),
    ("--workers", "-1"),
    ("--size", "0"),
    ("--size", "-1"),
    ("--size", "1000000"),
    ("--channels", "0"),
    ("--channels", "4"),
    ("--stage", "res9"),
    ("--resize", "x"),
    ("--out", ""),
    ("--out", "out/a.txt"),
    ("--out", "/dev/null/a.npy"),
    ("--kind", "x"),
    ("--split", "nope"),
    ("--backbone", "os:system"),
)


@pytest.mark.parametrize("case", sometimes(EVALUATED, EVALUATED[::2]), ids=name_of)
def test_rejected_by_embed(case: tuple[str, str], box: Sandbox) -> None:
    line = ["embed", "random", "--backbone", "small", "--data", "scenes", *SMALL, "--out", "out/a.npy"]
    if case[0] != "--data_options":
        line += ["--data_options", '{"count": 8, "size": 16}']
    for name in ("--backbone", "--out", "--workers"):
        if name == case[0]:
            place = line.index(name)
            del line[place : place + 2]
    box.run(*line, f"{case[0]}={case[1]}").rejected()


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        ("--k", "0"),
        ("--k", "-1"),
        ("--k", "100000000"),
        ("--temperature", "0"),
        ("--temperature", "nan"),
        ("--temperature", "-1"),
        ("--device", "cuda"),
        ("--devices", "0"),
        ("--train", "nope"),
        ("--test", "nope"),
        ("--test_data", "absent"),
        ("--seed", "-1"),
        ("--size", "0"),
    ],
    ids=name_of,
)
def test_rejected_by_knn(case: tuple[str, str], box: Sandbox) -> None:
    line = [*KNN, "--data", "scenes"]
    if case[0] in line:
        place = line.index(case[0])
        del line[place : place + 2]
    if case[0] != "--data_options":
        line += ["--data_options", '{"count": 32, "size": 16}']
    box.run(*line, f"{case[0]}={case[1]}").answered()


COMMANDS: tuple[tuple[str, ...], ...] = (
    ("",),
    ("nope",),
    ("--nope",),
    ("data", "nope"),
    ("study", "nope"),
    ("study", "run", "nope"),
    ("study", "show", "absent"),
    ("report",),
    ("report", "absent"),
    ("report", "."),
    ("embed",),
    ("embed", "absent/x", "--data", "scenes"),
    ("export", "absent/x"),
    ("import", "absent"),
    ("import", "."),
    ("import", "/dev/null"),
    ("data", "show"),
    ("data", "show", "/dev/null"),
    ("data", "make"),
    ("data", "make", "/dev/null/x"),
    ("data", "make", "out", "--count", "-1"),
    ("data", "make", "out", "--size", "0"),
    ("data", "make", "out", "--size", "1000000"),
    ("data", "make", "out", "--count", "0"),
    ("data", "pack", "absent", "out/a.npz"),
    ("data", "pack", "scenes", "/dev/null"),
    ("data", "pack", "scenes", "out/a.npz", "--size", "0"),
    ("data", "pack", "scenes", "out/a.npz", "--quality", "1000"),
    ("data", "show", "scenes", "--count", "0"),
    ("data", "show", "scenes", "--count", "-4"),
    ("data", "show", "scenes", "--augment", "nope"),
    ("data", "show", "scenes", "--out", "out/a.nope"),
    ("data", "show", "scenes", "--out", ""),
    ("figure", "mixtures", "--data", "absent"),
    ("figure", "beta", "absent"),
    ("figure", "beta", "--alphas", "[-1]"),
    ("figure", "beta", "--alphas", "[nan]"),
    ("figure", "cost", "absent"),
    ("figure", "cost", "--batch_size", "0"),
    ("figure", "cost", "--rounds", "0"),
    ("figure", "alpha", "absent"),
    ("neighbors", "pixels", "--data", "scenes", "--find", "nope"),
    ("neighbors", "pixels", "--data", "scenes", "--count", "0"),
    ("neighbors", "pixels", "--data", "scenes", "--query", "absent.png"),
    ("pretrain",),
    ("pretrain", "scenes"),
    ("pretrain", "--data"),
    ("evaluate", "show", "absent"),
    ("evaluate", "show", "."),
    ("recipes", "nope"),
    ("export", "small", "--format", "nope"),
    ("export", "small", "--format", "onnx", "--out", ""),
    ("import", "x" * 5000),
    ("report", "x" * 5000),
    ("study", "run", "x" * 5000 + ".yaml"),
)


@pytest.mark.parametrize(
    "words", sometimes(COMMANDS, COMMANDS[::2]), ids=lambda words: " ".join(words)[:40].replace("/", "|") or "nothing"
)
def test_commands_that_cannot_work(words: tuple[str, ...], box: Sandbox) -> None:
    box.run(*words).rejected(lines=3)


def test_a_home_in_the_name_of_a_folder(box: Sandbox) -> None:
    outcome = box.run(*PRETRAIN, "--out=~/r", writes=["../home/r"])
    outcome.succeeded()
    assert (box.home / "r" / "config.yaml").is_file()
    assert not (box.work / "~").exists()


def test_one_image_with_the_default_batch(box: Sandbox) -> None:
    box.write("photos/a.png", encode(0, height=16, width=16))
    box.run("pretrain", "--data", "photos", "--backbone", "small", "--epochs", "1", "--out", "out", *SMALL).rejected(
        "batch|images"
    )


def test_a_warm_up_that_is_longer_than_the_run(box: Sandbox) -> None:
    box.write("recipe.yaml", {"optimizer": {"warmup_epochs": 10}, "backbone": "small", "batch_size": 16})
    line = ("pretrain", "--recipe", "recipe.yaml", *scenes(32), "--epochs", "1", "--out", "out", *SMALL)
    box.run(*line).rejected("--optimizer.warmup_epochs")


def test_an_error_names_the_option_that_was_typed(box: Sandbox) -> None:
    outcome = box.run(*PRETRAIN, "--out", "out", "--grad-cache", "--method", "byol").rejected("--grad[-_]cache")
    assert " grad_cache " not in outcome.stderr


def test_an_error_comes_without_the_usage(box: Sandbox) -> None:
    outcome = box.run("pretrain", "--data", "scenes", "--epochs", "many").rejected("epochs", "many")
    assert "usage:" not in outcome.stderr.lower()


@pytest.mark.parametrize(
    "name",
    ["caf\udce9.png", "\udcff\udcfe.png", "a\nb.png", "\x1b[31mred\x07.png", "=cmd().png", "-rf.png", "a\u202eb.png"],
)
@pytest.mark.parametrize("command", ["embed", "data-show", "neighbors", "pretrain"])
def test_odd_names_of_images(command: str, name: str, box: Sandbox) -> None:
    """Names that are not UTF-8, that a terminal obeys, that a spreadsheet computes: work, and are shown harmlessly."""
    write_photos(box.work / "photos", 8)
    Path(box.work / "photos" / "cat" / name).write_bytes(encode(9, height=16, width=16))
    Path(box.work / "photos" / "dog" / name).write_bytes(b"no image")
    lines = {
        "embed": ("embed", "pixels", "--size", "16", "--data", "photos", "--out", "out/a.npy", *SMALL),
        "data-show": ("data", "show", "photos", "--count", "20", "--out", "out/a.png"),
        "neighbors": (
            *("neighbors", "pixels", "--size", "16", "--data", "photos"),
            *("--find", "outliers", "--out", "out/a.png", *SMALL),
        ),
        "pretrain": (*pretraining(4, "--out", "out"), "photos"),
    }
    outcome = box.run(*lines[command]).answered()
    for text in (outcome.stdout, outcome.stderr):
        assert not any(sign in text for sign in ("\x1b[31m", "\x07", "\u202e"))
    for table in (box.work / "out").rglob("*.csv"):
        cells = [
            cell.strip('"')
            for line in table.read_bytes().decode(errors="replace").splitlines()
            for cell in line.split(",")
        ]
        assert not any(cell.startswith(("=", "@", "+")) for cell in cells), cells


@pytest.mark.parametrize("name", ["=1+1", "@x", "+x", "-x", "\t=x", "\x1b]0;x\x07"])
def test_odd_names_of_classes(name: str, box: Sandbox) -> None:
    write_photos(box.work / "photos", 8, ("cat", name))
    outcome = box.run("embed", "pixels", "--size", "16", "--data", "photos", "--out", "out/a.npy", *SMALL).answered()
    assert "\x1b" not in outcome.stdout + outcome.stderr
    for table in (box.work / "out").rglob("*.csv"):
        cells = [
            cell.strip('"')
            for line in table.read_bytes().decode(errors="replace").splitlines()
            for cell in line.split(",")
        ]
        assert not any(cell.startswith(("=", "@", "+", "-")) for cell in cells), cells


YAMLS = {
    "tab": "data:\tscenes\n\tepochs: 1\n",
    "duplicate": "data: scenes\ndata: other\n",
    "nothing": "",
    "list": "- a\n",
    "text": "hello",
    "number": "3",
    "half": "data: [scenes\n",
    "not-utf-8": "data: caf\udce9\n",
    "null-byte": "data: a\x00b\n",
    "bom": "\ufeffdata: absent\n",
    "own-base": "base: recipe.yaml\n",
    "base-number": "base: 3\n",
    "base-list": "base: [a]\n",
    "base-absent": "base: absent.yaml\n",
    "about-text": "about: x\ndata: absent\n",
    "about-list": "about: [x]\ndata: absent\n",
    "unknown": "datta: scenes\n",
    "group-text": "mixing: cutmix\ndata: absent\n",
    "group-list": "watch: [1]\ndata: absent\n",
    "keys-numbers": "3: 4\n",
    "key-null": "null: 4\n",
    "key-list": "? [a, b]\n: 4\n",
    "date": "data: 2020-01-01\n",
    "binary": "data: !!binary aGVsbG8=\n",
    "set": "data: !!set {a, b}\n",
    "infinity": "epochs: .inf\ndata: absent\n",
    "octal": "epochs: 0o17\ndata: absent\n",
    "huge-number": "epochs: " + "9" * 5000 + "\ndata: absent\n",
    "two-documents": "data: absent\n---\ndata: b\n",
    "deep": "data: " + "[" * 2000 + "]" * 2000 + "\n",
    "deep-map": "".join(" " * depth + "a:\n" for depth in range(800)),
    "anchor-loop": "data: &a [*a]\n",
    "merge-loop": "data_options: &a {<<: *a}\n",
    "aliases": "a: &a [x, x, x, x, x, x, x, x, x]\n"
    + "".join(f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 9)}]\n" for n in range(9)),
}


@pytest.mark.parametrize("kind", YAMLS)
@pytest.mark.parametrize("where", sometimes(("recipe", "config", "study", "protocol"), ("recipe", "config")))
def test_files_of_settings(where: str, kind: str, box: Sandbox) -> None:
    box.write("recipe.yaml", YAMLS[kind])
    lines = {
        "recipe": ("pretrain", "--recipe", "recipe.yaml"),
        "config": ("pretrain", "--config", "recipe.yaml"),
        "study": ("study", "run", "recipe.yaml", "--dry-run"),
        "protocol": ("evaluate", "detection", "random", "--data", "absent", "--protocol", "recipe.yaml"),
    }
    box.run(*lines[where]).rejected()


@pytest.mark.parametrize("kind", ["folder", "fifo", "device", "unreadable", "loop", "huge"])
@pytest.mark.parametrize("option", ["--recipe", "--config"])
def test_files_of_settings_that_are_no_files(option: str, kind: str, box: Sandbox) -> None:
    import os

    path = box.work / "a.yaml"
    match kind:
        case "folder":
            path.mkdir()
        case "fifo":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "unreadable":
            path.write_text("data: absent\n")
            path.chmod(0)
        case "loop":
            path.symlink_to("a.yaml")
        case "huge":
            with path.open("wb") as file:
                file.truncate(3 << 30)
    box.run("pretrain", option, "a.yaml").rejected()


def test_an_encoder_of_nothing_but_nan(box: Sandbox) -> None:
    import torch

    from mixview.encoders.weights import read_safetensors

    path = write_encoder(box.work / "nan.safetensors")
    tensors, metadata = read_safetensors(path)
    from tests.hostile.writing import write_safetensors

    broken = {
        name: torch.full_like(value, torch.nan) if value.is_floating_point() else value
        for name, value in tensors.items()
    }
    write_safetensors(path, broken, metadata)
    options = ("--data", "scenes", "--data_options", json.dumps({"count": 8, "size": 16}), *SMALL)
    box.run("embed", "nan.safetensors", *options, "--out", "out/a.npy").rejected("nan|finite")
    box.run("neighbors", "nan.safetensors", *options, "--find", "outliers", "--out", "out/a.png").rejected("nan|finite")
