"""Images in buckets are the images that they are on a disk, whatever happens to the connection."""

import functools
import os
import pickle
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import numpy as np
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from safetensors.torch import load_file

import mixview
from mixview.cli import main
from mixview.data import ImageDataset, open_dataset
from mixview.data.augment.policies import load_policy
from mixview.data.loader import EpochSampler, view_loader
from mixview.data.sources import cloud
from mixview.data.sources.base import BadImage, Source, SourceError
from mixview.data.sources.cloud import is_cloud
from mixview.data.sources.files import ClassFolders, FileList, Folder, names_cloud
from mixview.data.sources.remote import RemoteFile
from mixview.data.sources.webdataset import WebDataset
from mixview.runs.run_directory import RunDirectoryError, read_metrics
from tests.data.buckets import Bucket, alone, serving_bucket
from tests.data.writing import encode, raises, tar, write, write_classes
from tests.train.running import tiny


@pytest.fixture(scope="module")
def server() -> Iterator[Bucket]:
    with serving_bucket() as bucket:
        yield bucket


@pytest.fixture
def bucket(server: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Bucket]:
    """The server, empty, as whoever sets AWS's variables finds it."""
    alone(monkeypatch)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.proxy.url)
    monkeypatch.setenv("MIXVIEW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cloud, "pause", lambda failures: None)
    monkeypatch.setattr("mixview.data.sources.remote.time.sleep", lambda seconds: None)
    monkeypatch.chdir(tmp_path)
    server.proxy.cuts, server.proxy.silent = 0, False
    for entry in server.client.list_objects_v2(Bucket="photos").get("Contents", []):
        server.client.delete_object(Bucket="photos", Key=entry["Key"])
    yield server
    server.proxy.cuts, server.proxy.silent = 0, False
    cloud.FILESYSTEMS.clear()


def same(ours: Source, theirs: Source) -> None:
    """Two sources of the same images, under the same names, with the same labels."""
    assert len(ours) == len(theirs) > 0
    assert ours.fingerprint() == theirs.fingerprint()
    assert ours.kind == theirs.kind
    assert ours.classes == theirs.classes
    for index in range(len(ours)):
        assert ours.name(index) == theirs.name(index)
        assert ours.read(index) == theirs.read(index)
    assert np.array_equal(ours.labels(), theirs.labels())  # type: ignore[arg-type]


def test_a_folder_at_any_depth(bucket: Bucket, tmp_path: Path) -> None:
    for name in ("b.PNG", "a/z.jpeg", "a/b/c/with space+%41?#.webp", "日本.tif", "a/arrays.npz"):
        write(tmp_path / "photos" / name)
    for name in ("notes.txt", ".hidden.png", ".git/x.png", "a/._z.jpeg", "photo.cr2"):
        write(tmp_path / "photos" / name, "no image")
    write(tmp_path / "photos" / "run" / "views.png")
    write(tmp_path / "photos" / "run" / "config.yaml", "seed: 0")
    write(tmp_path / "photos" / "run" / "status.json", '{"state": "finished", "step": 3}')
    url = bucket.upload(tmp_path / "photos", "folder")
    bucket.put("folder/", b"")  # as the browsers of buckets mark a folder
    ours, theirs = open_dataset(url), open_dataset(tmp_path / "photos")
    assert isinstance(ours, Folder)
    same(ours, theirs)
    same(pickle.loads(pickle.dumps(ours)), theirs)
    same(open_dataset(f"{url}/"), theirs)
    run, raw = ours.notes
    assert run == f"left out {url}/run: it is the folder of a run of mixview, not data"
    assert raw == theirs.notes[1]
    assert repr(ours) == f"Folder('{url}', 4 images)"


def test_class_folders_and_parts(bucket: Bucket, tmp_path: Path) -> None:
    write_classes(tmp_path / "parts" / "train", {"oak": 3, "ash": 2})
    write_classes(tmp_path / "parts" / "val", {"oak": 1, "ash": 1})
    url = bucket.upload(tmp_path / "parts", "parts")
    assert isinstance(open_dataset(url), ClassFolders)
    for split in (None, "val", "train[:3]"):
        same(open_dataset(url, split), open_dataset(tmp_path / "parts", split))
    same(open_dataset(f"{url}/val"), open_dataset(tmp_path / "parts" / "val"))
    same(open_dataset(url, kind="folder"), open_dataset(tmp_path / "parts", kind="folder"))
    with raises(SourceError, "s3://photos/parts has no split 'test'", "train, val"):
        open_dataset(url, "test")
    write(tmp_path / "labels.csv", "path,label\noak/000.png,tree\nash/001.png,wood\n")
    write(tmp_path / "up" / "labels.csv", (tmp_path / "labels.csv").read_bytes())
    labels = f"{bucket.upload(tmp_path / 'up', 'up')}/labels.csv"
    theirs = open_dataset(tmp_path / "parts", labels=str(tmp_path / "labels.csv"))
    same(open_dataset(url, labels=str(tmp_path / "labels.csv")), theirs)
    same(open_dataset(url, labels=labels), theirs)


def test_lists_in_a_bucket_and_of_a_bucket(bucket: Bucket, tmp_path: Path) -> None:
    write_classes(tmp_path / "data", {"oak": 3, "ash": 2})
    rows = [("oak/001.png", "oak"), ("ash/000.png", "ash"), ("oak/000.png", "oak")]
    write(tmp_path / "data" / "some.csv", "path,label\n" + "".join(f"{name},{label}\n" for name, label in rows))
    write(tmp_path / "data" / "plain.txt", "".join(f"{name}\n" for name, _ in rows))
    url = bucket.upload(tmp_path / "data", "data")
    for name in ("some.csv", "plain.txt"):
        same(open_dataset(f"{url}/{name}"), open_dataset(tmp_path / "data" / name))
        same(open_dataset(tmp_path / "data" / name, root=url), open_dataset(tmp_path / "data" / name))
    local = write(tmp_path / "local.txt", "".join(f"{url}/{name}\t{label}\n" for name, label in rows))
    source = open_dataset(local)
    assert isinstance(source, FileList)
    assert source.name(1) == f"{url}/ash/000.png"
    assert source.read(1) == (tmp_path / "data" / "ash" / "000.png").read_bytes()
    assert source.classes == ("ash", "oak")
    assert names_cloud(str(local))
    assert not names_cloud(str(tmp_path / "data" / "plain.txt"))
    write(local, f"{url}/oak/000.png\n{url}/oak/absent.png\n")
    with raises(BadImage, "absent.png", "there is no object"):
        open_dataset(local).read(1)
    write(local, f"{url}/oak/000.png\n/etc/passwd.png\n")
    with raises(SourceError, "names files in buckets and, /etc/passwd.png for one, on a disk"):
        open_dataset(local)
    bucket.put("data/local.txt", b"/etc/passwd.png\n../../x.png\n")
    source = open_dataset(f"{url}/local.txt")  # a list in a bucket names nothing on the disk
    for index in range(2):
        with raises(BadImage, "there is no object s3://photos/data/"):
            source.read(index)


def test_sizes_of_many_files_of_a_folder_are_listed(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        bucket.put(f"many/{number}.png", bytes(number + 1))
    urls = [f"s3://photos/many/{number}.png" for number in range(6)]
    asked = cloud.object_sizes(urls)
    monkeypatch.setattr(cloud, "MAX_ASKED", 3)
    monkeypatch.setattr(cloud, "object_size", None)
    assert asked.tolist() == cloud.object_sizes(urls).tolist() == [1, 2, 3, 4, 5, -1]


SHARDS, EACH = 3, 8


def write_shards(folder: Path, padding: int = 0) -> Path:
    for shard in range(SHARDS):
        members: dict[str, bytes] = {}
        for index in range(shard * EACH, (shard + 1) * EACH):
            members[f"{index:06d}.png"] = encode(index) + bytes(padding)
            members[f"{index:06d}.cls"] = str(index % 5).encode()
        write(folder / f"train-{shard:03d}.tar", tar(members))
    return folder


@pytest.mark.parametrize("pattern", ["", "/", "/train-{000..002}.tar", "/*.tar", "/train-00{0,1,2}.tar"])
def test_shards(bucket: Bucket, tmp_path: Path, pattern: str) -> None:
    url = bucket.upload(write_shards(tmp_path / "shards"), "shards")
    ours = open_dataset(f"{url}{pattern}")
    assert isinstance(ours, WebDataset)
    same(ours, WebDataset(tmp_path / "shards"))
    same(pickle.loads(pickle.dumps(ours)), WebDataset(tmp_path / "shards"))


def test_shards_stream_and_their_index_is_made_once(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = bucket.upload(write_shards(tmp_path / "shards", 30_000), "shards")
    reads: list[int] = []
    read = cloud.ObjectReader.read
    monkeypatch.setattr(
        cloud.ObjectReader, "read", lambda self, start, stop: (reads.append(start), read(self, start, stop))[1]
    )
    source = WebDataset(f"{url}/*.tar")
    reads.clear()
    assert WebDataset(f"{url}/*.tar").fingerprint() == source.fingerprint()
    assert reads == [0] * SHARDS  # each shard's beginning, and not its headers
    reads.clear()
    for index in range(len(source)):
        source.read(index)
    assert len(reads) < len(source)


def test_a_shard_that_changes(bucket: Bucket, tmp_path: Path) -> None:
    url = bucket.upload(write_shards(tmp_path / "shards"), "shards")
    source = WebDataset(f"{url}/*.tar")
    source.read(0)
    bucket.put("shards/train-000.tar", tar({"a.png": encode(7) + bytes(70_000)}))
    file = RemoteFile(f"{url}/train-000.tar")
    bucket.put("shards/train-000.tar", tar({"a.png": encode(8) + bytes(70_000)}))
    with raises(SourceError, "train-000.tar changed while it was read"):
        file.read_at(40_000, 20_000)
    assert len(WebDataset(f"{url}/*.tar")) == len(source) - EACH + 1


@pytest.mark.parametrize("cut_after", [0, 90, 700])
def test_a_dropped_connection(bucket: Bucket, tmp_path: Path, cut_after: int) -> None:
    for number in range(6):
        write(tmp_path / "photos" / f"{number}.png", encode(number) + bytes(3000))
    url = bucket.upload(tmp_path / "photos", "folder")
    shards = bucket.upload(write_shards(tmp_path / "shards", 3000), "shards")
    bucket.proxy.cut_after = cut_after
    for ours, theirs in ((url, "photos"), (f"{shards}/*.tar", "shards")):
        bucket.proxy.cuts = 2
        source = open_dataset(ours)  # while it is listed, or its index is made
        bucket.proxy.cuts += 2
        same(source, open_dataset(tmp_path / theirs))  # and while images are read
        assert bucket.proxy.cuts == 0


def test_a_connection_that_always_drops_is_given_up_on(bucket: Bucket, tmp_path: Path) -> None:
    url = bucket.upload(write_classes(tmp_path / "photos", {"a": 2}), "folder")
    shards = bucket.upload(write_shards(tmp_path / "shards", 3000), "shards")
    source, shard = open_dataset(url), WebDataset(f"{shards}/*.tar")
    bucket.proxy.cut_after, bucket.proxy.cuts = 0, 100
    for read in (functools.partial(source.read, 0), functools.partial(open_dataset, url)):
        bucket.proxy.cuts = 100
        with raises(SourceError, "s3://photos/folder", "failed 6 times in a row", "check the connection, then resume"):
            read()
        requests = 100 - bucket.proxy.cuts  # aiohttp itself asks twice where a connection was in use before
        assert cloud.RETRIES + 1 <= requests <= 2 * (cloud.RETRIES + 1)
    with raises(SourceError, "train-001.tar failed 6 times in a row"):
        shard.read(EACH)


def test_a_server_that_says_nothing(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloud, "TIMEOUT", 0.3)
    monkeypatch.setattr(cloud, "RETRIES", 1)
    source = open_dataset(bucket.upload(write_classes(tmp_path / "photos", {"a": 2}), "folder"))
    bucket.proxy.silent = True
    begin = time.monotonic()
    with raises(SourceError, "failed 2 times in a row"):
        source.read(0)
    assert time.monotonic() - begin < 10


def test_a_call_that_never_returns_is_left_alone() -> None:
    with raises(TimeoutError, "no answer in 0 seconds"):
        cloud.within(0.05, threading.Event().wait)


def test_no_access(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = bucket.upload(write_classes(tmp_path / "photos", {"a": 2}), "folder")
    source = open_dataset(url)
    bucket.iam.create_user(UserName="stranger")
    keys = bucket.iam.create_access_key(UserName="stranger")["AccessKey"]
    access = r"s3://photos cannot be read \(.*AWS_PROFILE.*FSSPEC_S3_ANON=true"
    with bucket.guarded():
        for read in (functools.partial(source.read, 0), functools.partial(open_dataset, url)):
            with raises(SourceError, access, "Access Key Id") as caught:
                read()
            assert "secret" not in str(caught.value)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", keys["AccessKeyId"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", keys["SecretAccessKey"])
        cloud.FILESYSTEMS.clear()
        with raises(SourceError, access, "Access Denied"):
            open_dataset(url)
        with raises(SourceError, access):
            open_dataset(f"{url}/train-{{0..3}}.tar")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    cloud.FILESYSTEMS.clear()
    with raises(SourceError, access, "Unable to locate credentials"):
        open_dataset(url)


def test_no_bucket_no_folder_no_package(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.put("folder/notes.txt", b"text")
    bucket.put("voc/JPEGImages/a.jpg", encode())
    for url, words in {
        "s3://absent/folder": "there is no bucket s3://absent: check the name",
        "s3://absent/list.csv": "there is no bucket s3://absent",
        "s3://absent/{0..2}.tar": "there is no bucket s3://absent",
        "s3://photos/absent": "there is nothing at s3://photos/absent",
        "s3://photos/absent.csv": "there is nothing at s3://photos/absent.csv",
        "s3://photos/absent/*.tar": "there is nothing at s3://photos/absent",
        "s3://photos/folder": "s3://photos/folder holds no images",
        "s3://photos/folder/*.tar": "matches no tar file",
        "s3://photos/folder/notes.tar.gz": "there is nothing at",
        "s3://photos/voc": "s3://photos/voc looks like VOC, which is read from a disk: copy it",
        "s3://": "s3:// names no bucket",
        "s3://Bad_Bucket!/x": "is not an address of s3fs",
    }.items():
        with raises(SourceError, words.replace("*", r"\*")):
            open_dataset(url)
    with raises(SourceError, "a source of kind voc is read from a disk"):
        open_dataset("s3://photos/voc", kind="voc")
    monkeypatch.setitem(cloud.PROVIDERS, "gs", cloud.PROVIDERS["gs"]._replace(package="absent_package"))
    with raises(SourceError, r"gs:// needs the package absent_package: pip install 'mixview\[cloud\]'"):
        open_dataset("gs://photos/folder")


def test_objects_that_change_after_they_were_listed(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_dataset(bucket.upload(write_classes(tmp_path / "photos", {"a": 4}), "folder"))
    size = len(source.read(0))
    bucket.client.delete_object(Bucket="photos", Key="folder/a/000.png")
    bucket.put("folder/a/001.png", b"short")
    bucket.put("folder/a/002.png", bytes(100_000))
    with raises(BadImage, "a/000.png", "there is no object"):
        source.read(0)
    with raises(BadImage, "a/001.png", f"has 5 bytes, and {size} when the bucket was listed"):
        source.read(1)
    assert len(source.read(2)) == size  # no more is read than an image was said to have
    monkeypatch.setattr(cloud, "MAX_OBJECT", 10)
    with raises(BadImage, "a/003.png", "more than any image"):
        source.read(3)
    bucket.put("empty.tar", b"")
    with raises(SourceError, "empty.tar is empty or a folder"):
        WebDataset("s3://photos/empty.tar")


@pytest.mark.parametrize("kind", ["folder", "shards"])
def test_workers_open_the_bucket_themselves(bucket: Bucket, tmp_path: Path, kind: str) -> None:
    """They are forks of a process that has read from it, in which nothing of asyncio works any more."""
    if kind == "folder":
        folder = write_classes(tmp_path / "data", {"a": 12, "b": 12})
    else:
        folder = write_shards(tmp_path / "data")
    ours, theirs = open_dataset(bucket.upload(folder, "data")), open_dataset(folder)
    ours.read(0)
    batches: list[list[Any]] = []
    for source, workers in ((theirs, 0), (ours, 0), (ours, 2)):
        loader = view_loader(
            ImageDataset(source), load_policy("mocov2", 16), EpochSampler(24, 6), workers=workers, backend="reference"
        )
        batches.append([[*views, torch.as_tensor(indices)] for views, indices in loader])
    for other in batches[1:]:
        for batch, expected in zip(other, batches[0], strict=True):
            assert all(map(torch.equal, batch, expected))
    assert ours.read(1) == theirs.read(1)  # and this process goes on with its own


def losses(out: Path) -> list[float]:
    return [record["loss"] for record in read_metrics(out) if "loss" in record]


@pytest.mark.parametrize("kind", ["folder", "shards"])
def test_runs_learn_the_same_from_a_bucket(bucket: Bucket, tmp_path: Path, kind: str) -> None:
    """With any number of workers, resumed, with shrunk images in a cache, and through dropped connections."""
    if kind == "folder":
        folder = write_classes(tmp_path / "data", {"a": 20, "b": 20})
    else:
        folder = write_shards(tmp_path / "data")
    url = bucket.upload(folder, "data")
    shared: dict[str, Any] = {"data_options": None, "size": 8, "batch_size": 8, "augment_device": "device"}
    for out, data in (("local", str(folder)), ("bucket", url)):
        mixview.pretrain(**tiny(tmp_path / out, data=data, **shared, epochs=1))
        bucket.proxy.cuts, bucket.proxy.cut_after = 3, 0
        mixview.resume(tmp_path / out, epochs=2, trust_remote_code=True)
        mixview.pretrain(**tiny(tmp_path / f"{out}-workers", data=data, **shared, workers=2))
    assert bucket.proxy.cuts == 0
    assert len(losses(tmp_path / "local")) >= 4
    for run in ("", "-workers"):
        assert losses(tmp_path / f"bucket{run}") == losses(tmp_path / f"local{run}")
        encoders = [load_file(tmp_path / f"{out}{run}" / "encoder.safetensors") for out in ("bucket", "local")]
        assert all(torch.equal(encoders[0][name], encoders[1][name]) for name in encoders[1])
    cached = {**shared, "cache": str(tmp_path / "shrunk"), "cache_size": 32}
    mixview.pretrain(**tiny(tmp_path / "first", data=str(folder), **cached))
    mixview.pretrain(**tiny(tmp_path / "second", data=url, **cached))
    assert losses(tmp_path / "first") == losses(tmp_path / "second")
    if kind == "folder":
        bucket.put("data/b/new.png", encode(5))
    else:
        bucket.put("data/train-009.tar", tar({"x.png": encode(9), "x.cls": b"1"}))
    with raises(RunDirectoryError, "the data has changed since the run", "restore it"):
        mixview.resume(tmp_path / "bucket", epochs=3, trust_remote_code=True)


def test_commands(bucket: Bucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_classes(tmp_path / "data", {"a": 10, "b": 10})
    url = bucket.upload(folder, "data")
    main(["data", "show", url, "--out", "picture.png", "--count", "2"])
    assert f"ClassFolders('{url}', 20 images): {open_dataset(folder).fingerprint()}" in capsys.readouterr().out
    main(["data", "pack", url, "packed.npz", "--size", "8"])
    main(["data", "pack", str(folder), "local.npz", "--size", "8"])
    same(open_dataset("packed.npz"), open_dataset("local.npz"))
    common = ["--size", "8", "--device", "cpu", "--workers", "0"]
    main(["embed", "pixels", "--data", url, "--out", "ours.npy", *common])
    main(["embed", "pixels", "--data", str(folder), "--out", "theirs.npy", *common])
    assert np.array_equal(np.load("ours.npy"), np.load("theirs.npy"))
    kept = ["--write_list", "kept.txt", "--diverse", "4", "--out", "neighbors.png", "--size", "8", "--workers", "0"]
    main(["neighbors", "pixels", "--data", url, *kept])
    listed = open_dataset("kept.txt")  # of addresses, which is data again
    assert listed.name(0).startswith(f"{url}/")
    assert listed.read(3) == bucket.client.get_object(Bucket="photos", Key=listed.name(3)[12:])["Body"].read()
    assert listed.labels() is not None
    capsys.readouterr()
    results = []
    for data in (url, str(folder)):
        main(["evaluate", "knn", "pixels", "--data", data, *common])
        results.append(capsys.readouterr().out.replace(data, "DATA"))
    assert "DATA" in results[0]
    assert results[0] == results[1]


@pytest.fixture
def hub() -> Iterator[MemoryFileSystem]:
    """The Hub cannot be reached: a filesystem in memory answers to its addresses."""

    class Hub(MemoryFileSystem):
        protocol = "hf"
        store: ClassVar[dict[str, Any]] = {}
        pseudo_dirs: ClassVar[list[str]] = [""]

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return path.removeprefix("hf://").strip("/")

    known = fsspec.get_filesystem_class("hf")
    fsspec.register_implementation("hf", Hub, clobber=True)
    cloud.FILESYSTEMS.clear()
    try:
        yield Hub()
    finally:
        fsspec.register_implementation("hf", known, clobber=True)
        cloud.FILESYSTEMS.clear()


def test_gs_against_an_emulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gcp_storage_emulator.server import create_server

    alone(monkeypatch)
    monkeypatch.setenv("MIXVIEW_CACHE", str(tmp_path / "cache"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
    write_classes(tmp_path / "data", {"oak": 3, "ash": 2})
    write(tmp_path / "data" / "some.csv", "path,label\noak/001.png,oak\nash/000.png,ash\n")
    write_shards(tmp_path / "shards")
    server = create_server("127.0.0.1", port, in_memory=True, default_bucket="photos")
    server.start()
    try:
        filesystem = cloud.open_filesystem("gs")
        for path in [*(tmp_path / "data").rglob("*.*"), *(tmp_path / "shards").iterdir()]:
            filesystem.pipe_file(f"photos/{path.relative_to(tmp_path)}", path.read_bytes())
        same(open_dataset("gs://photos/data"), open_dataset(tmp_path / "data"))
        same(open_dataset("gs://photos/data/some.csv"), open_dataset(tmp_path / "data" / "some.csv"))
        same(open_dataset("gs://photos/shards/train-{000..002}.tar"), WebDataset(tmp_path / "shards"))
        with raises(SourceError, "there is nothing at gs://absent/data"):
            open_dataset("gs://absent/data")
    finally:
        server.stop()
        cloud.FILESYSTEMS.clear()


def test_hf_addresses(hub: MemoryFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIXVIEW_CACHE", str(tmp_path / "cache"))
    write_classes(tmp_path / "data" / "train", {"oak": 3, "ash": 2})
    write_shards(tmp_path / "shards")
    root = "datasets/somebody/trees@v1"
    for path in [*(tmp_path / "data").rglob("*.*"), *(tmp_path / "shards").iterdir()]:
        hub.pipe_file(f"{root}/{path.relative_to(tmp_path)}", path.read_bytes())
    same(open_dataset(f"hf://{root}/data"), open_dataset(tmp_path / "data"))
    same(open_dataset(f"hf://{root}/shards/*.tar"), WebDataset(tmp_path / "shards"))
    with raises(SourceError, "there is nothing at hf://datasets/somebody/trees@v1/absent"):
        open_dataset(f"hf://{root}/absent")


def test_errors_of_libraries() -> None:
    class GatedRepoError(OSError):
        pass

    denied = cloud.explain("hf://datasets/somebody/trees/train", GatedRepoError("ask for access"))
    assert "the bucket hf://datasets/somebody/trees cannot be read (ask for access): log in with hf auth" in str(denied)
    forbidden = cloud.explain("gs://photos/a", OSError("Forbidden: photos/a\nnobody may"))
    assert "gs://photos cannot be read (Forbidden: photos/a nobody may): log in with gcloud" in str(forbidden)
    assert isinstance(cloud.explain("gs://photos/a", RuntimeError("reset")), ConnectionError)
    assert isinstance(cloud.explain("s3://photos/a", TimeoutError()), ConnectionError)


def test_addresses() -> None:
    assert all(map(is_cloud, ("s3://a", "gs://a/b", "hf://datasets/a/b")))
    assert not any(map(is_cloud, ("https://a/b", "s3", "s3:/a", "/s3://a", "photos", None)))


def test_a_process_id_that_comes_again_is_not_mistaken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloud, "FILESYSTEMS", {(os.getpid() + 1, "s3"): "another process's"})
    assert cloud.open_filesystem("s3") != "another process's"
