from dataclasses import fields
from pathlib import Path

import pytest

from mixview import recipes
from mixview.data.augment.policies import Jitter, load_policy
from mixview.encoders.backbones import build
from mixview.methods import RunLength, SwAV
from mixview.train.build import build_method
from mixview.train.config import OptimizerConfig, PretrainConfig, method_config
from mixview.train.optim import decays_norm_and_bias

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
    assert set(recipe.about) - {"hardware"} == {"what", "cost", "paper"}
    assert set(recipe.settings) <= {field.name for field in fields(PretrainConfig)}
    text = recipes.text_of(name)
    assert text.startswith(f"# {recipe.about['what'].split(',')[0]}")
    assert f"--recipe {name}" in text


def test_published_settings() -> None:
    simclr = recipes.read("paper/simclr-bsim").settings
    assert (simclr["method"]["name"], simclr["objective"], simclr["batch_size"], simclr["epochs"]) == (
        "simclr",
        "bsim",
        256,
        200,
    )
    assert simclr["optimizer"]["lr"] == 0.3
    assert simclr["optimizer"]["warmup_epochs"] == 10
    byol = recipes.read("paper/byol-wbsim-300").settings
    assert (byol["batch_size"], byol["epochs"], byol["optimizer"]["lr"]) == (4096, 300, 3.2)
    wbsim = recipes.read("paper/byol-wbsim").settings  # the paper's cost table has a batch size of its own
    assert (wbsim["batch_size"], wbsim["accumulate_grad_batches"], wbsim["optimizer"]["lr"]) == (
        1024,
        1,
        0.2 * 1024 / 256,
    )
    assert byol["optimizer"]["weight_decay"] == 1.5e-6
    v1 = recipes.read("paper/mocov1").settings
    assert v1["optimizer"]["milestones"] == [120, 160]
    mixup = recipes.read("paper/mocov2-mixup-0.5").settings
    assert (mixup["mixing"]["mixer"], mixup["mixing"]["alpha"], mixup["objective"]) == ("mixup", 0.5, "bsim")
    assert recipes.read("paper/simsiam").settings["optimizer"]["fixed_predictor_lr"] is True


def test_swav_is_the_published_setting_of_two_views() -> None:
    """main_swav.py and scripts/swav_400ep_2x224_pretrain.sh, and what differs from them is said."""
    settings = recipes.read("related/swav").settings
    assert settings["batch_size"] == 64 * 64  # --batch_size 64, 64 GPUs
    optimizer = OptimizerConfig(**settings["optimizer"])
    assert (optimizer.name, optimizer.lr, optimizer.momentum, optimizer.weight_decay) == ("lars", 4.8, 0.9, 1e-6)
    assert decays_norm_and_bias(optimizer)  # all of model.parameters() is one group
    assert (optimizer.schedule, optimizer.warmup_epochs, optimizer.scale_lr) == ("cosine", 10, False)
    backbone = build("small", size=32)._replace(feature_dim=2048)  # the width of a ResNet-50
    config = method_config(settings["method"])
    method = build_method(config, backbone, RunLength(1_281_167, 200 * 312, settings["batch_size"]))
    assert isinstance(method, SwAV)
    assert (method.temperature, method.epsilon, method.iterations) == (0.1, 0.05, 3)
    assert method.prototypes.weight.shape == (3000, 128)
    assert method.online.projector[0].weight.shape == (2048, 2048)
    assert (method.queue_size, method.freeze_steps) == (0, 1_281_167 // 4096)
    first, second = load_policy(config.augment, 224)
    assert first == second
    assert (first.crop.scale, first.blur.p, first.blur.sigma) == ((0.08, 1.0), 0.5, (0.1, 2.0))
    assert first.jitter == Jitter(0.8, 0.8, 0.8, 0.2, p=0.8)
    header = recipes.text_of("related/swav").split("\nbase:")[0]
    for difference in (
        "multi-crop",
        "0.0048",
        "LARC",
        "313",
        "both views together",
        "groups of 8",
        "float16",
        "accumulate_grad_batches",
    ):
        assert difference in header, difference


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    own = tmp_path / "mine.yaml"
    own.write_text("base: paper/mocov2\nepochs: 7\nmethod: {dim: 64}\n")
    settings = recipes.read(str(own)).settings
    assert settings["epochs"] == 7
    assert settings["method"] == {
        "name": "mocov2",
        "temperature": 0.2,
        "momentum": 0.999,
        "queue_size": 65536,
        "dim": 64,
    }


def test_hardware_is_the_bases_unless_a_recipe_names_its_own(tmp_path: Path) -> None:
    assert recipes.read("paper/byol-wbsim-300").hardware == recipes.Hardware(8, "V100", 32)
    assert recipes.read("related/swav").hardware == recipes.Hardware(64, "V100", 16)
    assert recipes.read("small/demo").hardware is None
    own = tmp_path / "mine.yaml"
    own.write_text('base: paper/mocov2\nabout: {hardware: "2 GPUs"}\n')
    assert set(recipes.read(str(own)).about) == {"hardware"}
    with pytest.raises(ValueError, match=r"names the hardware '2 GPUs': write it as 8 × V100-32GB"):
        assert recipes.read(str(own)).hardware


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no recipe paper/mocov2-bism: did you mean paper/mocov2-bsim"):
        recipes.read("paper/mocov2-bism")
    with pytest.raises(ValueError, match=r"there is no recipe file absent.yaml"):
        recipes.read("absent.yaml")
    loop = tmp_path / "loop.yaml"
    loop.write_text(f"base: {loop}\n")
    with pytest.raises(ValueError, match="is its own base"):
        recipes.read(str(loop))
