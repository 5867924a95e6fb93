"""Encoders by name, their stems and channels, and the weights they start from.

Libraries' models are built on the meta device: shapes without arithmetic.
"""

import copy
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from mixview.cli import main
from mixview.encoders import backbones
from mixview.encoders.backbones import SmallResNet, build
from mixview.encoders.encoder_file import load_encoder, save_encoder
from mixview.encoders.weights import adapt_channels, load_weights, resize_positions, strip_prefixes
from mixview.nn import momentum_copy

MODELS = [
    ("resnet18", 32, 512),
    ("resnet50", 224, 2048),
    ("wide_resnet50_2", 64, 2048),
    ("convnext_tiny", 64, 768),
    ("efficientnet_b0", 64, 1280),
    ("mobilenet_v3_small", 64, 1024),
    ("squeezenet1_1", 64, 512),
    ("densenet121", 64, 1024),
    ("googlenet", 64, 1024),
    ("swin_t", 64, 768),
    ("vgg11", 64, 4096),
    ("vit_b_32", 64, 768),
    ("timm/resnet18", 32, 512),
    ("timm/resnet26d", 32, 2048),
    ("vit_tiny_patch16_224", 32, 192),
    ("convnext_atto", 64, 320),
    ("timm/efficientnet_b0", 64, 1280),
    ("mobilenetv3_small_100", 64, 1024),
    ("swin_tiny_patch4_window7_224", 64, 768),
]


@pytest.mark.parametrize(("name", "size", "width"), MODELS)
def test_models_of_both_libraries_lose_their_classifier(name: str, size: int, width: int) -> None:
    with torch.device("meta"):
        backbone = build(name, size=size)
        assert backbone.feature_dim == width
        assert backbone.encoder.training
        features = backbone.encoder(torch.empty(4, 3, size, size))
    assert features.shape == (4, width)
    assert str(backbone.spec["name"]).endswith(name)
    assert backbone.spec == {**backbone.spec, "size": size, "channels": 3, "feature_dim": width}
    assert str(backbone.spec["name"]) in backbone.notes[0]
    assert f"{width} features" in backbone.notes[0]


def test_torchvision_comes_first_and_a_prefix_decides() -> None:
    with torch.device("meta"):
        assert build("resnet18", size=32).spec["name"] == "torchvision/resnet18"
        assert build("timm/resnet18", size=32).spec["name"] == "timm/resnet18"
        assert build("resnet18.a1_in1k", size=32).spec["name"] == "timm/resnet18.a1_in1k"


@pytest.mark.parametrize("name", ["resnet18", "timm/resnet18", "timm/resnet26d"])
def test_the_stem_goes_by_the_size_of_the_images(name: str) -> None:
    def sides(size: int, stem: backbones.Stem) -> tuple[int, str]:
        with torch.device("meta"):
            backbone = build(name, size=size, stem=stem)
            seen: list[Tensor] = []
            layer = backbone.encoder.get_submodule("layer1")
            layer.register_forward_hook(lambda module, images, output: seen.append(output))
            backbone.encoder(torch.empty(2, 3, size, size))
        assert backbone.spec["stem"] == ("small" if "CIFAR" in backbone.notes[1] else "standard")
        return seen[0].shape[-1], backbone.notes[1]

    assert sides(64, "auto")[0] == 64
    assert "because the images are 64 pixels" in sides(64, "auto")[1]
    assert sides(96, "auto")[0] == 24
    assert sides(96, "small") == (96, "CIFAR stem (3×3, stride 1, no max-pool), because stem is small.")
    assert sides(32, "standard")[0] == 8


def test_stems_that_a_model_cannot_have_raise() -> None:
    with torch.device("meta"):
        with pytest.raises(ValueError, match=r'stem "small" is for ResNets .*torchvision/convnext_tiny is not one'):
            build("convnext_tiny", size=32, stem="small")
        assert "keeps its stem" in build("convnext_tiny", size=32).notes[1]
    with pytest.raises(ValueError, match="has only the small stem"):
        build("small", size=32, stem="standard")
    with pytest.raises(ValueError, match=r'stem must be "auto", "small" or "standard", got \'tiny\''):
        build("small", size=32, stem="tiny")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "channels"),
    [
        ("small", 5),
        ("resnet18", 1),
        ("resnet18", 5),
        ("vit_b_32", 5),
        ("convnext_tiny", 1),
        ("timm/resnet18", 1),
        ("timm/resnet18", 5),
        ("vit_tiny_patch16_224", 5),
    ],
)
def test_any_number_of_channels(name: str, channels: int) -> None:
    with torch.device("meta"):
        backbone = build(name, size=32, channels=channels)
        assert backbone.encoder(torch.empty(2, channels, 32, 32)).shape == (2, backbone.feature_dim)
    assert backbone.spec["channels"] == channels


def test_adapted_channels_see_a_gray_image_the_same() -> None:
    weight, gray = torch.randn(8, 3, 3, 3), torch.rand(2, 1, 9, 9)
    expected = nn.functional.conv2d(gray.expand(2, 3, 9, 9), weight)
    for channels in (1, 3, 6):
        adapted = adapt_channels(weight, channels)
        assert adapted.shape == (8, channels, 3, 3)
        torch.testing.assert_close(nn.functional.conv2d(gray.expand(2, channels, 9, 9), adapted), expected)
    assert adapt_channels(weight, 5).shape == (8, 5, 3, 3)


def test_small_is_small_and_has_the_stages_of_a_resnet() -> None:
    backbone = build("small", size=16)
    assert 0.25e6 < sum(p.numel() for p in backbone.encoder.parameters()) < 0.35e6
    assert backbone.feature_dim == 128
    for part in ("conv1", "bn1", "layer1", "layer2", "layer3", "layer4"):
        assert hasattr(backbone.encoder, part)


def zeroed(encoder: nn.Module) -> int:
    return sum(isinstance(m, nn.BatchNorm2d) and not m.weight.any() for m in encoder.modules())


@pytest.mark.parametrize(("name", "blocks"), [("small", 4), ("resnet18", 8), ("timm/resnet18", 8)])
def test_zero_init_residual_is_on_or_off_whatever_the_library_does(name: str, blocks: int) -> None:
    assert zeroed(build(name, size=16).encoder) == 0
    assert zeroed(build(name, size=16, zero_init_residual=True).encoder) == blocks


def test_zero_init_residual_is_for_resnets() -> None:
    with torch.device("meta"), pytest.raises(ValueError, match="zero_init_residual is for ResNets"):
        build("vit_b_32", size=32, zero_init_residual=True)


def test_measuring_the_features_leaves_no_trace() -> None:
    encoder = SmallResNet()
    encoder.layer2.eval()
    before = copy.deepcopy(encoder.state_dict())
    assert backbones.feature_width(encoder, "it", size=16, channels=3) == 128
    assert all(torch.equal(before[key], value) for key, value in encoder.state_dict().items())
    assert encoder.training
    assert not encoder.layer2[0].training
    assert encoder.layer3[0].training


@pytest.mark.parametrize("name", ["resnt50", "timm/resnt50", "torchvision/resnt50", "resnt50.a1_in1k"])
def test_an_unknown_name_gets_the_nearest(name: str) -> None:
    with pytest.raises(ValueError, match=rf"no backbone '{name}' in torchvision or timm: the nearest are .*resnet50"):
        build(name, size=32)


def test_names_that_sound_like_nothing_and_wrong_numbers() -> None:
    with pytest.raises(ValueError, match=r"no backbone 'qqqqqqqq'.*for example resnet50.*package.module:factory"):
        build("qqqqqqqq", size=32)
    with pytest.raises(ValueError, match="size and channels must be at least 1, got 0 and 3"):
        build("small", size=0)
    with pytest.raises(ValueError, match="no backbone 'timm/hf-hub:someone/something'"):
        build("timm/hf-hub:someone/something", size=32)
    with pytest.raises(ValueError, match=r"timm has no weights 'nonsense' of resnet18: it has .*a1_in1k"):
        build("resnet18.nonsense", size=32)


def test_without_timm_torchvision_still_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ValueError, match="timm is not installed: pip install timm"):
        build("vit_tiny_patch16_224", size=32)
    with torch.device("meta"):
        assert build("resnet18", size=32).feature_dim == 512


def test_sizes_that_a_model_cannot_take_raise() -> None:
    with torch.device("meta"):
        with pytest.raises(ValueError, match=r"patches of 16 pixels, and 40 is not a multiple of it: use 32 or 48"):
            build("vit_tiny_patch16_224", size=40)
        with pytest.raises(
            ValueError,
            match=r"torchvision/vit_b_32 cannot be made for images of 16 pixels \(.*patch.*\): use another size",
        ):
            build("vit_b_32", size=16)
        with pytest.raises(
            ValueError, match=r"torchvision/inception_v3 cannot encode images of 3×32×32 \(.+\): check size"
        ):
            build("inception_v3", size=32)


# One's own module

OWN = """
import torch
from torch import nn

class Net(nn.Sequential):
    def __init__(self, channels=3):
        super().__init__(nn.Conv2d(channels, 7, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())

def plain():
    return Net()

def unpooled():
    return nn.Conv2d(3, 7, 3)

def pair():
    class Pair(Net):
        def forward(self, images):
            return super().forward(images), None
    return Pair()

def number():
    return 3

def demanding(depth):
    return Net()

instance = Net()
constant = 5
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"own_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    return name


def test_own_modules_by_import_path(own: str) -> None:
    for name, channels in ((f"{own}:Net", 5), (f"{own}:plain", 3), (f"{own}:instance", 3)):
        backbone = build(name, size=9, channels=channels)
        assert backbone.feature_dim == 7
        assert backbone.spec["name"] == f"{own}:{name[len(own) + 1 :]}"
        assert backbone.encoder(torch.rand(2, channels, 9, 9)).shape == (2, 7)


@pytest.mark.parametrize(
    ("factory", "error", "text"),
    [
        (
            "unpooled",
            ValueError,
            r"an output of shape \[2, 7, 7, 7\] of 2 images, expected \[2, D\]: end it in pooling",
        ),
        ("pair", ValueError, r"an output of type tuple of 2 images, .*return that tensor alone"),
        ("number", ValueError, r"made a int: it must return a torch.nn.Module"),
        ("constant", ValueError, r"is a int: it must be a class or function"),
        ("demanding", ValueError, r"needs depth, and is called with channels and size at most"),
        ("Nett", ValueError, r"has no 'Nett' .*did you mean Net"),
    ],
)
def test_own_modules_that_do_not_do(own: str, factory: str, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        build(f"{own}:{factory}", size=9)


def test_own_modules_that_are_not_there_or_take_other_channels(own: str) -> None:
    with pytest.raises(ValueError, match=r"no module 'absent_package.net' for the backbone .*run from the folder"):
        build("absent_package.net:make", size=9)
    with pytest.raises(ValueError, match=r"cannot encode images of 5×9×9 .*check size and channels"):
        build(f"{own}:plain", size=9, channels=5)
    with pytest.raises(ValueError, match="is for ResNets"):
        build(f"{own}:Net", size=9, stem="small")
    with pytest.raises(ValueError, match="has no ImageNet weights"):
        build(f"{own}:Net", size=9, weights="imagenet")


# Weights


def same(a: nn.Module, b: nn.Module) -> bool:
    other = b.state_dict()
    return all(torch.equal(value, other[key]) for key, value in a.state_dict().items())


def trained() -> SmallResNet:
    """A small ResNet whose every tensor differs from a fresh one's."""
    encoder = SmallResNet()
    for value in encoder.state_dict().values():
        value.copy_(torch.rand(value.shape) if value.is_floating_point() else torch.tensor(7))
    return encoder


@pytest.mark.parametrize(
    "prefix", ["", "module.", "encoder.", "backbone.", "online.encoder.", "module.encoder_q.", "model._orig_mod."]
)
@pytest.mark.parametrize("kind", ["safetensors", "pt"])
def test_weights_of_a_file_with_any_known_prefix(tmp_path: Path, prefix: str, kind: str) -> None:
    encoder = trained()
    tensors = {f"{prefix}{key}": value for key, value in encoder.state_dict().items()}
    tensors |= {f"{prefix}fc.weight": torch.rand(10, 128), "module.queue": torch.rand(4, 4)}
    path = tmp_path / f"weights.{kind}"
    if kind == "pt":
        torch.save({"epoch": 3, "state_dict": tensors}, path)
    else:
        save_file(tensors, path)
    backbone = build("small", size=16, weights=str(path))
    assert same(encoder, backbone.encoder)
    assert backbone.notes[-1] == f"Weights: 60 of the 60 tensors of small from {path}."


def test_names_of_the_model_itself_are_no_prefix() -> None:
    with torch.device("meta"):
        own = build("vit_b_32", size=32).encoder.state_dict()
    key = "encoder.layers.encoder_layer_0.ln_1.weight"
    for prefix in ("", "encoder.", "module.encoder."):
        assert strip_prefixes(prefix + key, own, []) == key


def test_weights_of_an_earlier_run_and_the_momentum_copy_is_left_out(tmp_path: Path) -> None:
    encoder = trained()
    tensors = {f"online.encoder.{key}": value for key, value in encoder.state_dict().items()}
    tensors |= {f"target.encoder.{key}": value + 1 for key, value in encoder.state_dict().items()}
    tensors |= {"online.projector.0.weight": torch.rand(3, 3)}
    save_file(tensors, tmp_path / "encoder.safetensors")
    assert same(encoder, build("small", size=16, weights=str(tmp_path)).encoder)


def test_what_did_not_fit_is_said_by_name() -> None:
    tensors = dict(trained().state_dict())
    tensors["layer4.0.conv2.weight"] = torch.rand(2, 2)
    del tensors["layer1.0.bn1.bias"]
    tensors["layer1.1.extra"] = torch.rand(2)
    assert load_weights(SmallResNet(), tensors, "FILE", "small") == (
        "Weights: 58 of the 60 tensors of small from FILE; other shapes: layer4.0.conv2.weight [2, 2] for "
        "[128, 128, 3, 3]; not in it: layer1.0.bn1.bias, layer4.0.conv2.weight; not in the model: layer1.1.extra."
    )


def test_a_file_of_another_model_raises_and_changes_nothing() -> None:
    encoder = SmallResNet()
    before = copy.deepcopy(encoder)
    with pytest.raises(
        ValueError, match=r"^0 of 2 tensors of FILE fit small, which has 60 \(not in it: conv1.weight, .*"
    ):
        load_weights(encoder, {"a.b": torch.rand(1), "a.c": torch.rand(1)}, "FILE", "small")
    wider = SmallResNet(widths=(32, 64, 128, 256)).state_dict()
    with pytest.raises(
        ValueError, match=r"^\d of \d+ tensors .*other shapes: .*pass the backbone that the file was made"
    ):
        load_weights(encoder, wider, "FILE", "small")
    assert same(before, encoder)


def test_a_deeper_model_does_not_pass_for_a_shallow_one() -> None:
    with torch.device("meta"):
        deep = build("resnet34", size=32).encoder.state_dict()
        shallow = build("resnet18", size=32).encoder
    with pytest.raises(ValueError, match=r"fit resnet18, .*not in the model: layer1.2.conv1.weight"):
        load_weights(shallow, deep, "FILE", "resnet18")


def test_weights_of_three_channels_start_a_model_of_five(tmp_path: Path) -> None:
    encoder = trained()
    torch.save(encoder.state_dict(), tmp_path / "rgb.pth")
    five = build("small", size=16, channels=5, weights=str(tmp_path / "rgb.pth")).encoder
    assert isinstance(five, SmallResNet)
    assert torch.equal(five.conv1.weight, adapt_channels(encoder.conv1.weight, 5))
    assert torch.equal(five.layer4[0].conv2.weight, encoder.layer4[0].conv2.weight)


class Dangerous:
    def __reduce__(self) -> tuple[object, ...]:
        return (Path("ran").touch, ())


@pytest.mark.parametrize("prefix", [0, 1, 5])
@pytest.mark.parametrize(("old", "new"), [(14, 6), (4, 8)])
def test_position_embeddings_are_resized_as_timms(prefix: int, old: int, new: int) -> None:
    layers = pytest.importorskip("timm.layers")
    embeddings = torch.randn(1, prefix + old**2, 8)
    shape = torch.Size((1, prefix + new**2, 8))
    expected = layers.resample_abs_pos_embed(embeddings, [new, new], num_prefix_tokens=prefix)
    assert torch.equal(resize_positions(embeddings, shape), expected)


def test_weights_of_a_vit_fit_images_of_another_size(tmp_path: Path) -> None:
    """Not drawn anew: the features of an image are those that the smaller network makes of it."""
    torch.manual_seed(0)
    small = build("small-vit", size=16)
    save_encoder(tmp_path / "encoder.safetensors", small.encoder, small.spec, {})
    large = build("small-vit", size=32, weights=str(tmp_path))
    images = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(large.encoder.eval()(images), small.encoder.eval()(images))
    assert large.notes[-1] == (
        f"Weights: 54 of the 54 tensors of small-vit from {tmp_path}/encoder.safetensors; resized: pos_embed "
        "[1, 17, 128] for [1, 65, 128]."
    )
    shape = torch.Size((1, 17, 128))
    assert resize_positions(torch.rand(1, 19, 128), shape) is None  # of no square grid
    assert resize_positions(torch.rand(1, 65, 64), shape) is None
    assert resize_positions(torch.rand(65, 128), shape) is None


def test_files_that_are_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": trained().state_dict(), "extra": Dangerous()}, "code.pt")
    with pytest.raises(ValueError, match=r"code.pt cannot be read as tensors alone .*save it again with torch.save"):
        build("small", size=16, weights="code.pt")
    assert not Path("ran").exists()
    whole = Path("code.pt").read_bytes()
    Path("cut.pt").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"cut.pt cannot be read as tensors alone"):
        build("small", size=16, weights="cut.pt")
    torch.save({"epoch": 3}, "empty.pt")
    with pytest.raises(ValueError, match=r"empty.pt holds no state_dict"):
        build("small", size=16, weights="empty.pt")
    Path("weights.txt").write_text("hello")
    with pytest.raises(ValueError, match=r"weights.txt is not a known file of weights: use .safetensors or .pt"):
        build("small", size=16, weights="weights.txt")
    Path("text.safetensors").write_text("hello")
    with pytest.raises(ValueError, match=r"text.safetensors is not a complete safetensors file"):
        build("small", size=16, weights="text.safetensors")
    with pytest.raises(FileNotFoundError, match=r'no weights at absent.pt: pass "imagenet", a file, or the folder'):
        build("small", size=16, weights="absent.pt")
    with pytest.raises(FileNotFoundError, match=r"holds no encoder.safetensors: pass the folder of a finished"):
        build("small", size=16, weights=".")


def test_imagenet_weights_of_torchvision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torchvision = pytest.importorskip("torchvision")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    model = torchvision.models.resnet18()
    cached = tmp_path / "hub" / "checkpoints" / Path(torchvision.models.ResNet18_Weights.DEFAULT.url).name
    cached.parent.mkdir(parents=True)
    torch.save(model.state_dict(), cached)
    backbone = build("resnet18", size=96, weights="imagenet")
    assert same(backbone.encoder, model)
    assert backbone.notes[-1] == (
        "Weights: 100 of the 100 tensors of torchvision/resnet18 from ImageNet (torchvision)."
    )
    small = build("resnet18", size=32, channels=1, weights="imagenet")
    assert any("stem is initialized randomly" in note for note in small.notes)
    assert "other shapes: conv1.weight" in small.notes[-1]
    assert torch.equal(small.encoder.state_dict()["layer1.0.conv1.weight"], model.layer1[0].conv1.weight)
    gray = build("resnet18", size=96, channels=1, weights="imagenet")
    assert torch.equal(gray.encoder.state_dict()["conv1.weight"], model.conv1.weight.sum(1, keepdim=True))


def test_imagenet_weights_that_cannot_be_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def offline(*args: object, **kwargs: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr("torch.hub.download_url_to_file", offline)
    expected = r"the ImageNet weights of {} could not be fetched \(no route to host\): check the connection, or"
    with pytest.raises(ConnectionError, match=expected.format("torchvision/resnet18")):
        build("resnet18", size=32, weights="imagenet")
    monkeypatch.setattr("timm.models._builder.load_state_dict_from_hf", offline)
    with pytest.raises(ConnectionError, match=expected.format("timm/resnet18")):
        build("timm/resnet18", size=32, weights="imagenet")
    with pytest.raises(SystemExit, match=f"^mixview: {expected.format('timm/resnet18')}"):  # without a traceback
        main(["evaluate", "knn", "timm/resnet18", "--weights", "imagenet", "--data", "scenes"])
    with pytest.raises(ValueError, match="small has no ImageNet weights"):
        build("small", size=32, weights="imagenet")


def test_small_vit_is_small_and_takes_local_crops(tmp_path: Path) -> None:
    backbone = build("small-vit", size=32)
    assert backbone.feature_dim == 128
    assert sum(weight.numel() for weight in backbone.encoder.parameters()) < 1e6
    assert backbone.spec == {"name": "small-vit", "size": 32, "channels": 3, "stem": "small", "feature_dim": 128}
    assert backbone.notes[1] == "Patches of 4 pixels, for images of 32."
    for size in (16, 32, 48):
        assert backbone.encoder(torch.rand(2, 3, size, size)).shape == (2, 128)
    assert build("small-vit", size=224, channels=1).spec["stem"] == "standard"
    with pytest.raises(ValueError, match="patches of 4 pixels, and 30 is not a multiple of it: use 28 or 32"):
        build("small-vit", size=30)
    with pytest.raises(ValueError, match="at least 4"):
        build("small-vit", size=3)

    save_encoder(tmp_path / "encoder.safetensors", backbone.encoder, backbone.spec, {})
    loaded, _ = load_encoder(tmp_path)
    images = torch.rand(2, 3, 32, 32)
    assert torch.equal(loaded(images), backbone.encoder.eval()(images))
    again = build("small-vit", size=32, weights=str(tmp_path))
    assert same(again.encoder, backbone.encoder)


def test_vits_of_timm_take_local_crops_and_compute_what_they_did() -> None:
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    encoder = build("vit_tiny_patch16_224", size=224).encoder.eval()
    assert encoder(torch.rand(2, 3, 96, 96)).shape == (2, 192)
    fixed = timm.create_model("vit_tiny_patch16_224", num_classes=0).eval()
    fixed.load_state_dict(encoder.state_dict())
    images = torch.rand(2, 3, 224, 224)
    assert torch.equal(encoder(images), fixed(images))


@pytest.mark.parametrize(
    "name",
    [
        "small-vit",
        "vit_tiny_patch16_224",
        "deit_tiny_distilled_patch16_224",
        "eva02_tiny_patch14_224",
        "cait_xxs24_224",
    ],
)
def test_drop_path_is_the_online_networks(name: str) -> None:
    size = 32 if name == "small-vit" else 28 if "patch14" in name else 32
    torch.manual_seed(0)
    encoder = build(name, size=size, drop_path=0.5).encoder.train()
    images = torch.rand(4, 3, size, size)
    assert not torch.equal(encoder(images), encoder(images))
    target = momentum_copy(encoder)
    assert torch.equal(target(images), target(images))
    assert not torch.equal(encoder(images), encoder(images))
    assert encoder.state_dict().keys() == build(name, size=size).encoder.state_dict().keys()


def test_drop_path_where_there_is_none() -> None:
    with pytest.raises(ValueError, match="drop_path is for timm's models and small-vit, and resnet18 is neither"):
        build("resnet18", size=32, drop_path=0.1)
    with pytest.raises(ValueError, match="timm/vgg11 has no drop path"):
        build("timm/vgg11", size=32, drop_path=0.1)
    with pytest.raises(ValueError, match="drop_path is a probability, at least 0 and less than 1, got 1"):
        build("small-vit", size=32, drop_path=1)
