"""What is read from other programs: weights by name, nothing run, and what does not fit raises."""

import json
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
import torchvision
from safetensors.torch import save_file

import mixview
from mixview.cli import main
from mixview.encoders.encoder_file import load_encoder
from mixview.encoders.export.command import export
from mixview.encoders.export.huggingface import from_transformers, to_transformers
from mixview.encoders.importing import import_encoder
from mixview.io import archives


def test_weights_of_others_are_recognized(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torchvision.models.resnet18(weights=None)
    torch.save(model.state_dict(), tmp_path / "theirs.pth")
    import_encoder(str(tmp_path / "theirs.pth"), out=str(tmp_path / "a.safetensors"))
    encoder, header = load_encoder(tmp_path / "a.safetensors")
    assert header["spec"] == {
        "name": "torchvision/resnet18", "size": 224, "channels": 3, "stem": "standard", "feature_dim": 512
    }  # fmt: skip
    assert header["metadata"] == {"imported": "theirs.pth"}
    model.fc = torch.nn.Identity()
    images = torch.rand(2, 3, 64, 64)
    with torch.inference_mode():
        assert torch.equal(encoder(images), model.eval()(images))


def test_a_resnet_that_transformers_wrote(tmp_path: Path) -> None:
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(0)
    config = ResNetConfig(depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512], layer_type="basic")
    model = ResNetForImageClassification(config).eval()
    model.save_pretrained(tmp_path / "theirs")
    main(["import", str(tmp_path / "theirs"), "--out", str(tmp_path / "a.safetensors"), "--size", "96"])
    encoder, header = load_encoder(tmp_path / "a.safetensors")
    assert header["spec"]["name"] == "torchvision/resnet18"
    images = torch.rand(2, 3, 96, 96)
    with torch.inference_mode():
        torch.testing.assert_close(encoder(images), model.resnet(images).pooler_output.flatten(1))


def test_names_go_both_ways() -> None:
    names = list(torchvision.models.resnet50(weights=None).state_dict())
    assert [from_transformers(to_transformers(name)) for name in names] == names


def test_a_backbone_that_is_named(tmp_path: Path) -> None:
    export("resnet18", format="torchvision", size=32, out=str(tmp_path / "net.pth"))
    import_encoder(str(tmp_path / "net.pth"), out=str(tmp_path / "a.safetensors"), backbone="resnet18", size=32)
    assert load_encoder(tmp_path / "a.safetensors")[1]["spec"]["stem"] == "small"
    with pytest.raises(ValueError, match=r"fit torchvision/resnet50, which has"):
        import_encoder(str(tmp_path / "net.pth"), out=str(tmp_path / "a.safetensors"), backbone="resnet50", size=32)


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return eval, ("__import__('pathlib').Path('ran').touch()",)


def test_nothing_in_a_file_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.pth").write_bytes(pickle.dumps({"state_dict": Evil()}))
    Path("a.pkl").write_bytes(pickle.dumps({"model": Evil()}))
    export("small", format="torch-export", size=16, out="a.pt2")
    config = {"conv1.weight": {"path_name": "weight_0", "use_pickle": True, "is_param": True, "tensor_meta": {}}}
    with zipfile.ZipFile("b.pt2", "w") as archive:
        archive.writestr("b/data/weights/model_weights_config.json", json.dumps({"config": config}))
        archive.writestr("b/data/weights/weight_0", pickle.dumps(Evil()))
    for name, words in (("a.pth", "cannot be read as tensors alone"), ("a.pkl", "do not trust it"),
                        ("b.pt2", "unpickling would run code")):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            import_encoder(name)
    assert not Path("ran").exists()


def test_damaged_files_raise_in_a_sentence(tmp_path: Path) -> None:
    for name in ("a.onnx", "a.pt2", "a.safetensors", "a.pkl", "a.pth"):
        (tmp_path / name).write_bytes(b"nothing of the kind")
        with pytest.raises(ValueError, match=rf"{name}.*(cannot be read|is not a complete)"):
            import_encoder(str(tmp_path / name))
    with pytest.raises(FileNotFoundError, match=r"there is no file .*absent\.onnx: check the path"):
        import_encoder(str(tmp_path / "absent.onnx"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"holds none of model.safetensors.*name the file itself"):
        import_encoder(str(tmp_path / "empty"))


def test_folders_of_other_networks_raise(tmp_path: Path) -> None:
    save_file({"a": torch.rand(2)}, tmp_path / "model.safetensors")
    for content, words in (
        ('{"model_type": "bert"}', "holds a bert model, which mixview does not have"),
        ("[]", "cannot be read"),
        ("{", "cannot be read"),
    ):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(ValueError, match=words):
            import_encoder(str(tmp_path))


def test_a_config_of_something_else_beside_a_file_of_mixview_s(tmp_path: Path) -> None:
    for format, name in (("safetensors", "own.safetensors"), ("torchvision", "other.safetensors")):
        export("resnet18", format=format, out=str(tmp_path / name), size=96)
        (tmp_path / "config.json").write_text('{"color": "blue"}')
        import_encoder(str(tmp_path / name), out=str(tmp_path / "back" / "encoder.safetensors"))
        assert mixview.load(tmp_path / "back" / "encoder.safetensors", device="cpu").size == 96


def test_onnx_with_weights_in_another_file_raises(tmp_path: Path) -> None:
    tensor = onnx.helper.make_tensor("conv1.weight", onnx.TensorProto.FLOAT, [1], [0.0])
    tensor.ClearField("float_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")
    graph = onnx.helper.make_graph([], "g", [], [], [tensor])
    (tmp_path / "a.onnx").write_bytes(onnx.helper.make_model(graph).SerializeToString())
    with pytest.raises(ValueError, match=r"its weights are in another file.*export it again, as one file"):
        import_encoder(str(tmp_path / "a.onnx"))


def test_an_archive_whose_tensors_are_larger_than_their_bytes(tmp_path: Path) -> None:
    export("small", format="torch-export", size=16, out=str(tmp_path / "a.pt2"))
    with zipfile.ZipFile(tmp_path / "a.pt2") as archive, zipfile.ZipFile(tmp_path / "b.pt2", "w") as other:
        for name in archive.namelist():
            content = archive.read(name)
            if name.endswith("model_weights_config.json"):
                content = content.replace(b'"sizes": [{"as_int": 16}', b'"sizes": [{"as_int": 1600000}', 1)
            other.writestr(name, content)
    with pytest.raises(ValueError, match="a tensor is larger than its bytes"):
        import_encoder(str(tmp_path / "b.pt2"))


def test_a_tensor_of_one_number_that_stands_for_many(tmp_path: Path) -> None:
    torch.save({"conv1.weight": torch.zeros(1).expand(10**6, 10**6)}, tmp_path / "a.pth")
    with pytest.raises(ValueError, match=r"does not hold all of the tensor conv1.weight .*contiguous"):
        import_encoder(str(tmp_path / "a.pth"), out=str(tmp_path / "b.safetensors"))
    meta = {"conv1.weight": torch.zeros(10**6, 10**6, device="meta")}
    torch.save(meta, tmp_path / "a.pth")
    with pytest.raises(ValueError, match="does not hold all"):
        import_encoder(str(tmp_path / "a.pth"), out=str(tmp_path / "b.safetensors"))


def test_a_torch_file_that_unpacks_to_far_more_than_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "FREE_BYTES", 1 << 16)
    torch.save({"a": torch.zeros(1 << 18)}, tmp_path / "a.pth")
    with zipfile.ZipFile(tmp_path / "a.pth") as stored, zipfile.ZipFile(tmp_path / "b.pth", "w", 8) as packed:
        for name in stored.namelist():
            packed.writestr(name, stored.read(name))
    with pytest.raises(ValueError, match="would unpack"):
        import_encoder(str(tmp_path / "b.pth"), out=str(tmp_path / "b.safetensors"))


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("false",)


def test_torch_s_advice_to_trust_a_file_is_not_passed_on(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(1), "b": Harmful()}, tmp_path / "a.pth")
    with pytest.raises(ValueError, match=r"cannot be read as tensors alone \(it asks for \w+.system\)") as caught:
        import_encoder(str(tmp_path / "a.pth"), out=str(tmp_path / "b.safetensors"))
    for word in ("weights_only", "trusted", "safe_globals"):
        assert word not in str(caught.value)


@pytest.mark.parametrize(
    ("sizes", "strides", "packed"), [((10**5, 10**5), (0, 0), False), ((4,), (1,), False), ((1 << 18,), (1,), True)]
)
def test_a_pt2_that_says_more_than_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...], strides: tuple[int, ...], packed: bool
) -> None:
    monkeypatch.setattr(archives, "FREE_BYTES", 1 << 16)
    meta = {"dtype": 7, "storage_offset": {"as_int": 0}}
    meta |= {key: [{"as_int": each} for each in values] for key, values in (("sizes", sizes), ("strides", strides))}
    config = {"config": {"a": {"path_name": "weight_0", "use_pickle": False, "tensor_meta": meta}}}
    content = bytes(1 << 20) if packed else bytes(4)
    with zipfile.ZipFile(tmp_path / "a.pt2", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x/data/weights/model_weights_config.json", json.dumps(config))
        archive.writestr("x/data/weights/weight_0", content)
    with pytest.raises(ValueError, match=r"torch.export archive of plain weights"):
        import_encoder(str(tmp_path / "a.pt2"), out=str(tmp_path / "b.safetensors"))


def test_a_config_that_names_a_network_of_billions(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"architecture": "vit_giant_patch14_224"}')
    with pytest.raises(ValueError, match=r"do not fit timm/vit_giant_patch14_224.* 1011\.\d million"):
        import_encoder(str(tmp_path), out=str(tmp_path / "b.safetensors"))
