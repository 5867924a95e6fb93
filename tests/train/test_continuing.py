"""Continuing from weights: normalization, layer decay, freezing, and the starting weights as epoch 0."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.optim import param_groups_layer_decay

import mixview
from mixview.data.augment.policies import Normalize
from mixview.data.sources.registry import open_dataset
from mixview.encoders.backbones import build
from mixview.encoders.layers import freeze, layer_of, learning_rate_scales
from mixview.encoders.loading import load, weights_normalize
from mixview.report.content import describe_settings
from mixview.report.runs import read_run
from mixview.runs.run_directory import read_metrics
from mixview.train import loop, starting_weights
from tests.train.running import assert_same_runs, last_state, stopped_at, tiny

SMALL: dict[str, Any] = {"backbone": "small", "data_options": {"count": 48, "size": 16}}
EVALUATED = {"eval_every": 1}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run to start from, normalized by what was measured."""
    out = tmp_path_factory.mktemp("first") / "run"
    return mixview.pretrain(**tiny(out, **SMALL, epochs=1, normalize="measured"))


# Normalization.


def test_measured_is_of_the_images_and_goes_with_the_encoder(first: Path) -> None:
    pixels = torch.stack(
        [torch.as_tensor(open_dataset("scenes", count=48, size=16).read(index)) for index in range(48)]
    )
    stored = load(str(first), natural_size=16).normalize
    torch.testing.assert_close(
        torch.tensor(stored.mean), (pixels.double() / 255).mean((0, 1, 2)).float(), atol=1e-5, rtol=0
    )
    torch.testing.assert_close(
        torch.tensor(stored.std), (pixels.double() / 255).std((0, 1, 2), correction=0).float(), atol=1e-5, rtol=0
    )
    assert (
        weights_normalize("small", str(first)) == stored == load("small", natural_size=16, weights=str(first)).normalize
    )


def test_an_old_file_says_nothing_and_has_imagenets(tmp_path: Path) -> None:
    from mixview.encoders import save_encoder

    backbone = build("small", size=16)
    save_encoder(tmp_path / "old.safetensors", backbone.encoder, backbone.spec, {"method": "mocov2"})
    assert load(str(tmp_path / "old.safetensors"), natural_size=16).normalize == Normalize()


def test_a_library_says_what_its_weights_were_normalized_by() -> None:
    assert weights_normalize("timm/vit_small_patch16_224.augreg_in21k", "imagenet") == Normalize((0.5,) * 3, (0.5,) * 3)
    assert weights_normalize("torchvision/resnet50", "imagenet") == weights_normalize("small", None) == Normalize()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"normalize": "0.5,0.5,0.5"}, "--normalize '0.5,0.5,0.5' has 3 numbers: pass as many means"),
        ({"normalize": "0.5,0.5,0.2,0.2"}, "has 2 means .* and the images have 3 channels: pass one of each, or 3"),
        ({"normalize": "imagnet"}, "--normalize 'imagnet' is not a normalization: pass imagenet, weights, measured"),
        ({"normalize": "0.5,0"}, "--normalize normalize.std must be"),
        ({"normalize": "weights"}, "--normalize weights needs weights to start from"),
        ({"stop_if_worse": True}, "--stop_if_worse compares with the weights that a run starts from"),
        ({"freeze": 4}, "small has 4 stages or blocks, got --freeze 4: --freeze must be 0 to 3"),
    ],
)
def test_mistakes(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        mixview.pretrain(**tiny(tmp_path / "run", **SMALL, **settings))


# Layers.


@pytest.mark.parametrize("name", ["resnet18", "vit_tiny_patch16_224"])
def test_layer_decay_is_timms(name: str) -> None:
    model = timm.create_model(name, num_classes=3)
    expected = {
        id(weight): group["lr_scale"]
        for group in param_groups_layer_decay(model, layer_decay=0.5)
        for weight in group["params"]
    }
    heads = ("fc.", "head.")
    own = {key: each for key, each in model.named_parameters() if not key.startswith(heads)}
    encoder = timm.create_model(name, num_classes=0)
    assert learning_rate_scales(encoder, 0.5) == {key: expected[id(weight)] for key, weight in own.items()}


def test_torchvisions_resnet_has_timms_layers() -> None:
    ours, theirs = (build(name, size=64, stem="standard").encoder for name in ("resnet18", "timm/resnet18"))
    for coarse in (False, True):
        assert layer_of(ours, coarse=coarse) == layer_of(theirs, coarse=coarse)
    vit = build("vit_b_16", size=32).encoder
    assert (layer_of(vit)["class_token"], layer_of(vit)["encoder.ln.weight"]) == (0, 12)


def test_frozen_layers_stay_as_they_are_and_the_first_ones_learn_least(first: Path, tmp_path: Path) -> None:
    out = mixview.pretrain(
        **tiny(tmp_path / "run", **SMALL, weights=str(first), freeze=1, epochs=1, optimizer={"layer_decay": 0.1})
    )
    before, after = (load(str(each), natural_size=16).encoder.state_dict() for each in (first, out))
    frozen = [key for key in before if key.startswith(("conv1", "bn1", "layer1"))]
    assert all(torch.equal(before[key], after[key]) for key in frozen)  # statistics of batch norm, too
    moved = [
        float((after[f"layer{n}.0.conv1.weight"] - before[f"layer{n}.0.conv1.weight"]).abs().max()) for n in (2, 4)
    ]
    assert 0 < moved[0] < 0.1 * moved[1]
    assert not build("small", size=16).encoder.bn1.training or freeze(build("small", size=16).encoder, "small", 0)


# Epoch 0.


def test_the_starting_weights_are_evaluated_and_change_nothing(
    first: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = SMALL | {"weights": str(first)}
    watched = mixview.pretrain(**tiny(tmp_path / "watched", EVALUATED, **settings))
    error = capfd.readouterr().err
    blind = mixview.pretrain(**tiny(tmp_path / "blind", **settings))
    assert_same_runs_but_for_evaluations(watched, blind)
    records = read_metrics(watched)
    assert records[0]["step"] == 0
    assert {"knn", "std", "effective_rank"} <= records[0].keys()
    sentence = starting_weights.compare(records)
    assert sentence is not None
    assert error.strip().endswith(sentence)
    assert "Epoch 0, the starting weights: k-NN" in error
    assert "Normalization of the weights" in error
    assert "Precision: float32" in error
    assert ["since then", sentence] in describe_settings(read_run(watched))


def assert_same_runs_but_for_evaluations(one: Path, other: Path) -> None:
    from tests.train.running import assert_same, metrics_of

    assert_same(last_state(one), last_state(other))
    losses = [[line for line in metrics_of(out) if '"loss"' in line] for out in (one, other)]
    assert losses[0] == losses[1]


def test_a_resumed_run_repeats_it_bit_for_bit(first: Path, tmp_path: Path) -> None:
    settings = SMALL | {"weights": str(first), "normalize": "0.4,0.3", "freeze": 0}
    straight = mixview.pretrain(**tiny(tmp_path / "a", EVALUATED, **settings, optimizer={"layer_decay": 0.5}))
    with stopped_at(4):
        mixview.pretrain(**tiny(tmp_path / "b", EVALUATED, **settings, optimizer={"layer_decay": 0.5}))
    assert_same_runs(straight, mixview.resume(tmp_path / "b"))
    assert load(str(straight), natural_size=16).normalize == Normalize((0.4,), (0.3,))


def test_a_run_that_gets_worse_stops_and_keeps_the_starting_weights(
    first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    values = iter([0.5, 0.4, 0.6, 0.4, 0.3, 0.2, 0.1, 0.1])
    monkeypatch.setattr(loop.Monitor, "knn_accuracy", lambda *_: next(values))
    settings = SMALL | {"weights": str(first), "stop_if_worse": True, "epochs": 6}
    out = mixview.pretrain(**tiny(tmp_path / "run", EVALUATED, **settings))
    error = capfd.readouterr().err
    assert read_metrics(out)[-1]["step"] == 5 * 3
    assert "k-NN 50.0 % → 20.0 %: the encoder of step 6 was better" in error.strip().splitlines()[-1]
    best, last = (load(str(out / f"encoder{which}.safetensors"), natural_size=16) for which in ("", "-last"))
    assert (best.metadata["step"], last.metadata["step"]) == ("6", "15")
    # Nothing is lost: it goes on from where it stopped, to where a run that never stops comes.
    mixview.resume(out, stop_if_worse=False)
    monkeypatch.setattr(loop.Monitor, "knn_accuracy", lambda *_: 0.1)
    straight = mixview.pretrain(**tiny(tmp_path / "straight", EVALUATED, **settings | {"stop_if_worse": False}))
    assert last_state(out)[1] == last_state(straight)[1] == 18
    for one, other in zip(
        last_state(out)[0]["method"].values(), last_state(straight)[0]["method"].values(), strict=True
    ):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("accuracies", "sentence"),
    [
        ([0.612, 0.5, 0.689], "k-NN 61.2 % → 68.9 %"),
        ([0.612, 0.7, 0.5], "k-NN 61.2 % → 50.0 %: the starting weights were better: keep them"),
        ([0.5], None),
    ],
)
def test_the_last_line(accuracies: list[float], sentence: str | None) -> None:
    records = [{"step": 4 * number, "std": 1.0, "knn": knn} for number, knn in enumerate(accuracies)]
    assert starting_weights.compare(records) == sentence
    assert starting_weights.compare([{"step": 4, "knn": 0.3, "std": 1.0}, {"step": 8, "knn": 0.4, "std": 1.0}]) is None


def test_without_labels_the_rank_is_compared() -> None:
    records = [{"step": step, "std": 0.5, "effective_rank": 3.0 + step} for step in (0, 4)]
    assert str(starting_weights.compare(records)).startswith("effective rank 3 → 7, std 0.5 → 0.5; without labels")
