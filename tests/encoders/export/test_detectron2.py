import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision

from mixview.encoders import backbones
from mixview.encoders.export.detectron2 import load_detectron2, save_detectron2, to_detectron2


def resnet(name: str = "resnet50") -> torch.nn.Module:
    torch.manual_seed(0)
    return backbones.build(name, size=224, stem="standard").encoder


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_round_trip_key_by_key(tmp_path: Path, name: str) -> None:
    encoder = resnet(name)
    with torch.no_grad():
        for buffer in encoder.buffers():
            if buffer.is_floating_point():
                buffer.uniform_(0.5, 2.0)
    save_detectron2(tmp_path / "encoder.pkl", encoder.state_dict(), {"method": "mocov2"})
    state, notes = load_detectron2(tmp_path / "encoder.pkl")
    wanted = encoder.state_dict()
    assert set(state) == set(wanted)
    for key, tensor in wanted.items():
        if not key.endswith("num_batches_tracked"):
            assert torch.equal(state[key], tensor), key
    torchvision.models.get_model(name, num_classes=1).load_state_dict(state, strict=False)
    assert notes["method"] == "mocov2"
    assert (notes["input_format"], notes["stride_in_1x1"], notes["matching_heuristics"]) == ("RGB", "False", "True")


def test_names_are_detectron2s() -> None:
    """As MoCo's `convert-pretrain-to-detectron2.py` renames them, for every tensor of a ResNet-50."""
    state = resnet().state_dict()
    wanted = {}
    for key, value in state.items():
        if "num_batches_tracked" in key:
            continue
        new = key
        if "layer" not in new:
            new = "stem." + new
        for number in (1, 2, 3, 4):
            new = new.replace(f"layer{number}", f"res{number + 1}")
        for number in (1, 2, 3):
            new = new.replace(f"bn{number}", f"conv{number}.norm")
        new = new.replace("downsample.0", "shortcut").replace("downsample.1", "shortcut.norm")
        wanted[new] = value
    found = to_detectron2(state)
    assert list(found) == list(wanted)
    assert all(np.array_equal(found[key], value.numpy()) for key, value in wanted.items())


def test_the_file_is_a_plain_pickle_of_arrays(tmp_path: Path) -> None:
    save_detectron2(tmp_path / "encoder.pkl", resnet("resnet18").state_dict())
    content = pickle.loads((tmp_path / "encoder.pkl").read_bytes(), encoding="latin1")  # as Detectron2 opens it
    assert content["__author__"] == "mixview"
    assert content["matching_heuristics"] is True
    assert content["model"]["res2.0.conv1.weight"].dtype == np.float32


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (Path("ran"),))


@pytest.mark.parametrize("inside", [True, False])
def test_nothing_in_a_file_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: bool) -> None:
    monkeypatch.chdir(tmp_path)
    content = {"model": {"stem.conv1.weight": Evil()}} if inside else Evil()
    (tmp_path / "evil.pkl").write_bytes(pickle.dumps(content))
    with pytest.raises(ValueError, match="do not trust it"):
        load_detectron2(tmp_path / "evil.pkl")
    assert not (tmp_path / "ran").exists()


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"end it in \.pkl"):
        save_detectron2(tmp_path / "encoder.pth", resnet("resnet18").state_dict())
    small = backbones.build("resnet18", size=32).encoder
    with pytest.raises(ValueError, match="small stem"):
        to_detectron2(small.state_dict())
    vit = {"encoder.layers.0.weight": torch.zeros(1)}
    with pytest.raises(ValueError, match="not a tensor of a torchvision ResNet"):
        to_detectron2(vit)
    (tmp_path / "cut.pkl").write_bytes(pickle.dumps({"model": {}})[:-3])
    with pytest.raises(ValueError, match="cannot be read as an encoder for Detectron2"):
        load_detectron2(tmp_path / "cut.pkl")
    (tmp_path / "other.pkl").write_bytes(pickle.dumps({"weights": 1}))
    with pytest.raises(ValueError, match="holds no arrays"):
        load_detectron2(tmp_path / "other.pkl")
