"""Pretraining on images of 12 bits in 16: the measured range goes with the encoder, wherever it is used."""

from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from mixview import load, pretrain
from mixview.encoders.embedding import Embedding
from mixview.encoders.export.base import ExportSource
from mixview.encoders.loading import EncoderConfig
from tests.data.test_value_range import npy, write_folder


def test_the_range_goes_with_the_encoder(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    images = np.random.default_rng(0).integers(0, 4096, (8, 16, 16, 3), dtype=np.uint16)
    dark = images // 16  # which alone would be taken for 8 bits
    folder = write_folder(tmp_path / "bright", {f"{number}.npy": npy(each) for number, each in enumerate(images)})
    other = write_folder(tmp_path / "dark", {f"{number}.npy": npy(each) for number, each in enumerate(dark)})
    out = pretrain(
        data=str(folder), out=str(tmp_path / "run"), method="mocov2", backbone="small", epochs=1, batch_size=4,
        workers=0, monitor={"eval_every": 0, "estimate": False},
    )  # fmt: skip
    assert "value_range 0,4095: measured on 8 images" in capfd.readouterr().err
    assert yaml.safe_load((out / "config.yaml").read_text())["value_range"] == "0,4095"
    embedded = Embedding(encoder=str(out), data=str(other), workers=0).embed()
    assert str(embedded.loaded.value_range) == "0,4095"
    assert "4095, 0, 1)" in ExportSource.from_loaded(embedded.loaded).normalize_line()
    encoder = load(out, device="cpu")
    features = encoder([str(other / f"{number}.npy") for number in range(8)])
    torch.testing.assert_close(features, embedded.features["avgpool"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(features, encoder(list(dark / np.float32(4095))), rtol=1e-4, atol=1e-5)
    own = EncoderConfig(encoder=str(out), value_range="0,255").load_for(embedded.source)
    assert str(own.value_range) == "0,255"
    with pytest.raises(ValueError, match="inverted"):
        EncoderConfig(encoder=str(out), value_range="255,0")
