"""Fuzzers of every reader: sound files, damaged by hypothesis, and what readers may raise. Run in a sandbox's process.

Each input has ten seconds (an alarm) and a gigabyte; only an error in one sentence may come out.
"""

import contextlib
import gc
import importlib
import io
import json
import os
import resource
import shutil
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import yaml  # type: ignore[import-untyped, unused-ignore]
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.configuration import set_hypothesis_home_dir

SECONDS = 10
GROWTH = 1 << 30
LONGEST = 3000
"""Characters of an error: it may quote what it rejects, but not all of it."""

Read = Callable[[Path], object]


class TooSlow(BaseException):
    """An input that takes more than ten seconds."""


def alarm(*_: object) -> None:
    raise TooSlow(f"took more than {SECONDS} s")


def is_documented(error: BaseException) -> bool:
    """Whether `mixview.cli.main` prints an error as one sentence."""
    if isinstance(error, RuntimeError):
        return type(error).__module__.startswith("mixview.")
    return isinstance(error, ValueError | OSError) or (
        isinstance(error, ModuleNotFoundError) and "pip install" in str(error)
    )


def attempt(read: Callable[[], object]) -> bool:
    """Call a reader; whether it read. Anything but a documented error, in time and in memory, is raised."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.signal(signal.SIGALRM, alarm)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read()
        return True
    except Exception as error:
        if not is_documented(error):
            raise
        if len(str(error)) > LONGEST:
            raise AssertionError(f"an error of {len(str(error))} characters") from error
        return False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        assert grown < GROWTH, f"took {grown / 1e9:.1f} GB"


# Inputs

NUMBERS = (
    0,
    1,
    -1,
    255,
    2**31 - 1,
    2**31,
    2**32,
    2**63 - 1,
    2**63,
    2**64,
    10**30,
    10**400,
    1.5,
    -0.0,
    1e308,
    float("inf"),
    float("-inf"),
    float("nan"),
)
TEXTS = (
    "",
    "x",
    "null",
    "../../x",
    "/dev/zero",
    "\x00",
    "\ud800",
    "é",
    "%s",
    "{0}",
    "=1+1",
    "\x1b[31m",
    "os:system",
    "9" * 5000,
    "x" * 70_000,
    "train[0:0]",
)


def values() -> st.SearchStrategy[Any]:
    """Anything that JSON and YAML can say, extremes among it."""
    leaves = (
        st.none()
        | st.booleans()
        | st.sampled_from(NUMBERS)
        | st.sampled_from(TEXTS)
        | st.integers()
        | st.floats()
        | st.text(max_size=20)
    )
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
        max_leaves=10,
    )


@st.composite
def changed_values(draw: st.DrawFn, content: Any) -> Any:
    """Nested content with a few values swapped, removed, doubled or renamed."""
    content = json.loads(json.dumps(content))
    for _ in range(draw(st.integers(1, 4))):
        place, key = content, None
        inside: Any = content
        while isinstance(inside, dict | list) and inside and (key is None or draw(st.integers(0, 3))):
            place = inside
            key = (
                draw(st.sampled_from(sorted(inside, key=str)))
                if isinstance(inside, dict)
                else draw(st.integers(0, len(inside) - 1))
            )
            inside = place[key]
        if key is None:
            return draw(values())
        match draw(st.integers(0, 6)):
            case 0:
                del place[key]
            case 1 if isinstance(place, dict):
                place[draw(st.sampled_from(TEXTS[:9]))] = place.pop(key)
            case 2 if isinstance(place, list):
                place.extend([inside] * draw(st.integers(1, 3)))
            case 3:
                place[key] = draw(st.sampled_from(NUMBERS))
            case _:
                place[key] = draw(values())
    return content


@st.composite
def changed_bytes(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """A sound file with bits flipped, bytes set, pieces cut, doubled, spliced from another, or its end missing."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 4))):
        if not data:
            break
        reach = min(len(data), draw(st.sampled_from([64, 700, len(data)])))
        at = draw(st.integers(0, max(0, reach - 1)))
        length = draw(st.integers(1, 64))
        match draw(st.integers(0, 7)):
            case 0 | 1:
                data[at] ^= 1 << draw(st.integers(0, 7))
            case 2:
                data[at] = draw(st.sampled_from([0, 255, 127, 128, 10, 34, 48, 57]))
            case 3:
                del data[at : at + length]
            case 4:
                data[at:at] = data[at : at + length]
            case 5:
                other = draw(st.sampled_from(seeds))
                data[at : at + length] = other[at : at + length]
            case 6:
                data[at : at + 8] = draw(
                    st.sampled_from([b"\xff" * 8, b"\x7f" + b"\xff" * 7, b"99999999", bytes(8), b"\xff" * 7 + b"\x7f"])
                )
            case _:
                del data[at + draw(st.sampled_from([0, 1, 512])) :]
    return bytes(data)


def texts(content: Any, dump: Callable[[Any], str]) -> st.SearchStrategy[bytes]:
    """Files of nested content: values changed, bytes changed, or nothing of the kind."""

    def written(value: Any) -> bytes:
        return dump(value).encode("utf-8", "surrogatepass")

    sound = [written(content)]
    return (
        changed_values(content).map(written)
        | changed_bytes(sound)
        | values().map(written)
        | st.binary(max_size=200)
        | st.text(max_size=100).map(lambda text: text.encode())
    )


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def as_yaml(value: Any) -> str:
    return str(yaml.safe_dump(value, allow_unicode=True))


def as_lines(value: Any) -> str:
    return "".join(
        json.dumps(each, ensure_ascii=False) + "\n" for each in (value if isinstance(value, list) else [value])
    )


# Readers: (inputs, read a file of this input in a folder)


def recipe() -> tuple[st.SearchStrategy[bytes], Read]:
    from mixview import recipes
    from mixview.train.config import PretrainConfig, from_plain, to_plain

    content = json.loads(
        json.dumps(to_plain(PretrainConfig(data="x")) | {"about": {"what": "x", "hardware": "8 × V100-32GB"}})
    )

    def read(folder: Path) -> None:
        found = recipes.read(str(folder / "recipe.yaml"))
        _ = found.hardware
        from_plain(found.settings)

    return texts(content, as_yaml), named("recipe.yaml", read)


def run_files() -> dict[str, Any]:
    from mixview.train.config import PretrainConfig, to_plain

    return {
        "config.yaml": json.loads(json.dumps(to_plain(PretrainConfig(data="scenes", backbone="small")))),
        "data.json": {"kind": "scenes", "count": 32, "fingerprint": "x"},
        "environment.json": {
            "versions": {"mixview": "0.1"},
            "seed": 0,
            "started": "2026-01-01T00:00:00+00:00",
            "cpu": {"name": "x", "cores": 2},
            "resumed": [{"seed": 0}],
        },
        "status.json": {
            "state": "finished",
            "step": 2,
            "epoch": 1.0,
            "message": "",
            "cpu_seconds": 1.0,
            "updated": "2026-01-01T00:00:00+00:00",
        },
        "metrics.jsonl": [
            {"step": 1, "epoch": 0.5, "loss": 3.0, "lr": 0.1},
            {"step": 2, "knn": 0.5, "std": 0.9, "non_finite": {"loss": "nan"}},
        ],
    }


def of_a_run(name: str) -> tuple[st.SearchStrategy[bytes], Read]:
    """One file of a run, read as resuming and as a report read it."""
    from mixview.report import curves
    from mixview.report.content import cost_of, describe_progress, describe_settings
    from mixview.report.runs import gather
    from mixview.runs.run_directory import RunDirectory, read_metrics, read_status
    from mixview.train.config import MAY_CHANGE

    files = run_files()
    dumps = {".yaml": as_yaml, ".json": as_json, ".jsonl": as_lines}

    def read(folder: Path) -> None:
        for other, content in files.items():
            if other == "config.yaml" != name:
                content = {
                    key: content[key] for key in ("data", "method", "objective", "backbone", "epochs", "batch_size")
                }
            if other != name:
                (folder / other).write_text(dumps[Path(other).suffix](content))
        with contextlib.suppress(ValueError, RuntimeError):
            opened = RunDirectory.open(folder)
            opened.check_resumable(files["config.yaml"], files["data.json"], MAY_CHANGE)
        read_status(folder)
        read_metrics(folder)
        for run in gather([folder]).runs:
            _ = run.seconds, run.settings, run.state
            describe_settings(run)
            describe_progress(run)
            cost_of(run)
            curves.follow(run, 100)

    return texts(files[name], dumps[Path(name).suffix]), named(name, read)


def evaluation() -> tuple[st.SearchStrategy[bytes], Read]:
    from dataclasses import asdict

    from rich.console import Console

    from mixview.evaluate import results

    about = {"method": "simclr", "objective": "sim", "epoch": "1", "seed": "0", "settings": '{"epochs": 1}'}
    made = results.Result(
        protocol="knn",
        metrics={"top-1": 45.2},
        description="20 nearest.",
        encoder="run (simclr sim)",
        data="scenes",
        about=about,
        std={"top-1": 1.0},
    )

    def read(folder: Path) -> None:
        results.show(results.read(folder), Console(file=io.StringIO()))

    return texts({"version": 1, **asdict(made)}, as_json), named("evaluations/knn-a.json", read)


def study() -> tuple[st.SearchStrategy[bytes], Read]:
    from mixview.experiments import spec as grid
    from tests.hostile.writing import STUDY

    return texts(STUDY, as_yaml), named("study.yaml", lambda folder: grid.read(str(folder / "study.yaml")))


def study_result() -> tuple[st.SearchStrategy[bytes], Read]:
    from mixview.experiments import results, tables
    from mixview.experiments import spec as grid
    from tests.hostile.writing import STUDY

    parsed = grid.expand("a", json.loads(json.dumps(STUDY)))
    run = parsed.runs[0]
    content = {
        "version": results.FORMAT,
        "data": run.data,
        "method": run.method,
        "variant": "",
        "objective": run.objective,
        "seed": 0,
        "metrics": {"k-NN": 45.0},
        "evaluate": run.evaluate,
        "eval_data": run.eval_data,
        "settings": run.resolved,
        "curve": [[1, 40.0]],
        "passes": [2, 0],
        "steps": 2,
        "images_seen": 32,
        "cpu_seconds": 1.0,
        "warnings": ["x"],
        "collapse_metrics": {"std": 1.0},
        "images": {"count": 32},
        "versions": {"mixview": "0.1"},
        "descriptions": {"k-NN": "x"},
    }

    def read(folder: Path) -> None:
        tables.render(parsed, results.match(parsed.runs, results.read_all(folder)))

    return texts(json.loads(json.dumps(content)), lambda value: f"{as_json(value)}\n"), named("a/results.jsonl", read)


def read_all(source: Any) -> None:
    """What every command does with a source."""
    from mixview.data.decode import Decoder
    from mixview.data.sources.base import BadImage

    source.fingerprint()
    source.labels()
    source.label_sets()
    decoder = Decoder(max_pixels=4_000_000)
    for index in range(min(len(source), 3)):
        source.name(index)
        source.objects(index)
        with contextlib.suppress(BadImage):
            stored = source.read(index)
            decoder(stored, source.name(index)) if isinstance(stored, bytes) else None


def coco() -> tuple[st.SearchStrategy[bytes], Read]:
    from mixview.data.sources.registry import open_dataset
    from tests.hostile.writing import write_coco

    sound = write_coco(Path(tempfile.mkdtemp()) / "set", 2)
    (path,) = (sound / "annotations").glob("*train*.json")
    content = json.loads(path.read_text())

    def read(folder: Path) -> None:
        if not (folder / "train2017").exists():
            (folder / path.stem.removeprefix("instances_")).symlink_to(sound / path.stem.removeprefix("instances_"))
        read_all(open_dataset(folder, kind="coco"))

    return texts(content, as_json), named(f"annotations/{path.name}", read)


def voc() -> tuple[st.SearchStrategy[bytes], Read]:
    from mixview.data.sources.voc import read_annotation
    from tests.hostile.writing import write_voc

    sound = write_voc(Path(tempfile.mkdtemp()) / "set", 4)
    seeds = [path.read_bytes() for path in sorted(sound.rglob("Annotations/*.xml"))]
    entities = [b"<!DOCTYPE x [<!ENTITY a 'b'>]>" + seed for seed in seeds[:2]]
    generated = st.text("<>/&;abc \n", max_size=60).map(lambda text: f"<annotation>{text}</annotation>".encode())
    return changed_bytes(seeds + entities) | generated | st.binary(max_size=100), named(
        "a.xml", lambda folder: read_annotation(folder / "a.xml")
    )


def image_list(suffix: str) -> tuple[st.SearchStrategy[bytes], Read]:
    from mixview.data.sources.registry import open_dataset
    from tests.data.writing import encode

    rows = (
        ["path,label", "a.png,0", "a.png,1", '"a.png","x y"']
        if suffix == "csv"
        else ["a.png 0", "a.png\t1", "# x", "a.png"]
    )
    cells = st.sampled_from(
        [
            "a.png",
            "0",
            "1",
            "",
            "x",
            "9" * 31,
            "/dev/null",
            "..",
            "\x00",
            "path",
            "label",
            '"',
            "é",
            "-1",
            "1.5",
            "\ud800",
        ]
    )
    tables = st.lists(st.lists(cells, max_size=4).map((", " if suffix == "txt" else ",").join), max_size=6).map(
        "\n".join
    )

    def read(folder: Path) -> None:
        (folder / "a.png").write_bytes(encode(0))
        read_all(open_dataset(folder / f"list.{suffix}"))

    inputs = (
        changed_bytes(["\n".join(rows).encode()])
        | tables.map(lambda text: text.encode("utf-8", "surrogatepass"))
        | st.binary(max_size=200)
    )
    return inputs, named(f"list.{suffix}", read)


def npz() -> tuple[st.SearchStrategy[bytes], Read]:
    from mixview.data.sources.registry import open_dataset
    from tests.data.writing import encode
    from tests.hostile.writing import npy_bytes, npy_header, zip_bytes

    images, labels = npy_bytes(np.zeros((4, 6, 6, 3), np.uint8)), npy_bytes(np.arange(4))
    jpeg = np.frombuffer(encode(0, "JPEG") * 2, np.uint8)
    packed = {"jpeg.npy": npy_bytes(jpeg), "offsets.npy": npy_bytes(np.array([0, len(jpeg) // 2, len(jpeg)]))}
    seeds = [
        zip_bytes(members, kind)
        for members in ({"images.npy": images, "labels.npy": labels}, packed)
        for kind in (0, 8)
    ]
    numbers = st.sampled_from([0, 1, 2, 3, 6, -1, 255, 2**31, 2**40, 2**62, 2**64])
    kinds = st.sampled_from(["|u1", "<i8", ">f4", "|O", "<U5", "<c16", "<M8[s]", "|V9", "x", "[('a', '<i4')]", "|S0"])
    headers = st.builds(
        lambda shape, kind, body: npy_header(shape, kind) + body,
        st.lists(numbers, max_size=5),
        kinds,
        st.binary(max_size=300),
    )
    members = st.builds(
        lambda images, labels, kind: zip_bytes({"images.npy": images, "labels.npy": labels}, kind),
        headers | changed_bytes([images]),
        headers | changed_bytes([labels]),
        st.sampled_from([0, 8]),
    )
    return changed_bytes(seeds) | members, named("a.npz", lambda folder: read_all(open_dataset(folder / "a.npz")))


def tiny_weights() -> tuple[dict[str, Any], bytes]:
    """The header and the body of an encoder's file."""
    from tests.hostile.writing import write_encoder

    data = write_encoder(Path(tempfile.mkdtemp()) / "a.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def safetensors() -> tuple[st.SearchStrategy[bytes], Read]:
    from mixview.encoders.encoder_file import load_encoder
    from tests.hostile.writing import safetensors_bytes

    header, body = tiny_weights()
    inner = json.loads(header["__metadata__"]["mixview"])
    sound = safetensors_bytes(header, body)

    def with_inner(value: Any) -> bytes:
        return safetensors_bytes(header | {"__metadata__": {"mixview": json.dumps(value)}}, body)

    def with_header(value: Any) -> bytes:
        return safetensors_bytes(json.dumps(value).encode("utf-8", "surrogatepass"), body)

    inputs = (
        changed_values(inner).map(with_inner)
        | changed_values(header).map(with_header)
        | changed_bytes([sound])
        | st.binary(max_size=100)
    )
    return inputs, named("a.safetensors", lambda folder: load_encoder(folder / "a.safetensors"))


def torch_file() -> tuple[st.SearchStrategy[bytes], Read]:
    import torch

    from mixview.encoders.weights import read_tensors

    seeds = []
    for new in (True, False):
        buffer = io.BytesIO()
        torch.save(
            {"state_dict": {"conv1.weight": torch.zeros(4, 3, 3, 3)}, "epoch": 3},
            buffer,
            _use_new_zipfile_serialization=new,
        )
        seeds.append(buffer.getvalue())
    return changed_bytes(seeds) | st.binary(max_size=100), named("a.pth", lambda folder: read_tensors(folder / "a.pth"))


def shard() -> tuple[st.SearchStrategy[bytes], Read]:
    from mixview.data.sources.webdataset import WebDataset
    from tests.data.writing import encode, tar

    members = {"0.png": encode(0), "0.cls": b"0", "1.png": encode(1), "1.cls": b"1"}
    import tarfile

    seeds = [tar(members, format) for format in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)] + [
        tar({f"{'long/' * 40}{name}": data for name, data in members.items()}, tarfile.PAX_FORMAT)
    ]
    return changed_bytes(seeds) | st.binary(max_size=600), named(
        "a.tar", lambda folder: read_all(WebDataset(folder / "a.tar", cache=folder / "cache"))
    )


def idx() -> tuple[st.SearchStrategy[bytes], Read]:
    import gzip
    import struct

    from mixview.data.sources.idx import read_idx

    sound = struct.pack(">IIII", 2051, 4, 8, 8) + bytes(256)

    def read(folder: Path) -> None:
        data = (folder / "a").read_bytes()
        (folder / "a.gz").write_bytes(data)
        for name in ("a", "a.gz"):
            with contextlib.suppress(ValueError, OSError):
                read_idx(folder / name, 3)
        read_idx(folder / "a", 3)

    return changed_bytes([sound, gzip.compress(sound)]) | st.binary(max_size=100), named("a", read)


def cifar() -> tuple[st.SearchStrategy[bytes], Read]:
    import pickle

    from mixview.data.sources.cifar import read_batch

    rows = {b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, 1]}
    seeds = [pickle.dumps(rows, protocol=protocol) for protocol in (0, 2, 4)]
    opcodes = st.lists(
        st.sampled_from(
            [bytes([code]) for code in b"(.0123FINJKLMTURVXabcdeghijlpqrstu}]\x80\x81\x82\x85\x86\x8c\x93\x94\x95"]
        )
        | st.binary(max_size=4),
        max_size=30,
    ).map(b"".join)
    return changed_bytes(seeds) | opcodes.map(lambda data: data + b".") | st.binary(max_size=100), named(
        "a", lambda folder: read_batch(folder / "a")
    )


def checkpoint() -> tuple[st.SearchStrategy[bytes], Read]:
    from mixview.runs.checkpoints import Checkpoints

    folder = Path(tempfile.mkdtemp())
    import torch

    sound = Checkpoints(folder).save({"model": {"a": torch.zeros(3)}, "step": 2}, 2).read_bytes()

    def read(place: Path) -> None:
        Checkpoints(place / "checkpoints").load_latest()

    return changed_bytes([sound]) | st.binary(max_size=100), named("checkpoints/step-000000002.pt", read)


def image() -> tuple[st.SearchStrategy[bytes], Read]:
    from mixview.data.decode import Decoder
    from tests.data.test_fuzz import seeds

    def read(folder: Path) -> None:
        Decoder(max_pixels=4_000_000)((folder / "a").read_bytes(), "a")

    return changed_bytes(seeds()), named("a", read)


def deep_image(kind: str) -> tuple[st.SearchStrategy[bytes], Read]:
    """Images of more than 8 bits, as their range is measured and as they are decoded."""
    from mixview.data.decode import Decoder
    from mixview.data.value_range import ValueRange
    from tests.data import test_value_range as sound

    gray = sound.DEEP[:, :, 0]
    seeds = {
        "png16": lambda: [sound.png16(sound.DEEP), sound.png16(sound.DEEP[:, :, :1], interlaced=True)],
        "tiff": lambda: [
            sound.tiff(sound.DEEP, photometric="rgb"),
            sound.tiff(sound.DEEP.astype(np.float32), photometric="rgb", tile=(16, 16), compression="deflate"),
            sound.tiff(np.stack([gray] * 5), photometric="minisblack", compression="lzw"),
            sound.tiff(gray, bigtiff=True, byteorder=">"),
        ],
        "dicom": lambda: [
            sound.dicom(gray, WindowCenter=40, WindowWidth=400),
            sound.dicom(gray, PhotometricInterpretation="MONOCHROME1"),
        ],
        "npy": lambda: [sound.npy(sound.DEEP), sound.npy(gray.astype(np.float64)), sound.npz_of(gray)],
    }[kind]()

    def read(folder: Path) -> None:
        data = (folder / "a").read_bytes()
        for decoder in (
            Decoder(max_pixels=4_000_000, value_range=ValueRange(0, 4095)),
            Decoder("stored", max_pixels=4_000_000, channels=5, value_range=ValueRange()),
        ):
            with contextlib.suppress(ValueError):
                decoder.stored_values(data, "a")
        Decoder(max_pixels=4_000_000, value_range=ValueRange(0, 4095))(data, "a")

    return changed_bytes(seeds), named("a", read)


def named(name: str, read: Read) -> Read:
    """A reader whose input is the file of this name in its folder."""

    def with_folder(folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((folder / "input").read_bytes())
        read(folder)

    return with_folder


READERS: dict[str, Callable[[], tuple[st.SearchStrategy[bytes], Read]]] = {
    "yaml-recipe": recipe,
    "yaml-config": lambda: of_a_run("config.yaml"),
    "yaml-study": study,
    "json-status": lambda: of_a_run("status.json"),
    "json-data": lambda: of_a_run("data.json"),
    "json-environment": lambda: of_a_run("environment.json"),
    "json-metrics": lambda: of_a_run("metrics.jsonl"),
    "json-evaluation": evaluation,
    "json-study-result": study_result,
    "json-coco": coco,
    "csv": lambda: image_list("csv"),
    "list": lambda: image_list("txt"),
    "npz": npz,
    "safetensors": safetensors,
    "torch": torch_file,
    "checkpoint": checkpoint,
    "xml-voc": voc,
    "tar": shard,
    "idx": idx,
    "cifar-pickle": cifar,
    "image": image,
    "png16": lambda: deep_image("png16"),
    "tiff": lambda: deep_image("tiff"),
    "dicom": lambda: deep_image("dicom"),
    "npy": lambda: deep_image("npy"),
}


def fuzz(reader: str, count: int) -> None:
    """Read so many inputs; the first that raises anything else than a documented error fails."""
    inputs, read = READERS[reader]()
    folder = Path(tempfile.mkdtemp())

    def once(data: bytes) -> None:
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        (folder / "input").write_bytes(data)
        attempt(lambda: read(folder))

    explore(inputs, count)(once)()


ROUND = 500
"""Inputs in one run of hypothesis, which keeps every input of a run in memory."""


def explore(inputs: st.SearchStrategy[Any], count: int) -> Callable[[Callable[[Any], None]], Callable[[], None]]:
    """hypothesis as it is used here: so many inputs, the same ones every time where they are few."""

    set_hypothesis_home_dir(tempfile.mkdtemp())
    with contextlib.suppress(AttributeError):  # seconds for the numbers in all of our code, which files do not know
        providers = importlib.import_module("hypothesis.internal.conjecture.providers")
        providers._get_local_constants = lambda: providers._local_constants

    def wrap(once: Callable[[Any], None]) -> Callable[[], None]:
        phases = [Phase.generate, *([Phase.shrink] if count > ROUND else [])]

        def tested() -> None:
            for start in range(0, count, ROUND):
                chosen = settings(
                    max_examples=min(ROUND, count - start),
                    deadline=None,
                    database=None,
                    derandomize=count <= ROUND,
                    phases=phases,
                    suppress_health_check=list(HealthCheck),
                    print_blob=False,
                    report_multiple_bugs=False,
                )
                chosen(given(inputs)(once))()
                gc.collect()

        return tested

    return wrap


def responses() -> st.SearchStrategy[list[bytes]]:
    """What a server sends: heads that are nearly right, bodies of any length, in pieces."""
    numbers = st.sampled_from(
        ["0", "1", "99", "16383", "16384", "20000", "-1", "*", "", "9" * 30, "9" * 5000, "x", "0x10", "1.5", "٣"]
    )
    ranges = st.builds(lambda a, b, n: f"bytes {a}-{b}/{n}", numbers, numbers, numbers) | st.text(max_size=20)
    fields = st.lists(
        st.builds(lambda text: f"Content-Range: {text}", ranges)
        | st.builds(lambda text: f"Content-Length: {text}", numbers)
        | st.sampled_from(
            [
                "Transfer-Encoding: chunked",
                "Content-Encoding: gzip",
                "ETag: x",
                "Location: /",
                "Location: file:///etc/passwd",
                "Connection: keep-alive",
                "X" * 70_000,
                ": x",
                "\x00: y",
            ]
        ),
        max_size=4,
    )
    statuses = st.sampled_from(
        ["206 OK", "200 OK", "206", "302 x", "404 x", "416 x", "500 x", "503 x", "100 x", "99999 x", "-1 x", "abc", ""]
    )
    heads = st.builds(
        lambda status, lines: f"HTTP/1.1 {status}\r\n{chr(13).join(line + chr(10) for line in lines)}\r\n".encode(
            "utf-8", "surrogatepass"
        ),
        statuses,
        fields,
    )
    proper = st.builds(
        lambda status, lines: ("\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""])).encode("utf-8", "surrogatepass"),
        statuses,
        fields,
    )
    bodies = st.sampled_from(
        [b"", b"x", bytes(16384), bytes(20000), b"5\r\nhello\r\n0\r\n\r\n", b"fffffff\r\n", b"zz\r\n"]
    )
    return st.builds(lambda head, body: [head, body], proper | heads, bodies) | st.lists(
        st.binary(max_size=200), max_size=2
    )


def fuzz_http(count: int) -> None:
    """The same of answers: a real server on loopback says what hypothesis chose, and hangs up."""
    from mixview.data.sources.remote import RemoteFile
    from tests.hostile.answering import RawServer

    pieces: list[bytes] = []

    def answer(_: bytes) -> Iterator[bytes | float]:
        yield from list(pieces)

    server = RawServer(answer)
    os.environ["no_proxy"] = "*"

    def once(answered: list[bytes]) -> None:
        pieces[:] = answered
        before = server.requests

        def read() -> None:
            with RemoteFile(f"{server.url}/a.tar", timeout=0.5, retries=0) as file:
                file.read_at(0, 100)
                file.read_at(max(0, min(file.seek(0, io.SEEK_END), 10**12) - 10), 10)

        attempt(read)
        assert server.requests - before < 50, "asks again and again"

    try:
        explore(responses(), count)(once)()
    finally:
        server.close()
