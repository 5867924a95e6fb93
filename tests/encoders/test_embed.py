"""`mixview embed`: what is in the file is the features of the images that it names, however it was made."""

import csv
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from mixview.cli import main
from mixview.encoders import embedding
from mixview.encoders import features as extraction
from mixview.encoders.embedding import Embed, embed, read_features
from mixview.encoders.encoder_file import load_encoder, save_encoder
from tests.data.writing import encode, needs_data, real, write, write_classes
from tests.evaluate.small_encoders import run_folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return run_folder(tmp_path / "run")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return write_classes(tmp_path / "set", {"cat": 5, "dog": 4})


def test_parquet_and_npy_hold_the_same_rows(run: Path, images: Path, tmp_path: Path) -> None:
    for name in ("a.parquet", "sub/a.npy"):
        embed(str(run), data=str(images), out=str(tmp_path / name), workers=0)
    names, features = read_features(tmp_path / "a.parquet")
    other_names, others = read_features(tmp_path / "sub" / "a.npy")
    assert names == other_names == [f"cat/00{n}.png" for n in range(5)] + [f"dog/00{n}.png" for n in range(4)]
    assert features.shape == (9, 128)
    assert features.dtype == np.float32
    np.testing.assert_array_equal(features, others)
    table = pq.read_table(tmp_path / "a.parquet")
    assert table["label"].to_pylist() == ["cat"] * 5 + ["dog"] * 4
    about = json.loads(table.schema.metadata[b"mixview"])
    assert about["encoder"] == "run (mocov2 bsim)"
    assert about["shown"] == "center crop of 16 pixels"
    with (tmp_path / "sub" / "a.csv").open() as file:
        assert [row["label"] for row in csv.DictReader(file)] == ["cat"] * 5 + ["dog"] * 4


def test_features_are_those_of_the_encoder(run: Path, images: Path, tmp_path: Path) -> None:
    import mixview

    path = Embed(encoder=str(run), data=str(images), out=str(tmp_path / "a.npy"), workers=0).run()
    names, features = read_features(path)
    found = mixview.load(run, device="cpu")([images / name for name in names])
    np.testing.assert_allclose(features, found.numpy(), rtol=1e-4, atol=1e-5)


def test_patches_are_maps_with_their_grid(run: Path, images: Path, tmp_path: Path) -> None:
    """In both formats: a ResNet's last maps, whose mean is its output; and earlier ones by --stage."""
    import mixview

    options: dict[str, Any] = {"data": str(images), "workers": 0, "patches": True}
    for name in ("a.parquet", "a.npy"):
        embed(str(run), out=str(tmp_path / name), **options)
    names, patches = read_features(tmp_path / "a.npy")
    same_names, same = read_features(tmp_path / "a.parquet")
    assert names == same_names
    assert patches.shape == same.shape == (9, 2, 2, 128)
    np.testing.assert_array_equal(patches, same)
    assert pq.read_table(tmp_path / "a.parquet")["grid"].to_pylist() == [[2, 2]] * 9
    encoder = mixview.load(run, device="cpu")
    paths = [images / name for name in names]
    np.testing.assert_allclose(patches.mean((1, 2)), encoder(paths).numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(patches, encoder.patches(paths).numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(patches[0], encoder.patches(paths[0]).numpy(), rtol=1e-4, atol=1e-5)
    embed(str(run), out=str(tmp_path / "b.npy"), stage="res3", **options)
    assert np.load(tmp_path / "b.npy").shape == (9, 8, 8, 32)


def test_bad_images_are_left_out_and_named(
    run: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "ROWS", 3)  # several row groups
    write(images / "cat" / "003.png", "nothing")
    main(["embed", str(run), "--data", str(images), "--out", str(tmp_path / "a.parquet"), "--workers", "0"])
    names, features = read_features(tmp_path / "a.parquet")
    assert "cat/003.png" not in names
    assert len(names) == len(features) == 8
    assert "skipped cat/003.png: is not an image" in capsys.readouterr().err
    embed(str(run), data=str(images), out=str(tmp_path / "a.npy"), workers=0)
    np.testing.assert_array_equal(read_features(tmp_path / "a.npy")[1], features)


def test_sets_of_labels(run: Path, tmp_path: Path) -> None:
    main(["data", "make", str(tmp_path / "voc"), "--count", "6", "--layout", "voc", "--test_count", "1"])
    embed(str(run), data=str(tmp_path / "voc"), out=str(tmp_path / "a.parquet"), workers=0)
    labels = pq.read_table(tmp_path / "a.parquet")["labels"].to_pylist()
    assert len(labels) == 6
    assert all(labels)


def test_nothing_is_encoded_twice_and_two_processes_do_it_too(
    run: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extraction, "START_METHOD", "fork")
    embed(str(run), data=str(images), workers=0, out=str(tmp_path / "two.npy"), devices=2)
    monkeypatch.setattr(extraction, "fill", lambda *given: pytest.fail("was made again"))
    embed(str(run), data=str(images), workers=0, out=str(tmp_path / "again.npy"))
    assert (tmp_path / "two.npy").read_bytes() == (tmp_path / "again.npy").read_bytes()


def test_only_the_first_of_several_ranks_writes(
    run: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "a.npy"
    Embed(encoder=str(run), data=str(images), out=str(out), workers=0).run()
    out.unlink()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    Embed(encoder=str(run), data=str(images), out=str(out), workers=0).run()
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"out": "a.txt", "data": "scenes"}, "features are written as .parquet or .npy, not 'a.txt'"),
        ({"out": "a.npy"}, "there are no images: pass a folder of them as --data"),
        ({"out": "a.npy", "data": "scenes", "stage": "res5", "size": 16}, "has no stage res5"),
    ],
)
def test_mistakes(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        embed("pixels", **options)


def test_without_pyarrow_the_command_to_install_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(SystemExit) as caught:
        main(["embed", "pixels", "--data", "scenes"])
    assert caught.value.code == "mixview: pyarrow is not installed: pip install 'mixview[embed]'"


@needs_data
def test_real_photographs(run: Path, tmp_path: Path) -> None:
    embed(str(run), data=str(real("photos")), out=str(tmp_path / "a.parquet"), workers=0)
    names, features = read_features(tmp_path / "a.parquet")
    assert features.shape == (100, 128)
    assert np.isfinite(features).all()
    assert "n01514668_cock.JPEG" in names


def test_a_file_name_that_is_not_unicode(run: Path, tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / "set" / os.fsdecode(b"\xff%d.png" % number), encode(number))
    path = Embed(encoder=str(run), data=str(tmp_path / "set"), out=str(tmp_path / "a.parquet"), workers=0).run()
    assert read_features(path)[0] == ["\\xff0.png", "\\xff1.png", "\\xff2.png"]


def test_an_encoder_of_no_numbers_raises(run: Path, images: Path, tmp_path: Path) -> None:
    encoder, header = load_encoder(run)
    with torch.no_grad():
        next(encoder.parameters()).fill_(float("nan"))
    save_encoder(tmp_path / "encoder.safetensors", encoder, header["spec"], {})
    for command in ("embed", "neighbors"):
        with pytest.raises(SystemExit, match=r"encoder\.safetensors contain NaN"):
            main([command, str(tmp_path / "encoder.safetensors"), "--data", str(images), "--workers", "0"])
