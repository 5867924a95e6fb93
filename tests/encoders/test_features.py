"""Features: right, once, resumable, and never taken for whole when they are not."""

import errno
import multiprocessing
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn
from torchvision.models import VisionTransformer

from mixview.data.dataset import LOGGED, ImageDataset
from mixview.data.loader import to_tensor
from mixview.data.sources.base import SourceError
from mixview.data.sources.files import ClassFolders
from mixview.data.sources.registry import open_dataset
from mixview.encoders import backbones
from mixview.encoders import features as module
from mixview.encoders.features import (
    POOLS,
    STAGES,
    PatchMaps,
    StageFeatures,
    TransformedImages,
    cache_key,
    extract,
    open_array,
    rank_and_world_size,
    stages_of,
    tokens_to_maps,
)
from mixview.encoders.inference import load
from mixview.encoders.loading import LoadedEncoder
from mixview.encoders.transforms import CenterCrop, ResizeToSquare, Transform
from tests.evaluate.small_encoders import SIZE, Means, colored, means, scenes, small

CROP = CenterCrop(SIZE)


def test_are_the_encoder_s_of_the_transformed_images() -> None:
    source, subject = scenes(100), small()
    found = extract(subject, source, CROP, workers=0)
    images = torch.stack([CROP(to_tensor(np.asarray(source.read(index)))) for index in range(len(source))])
    with torch.no_grad():
        expected = subject.encoder(images)
    torch.testing.assert_close(found["avgpool"], expected, rtol=1e-4, atol=1e-5)
    assert found.indices.tolist() == list(range(100))


def test_every_stage_is_kept_under_its_own_name() -> None:
    source, subject, stages = scenes(6), small(), ("res5", "res4", "avgpool")
    found = extract(subject, source, CROP, stages=stages, workers=0)
    images = torch.stack([CROP(to_tensor(np.asarray(source.read(index)))) for index in range(len(source))])
    with torch.no_grad():
        expected = StageFeatures(subject.encoder, stages)(images)
    for stage in stages:
        torch.testing.assert_close(found[stage], expected[stage], rtol=1e-4, atol=1e-5)


def test_a_second_time_nothing_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    source, subject = scenes(70), small(1)
    first = extract(subject, source, CROP, workers=0)
    monkeypatch.setattr(module, "fill", lambda *given: pytest.fail("was made again"))
    second = extract(subject, source, CROP, workers=0)
    assert torch.equal(first["avgpool"], second["avgpool"])
    assert isinstance(np.load(second.folder / "avgpool.npy", mmap_mode="r"), np.memmap)


def test_the_key_is_of_weights_images_transform_and_stages(tmp_path: Path) -> None:
    one = ClassFolders(colored(tmp_path / "one", {"a": 2}))
    same = cache_key(small(), one, CROP, ("avgpool",))
    assert cache_key(small(), one, CROP, ("avgpool",)) == same
    others = {
        cache_key(small(1), one, CROP, ("avgpool",)),
        cache_key(small(), one, ResizeToSquare(SIZE), ("avgpool",)),
        cache_key(small(), one, CenterCrop(24), ("avgpool",)),
        cache_key(small(), one, CROP, ("res5",)),
        cache_key(small(), scenes(2), CROP, ("avgpool",)),
    }
    image = tmp_path / "one" / "a" / "000.png"
    content = bytearray(image.read_bytes())
    content[-20] ^= 1  # the same name and size
    image.write_bytes(content)
    others.add(cache_key(small(), ClassFolders(tmp_path / "one"), CROP, ("avgpool",)))
    assert len(others) == 6
    assert same not in others


class Slow(Means):
    """Waits, so that there is time to kill it; not for the single image that it is tried with."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if len(images) > 1:
            time.sleep(0.3)
        return super().forward(images)


def extract_slowly(cache: str) -> None:
    os.environ["MIXVIEW_CACHE"] = cache
    extract(LoadedEncoder(Slow(), "slow", SIZE, 3, 3), scenes(64 * 20), CROP, workers=0)


def test_a_kill_in_the_middle_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIXVIEW_CACHE", str(tmp_path))
    source = scenes(64 * 20)
    source.read(0)  # draws them, which takes longer than encoding
    process = multiprocessing.get_context("fork").Process(target=extract_slowly, args=(str(tmp_path),))
    process.start()
    subject = LoadedEncoder(Slow(), "slow", SIZE, 3, 3)
    folder = tmp_path / "features" / cache_key(subject, source, CROP, ("avgpool",))
    end = time.monotonic() + 60
    while not (folder.is_dir() and open_array(folder, "done").sum() >= 2):
        assert time.monotonic() < end
        time.sleep(0.02)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    before = open_array(folder, "done").copy()
    assert 2 <= before.sum() < 20
    made = []
    monkeypatch.setattr(time, "sleep", lambda seconds: made.append(seconds))
    found = extract(subject, source, CROP, workers=0)
    assert len(made) == 20 - before.sum()
    images = torch.stack([CROP(to_tensor(np.asarray(source.read(index)))) for index in range(len(source))])
    torch.testing.assert_close(found["avgpool"], Means()(images), rtol=1e-5, atol=1e-6)


def test_two_processes_make_what_one_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = means()
    source = ClassFolders(colored(tmp_path / "set", {"a": 90, "b": 50}))
    alone = extract(subject, source, CROP, workers=0)["avgpool"].clone()
    monkeypatch.setenv("MIXVIEW_CACHE", str(tmp_path / "other"))
    monkeypatch.setattr(module, "START_METHOD", "fork")  # to import torch again takes longer than the rest
    assert torch.equal(extract(subject, source, CROP, devices=2, workers=0)["avgpool"], alone)


def test_ranks_of_torchrun_take_blocks_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIXVIEW_CACHE", str(tmp_path))
    subject, source = means(), scenes(64 * 4)
    monkeypatch.setenv("WORLD_SIZE", "2")
    waited = []
    monkeypatch.setattr(module, "wait_until", waited.append)
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        extract(subject, source, CROP, workers=0)
        folder = next((tmp_path / "features").iterdir())
        done = open_array(folder, "done").tolist()
        assert done == ([True, False, True, False] if rank == "0" else [True] * 4)
    assert waited


def test_bad_images_are_left_out_and_too_many_stop(tmp_path: Path) -> None:
    root = colored(tmp_path / "set", {"a": 30})
    (root / "a" / "007.png").write_bytes(b"nothing")
    found = extract(means(), ClassFolders(root), CROP, workers=0)
    assert found.indices.tolist() == [index for index in range(30) if index != 7]
    assert found["avgpool"].shape == (29, 3)
    for number in range(12):
        (root / "a" / f"{number:03d}.png").write_bytes(b"nothing")
    with pytest.raises(SourceError, match="more than the 10"):
        extract(means(), ClassFolders(root), CROP, workers=0)


@pytest.mark.parametrize("name", ["torchvision/resnet18", "timm/resnet18", "small"])
def test_stages_in_one_pass_are_those_of_the_layers(name: str) -> None:
    torch.manual_seed(0)
    encoder = backbones.build(name, size=64, stem="auto").encoder.eval()
    images = torch.rand(2, 3, 64, 64)
    assert stages_of(encoder) == STAGES
    maps = []
    modules = dict(encoder.named_children())
    stem = nn.Sequential(modules["conv1"], modules["bn1"], modules.get("relu", modules.get("act1")))
    with torch.no_grad():
        found = StageFeatures(encoder, STAGES)(images)
        x = stem(images)
        maps.append(x)
        x = modules["maxpool"](x) if "maxpool" in modules else x
        for number in range(1, 5):
            x = modules[f"layer{number}"](x)
            maps.append(x)
        torch.testing.assert_close(found["avgpool"], encoder(images))
    for (stage, pool), each in zip(POOLS.items(), maps, strict=True):
        side = min(pool.side, each.shape[-1])
        torch.testing.assert_close(found[stage], F.adaptive_avg_pool2d(each, side).flatten(1), msg=stage)


def test_pools_at_224_are_the_published_ones() -> None:
    encoder = backbones.build("resnet50", size=224).encoder.eval()
    with torch.no_grad():
        found = StageFeatures(encoder, STAGES)(torch.zeros(1, 3, 224, 224))
    widths = {stage: each.shape[1] for stage, each in found.items()}
    assert widths == {"stem": 9216, "res2": 9216, "res3": 8192, "res4": 9216, "res5": 8192, "avgpool": 2048}
    maps = torch.rand(1, 2, 7, 7)
    by_hand = [maps[0, channel, row : row + 6, column : column + 6].mean() for channel in range(2)
               for row in range(2) for column in range(2)]  # fmt: skip
    torch.testing.assert_close(POOLS["res5"](maps)[0], torch.stack(by_hand))


def test_other_encoders_have_their_output_only() -> None:
    assert stages_of(Means()) == ("avgpool",)
    with pytest.raises(ValueError, match="Means has no stage res5, only a ResNet has: use avgpool"):
        StageFeatures(Means(), ("res5",))


def test_non_rgb_images_are_read_as_rgb(tmp_path: Path) -> None:
    from PIL import Image

    (tmp_path / "a").mkdir()
    colors = Image.new("RGB", (20, 20), (200, 100, 50))
    for number, mode in enumerate(("L", "CMYK", "P", "RGBA", "RGB")):
        name = f"{number}.{'jpg' if mode in ('L', 'CMYK') else 'png'}"
        colors.convert(mode).save(tmp_path / "a" / name)
    found = extract(means(), ClassFolders(tmp_path), CenterCrop(SIZE, None), workers=0)["avgpool"]
    assert found.shape == (5, 3)
    torch.testing.assert_close(found[0], found[0, :1].expand(3))  # gray
    torch.testing.assert_close(found[4] * 255, torch.tensor([200.0, 100.0, 50.0]), atol=1, rtol=0)
    torch.testing.assert_close(found[3], found[4], atol=0.01, rtol=0)


def test_squash_shows_the_whole_image_and_the_crop_its_middle() -> None:
    image = torch.zeros(3, 32, 64, dtype=torch.uint8)
    image[:, :, 48:] = 255
    squashed = ResizeToSquare(16, None)(image)
    assert squashed.shape == (3, 16, 16)
    torch.testing.assert_close(squashed.mean(), torch.tensor(0.25), atol=0.01, rtol=0)
    assert CenterCrop(16, None)(image)[:, :, :14].max() < 0.05


def test_the_crop_leaves_the_usual_margin_of_images_that_are_larger_than_it() -> None:
    """256 pixels of the shorter side and the middle 224 of them; smaller images are shown to their edges."""
    image = torch.randint(256, (3, 256, 300), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(CenterCrop(224, None)(image), image[:, 16:240, 38:262] / 255)
    torch.testing.assert_close(CenterCrop(32, None)(image[:, :32, :32]), image[:, :32, :32] / 255)


@pytest.mark.parametrize("transform", [CenterCrop(64, None), ResizeToSquare(64, None)])
def test_large_photographs_are_decoded_as_small_as_the_network_sees_them(
    transform: Transform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice the 73 pixels that they are resized to remain, and the network sees the same within a rounding or two."""
    waves = np.sin(np.linspace(0, 20, 1200))[:, None] * np.sin(np.linspace(0, 30, 1600))[None] * 100 + 128
    Image.fromarray(np.stack([waves, waves.T[::-1].T, 255 - waves], 2).astype(np.uint8)).save(tmp_path / "photo.jpg")
    assert transform.decode_factor(1200, 1600) == 8
    assert [transform.decode_factor(height, 5000) for height in (291, 292, 583, 584)] == [1, 2, 2, 4]
    images, decoded = ImageDataset(open_dataset(tmp_path)), []

    def watched(pixels: np.ndarray) -> torch.Tensor:
        decoded.append(pixels.shape)
        return to_tensor(pixels)

    monkeypatch.setattr("mixview.encoders.features.to_tensor", watched)
    seen, _ = TransformedImages(images, transform).__getitems__([0])
    assert decoded == [(150, 200, 3)]
    exact = transform(to_tensor(images[0].pixels))
    assert (seen[0] - exact).abs().mean() < 1 / 255
    prepared = load("small", size=64, device="cpu").prepare(tmp_path / "photo.jpg")
    torch.testing.assert_close(CenterCrop(64)(to_tensor(images.load(0, transform.decode_factor).pixels)), prepared)


def test_a_batch_script_of_slurm_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its variables are there although srun has started nothing: waiting for other processes would never end."""
    for name, value in {"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_JOB_NAME": "evaluate"}.items():
        monkeypatch.setenv(name, value)
    assert rank_and_world_size() == (0, 1)
    monkeypatch.setenv("LOCAL_RANK", "1")  # as Lightning's launcher does for --devices 2
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert rank_and_world_size() == (1, 2)


def test_a_full_disk_is_known_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The arrays are mapped: to write to them on a full disk would kill the process (SIGBUS)."""

    def full(*given: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setenv("MIXVIEW_CACHE", str(tmp_path))
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="no room"):
        extract(small(), scenes(6), CROP, workers=0)
    assert not list((tmp_path / "features").iterdir())


def test_the_space_of_the_arrays_is_taken_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "fill", lambda job, *given: sizes.append((job.folder / "res5.npy").stat()))
    monkeypatch.setattr(module, "wait_until", lambda condition: None)
    sizes: list[os.stat_result] = []
    extract(small(), scenes(64), CROP, stages=("res5",), workers=0)
    assert sizes[0].st_blocks * 512 >= sizes[0].st_size


def test_bad_images_are_named_again_where_features_are_kept_already(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = colored(tmp_path / "set", {"a": 6})
    (root / "a" / "003.png").write_bytes(b"nothing")
    extract(means(), ClassFolders(root), CROP, workers=0)
    assert capsys.readouterr().err.count("skipped a/003.png: is not an image") == 1
    LOGGED.clear()  # as another command
    extract(means(), ClassFolders(root), CROP, workers=0)
    assert capsys.readouterr().err.count("skipped a/003.png: is not an image") == 1


def test_features_that_are_not_finite_raise() -> None:
    subject = small(7)
    with torch.no_grad():
        next(subject.encoder.parameters()).fill_(float("inf"))
    with pytest.raises(ValueError, match=f"{subject.name} contain NaN or infinity"):
        extract(subject, scenes(6), CROP, workers=0)


def test_patches_of_a_vit_are_its_tokens_without_the_class_token() -> None:
    """In the order of the image: a change in one corner changes that corner's patch most."""
    encoder = backbones.build("small-vit", size=16).encoder.eval()
    images = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        maps = PatchMaps(encoder)(images)
        tokens = encoder.forward_features(images)
        images[:, :, 12:, :4] += 1
        change = (PatchMaps(encoder)(images) - maps).norm(dim=1)
    assert maps.shape == (2, 128, 4, 4)
    assert torch.equal(maps.flatten(2).transpose(1, 2), tokens[:, 1:])
    assert change.flatten(1).argmax(1).tolist() == [12, 12]


@pytest.mark.parametrize("name", ["timm/resnet18", "resnet18"])
def test_patches_of_resnets_are_what_is_pooled(name: str) -> None:
    encoder = backbones.build(name, size=64, stem="standard").encoder.eval()
    images = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        maps, output = PatchMaps(encoder)(images), encoder(images)
    assert maps.shape == (1, 512, 2, 2)
    torch.testing.assert_close(maps.mean((2, 3)), output)


def test_patches_of_torchvision_s_vit() -> None:
    torch.manual_seed(0)
    encoder = VisionTransformer(16, 4, num_layers=1, num_heads=2, hidden_dim=8, mlp_dim=8).eval()
    images = torch.rand(1, 3, 16, 16)
    with torch.no_grad():
        maps = PatchMaps(encoder)(images)
        images[:, :, :4, 12:] += 1
        change = (PatchMaps(encoder)(images) - maps).norm(dim=1)
    assert maps.shape == (1, 8, 4, 4)
    assert change.flatten().argmax() == 3


def test_an_encoder_without_patches() -> None:
    with pytest.raises(ValueError, match="Means has no patch features that mixview can find: use a ResNet or a ViT"):
        PatchMaps(Means())(torch.rand(1, 3, 8, 8))
    with pytest.raises(ValueError, match="has no stage res3, only a ResNet has: use avgpool"):
        PatchMaps(backbones.build("small-vit", size=16).encoder, "res3")
    with pytest.raises(ValueError, match="5 patch tokens do not form a square"):
        tokens_to_maps(torch.zeros(1, 6, 2), 1)


class Large(torch.nn.Module):
    """A network whose maps have so many bytes per image, which can take either memory format, or calls `view`."""

    def __init__(self, kilobytes: int, views: bool = False) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, kilobytes, 1, bias=False)  # 16 × 16 numbers are 1 kB
        self.views = views
        self.batches: list[tuple[int, bool]] = []

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.batches.append((len(images), images.is_contiguous(memory_format=torch.channels_last)))
        maps = self.conv(images)
        return maps.view(len(maps), -1)[:, :3] if self.views else maps.mean((2, 3))[:, :3]


@pytest.mark.parametrize(
    ("kilobytes", "batch_size", "count"), [(1, 64, 70), (1000, 32, 70), (3000, 8, 18), (40_000, 1, 4)]
)
def test_batches_on_a_cpu_fit_into_the_heap(kilobytes: int, batch_size: int, count: int) -> None:
    network = Large(kilobytes)
    source = scenes(count)
    found = extract(LoadedEncoder(network, f"large {kilobytes}", 16, 3, 3), source, CenterCrop(16), workers=0)
    sizes = [size for size, channels_last in network.batches[-2 - count // batch_size :] if channels_last]
    assert max(sizes[1:]) == batch_size
    images = torch.stack([CenterCrop(16)(to_tensor(np.asarray(source.read(index)))) for index in range(count)])
    torch.testing.assert_close(found["avgpool"], network(images), rtol=1e-4, atol=1e-5)
    network(images).sum().backward()  # it can still be trained


def test_a_network_that_calls_view_keeps_its_memory_format() -> None:
    network = Large(4, views=True)
    extract(LoadedEncoder(network, "viewing", 16, 3, 3), scenes(70), CenterCrop(16), workers=0)
    assert network.batches[-2:] == [(64, False), (6, False)]


def test_blocks_that_are_whole_count_although_the_next_one_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIXVIEW_CACHE", str(tmp_path))

    class Failing(Means):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            if len(images) == 6:
                raise KeyError("the end")
            return super().forward(images)

    with pytest.raises(KeyError, match="the end"):
        extract(LoadedEncoder(Failing(), "failing", SIZE, 3, 3), scenes(64 * 3 + 6), CROP, workers=0)
    folder = next((tmp_path / "features").iterdir())
    assert open_array(folder, "done").tolist() == [True, True, False, False]
