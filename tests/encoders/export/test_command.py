"""Every format: its program gives mixview's features of real images, and what was written comes back."""

import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import mixview
from mixview.cli import main
from mixview.data.synthetic.scenes import Scenes
from mixview.encoders import backbones
from mixview.encoders.encoder_file import load_encoder, save_encoder
from mixview.encoders.export import detectron2, state_dicts
from mixview.encoders.export.base import ExportSource
from mixview.encoders.export.command import FORMATS, export
from mixview.encoders.export.detectron2 import load_detectron2
from mixview.encoders.export.huggingface import preprocessor_config
from mixview.encoders.importing import import_encoder
from mixview.encoders.loading import describe_normalize
from mixview.encoders.transforms import IMAGENET
from tests.data.writing import REAL
from tests.encoders.test_encoder_file import disturbed

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TQDM_DISABLE", "1")

ENCODERS = {
    "resnet": ("torchvision/resnet18", 96, 3),
    "resnet-of-timm": ("timm/resnet18", 96, 3),
    "small-stem": ("resnet18", 32, 3),
    "deep-stem": ("timm/resnet18d", 32, 3),
    "small": ("small", 32, 3),
    "vit": ("timm/vit_tiny_patch16_224", 32, 3),
    "gray": ("resnet18", 32, 1),
    "convnext": ("torchvision/convnext_tiny", 32, 3),
}
CASES = [
    *((format, "resnet") for format in FORMATS if format != "detectron2"),
    ("torchvision", "gray"),
    *(("timm", name) for name in ("deep-stem", "vit")),
    *(("huggingface", name) for name in ("small", "vit")),
]
SLOW_CASES = [
    *(("torchvision", name) for name in ("resnet-of-timm", "small-stem", "convnext")),
    *(("timm", name) for name in ("resnet-of-timm", "small-stem")),
    *(("huggingface", name) for name in ("small-stem", "gray")),
    *(("onnx", name) for name in ("small", "vit")),
    ("torch-export", "vit"),
]


def trained(folder: Path, name: str, size: int, channels: int) -> Path:
    """A file of an encoder whose every tensor, statistics of batch norms too, is unlike a fresh one's."""
    torch.manual_seed(0)
    backbone = disturbed(backbones.build(name, size=size, channels=channels))
    folder.mkdir(parents=True)
    path = folder / "encoder.safetensors"
    about = {"method": "mocov2", "objective": "bsim", "epoch": "200"} | describe_normalize(IMAGENET)
    save_encoder(path, backbone.encoder, backbone.spec, about)
    return path


def pictures() -> list[Any]:
    """Real photographs where there are any, else drawn scenes."""
    if REAL is not None and (REAL / "photos").is_dir():
        return sorted((REAL / "photos").iterdir())[:4]
    return [Scenes(4, 64, cache=False).read(index) for index in range(4)]


def printed_snippet(text: str) -> str:
    return text.partition("\n\n")[2]


@pytest.mark.parametrize(
    ("format", "name"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW_CASES)],
    ids=lambda each: each,
)
def test_the_printed_snippet_gives_the_same_features(
    format: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    original = trained(tmp_path / "run", *ENCODERS[name])
    export(str(original), format=format, out=str(tmp_path / "out"))
    snippet = printed_snippet(capsys.readouterr().out)
    encoder = mixview.load(original, device="cpu")
    images = torch.stack([encoder.prepare(each) for each in pictures()])
    namespace: dict[str, Any] = {"images": images}
    with torch.inference_mode():
        exec(snippet, namespace)
        expected: Tensor = encoder.module(images)
    found = torch.as_tensor(namespace["features"])
    assert found.shape == expected.shape
    assert (found - expected).abs().max() < 1e-4 * max(1.0, float(expected.abs().max()))
    one = dict(namespace, images=images[:1])
    with torch.inference_mode():
        exec(snippet, one)  # a batch of another length
    assert torch.as_tensor(one["features"]).shape == expected[:1].shape

    import_encoder(str(tmp_path / "out"), out=str(tmp_path / "back.safetensors"))
    back, header = load_encoder(tmp_path / "back.safetensors")
    _, before = load_encoder(original)
    assert header == before
    with torch.inference_mode():
        assert torch.equal(back(images), expected)


@pytest.mark.parametrize(
    ("format", "out", "files"),
    [
        ("torchvision", "a/net.safetensors", {"net.safetensors", "net.md"}),
        ("safetensors", "a", {"encoder.safetensors", "README.md"}),
        ("timm", "a", {"model.safetensors", "config.json", "README.md"}),
        ("huggingface", "a", {"model.safetensors", "config.json", "preprocessor_config.json", "README.md"}),
    ],
)
def test_a_file_or_a_folder(format: str, out: str, files: set[str], tmp_path: Path) -> None:
    place = export("resnet18", format=format, out=str(tmp_path / out), size=96)
    assert {path.name for path in (tmp_path / "a").iterdir()} == files
    assert place.exists()


def test_detectron2_s_file_holds_the_weights_under_its_names_and_comes_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    original = trained(tmp_path / "run", "resnet18", 96, 3)
    place = export(str(original), format="detectron2", out=str(tmp_path / "out"))
    text = capsys.readouterr().out
    assert "Checked by reading it back: the same weights. Detectron2 itself was not run." in text
    assert (
        "config.MODEL.PIXEL_MEAN, config.MODEL.PIXEL_STD = [123.675, 116.28, 103.53], [58.395, 57.12, 57.375]" in text
    )
    compile(printed_snippet(text), "snippet", "exec")
    content = pickle.loads(place.read_bytes())
    assert content["matching_heuristics"]
    assert "res2.0.conv1.norm.running_mean" in content["model"]
    import_encoder(str(place), out=str(tmp_path / "back.safetensors"))
    (back, header), (before, expected) = load_encoder(tmp_path / "back.safetensors"), load_encoder(original)
    assert header == expected
    images = torch.rand(2, 3, 96, 96)
    with torch.inference_mode():
        assert torch.equal(back(images), before(images))


@pytest.mark.parametrize(
    ("depth", "channels", "lines"),
    [
        (18, 3, ["faster_rcnn_R_50_FPN_1x", "RES2_OUT_CHANNELS = 64", 'INPUT.FORMAT = "RGB"']),
        (18, 1, ['INPUT.FORMAT = "L"', "PIXEL_MEAN, config.MODEL.PIXEL_STD = [114."]),
        (50, 3, ["faster_rcnn_R_50_C4", "FREEZE_AT = 0", "Res5ROIHeadsExtraNorm"]),
    ],
)
def test_the_detectron2_file_says_what_the_network_is(
    depth: int, channels: int, lines: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = export(f"resnet{depth}", format="detectron2", out=str(tmp_path), size=96, channels=channels)
    snippet = printed_snippet(capsys.readouterr().out)
    assert all(line in snippet for line in lines)
    _, notes = load_detectron2(place)
    assert f'INPUT.FORMAT = "{notes["input_format"]}"' in snippet
    assert len(notes["pixel_mean"].split(", ")) == channels


def test_an_export_is_not_mistaken_for_an_earlier_one(tmp_path: Path) -> None:
    export("resnet18", format="huggingface", out=str(tmp_path), size=96)
    export("resnet18", format="timm", out=str(tmp_path), size=32)  # the small stem, which has no config.json
    assert {path.name for path in tmp_path.iterdir()} == {"model.safetensors", "README.md"}
    import_encoder(str(tmp_path / "model.safetensors"), out=str(tmp_path / "back.safetensors"))


def test_a_folder_of_safetensors_is_loaded_like_a_run(tmp_path: Path) -> None:
    export("small", format="safetensors", out=str(tmp_path / "a"), size=16)
    assert mixview.load(tmp_path / "a", device="cpu").size == 16


def test_timm_reads_the_folder_and_its_preparation(tmp_path: Path) -> None:
    import timm

    export("resnet18", format="timm", out=str(tmp_path / "a"), size=96)
    model = timm.create_model(f"local-dir:{tmp_path / 'a'}", pretrained=True).eval()
    images = torch.rand(2, 3, 96, 96)
    with torch.inference_mode():
        torch.testing.assert_close(model(images), mixview.load("resnet18", size=96, device="cpu").module(images))
    assert list(timm.data.resolve_model_data_config(model)["input_size"]) == [3, 96, 96]


@pytest.mark.parametrize("size", [96, 224, 384])
def test_transformers_prepares_images_nearly_as_mixview_does(size: int, tmp_path: Path) -> None:
    from PIL import Image
    from transformers import AutoImageProcessor

    encoder = mixview.load("resnet18", size=size, device="cpu")
    config = preprocessor_config(ExportSource.from_loaded(encoder.loaded))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    processor = AutoImageProcessor.from_pretrained(tmp_path)
    for shape, shift in (((600, 600), size == 384), ((500, 600), size > 96)):
        image = Image.fromarray(np.asarray(Scenes(1, 600, cache=False).read(0))[: shape[0], : shape[1]])
        theirs = processor(image, return_tensors="pt")["pixel_values"][0]
        ours = encoder.prepare(image)
        assert theirs.shape == ours.shape
        difference = (theirs - ours).abs()
        assert difference.mean() < 0.05  # a pixel's shift, where what is cut off is an odd number of pixels
        if not shift:
            assert difference.max() < 2.5 / 255 / 0.224  # they round to whole pixel values in between


@pytest.mark.parametrize(
    ("format", "encoder", "words"),
    [
        ("torchvision", "small", "torchvision has no network like small: use --format safetensors, onnx"),
        ("timm", "torchvision/mobilenet_v2", "timm has no network like torchvision/mobilenet_v2"),
        ("onnx", "pixels", "raw pixels have no network to export"),
    ],
)
def test_what_a_program_cannot_have_raises(format: str, encoder: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        export(encoder, format=format, size=64, out=str(tmp_path / "a"))
    assert not list(tmp_path.glob("a/*"))


@pytest.mark.parametrize(
    ("format", "out", "words"),
    [
        ("onnx", "a.pt", "onnx is written to a folder or a file ending in .onnx, not to 'a.pt'"),
        ("huggingface", "a.safetensors", "huggingface is written to a folder, not to 'a.safetensors'"),
    ],
)
def test_wrong_names_raise(format: str, out: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        export("small", format=format, out=str(tmp_path / out), size=16)


def test_what_differs_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(cargo: Any, path: Path) -> Any:
        written = state_dicts.write_safetensors(cargo, path)
        return written._replace(snippet=f"{written.snippet}\nfeatures = features + 0.01")

    monkeypatch.setitem(FORMATS, "safetensors", FORMATS["safetensors"]._replace(write=spoil))
    with pytest.raises(ValueError, match=r"computes other features from the export .* nothing was kept"):
        export("small", format="safetensors", out=str(tmp_path / "a"), size=16)
    assert list((tmp_path / "a").iterdir()) == []


def test_weights_that_come_back_otherwise_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(cargo: Any, path: Path) -> Any:
        written = detectron2.write_detectron2(cargo, path)
        return written._replace(
            read_back=lambda place: ({name: each + 1 for name, each in cargo.tensors.items()}, None)
        )

    monkeypatch.setitem(FORMATS, "detectron2", FORMATS["detectron2"]._replace(write=spoil))
    with pytest.raises(ValueError, match=r"differs when it is read back, so nothing was kept"):
        export("resnet18", format="detectron2", out=str(tmp_path / "a"), size=96)
    assert list((tmp_path / "a").iterdir()) == []


def test_a_missing_package_is_named_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(SystemExit) as caught:
        main(["export", "small", "--format", "onnx", "--out", str(tmp_path / "a")])
    assert caught.value.code == "mixview: onnxruntime is not installed: pip install 'mixview[export]'"


@pytest.mark.slow
@pytest.mark.parametrize("format", [name for name in FORMATS if name != "detectron2"])
def test_resnet_50_at_its_full_size(format: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    original = trained(tmp_path / "run", "resnet50", 224, 3)
    export(str(original), format=format, out=str(tmp_path / "out"))
    encoder = mixview.load(original, device="cpu")
    images = torch.stack([encoder.prepare(each) for each in pictures()])
    namespace: dict[str, Any] = {"images": images}
    with torch.inference_mode():
        exec(printed_snippet(capsys.readouterr().out), namespace)
        expected = encoder.module(images)
    difference = (torch.as_tensor(namespace["features"]) - expected).abs().max()
    print(f"{format}: {float(difference):.1e} of {float(expected.abs().max()):.2f}")
    assert difference < 1e-4 * max(1.0, float(expected.abs().max()))
