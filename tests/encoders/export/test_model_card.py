"""The model card: what the run's own files say, and nothing that they do not."""

import json
from pathlib import Path

import yaml

from mixview.encoders.encoder_file import save_encoder
from mixview.encoders.export.command import export
from mixview.evaluate.results import Result, save
from mixview.runs.run_directory import RunDirectory
from tests.evaluate.small_encoders import SIZE, small


def make_run(path: Path) -> Path:
    config = {
        "method": {"name": "mocov2"},
        "objective": "wbsim",
        "epochs": 3,
        "batch_size": 64,
        "seed": 7,
        "optimizer": {"lr": 0.03},
    }
    data = {"kind": "folder", "count": 1234, "fingerprint": "1234 files, abc"}
    RunDirectory.create(path, config, data).close()
    loaded = small()
    assert loaded.spec is not None
    about = {"method": "mocov2", "objective": "wbsim", "epoch": "3", "step": "57", "data": "/home/me/secret/photos"}
    save_encoder(path / "encoder.safetensors", loaded.encoder, loaded.spec, about)
    return path


def test_a_run_s_card_says_what_it_was_trained_on_how_and_what_was_measured(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    for seed, value in enumerate((40.0, 44.0)):
        save(
            Result(
                protocol="knn", metrics={"top-1": value}, description="20 nearest | vote.", encoder="run",
                data="imagenette", seed=seed, about={"method": "mocov2"}, warnings=("it knows the images",),
            ),
            run,
        )  # fmt: skip
    for about in ({}, {"method": "mocov2", "epoch": "2"}):  # of a random encoder, and of an earlier epoch
        save(
            Result(protocol="knn", metrics={"top-1": 9.9}, description="", encoder="", data="imagenette", about=about),
            run,
        )
    export(str(run), format="safetensors", out=str(tmp_path / "out"))
    card = (tmp_path / "out" / "README.md").read_text()
    _, matter, text = card.split("---\n", 2)
    assert yaml.safe_load(matter) == {
        "library_name": "mixview",
        "pipeline_tag": "image-feature-extraction",
        "tags": ["self-supervised", "mixview", "mocov2", "wbsim"],
    }
    for words in (
        "# run (mocov2 wbsim)",
        f"images of 3×{SIZE}×{SIZE} to 128 features",
        "| method | MoCo v2 (Chen et al., 2020): MoCo with a two-layer projector",
        "| objective | WBSIM: mixed and unmixed anchors, weighted |",
        "## Usage\n",
        "## Preprocessing\n",
        "## Training\n",
        "## Evaluation\n",
        "| trained for | 3 epochs, 57 steps |",
        "| images | photos (folder, 1,234 images), without labels |",
        "| optimizer | lr 0.03 |",
        "| knn | top-1 | 42.0 ± 2.8 % | 2 | imagenette |",
        "- **knn**: 20 nearest \\| vote.",
        "- Warning: it knows the images",
        "mixview.load(",
        "Checked with mixview",
    ):
        assert words in text, words
    assert "secret" not in card
    assert "9.9 %" not in card


def test_of_anybody_s_weights_nothing_is_made_up(tmp_path: Path) -> None:
    export("small", format="safetensors", size=16, out=str(tmp_path / "net.safetensors"))
    card = (tmp_path / "net.md").read_text()
    assert "Unknown: the weights are random small, seed 0, which mixview did not train." in card
    assert "Nothing yet. `mixview evaluate` evaluates" in card


def test_a_run_whose_files_are_lost_still_has_a_card(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "data.json").write_text("[")
    (run / "environment.json").write_text(json.dumps([]))
    (run / "config.yaml").write_text("{")
    export(str(run), format="safetensors", out=str(tmp_path / "out"))
    assert "unknown kind" in (tmp_path / "out" / "README.md").read_text()
