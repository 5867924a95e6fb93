"""Nothing that is read from a file or an option is run: classes, pickles, modules, caches (items 1 to 3)."""

import io
import json
import os
import pickle
import stat
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml  # type: ignore[import-untyped, unused-ignore]

from mixview.train.config import PretrainConfig, to_plain
from tests.hostile import parsers
from tests.hostile.conftest import PRETRAIN
from tests.hostile.harness import Sandbox, sometimes
from tests.hostile.watching import MARKER, PLANTED
from tests.hostile.writing import (
    KNN,
    SMALL,
    STUDY,
    Executes,
    executing,
    npy_bytes,
    planted,
    positions,
    safetensors_bytes,
    scenes,
    write_encoder,
    write_photos,
    zip_bytes,
)

SHAPES: dict[str, Any] = {
    "bare": "PAYLOAD",
    "in-dict": {"count": "PAYLOAD"},
    "in-list": {"count": ["PAYLOAD"]},
    "deep": {"count": {"a": [{"b": "PAYLOAD"}]}},
    "beside": {"count": 8, "size": "PAYLOAD"},
    "with-dict-kwargs": {"count": {"class_path": "os.system", "dict_kwargs": {"command": "COMMAND"}}},
    "path-only": {"count": {"class_path": f"{PLANTED}.Thing"}},
    "class-name": {"count": f"{PLANTED}.Thing"},
}
"""Where in `data_options` a class is named, and how."""


def filled(shape: Any, box: Sandbox) -> Any:
    """A shape with the sandbox's payload in it."""
    text = json.dumps(shape).replace('"PAYLOAD"', json.dumps(executing(box.command)))
    return json.loads(text.replace("COMMAND", box.command))


def plant_module(box: Sandbox, name: str = PLANTED) -> Path:
    """A module in the working folder that leaves the marker when it is imported."""
    code = (
        f"# {MARKER}\nimport pathlib, torch\npathlib.Path({str(box.marker)!r}).touch()\n"
        "def factory(**_): return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(768, 4))\nThing = factory\n"
    )
    return box.write(f"{name}.py", code)


@pytest.mark.parametrize("shape", sometimes(SHAPES, ("in-dict", "deep", "path-only")))
@pytest.mark.parametrize("where", ["option", "recipe", "config", "resume", "config-text"])
def test_classes_in_data_options(where: str, shape: str, box: Sandbox, run: Path) -> None:
    plant_module(box)
    value = filled(SHAPES[shape], box)
    settings = {"data": "scenes", "data_options": value, "epochs": 1, "batch_size": 16, "backbone": "small"}
    match where:
        case "option":
            arguments = ["--data", "scenes", "--data_options", json.dumps(value)]
        case "recipe":
            box.write("recipe.yaml", yaml.safe_dump(settings))
            arguments = ["--recipe", "recipe.yaml"]
        case "config":
            box.write("config.yaml", yaml.safe_dump(settings))
            arguments = ["--config", "config.yaml"]
        case "config-text":
            arguments = ["--config", json.dumps(settings)]
        case _:
            config = yaml.safe_load((run / "config.yaml").read_text())
            (run / "config.yaml").write_text(yaml.safe_dump(config | {"data_options": value}))
            arguments = ["--resume"]
    out = "run" if where == "resume" else "out"
    box.run("pretrain", *arguments, "--out", out, *SMALL, writes=["out", "run"]).rejected("data_options|count|size")


COMMANDS: dict[str, tuple[str, ...]] = {
    "knn": (*KNN, "--data", "scenes"),
    "linear": ("evaluate", "linear", "random", "--backbone", "small", "--data", "scenes", "--out", "out"),
    "detection": ("evaluate", "detection", "random", "--backbone", "small", "--data", "absent", "--out", "out"),
    "all": ("evaluate", "all", "random", "--backbone", "small", "--data", "scenes", "--out", "out"),
    "embed": ("embed", "random", "--backbone", "small", "--data", "scenes", "--out", "out/a.npy"),
    "neighbors": ("neighbors", "random", "--backbone", "small", "--data", "scenes", "--out", "out/a.png"),
}


@pytest.mark.parametrize("command", sometimes(COMMANDS, ("knn", "embed")))
def test_classes_in_data_options_of_other_commands(command: str, box: Sandbox) -> None:
    value = json.dumps(filled(SHAPES["in-dict"], box))
    box.run(*COMMANDS[command], "--data_options", value).rejected()


@pytest.mark.parametrize("command", sometimes(COMMANDS, ("knn", "embed")))
def test_classes_in_configurations_of_other_commands(command: str, box: Sandbox) -> None:
    box.write("config.yaml", {"data_options": filled(SHAPES["in-dict"], box)})
    box.run(*COMMANDS[command], "--config", "config.yaml").rejected()


@pytest.mark.parametrize(
    "key", sometimes(("data_options", "model", "schedule", "scales", "lr", "base"), ("data_options", "model"))
)
def test_classes_in_a_detection_protocol(key: str, box: Sandbox) -> None:
    box.write(
        "protocol.yaml", {key: executing(box.command) if key != "data_options" else filled(SHAPES["in-dict"], box)}
    )
    box.run(*COMMANDS["detection"], "--protocol", "protocol.yaml").rejected()


KEYS = (
    "data",
    "out",
    "method",
    "backbone",
    "epochs",
    "batch_size",
    "devices",
    "workers",
    "zero_init",
    "min_crop_scale",
    "mixing",
    "optimizer",
    "monitor",
    "mixing.alpha",
    "mixing.warmup",
    "method.temperature",
    "optimizer.betas",
    "monitor.images",
    "about",
    "base",
)
"""A setting of each type, and every group."""


def nested(key: str, value: Any) -> dict[str, Any]:
    """A setting under its dotted name."""
    group, _, name = key.partition(".")
    return {group: {name: value}} if name else {group: value}


@pytest.mark.parametrize("key", sometimes(KEYS, KEYS[:4] + KEYS[10:12] + KEYS[-6:]))
def test_classes_in_any_setting_of_a_recipe(key: str, box: Sandbox) -> None:
    box.write("recipe.yaml", {"data": "absent"} | nested(key, executing(box.command)))
    box.run("pretrain", "--recipe", "recipe.yaml").rejected()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["recipe", "config", "resume", "study"])
@pytest.mark.parametrize("path", list(positions(to_plain(PretrainConfig()))), ids=lambda path: ".".join(map(str, path)))
def test_classes_at_every_position(path: tuple[Any, ...], way: str, box: Sandbox, run: Path) -> None:
    content = planted(to_plain(PretrainConfig(data="absent")), path, executing(box.command))
    text = yaml.safe_dump(json.loads(json.dumps(content)))
    match way:
        case "recipe":
            box.write("recipe.yaml", text)
            outcome = box.run("pretrain", "--recipe", "recipe.yaml")
        case "config":
            box.write("config.yaml", text)
            outcome = box.run("pretrain", "--config", "config.yaml")
        case "resume":
            (run / "config.yaml").write_text(text)
            outcome = box.run("pretrain", "--resume", "--out", "run", writes=["run"])
        case _:
            box.write("study.yaml", STUDY | {"settings": json.loads(json.dumps(content))})
            outcome = box.run("study", "run", "study.yaml", "--dry-run")
    outcome.answered()


IN_A_STUDY = list(positions(STUDY))


@pytest.mark.parametrize("path", sometimes(IN_A_STUDY, IN_A_STUDY[::2]), ids=lambda path: ".".join(map(str, path)))
def test_classes_in_a_study(path: tuple[Any, ...], box: Sandbox) -> None:
    box.write("study.yaml", planted(STUDY, path, executing(box.command)))
    box.run("study", "run", "study.yaml", "--dry-run").answered()


def test_no_option_admits_a_class() -> None:
    count, wrong = 0, []
    for command, parser in parsers.parsers():
        for name, kind in parsers.options(parser):
            count += 1
            wrong += [f"{' '.join(command)} --{name}: {words}" for words in parsers.admitted(kind)]
    assert count > 300
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "kind",
    [Any, object, dict, list[Any], dict[str, Any], PretrainConfig, list[PretrainConfig] | None, type[PretrainConfig]],
)
def test_the_walk_notices_types_that_admit_a_class(kind: Any) -> None:
    assert list(parsers.admitted(kind))


EVERY = (
    "pretrain",
    "evaluate knn",
    "evaluate detection",
    "embed",
    "neighbors",
    "export",
    "import",
    "report",
    "study run",
    "study show",
    "figure cost",
    "figure mixtures",
    "data show",
    "data pack",
    "data make",
    "evaluate all",
    "evaluate semi-supervised",
)


@pytest.mark.parametrize("command", sometimes(EVERY, ("pretrain", "evaluate knn", "report", "data show")))
def test_classes_in_every_option(command: str, box: Sandbox) -> None:
    """All options of a command in one process: parsed, and made of it what the command would."""
    words = command.split()
    outcome = box.start(
        {
            "call": "tests.hostile.parsers:parse_all",
            "options": {
                "command": words,
                "payload": executing(box.command),
                "forms": ["PAYLOAD", ["PAYLOAD"], {"a": "PAYLOAD"}],
                "required": ["random"] if words[0] in ("evaluate", "embed", "neighbors", "export", "import") else [],
            },
        },
        words,
        seconds=60,
    )
    outcome.succeeded(seconds=60)


YAML_TAGS = (
    "!!python/object/apply:os.system ['{command}']",
    "!!python/object/new:os.system ['{command}']",
    "!!python/name:os.system",
    "!!python/module:" + PLANTED,
    "!!python/object:" + PLANTED + ".Thing {{}}",
    "!!python/tuple [1, 2]",
    "!include /etc/passwd",
)


@pytest.mark.parametrize(
    "tag", sometimes(YAML_TAGS, YAML_TAGS[:1] + YAML_TAGS[3:4]), ids=lambda tag: tag.split()[0].strip("!")
)
@pytest.mark.parametrize("where", ["recipe", "config", "resume", "study", "study-show", "protocol", "report"])
def test_tags_of_yaml(where: str, tag: str, box: Sandbox, run: Path) -> None:
    plant_module(box)
    text = f"data: {tag.format(command=box.command)}\n"
    match where:
        case "recipe":
            box.write("recipe.yaml", text)
            outcome = box.run("pretrain", "--recipe", "recipe.yaml")
        case "config":
            box.write("config.yaml", text)
            outcome = box.run("pretrain", "--config", "config.yaml")
        case "resume":
            (run / "config.yaml").write_text(text)
            outcome = box.run("pretrain", "--resume", "--out", "run", writes=["run"])
        case "report":
            (run / "config.yaml").write_text(text)
            box.run("report", "run", "--out", "out/a.html", *SMALL, writes=["run", "out"]).answered()
            return
        case "study":
            box.write("study.yaml", text)
            outcome = box.run("study", "run", "study.yaml", "--dry-run")
        case "study-show":
            box.write("study/a/study.yaml", text)
            box.run("study", "show", "study", writes=["study"]).answered()
            return
        case _:
            box.write("protocol.yaml", text)
            outcome = box.run(*COMMANDS["detection"], "--protocol", "protocol.yaml")
    outcome.rejected()


OWN = (f"{PLANTED}:factory", f"{PLANTED}.sub:factory", "os:system", "subprocess:run", "torch.hub:load", "builtins:exec")


@pytest.mark.parametrize("backbone", sometimes(OWN, OWN[:1] + OWN[2:3]))
@pytest.mark.parametrize("command", ["resume", "figure-cost", "report", "evaluate"])
def test_a_backbone_that_a_foreign_run_names(command: str, backbone: str, box: Sandbox, run: Path) -> None:
    plant_module(box)
    config = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump(config | {"backbone": backbone}))
    write_encoder(run / "encoder.safetensors", name=backbone)
    match command:
        case "resume":
            outcome = box.run("pretrain", "--resume", "--out", "run", "--epochs", "2", writes=["run"])
        case "figure-cost":
            outcome = box.run("figure", "cost", "run", "--out", "out/cost", "--rounds", "1", writes=["run", "out"])
        case "report":
            box.run("report", "run", "--out", "out/a.html", *SMALL, writes=["run", "out"]).answered("trust_remote_code")
            return
        case _:
            outcome = box.run("evaluate", "knn", "run", "--data", "scenes", *SMALL, writes=["run"])
    outcome.rejected("trust_remote_code")


@pytest.mark.parametrize("where", ["recipe", "config", "study"])
def test_a_backbone_that_a_foreign_file_names(where: str, box: Sandbox) -> None:
    plant_module(box)
    settings = {"data": "scenes", "backbone": f"{PLANTED}:factory", "epochs": 1, "batch_size": 16}
    if where == "study":
        box.write("study.yaml", STUDY | {"settings": settings})
        box.run("study", "run", "study.yaml", "--out", "out", "--runs", "out/runs", "--dry-run").harmless()
        return
    box.write("file.yaml", settings)
    box.run("pretrain", f"--{where}", "file.yaml", "--out", "out", *SMALL).rejected("trust_remote_code")


@pytest.mark.parametrize("command", ["import", "export", "embed", "weights"])
def test_a_backbone_that_an_encoder_file_names(command: str, box: Sandbox) -> None:
    plant_module(box)
    write_encoder(box.work / "foreign.safetensors", name=f"{PLANTED}:factory")
    match command:
        case "import":
            outcome = box.run("import", "foreign.safetensors", "--out", "out/a.safetensors")
        case "export":
            outcome = box.run("export", "foreign.safetensors", "--format", "torchvision", "--out", "out")
        case "embed":
            outcome = box.run("embed", "foreign.safetensors", "--data", "scenes", "--out", "out/a.npy", *SMALL)
        case _:
            outcome = box.run(*PRETRAIN, "--weights", "foreign.safetensors", "--out", "out")
            outcome.answered()
            return
    outcome.rejected("trust_remote_code")


@pytest.mark.parametrize("key", ["encoder", "backbone"])
@pytest.mark.parametrize("command", ["embed", "knn", "pretrain", "study"])
def test_code_that_any_file_names(command: str, key: str, box: Sandbox) -> None:
    """Also where a backbone is typed before the file that names another."""
    plant_module(box, "planted")
    box.write("settings.yaml", {key: "planted:make"})
    match command:
        case "embed":
            line = ("embed", "--config", "settings.yaml", "--data", "scenes", "--out", "out/a.npy", *SMALL)
        case "knn":
            line = ("evaluate", "knn", "--config", "settings.yaml", "--data", "scenes", *SMALL)
        case "pretrain":
            line = (*PRETRAIN, "--out", "out", "--backbone", "small", "--config", "settings.yaml")
        case _:
            box.write("study.yaml", {"settings": {"data": "scenes"}, "methods": {"x": {key: "planted:make"}}})
            line = ("study", "run", "study.yaml", "--out", "out")
    outcome = box.run(*line)
    outcome.rejected()
    assert "planted:make" in outcome.stderr or key == "encoder"


@pytest.mark.parametrize("name", ["torch", "yaml", "json", "numba", "timm", "wandb", "sitecustomize", "mixview_plugin"])
def test_modules_in_the_working_folder_are_not_imported(name: str, box: Sandbox) -> None:
    """Neither for a command that works, nor for one that names an unknown model."""
    plant_module(box, name)
    box.run("data", "show", "scenes", "--out", "out/a.png", "--count", "1").succeeded()
    box.run(*PRETRAIN, "--out", "out", "--backbone", f"{name}.missing").rejected(name)


def hostile_pickles(box: Sandbox) -> dict[str, bytes]:
    """Pickles that run a command when they are loaded, in several ways."""
    executes = Executes(box.command)
    buffer = io.BytesIO()
    torch.save({"state_dict": executes}, buffer)
    legacy = io.BytesIO()
    torch.save({"conv1.weight": executes}, legacy, _use_new_zipfile_serialization=False)
    return {
        "pickle": pickle.dumps(executes),
        "protocol-0": pickle.dumps(executes, protocol=0),
        "nested": pickle.dumps({"model": {"a": [executes]}}),
        "torch": buffer.getvalue(),
        "torch-legacy": legacy.getvalue(),
        "eval": b'cbuiltins\neval\n(S\'__import__("os").system("' + box.command.encode() + b"\")'\ntR.",
        "object-array": npy_bytes(np.array([executes], dtype=object)),
    }


PICKLES = ("pickle", "protocol-0", "nested", "torch", "torch-legacy", "eval", "object-array")
PLACES = {
    "weights.pth": ("embed", "weights.pth", "--data", "scenes", "--out", "out/a.npy", *SMALL),
    "weights.pt": ("import", "weights.pt", "--out", "out/a.safetensors"),
    "weights.pkl": ("import", "weights.pkl", "--out", "out/a.safetensors"),
    "weights.pt2": ("import", "weights.pt2", "--out", "out/a.safetensors"),
    "weights.onnx": ("import", "weights.onnx", "--out", "out/a.safetensors"),
    "weights.safetensors": ("import", "weights.safetensors", "--out", "out/a.safetensors"),
    "images.npz": ("data", "show", "images.npz", "--out", "out/a.png"),
    "cifar-10-batches-py/data_batch_1": ("data", "show", "cifar-10-batches-py", "--out", "out/a.png"),
    "shard.tar": ("data", "show", "shard.tar", "--out", "out/a.png"),
    "pretrain.pth": (*PRETRAIN, "--weights", "pretrain.pth", "--out", "out"),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", sometimes(PICKLES, ("pickle", "torch")))
def test_pickles(kind: str, place: str, box: Sandbox) -> None:
    content = hostile_pickles(box)[kind]
    if place == "images.npz":
        content = zip_bytes({"images.npy": npy_bytes(np.array([Executes(box.command)], dtype=object)), "x": content})
    box.write(place, content)
    if place.startswith("cifar"):
        for name in ("data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch", "batches.meta"):
            box.write(f"cifar-10-batches-py/{name}", content)
    outcome = box.run(*PLACES[place])
    outcome.rejected()
    assert "weights_only=False" not in outcome.stderr


@pytest.mark.parametrize("kind", PICKLES[:-1])
def test_a_pickle_for_a_checkpoint(kind: str, box: Sandbox, run: Path) -> None:
    for path in (run / "checkpoints").glob("*.pt"):
        path.write_bytes(hostile_pickles(box)[kind])
    box.run("pretrain", "--resume", "--out", "run", "--epochs", "2", writes=["run"]).rejected("checkpoint")


@pytest.mark.parametrize("name", ["images.npz", "evaluations/knn.json", "metrics.jsonl", "status.json", "data.json"])
def test_a_pickle_for_a_file_of_a_run(name: str, box: Sandbox, run: Path) -> None:
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).write_bytes(zip_bytes({"identities.npy": npy_bytes(np.array([Executes(box.command)], dtype=object))}))
    box.run("report", "run", "--out", "out/a.html", *SMALL, writes=["run", "out"]).answered()
    box.run("evaluate", "knn", "run", *scenes(32), *SMALL, writes=["run"]).answered()


def compile_kernels(folder: str) -> None:
    """Runs in a sandbox, where kernels were not compiled yet as far as mixview can tell: where would they be kept?"""
    from mixview.data.augment import numba_backend

    print(numba_backend.writable_folder())


@pytest.mark.parametrize("mode", sometimes((0o777, 0o775, 0o1777, 0o722), (0o777, 0o775)), ids=oct)
@pytest.mark.parametrize("place", ["cache", "parent", "temporary"])
def test_a_cache_of_kernels_that_others_can_write_to(place: str, mode: int, box: Sandbox) -> None:
    """Numba keeps compiled code in an index that is a pickle."""
    folder = box.folder / "cache" / "mixview" / "numba"
    if place == "temporary":
        blocked = box.folder / "cache" / "mixview"
        blocked.write_text("no folder")
        folder = box.folder / "tmp" / f"mixview-numba-{os.getuid()}"
    folder.mkdir(parents=True)
    (folder.parent if place == "parent" else folder).chmod(mode)
    outcome = box.start(
        {"call": "tests.hostile.test_code_execution:compile_kernels", "options": {"folder": str(folder)}}, ["kernels"]
    ).harmless()
    used = outcome.stdout.strip()
    if place == "parent" and mode & stat.S_ISVTX:
        return  # as in /tmp: others cannot replace what is in it
    assert used != str(folder) or not stat.S_IMODE(folder.stat().st_mode) & 0o022, f"{used} can be written to by others"


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".onnx", ".pt2", ".pkl"])
@pytest.mark.parametrize("content", sometimes(("empty", "zeros", "text", "zip", "html"), ("empty", "zip")))
def test_files_of_weights_that_are_something_else(content: str, suffix: str, box: Sandbox) -> None:
    data = {
        "empty": b"",
        "zeros": bytes(4096),
        "text": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n",
        "zip": zip_bytes({"a/b": b"c"}, zipfile.ZIP_STORED),
        "html": b"<html>404</html>",
    }[content]
    name = f"weights{suffix}"
    box.write(name, data)
    box.run("import", name, "--out", "out/a.safetensors").rejected(name)


@pytest.mark.parametrize(
    "name",
    [
        "__class__.x",
        "../../x",
        f"{PLANTED}:x",
        "timm/hf-hub:evil/repo",
        "timm/local-dir:/etc",
        "torchvision/../x",
        "timm/hf_hub:a/b",
        "hf-hub:evil/repo",
        "x" * 100_000,
    ],
)
def test_names_of_backbones_in_encoder_files(name: str, box: Sandbox) -> None:
    write_encoder(box.work / "foreign.safetensors", name=name)
    box.run("embed", "foreign.safetensors", "--data", "scenes", "--out", "out/a.npy", *SMALL).rejected()


def test_an_encoder_file_with_code_in_its_metadata(box: Sandbox) -> None:
    header = {"__metadata__": {"mixview": json.dumps({"version": 1, "spec": executing(box.command), "metadata": {}})}}
    box.write("foreign.safetensors", safetensors_bytes(header))
    box.run("embed", "foreign.safetensors", "--data", "scenes", "--out", "out/a.npy", *SMALL).rejected("foreign")


def test_a_hugging_face_folder_with_code(box: Sandbox) -> None:
    plant_module(box, "foreign/modeling")
    box.write("foreign/config.json", {"auto_map": {"AutoModel": "modeling.Thing"}, "architectures": ["Thing"]})
    box.write("foreign/model.safetensors", safetensors_bytes({"__metadata__": {"format": "pt"}}))
    box.run("import", "foreign", "--out", "out/a.safetensors").rejected()


def test_a_data_set_of_hugging_face_with_code(box: Sandbox) -> None:
    plant_module(box, "set/set")
    box.write("set/dataset_info.json", {"builder_name": "set", "features": executing(box.command)})
    box.write("set/state.json", {"_data_files": [{"filename": "a.arrow"}], "_format_type": PLANTED})
    box.write("set/a.arrow", pickle.dumps(Executes(box.command)))
    box.run("data", "show", "set", "--out", "out/a.png").rejected()


def test_photos_named_like_code(box: Sandbox) -> None:
    photos = write_photos(box.work / "photos")
    (photos / "cat" / f"$(touch {MARKER}).png").write_bytes((photos / "cat" / "0.png").read_bytes())
    (photos / "cat" / f"`touch {MARKER}`;.png").write_bytes((photos / "cat" / "0.png").read_bytes())
    box.run("embed", "pixels", "--data", "photos", "--out", "out/a.npy", *SMALL).succeeded()
