from dataclasses import fields
from pathlib import Path

import pytest

from mixview.train import recipes
from mixview.train.pretraining import Pretraining

PAPER = {
    f"{method}{objective}"
    for method in ("simclr", "mocov1", "mocov2", "mocov2-800", "byol", "byol-300", "simsiam")
    for objective in ("", "-bsim", "-wbsim")
}


def test_every_row_of_the_paper_has_a_recipe() -> None:
    found = {name.removeprefix("paper/") for name in recipes.names()}
    wanted = {name.replace("-800-bsim", "-bsim-800").replace("-800-wbsim", "-wbsim-800") for name in PAPER}
    wanted = {name.replace("-300-bsim", "-bsim-300").replace("-300-wbsim", "-wbsim-300") for name in wanted}
    wanted |= {"mocov2-mixaug", "mocov2-mixup-0.5", "mocov2-mixup-1"}
    wanted |= {f"mocov2-cutmix-{alpha}" for alpha in ("0.25", "0.5", "0.75", "1")}
    assert wanted <= found


@pytest.mark.parametrize("name", recipes.names())
def test_a_recipe_says_what_it_is_and_sets_what_can_be_set(name: str) -> None:
    recipe = recipes.read(name)
    assert set(recipe.about) == {"what", "cost", "paper"}
    assert set(recipe.settings) <= {field.name for field in fields(Pretraining)}
    text = recipes.text_of(name)
    assert text.startswith(f"# {recipe.about['what'].split(',')[0]}")
    assert f"--recipe {name}" in text


def test_published_settings() -> None:
    simclr = recipes.read("paper/simclr-bsim").settings
    assert (simclr["method"], simclr["objective"], simclr["batch"], simclr["epochs"]) == ("simclr", "bsim", 256, 200)
    assert simclr["optimizer"]["lr"] == 0.3
    assert simclr["optimizer"]["warmup_epochs"] == 10
    byol = recipes.read("paper/byol-wbsim-300").settings
    assert (byol["batch"], byol["epochs"], byol["optimizer"]["lr"]) == (4096, 300, 3.2)
    assert byol["optimizer"]["weight_decay"] == 1.5e-6
    v1 = recipes.read("paper/mocov1").settings
    assert v1["optimizer"]["milestones"] == [120, 160]
    mixup = recipes.read("paper/mocov2-mixup-0.5").settings
    assert (mixup["mixing"]["mixer"], mixup["mixing"]["alpha"], mixup["objective"]) == ("mixup", 0.5, "bsim")
    assert recipes.read("paper/simsiam").settings["optimizer"]["fixed_predictor_lr"] is True


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    own = tmp_path / "mine.yaml"
    own.write_text("base: paper/mocov2\nepochs: 7\nhead: {dim: 64}\n")
    settings = recipes.read(str(own)).settings
    assert settings["epochs"] == 7
    assert settings["head"] == {"temperature": 0.2, "momentum": 0.999, "queue_size": 65536, "dim": 64}


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no recipe paper/mocov2-bism: did you mean paper/mocov2-bsim"):
        recipes.read("paper/mocov2-bism")
    with pytest.raises(ValueError, match=r"there is no recipe file absent.yaml"):
        recipes.read("absent.yaml")
    loop = tmp_path / "loop.yaml"
    loop.write_text(f"base: {loop}\n")
    with pytest.raises(ValueError, match="is its own base"):
        recipes.read(str(loop))
