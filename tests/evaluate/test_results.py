"""Results on disk, over seeds, and beside the paper's."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from rich.console import Console

import mixview
from mixview.encoders.loading import load
from mixview.encoders.provenance import encoder_settings
from mixview.evaluate import evaluate
from mixview.evaluate import show as show_folders
from mixview.evaluate.paper import PaperKey
from mixview.evaluate.results import Result, format_metric, read, save, show, summarize
from mixview.runs.run_directory import RunDirectory
from mixview.train.config import MixingConfig
from mixview.train.pretraining import resume
from tests.evaluate.published import result_of
from tests.train.running import tiny

BSIM = Result(
    protocol="linear",
    metrics={"top-1": 50.0},
    description="a linear classifier.",
    encoder="first (mocov2 bsim)",
    data="imagenette, train 4, test 2",
    about={"method": "mocov2", "objective": "bsim", "epoch": "200"},
    notes=("A note.",),
    warnings=("Beware.",),
)


def printed(*results: Result) -> str:
    stream = io.StringIO()
    show(results, Console(file=stream, width=200, highlight=False))
    return stream.getvalue()


def test_what_is_saved_is_read_again_and_seeds_accumulate(tmp_path: Path) -> None:
    path = save(BSIM, tmp_path)
    assert path.parent == tmp_path / "evaluations"
    assert read(tmp_path) == [BSIM]
    save(replace(BSIM, metrics={"top-1": 51.0}), tmp_path)  # the same again replaces
    assert [result.metrics for result in read(tmp_path)] == [{"top-1": 51.0}]
    save(replace(BSIM, seed=1), tmp_path)
    save(replace(BSIM, settings={"fast": True}), tmp_path)
    assert len(read(tmp_path)) == 3
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_damaged_result_is_named(tmp_path: Path) -> None:
    path = save(BSIM, tmp_path)
    path.write_text("{")
    with pytest.warns(UserWarning, match=rf"the result .*{path.name} was left out: .*; remove it, and evaluate again"):
        assert read(tmp_path) == []


def of_run(result: Result, seed: int = 0, encoder: str = "first (mocov2 bsim)", **settings: Any) -> Result:
    """The same result of a run with other settings."""
    shaped = {"method": "mocov2", "objective": "bsim", "epochs": 200, "backbone": "small", "mixing.mixer": "cutmix"}
    shaped |= settings
    about = result.about | {"seed": str(seed), "epoch": str(shaped["epochs"]), "settings": json.dumps(shaped)}
    return replace(result, about=about, encoder=encoder)


def test_mean_and_deviation_over_seeds() -> None:
    results = [
        of_run(BSIM),
        of_run(replace(BSIM, seed=1, metrics={"top-1": 54.0}), seed=1, encoder="second (mocov2 bsim)"),
        of_run(replace(BSIM, seed=2, metrics={"top-1": 52.0})),
        of_run(BSIM, objective="sim"),
        of_run(replace(BSIM, settings={"fast": True})),
        replace(BSIM, about={}, encoder="random small, seed 0", metrics={"top-1": 10.0}),
        replace(BSIM, about={}, encoder="random small, seed 1", metrics={"top-1": 12.0}, seed=1),
    ]
    rows = summarize(results)
    assert [(row.runs, row.mean) for row in rows] == [(3, 52.0), (1, 50.0), (1, 50.0), (2, 11.0)]
    assert rows[0].std == pytest.approx(2.0)
    assert rows[1].std is None
    own = summarize([replace(BSIM, std={"top-1": 0.3})])
    assert own[0].std == 0.3


@pytest.mark.parametrize(
    "other",
    [
        {"backbone": "resnet18"},
        {"mixing.mixer": "mixup"},
        {"mixing.alpha": 0.25},
        {"epochs": 400},
        {"optimizer.lr": 0.3},
        {"batch_size": 512},
        {"head.temperature": 0.1},
        {"data": "9469 images, 1 bytes, 0"},
        {"weights": "imagenet"},
    ],
)
def test_runs_that_differ_in_more_than_their_seed_are_distinguished_and_not_averaged(other: dict[str, Any]) -> None:
    one, two = of_run(BSIM), of_run(replace(BSIM, metrics={"top-1": 10.0}), seed=1, **other)
    assert [(row.runs, row.mean) for row in summarize([one, two])] == [(1, 50.0), (1, 10.0)]
    text = printed(one, two)
    assert "±" not in text
    ((name, value),) = other.items()
    assert f"first (mocov2 bsim), {name} {value}  " in text


def test_an_encoder_of_another_epoch_is_another() -> None:
    one, two = of_run(BSIM), of_run(BSIM)
    two.about["epoch"] = "100"
    assert [row.runs for row in summarize([one, two])] == [1, 1]
    assert "first (mocov2 bsim), epoch 100  " in printed(one, two)


def test_what_is_not_known_to_be_alike_is_not_averaged() -> None:
    """Results of earlier versions, without the settings of the run."""
    second = replace(BSIM, encoder="second (mocov2 bsim)", metrics={"top-1": 10.0})
    rows = summarize([BSIM, second, of_run(BSIM), replace(BSIM, seed=1, metrics={"top-1": 52.0})])
    assert [(row.runs, row.mean) for row in rows] == [(2, 51.0), (1, 10.0), (1, 50.0)]
    damaged = replace(BSIM, about=BSIM.about | {"settings": "{"})
    assert [row.runs for row in summarize([BSIM, damaged])] == [1, 1]


def test_results_of_earlier_versions_get_their_settings_from_the_run(tmp_path: Path) -> None:
    """They are averaged with others again, and the same evaluation of today takes their place."""
    paths = {}
    for name, seed, mixer, value in (("a", 0, "cutmix", 40.0), ("b", 1, "cutmix", 44.0), ("c", 1, "mixup", 90.0)):
        path = paths[name] = tmp_path / name
        config = {
            "method": {"name": "mocov2"},
            "objective": "bsim",
            "seed": seed,
            "epochs": 200,
            "mixing": {"mixer": mixer},
        }
        RunDirectory.create(path, config, {"fingerprint": "60 images, 1 bytes, 0", "count": 60}).close()
        about = BSIM.about | {"seed": str(seed)}
        save(replace(BSIM, metrics={"top-1": value}, about=about, encoder=f"{name} (mocov2 bsim)"), path)
    rows = summarize(result for path in paths.values() for result in read(path))
    assert [(row.runs, row.mean) for row in rows] == [(2, 42.0), (1, 90.0)]
    (then,) = read(paths["a"])
    save(replace(then, metrics={"top-1": 41.0}, made="2100-01-01T00:00:00+00:00"), paths["a"])
    assert len(list((paths["a"] / "evaluations").iterdir())) == 2
    assert [result.metrics for result in read(paths["a"])] == [{"top-1": 41.0}]
    # A result that was only kept in the folder is not the run's, nor is one of another seed.
    for other in (replace(BSIM, encoder="d (mocov2 bsim)"), replace(BSIM, about=BSIM.about | {"seed": "9"})):
        save(other, tmp_path / "b")
    assert sum("settings" in result.about for result in read(tmp_path / "b")) == 1


def test_two_experiments_are_not_printed_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whole: three runs, of which two differ in their seed, judged and shown together."""
    runs = {"first": ("mixup", 0), "second": ("cutmix", 0), "third": ("cutmix", 1)}
    for name, (mixer, seed) in runs.items():
        mixing = MixingConfig(mixer=mixer, alpha=0.25)  # type: ignore[arg-type]
        options = tiny(tmp_path / name, method="mocov2", objective="bsim", backbone="small", mixing=mixing, seed=seed)
        mixview.pretrain(**(options | {"data_options": {"count": 32, "size": 16}, "epochs": 1}))
        evaluate(str(tmp_path / name), "knn", data="scenes", data_options={"count": 30, "size": 16}, workers=0)
    capsys.readouterr()
    show_folders([str(tmp_path / name) for name in runs])
    lines = [line for line in capsys.readouterr().out.splitlines() if "top-1" in line]
    assert len(lines) == 2
    assert lines[0].startswith("first (mocov2 bsim), mixing.mixer mixup ")
    assert lines[1].startswith("mocov2 bsim, mixing.mixer cutmix ")
    assert lines[1].split()[-1] == "2"
    assert "paper" not in " ".join(lines)
    # An encoder that left its folder still says what it is.
    (tmp_path / "first" / "encoder.safetensors").rename(tmp_path / "alone.safetensors")
    assert '"mixing.mixer": "mixup"' in load(str(tmp_path / "alone.safetensors"), natural_size=16).metadata["settings"]


def test_an_extended_run_is_not_a_longer_one(tmp_path: Path) -> None:
    for name, epochs in (("longer", 2), ("extended", 1)):
        mixview.pretrain(**(tiny(tmp_path / name) | {"epochs": epochs}))
    resume(tmp_path / "extended", epochs=2, trust_remote_code=True)
    longer, extended = (encoder_settings(tmp_path / name) for name in ("longer", "extended"))
    assert longer is not None
    assert extended == longer | {"extended_from": [1]}


def test_the_paper_s_figure_stands_beside_and_is_marked_as_its_own() -> None:
    own = result_of(PaperKey("mocov2", "bsim", "cutmix", "1", "200", "linear-moco", "top-1"))
    text = printed(own)
    lines = text.splitlines()
    assert "paper" in lines[0]
    assert "50.0 %" in lines[1]
    assert "68.0 (+0.5↑) [T5]" in lines[1]
    assert "[T5] Paper: Table 5, MoCoV2-BSIM (CutMix, α 1), 200 epochs of ImageNet, ResNet-50" in text
    assert "paper" not in printed(replace(own, protocol="knn"))
    sim = result_of(PaperKey("mocov2", "sim", "", "", "200", "linear-moco", "top-1"))
    assert "[T5] Paper: Table 5, MoCoV2, 200 epochs" in printed(own, sim)


def test_protocols_notes_and_warnings_are_shown() -> None:
    text = printed(BSIM)
    assert "paper" not in text  # on Imagenette
    assert "linear: a linear classifier. On imagenette, train 4, test 2." in text
    assert "A note." in text
    assert "warning: Beware." in text
    several = printed(BSIM, replace(BSIM, seed=1, metrics={"top-1": 52.0}))
    assert "51.0 ± 1.4 %" in several
    assert "mocov2 bsim" in several


def test_figures() -> None:
    assert format_metric(45.25, None) == "45.2 %"
    assert format_metric(45.25, 0.31) == "45.2 ± 0.3 %"
    assert format_metric(float("nan"), None) == "undefined"


def test_files_of_one_name_are_two_encoders(tmp_path: Path) -> None:
    """MoCo calls every checkpoint checkpoint_0199.pth.tar."""
    subjects = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        file = tmp_path / str(seed) / "checkpoint_0199.pth.tar"
        file.parent.mkdir()
        torch.save({"state_dict": torchvision.models.resnet18().state_dict()}, file)
        subjects.append(load(str(file), natural_size=224))
    results = [
        Result(
            protocol="knn", metrics={"top-1": value}, description="", encoder=each.name, data="d", about=each.metadata
        )
        for each, value in zip(subjects, (60.0, 70.0), strict=True)
    ]
    assert [(row.mean, row.runs) for row in summarize(results)] == [(60, 1), (70, 1)]
    assert len({result.file_name() for result in results}) == 2


def test_a_repeated_run_is_not_a_second_one() -> None:
    first = Result(protocol="knn", metrics={"top-1": 60.0}, description="", encoder="a", data="d")
    (row,) = summarize([first, replace(first, metrics={"top-1": 62.0})])
    assert (row.mean, row.std, row.runs) == (62, None, 1)
