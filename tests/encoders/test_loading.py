"""What is judged, from one string; whoever trained it."""

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from mixview.encoders import backbones
from mixview.encoders.encoder_file import save_encoder
from mixview.encoders.loading import load
from tests.evaluate.small_encoders import run_folder, small

IMAGES = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def resnet() -> nn.Module:
    """A small ResNet, whose parts have torchvision's names, that no seed makes again."""
    torch.manual_seed(5)
    encoder = backbones.build("small", size=32).encoder
    for tensor in encoder.state_dict().values():
        if tensor.is_floating_point():
            tensor += torch.rand_like(tensor) * 0.1
    return encoder.eval()


def named(encoder: nn.Module, prefix: str) -> dict[str, Tensor]:
    return OrderedDict((prefix + key, value.clone()) for key, value in encoder.state_dict().items())


def other(encoder: nn.Module, prefix: str) -> dict[str, Tensor]:
    """A momentum copy, which must not be taken."""
    return OrderedDict((prefix + key, value + 1) for key, value in encoder.state_dict().items())


def sequential(encoder: nn.Module, prefix: str) -> dict[str, Tensor]:
    """As `nn.Sequential(*list(resnet.children())[:-1])` names them."""
    return named(nn.Sequential(*list(encoder.children())[:-1]), prefix)


HEAD = {"fc.0.weight": torch.rand(4, 128), "fc.0.bias": torch.rand(4)}

CHECKPOINTS: dict[str, Callable[[nn.Module], Any]] = {
    "torchvision": lambda e: named(e, "") | {"fc.weight": torch.rand(10, 128)},
    "moco": lambda e: {
        "epoch": 200,
        "arch": "small",
        "state_dict": named(e, "module.encoder_q.")
        | other(e, "module.encoder_k.")
        | {f"module.encoder_q.{key}": value for key, value in HEAD.items()}
        | {"module.queue": torch.rand(4, 8), "module.queue_ptr": torch.zeros(1)},
        "optimizer": {"state": {}},
    },
    "moco v3": lambda e: {"state_dict": named(e, "module.base_encoder.") | other(e, "module.momentum_encoder.")},
    "simsiam": lambda e: {"state_dict": named(e, "module.encoder.") | {"module.predictor.0.weight": torch.rand(3, 3)}},
    "lightly": lambda e: {
        "state_dict": sequential(e, "backbone.") | {"projection_head.layers.0.weight": torch.rand(3, 3)}
    },
    "lightly momentum": lambda e: (
        sequential(e, "backbone.")
        | OrderedDict((f"backbone_momentum.{k}", v + 1) for k, v in sequential(e, "").items())
    ),
    "solo-learn": lambda e: {
        "state_dict": named(e, "backbone.") | other(e, "momentum_backbone.") | {"projector.0.weight": torch.rand(3, 3)}
    },
    "vissl": lambda e: {
        "iteration": 7,
        "classy_state_dict": {
            "base_model": {
                "model": {"trunk": named(e, "_feature_blocks."), "heads": {"0.clf.0.weight": torch.rand(3, 3)}},
                "meta": {},
            }
        },
    },
    "vissl flat": lambda e: {"model_state_dict": named(e, "trunk._feature_blocks.")},
    "openselfsup": lambda e: {"state_dict": named(e, "backbone."), "meta": {"epoch": 200}},
    "openselfsup moco": lambda e: {"state_dict": named(e, "encoder_q.0.") | other(e, "encoder_k.0.")},
    "mmselfsup byol": lambda e: {"state_dict": named(e, "online_net.0.") | other(e, "target_net.0.")},
    "byol": lambda e: {"state_dict": named(e, "online_network.encoder.") | other(e, "target_network.encoder.")},
    "byol sequential": lambda e: {
        "online_network_state_dict": sequential(e, "encoder."),
        "target_network_state_dict": OrderedDict((k, v + 1) for k, v in sequential(e, "encoder.").items()),
    },
    "lucidrains byol": lambda e: named(e, "online_encoder.net.") | other(e, "target_encoder.net."),
    "dino": lambda e: {"student": other(e, "module.backbone."), "teacher": named(e, "backbone.")},
    "barlow twins": lambda e: {"model": named(e, "module.backbone.") | {"module.projector.0.weight": torch.rand(3, 3)}},
}


@pytest.mark.parametrize("origin", CHECKPOINTS)
def test_checkpoints_of_others_are_recognized(origin: str, resnet: nn.Module, tmp_path: Path) -> None:
    path = tmp_path / ("model.torch" if "vissl" in origin else "checkpoint.pth.tar")
    torch.save(CHECKPOINTS[origin](resnet), path)
    subject = load(str(path), natural_size=32, size=32, backbone="small")
    with torch.no_grad():
        assert torch.equal(subject.encoder(IMAGES), resnet(IMAGES))


def test_safetensors_without_a_header(resnet: nn.Module, tmp_path: Path) -> None:
    save_file(named(resnet, "backbone."), tmp_path / "w.safetensors")
    subject = load(str(tmp_path / "w.safetensors"), natural_size=32, size=64, backbone="small")
    assert subject.feature_dim == 128
    assert subject.run is None


@pytest.mark.parametrize("stem", ["standard", "small"])
def test_a_torchvision_resnet_and_its_stem_are_recognized(stem: backbones.Stem, tmp_path: Path) -> None:
    encoder = backbones.build("resnet18", size=64, stem=stem).encoder.eval()
    # Without the max-pool a ResNet with CIFAR's stem has its layers at the same places: an identity is in its place.
    torch.save(sequential(encoder, "backbone."), tmp_path / "c.pt")
    subject = load(str(tmp_path / "c.pt"), natural_size=32, size=32)
    assert f"fits resnet18 (stem {stem})" in subject.notes[0]
    with torch.no_grad():
        assert torch.equal(subject.encoder(IMAGES), encoder(IMAGES))


def test_what_does_not_fit_raises_in_a_sentence(resnet: nn.Module, tmp_path: Path) -> None:
    torch.save(named(resnet, "module.encoder_q."), tmp_path / "m.pt")
    with pytest.raises(ValueError, match=r"fit torchvision/resnet50.*pass the backbone that the file was made with"):
        load(str(tmp_path / "m.pt"), natural_size=32, backbone="resnet50")
    torch.save({"a.weight": torch.rand(3, 3)}, tmp_path / "strange.pt")
    with pytest.raises(ValueError, match=r"strange.pt fits none of .*resnet50.*as --backbone"):
        load(str(tmp_path / "strange.pt"), natural_size=32)


class Evil:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("owned"),))


def test_nothing_in_a_file_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": {"conv1.weight": torch.rand(3)}, "evil": Evil()}, "evil.pth")
    with pytest.raises(ValueError, match="holds objects that would run code"):
        load("evil.pth", natural_size=32)
    assert not Path("owned").exists()


def test_a_run_of_mixview(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "first")
    for text in (str(run), str(run / "encoder.safetensors")):
        subject = load(text, natural_size=224)
        assert (subject.name, subject.size, subject.run) == ("first (mocov2 bsim)", 16, run)
        assert subject.metadata["objective"] == "bsim"
        assert subject.weights_key() == load(text, natural_size=32).weights_key()
    assert subject.weights_key() != small(1).weights_key()


def test_random_pixels_and_names() -> None:
    one, same, another = (load("random", natural_size=32, backbone="small", seed=seed) for seed in (1, 1, 2))
    assert one.weights_key() == same.weights_key() != another.weights_key()
    assert one.name == "random small, seed 1"
    assert one.size == 32
    assert load("small", natural_size=32, seed=1).weights_key() == one.weights_key()
    pixels = load("pixels", natural_size=64)
    assert pixels.encoder(torch.rand(2, 3, 64, 64)).shape == (2, pixels.feature_dim) == (2, 3072)
    assert load("pixels", natural_size=16).feature_dim == 768
    state = torch.get_rng_state()
    load("random", natural_size=32, backbone="small")
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("runs/absent", "there is no run or file runs/absent"),
        ("resnet5", "no backbone 'resnet5'"),
    ],
)
def test_mistakes(text: str, words: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        load(text, natural_size=32)


def test_a_folder_without_an_encoder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"holds no encoder\.safetensors"):
        load(str(tmp_path), natural_size=32)
    with pytest.raises(ValueError, match="is a backbone itself"):
        load("resnet18", natural_size=32, backbone="resnet50")


def test_weights_that_are_not_finite_raise_by_the_name_of_the_file(tmp_path: Path) -> None:
    backbone = backbones.build("small", size=16)
    with torch.no_grad():
        next(backbone.encoder.parameters())[0] = float("nan")
    save_encoder(tmp_path / "encoder.safetensors", backbone.encoder, backbone.spec, {})
    with pytest.raises(ValueError, match=r"weights .* in .*encoder\.safetensors contain NaN"):
        load(str(tmp_path), natural_size=16)
