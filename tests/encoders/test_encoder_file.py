"""The exported encoder: what was written comes back bit for bit, and what is damaged raises."""

import contextlib
import errno
import gc
import json
import resource
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from mixview.encoders import encoder_file as export
from mixview.encoders.backbones import Backbone, build
from mixview.encoders.encoder_file import load_encoder, save_encoder, write_header


def disturbed(backbone: Backbone) -> Backbone:
    """Batch-norm statistics and all, unlike any fresh encoder."""
    for name, value in backbone.encoder.state_dict().items():
        if not value.is_floating_point():
            value.fill_(7)
        elif name.endswith("running_var"):
            value.uniform_(0.5, 1.5)
        else:
            value.normal_(std=0.05)
    return backbone


@pytest.mark.parametrize(
    ("name", "size", "channels"),
    [("small", 16, 3), ("resnet18", 32, 1), ("timm/resnet18", 96, 5), ("vit_tiny_patch16_224", 32, 3)],
)
def test_round_trip_is_bit_equal(tmp_path: Path, name: str, size: int, channels: int) -> None:
    backbone = disturbed(build(name, size=size, channels=channels))
    save_encoder(tmp_path / "encoder.safetensors", backbone.encoder, backbone.spec, {"method": "mocov2"})
    state = torch.get_rng_state()
    encoder, header = load_encoder(tmp_path)
    assert torch.equal(state, torch.get_rng_state())
    assert header == {"spec": backbone.spec, "metadata": {"method": "mocov2"}}
    assert not encoder.training
    expected = backbone.encoder.state_dict()
    assert encoder.state_dict().keys() == expected.keys()
    assert all(torch.equal(value, expected[key]) for key, value in encoder.state_dict().items())
    images = torch.rand(2, channels, size, size)
    assert torch.equal(encoder(images), backbone.encoder.eval()(images))
    assert [path.name for path in tmp_path.iterdir()] == ["encoder.safetensors"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    backbone = build("small", size=16)
    save_encoder(tmp_path / "encoder.safetensors", backbone.encoder, backbone.spec, {})
    return tmp_path / "encoder.safetensors"


def test_wrapped_encoders_and_channels_last_are_written_plain(tmp_path: Path, file: Path) -> None:
    encoder, header = load_encoder(file)
    expected = load_file(file)
    channels_last = encoder.to(memory_format=torch.channels_last)
    for wrapped in (channels_last, torch.compile(channels_last)):
        save_encoder(tmp_path / "other.safetensors", wrapped, header["spec"], {})
        other = load_file(tmp_path / "other.safetensors")
        assert other.keys() == expected.keys()
        assert all(torch.equal(other[key], value) for key, value in expected.items())


def test_the_same_encoder_is_the_same_file(file: Path) -> None:
    encoder, header = load_encoder(file)
    other = file.with_name("other.safetensors")
    for _ in range(5):
        save_encoder(other, encoder, header["spec"], header["metadata"])
        assert other.read_bytes() == file.read_bytes()


def test_an_export_is_where_another_run_starts(file: Path) -> None:
    backbone = build("small", size=32, weights=str(file.parent))
    assert all(torch.equal(v, backbone.encoder.state_dict()[k]) for k, v in load_file(file).items())


def test_truncated_and_foreign_files_raise(tmp_path: Path, file: Path) -> None:
    whole = file.read_bytes()
    for length in (0, 5, 100, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        with pytest.raises(
            ValueError, match=r"encoder.safetensors is not a complete safetensors file .*copy or export it again"
        ):
            load_encoder(file)
    save_file({"a": torch.rand(2)}, file)
    with pytest.raises(ValueError, match=r"holds weights but no mixview header.*build\(NAME, size=…, weights="):
        load_encoder(file)
    torch.save({}, tmp_path / "weights.pt")
    with pytest.raises(ValueError, match=r"weights.pt is not an exported encoder"):
        load_encoder(tmp_path / "weights.pt")
    with pytest.raises(FileNotFoundError, match="no weights at"):
        load_encoder(tmp_path / "absent")


def rewrite(file: Path, header: object) -> None:
    text = header if isinstance(header, str) else json.dumps(header)
    save_file(load_file(file), file, {"mixview": text})


SPEC = {"name": "small", "size": 16, "channels": 3, "stem": "small", "feature_dim": 128}


@pytest.mark.parametrize(
    "header",
    [
        "{",
        "[" * 100_000,
        [],
        {},
        {"spec": SPEC},
        {"spec": {}, "metadata": {}},
        {"spec": {**SPEC, "size": 10**9}, "metadata": {}},
        {"spec": {**SPEC, "size": "16"}, "metadata": {}},
        {"spec": {**SPEC, "channels": True}, "metadata": {}},
        {"spec": {**SPEC, "name": 3}, "metadata": {}},
        {"spec": {**SPEC, "stem": ["small"]}, "metadata": {}},
    ],
    ids=range(11),
)
def test_tampered_headers_raise(file: Path, header: object) -> None:
    rewrite(file, header)
    with pytest.raises(ValueError, match=r"the mixview header of .* is damaged: export the encoder again"):
        load_encoder(file)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
@pytest.mark.parametrize("header", [None, "no JSON", "{}"])
def test_a_damaged_file_is_closed_at_once(file: Path, header: str | None) -> None:
    """An error that a frame of its own traceback refers to would keep the file in memory until a full collection."""
    save_file(load_file(file), file, {} if header is None else {"mixview": header})
    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(ValueError):
            load_encoder(file)
        assert str(file) not in Path("/proc/self/maps").read_text()
    finally:
        gc.enable()


def test_headers_of_other_versions_and_models(file: Path) -> None:
    rewrite(file, {"version": 99, "spec": SPEC, "metadata": {}})
    with pytest.raises(ValueError, match=r"written by a later mixview \(format 99\): update mixview"):
        load_encoder(file)
    rewrite(file, {"version": 1, "spec": {**SPEC, "channels": 5}, "metadata": {}})
    with pytest.raises(ValueError, match=r"1 tensors of .* do not fit small \(conv1.weight\)"):
        load_encoder(file)
    rewrite(file, {"version": 1, "spec": {**SPEC, "name": "timm/no_such_model"}, "metadata": {}})
    with pytest.raises(ValueError, match=r"no backbone 'timm/no_such_model'"):
        load_encoder(file)


OWN = """
from pathlib import Path
from torch import nn
Path("ran").touch()
def make():
    return nn.Sequential(nn.Conv2d(3, 7, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
"""


def test_a_file_names_code_but_does_not_run_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    Path("own_exported.py").write_text(OWN)
    backbone = build("own_exported:make", size=9)
    save_encoder("encoder.safetensors", backbone.encoder, backbone.spec, {})
    Path("ran").unlink()
    sys.modules.pop("own_exported")

    with pytest.raises(
        ValueError, match=r"your own backbone 'own_exported:make', and .* would run its code: pass module="
    ):
        load_encoder("encoder.safetensors")
    mine = nn.Sequential(nn.Conv2d(3, 7, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    assert load_encoder("encoder.safetensors", module=mine)[0] is mine
    assert not Path("ran").exists()
    encoder, _ = load_encoder("encoder.safetensors", trust_remote_code=True)
    assert Path("ran").exists()
    images = torch.rand(2, 3, 9, 9)
    assert torch.equal(encoder(images), mine(images))


@pytest.mark.parametrize(
    "name", ["own_exported:make", "own_exported.make", "torchvision/os:system", "timm/os.path:join"]
)
def test_no_name_in_a_file_leads_to_an_import(file: Path, name: str) -> None:
    rewrite(file, {"version": 1, "spec": {**SPEC, "name": name}, "metadata": {}})
    with pytest.raises(ValueError, match=r"would run its code|no backbone"):
        load_encoder(file)


def test_a_failed_write_leaves_the_last_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = file.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(export.os, "fsync", full)
    with pytest.raises(OSError, match=r"could not be written \(No space left on device\): free the disk") as caught:
        save_encoder(file, nn.Linear(2, 2), SPEC, {})
    assert caught.value.errno == errno.ENOSPC
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


def test_only_safetensors_are_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"not 'encoder.pt': end its name in .safetensors"):
        save_encoder(tmp_path / "encoder.pt", nn.Linear(2, 2), SPEC, {})


def test_the_header_is_readable_by_others(file: Path) -> None:
    with safe_open(file, framework="pt") as held:
        metadata = held.metadata()
    assert json.loads(metadata["mixview"])["spec"] == SPEC


@pytest.mark.parametrize(
    ("size", "stem", "reason"),
    [
        (224, "standard", r"1 tensors of .* do not fit"),
        (16, "standard", "patches of 14 pixels"),
        (28, "small", "ResNets"),
    ],
)
def test_a_header_that_names_a_network_of_billions(size: int, stem: str, reason: str, tmp_path: Path) -> None:
    spec = {"name": "timm/vit_giant_patch14_224", "size": size, "channels": 3, "stem": stem, "feature_dim": 1408}
    path = tmp_path / "encoder.safetensors"
    save_file({"a": torch.zeros(1)}, path, {"mixview": write_header(spec, {})})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=reason):
        load_encoder(path)
    assert (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_000_000
    )  # kilobytes; it would be four million


def test_a_header_that_speaks_of_images_too_large_to_try(tmp_path: Path) -> None:
    spec = {"name": "small", "size": 4096, "channels": 4096, "stem": "small", "feature_dim": 256}
    path = tmp_path / "encoder.safetensors"
    save_file({"a": torch.zeros(1)}, path, {"mixview": write_header(spec, {})})
    with pytest.raises(ValueError, match="is damaged"):
        load_encoder(path)


def test_threads_that_load_do_not_meet(tmp_path: Path) -> None:
    """What is measured without memory is measured by one thread, and is nobody else's."""
    built = build("small", size=32)
    save_encoder(tmp_path / "encoder.safetensors", built.encoder, built.spec, {})
    with ThreadPoolExecutor(8) as pool:
        loaded = list(pool.map(lambda _: load_encoder(tmp_path / "encoder.safetensors")[0], range(24)))
    assert all(each.device.type == "cpu" for encoder in loaded for each in encoder.parameters())
    assert torch.nn.Linear(2, 2).weight.device.type == "cpu"
