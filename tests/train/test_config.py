import ast
import dataclasses
import importlib
import itertools
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import torch

from mixview import mixing
from mixview.encoders.backbones import build
from mixview.extensions import METHODS
from mixview.methods import BYOL, Method, MoCo, MoCoV2Config, RunLength, SimCLR, SimCLRConfig, SimSiam
from mixview.nn import SplitBatchNorm2d
from mixview.recipes import merge
from mixview.train import config as settings
from mixview.train.build import build_method, build_mixer, build_objective
from mixview.train.config import MixingConfig, PretrainConfig, from_plain, method_config, to_plain


def make(name: str, images: int = 1000, steps: int = 100, batch_size: int = 64, **options: Any) -> Any:
    config = method_config({"name": name, **options})
    return build_method(config, build("small", size=16), RunLength(images, steps, batch_size))


def test_objectives_by_name() -> None:
    mixing = MixingConfig(alpha=0.5, weight=0.3, sim_weight=0.6, lam_per="batch")
    assert repr(build_objective("sim", mixing)) == "Objective([(1, Identity())])"
    assert repr(build_objective("wbsim", mixing)).startswith("Objective([(0.3, CutMix(alpha=0.5, lam_per='batch'")
    assert "MixAug(CutMix" in repr(build_objective("mixaug", mixing))
    assert "Mixup" in repr(build_objective("bsim", MixingConfig(mixer="mixup")))


def test_methods_by_name_are_as_published() -> None:
    assert isinstance(simclr := make("simclr"), SimCLR)
    assert (simclr.temperature, simclr.symmetric) == (0.1, True)
    assert isinstance(v1 := make("mocov1", steps=10**6, images=10**6), MoCo)
    assert (v1.temperature, v1.momentum, len(v1.queue.keys)) == (0.07, 0.999, 65_536)
    assert isinstance(byol := make("byol", steps=10**6), BYOL)
    assert byol.momentum == 0.996
    assert isinstance(simsiam := make("simsiam"), SimSiam)
    assert simsiam.predictor[0].out_features == 512


def test_a_small_run_gets_a_queue_and_a_momentum_that_can_work() -> None:
    method = make("mocov2", images=1000, steps=100, batch_size=64)
    assert len(method.queue.keys) == 448  # half of the images, in whole batches
    assert method.momentum == 0.99
    assert len(make("mocov2", images=80, batch_size=64).queue.keys) == 64


def test_what_is_set_is_set() -> None:
    options = {"temperature": 0.3, "momentum": 0.9, "queue_size": 128, "hidden": 32, "dim": 16}
    method = make("mocov2", **options, other_parent=True, bn_splits=4)
    assert (method.temperature, method.momentum, method.queue.keys.shape) == (0.3, 0.9, (128, 16))
    assert method.online.projector[0].out_features == 32
    assert method.other_parent
    assert any(isinstance(part, SplitBatchNorm2d) for part in method.target.modules())
    assert make("byol", momentum=0.0).momentum == 0
    assert make("byol", target="interpolated").interpolated
    assert not make("simclr", symmetric=False).symmetric


def test_swav_counts_its_epochs_in_steps() -> None:
    """One epoch frozen, no queue unless there is to be one, which starts after 15 epochs, as in the published code."""
    imagenet = {"images": 1_281_167, "steps": 200 * 312, "batch_size": 4096}
    published = make("swav", hidden=8, dim=8, **imagenet)
    assert (published.freeze_steps, published.queue_size, len(published.prototypes.weight)) == (312, 0, 3000)
    imagenet = {"images": 1_281_167, "steps": 200 * 5004, "batch_size": 256}
    small_batch = make("swav", hidden=8, dim=8, queue_size=3840, **imagenet)
    assert (small_batch.freeze_steps, small_batch.queue_size, small_batch.queue_start) == (5004, 3840, 15 * 5004)
    assert len(small_batch.prototypes.weight) == 3000
    assert (small_batch.epsilon, small_batch.iterations, small_batch.temperature) == (0.05, 3, 0.1)
    short = make("swav", hidden=8, queue_size=128, freeze_prototypes=0, images=640, steps=100, batch_size=64)
    assert (short.freeze_steps, short.queue_start, len(short.prototypes.weight)) == (0, 50, 192)
    chosen = {"hidden": 8, "queue_size": 128, "freeze_prototypes": 2.5, "epoch_queue_starts": 3}
    chosen_method = make("swav", images=640, steps=100, batch_size=64, **chosen)
    assert (chosen_method.freeze_steps, chosen_method.queue_start) == (25, 30)
    with pytest.raises(ValueError, match="queue_size 32 does not hold a batch of 64: set at least 64, or 0"):
        make("swav", queue_size=32)


@pytest.mark.parametrize("name", [name for name in METHODS.names() if name != "distillation"])  # has a teacher's width
def test_every_method_takes_a_small_encoder(name: str) -> None:
    names = {field.name for field in dataclasses.fields(METHODS.load(name))}
    method = make(name, **{option: 8 for option in ("hidden", "dim") if option in names})
    assert method.online(torch.rand(4, 3, 16, 16)).shape == (4, 8)


@pytest.mark.parametrize("name", METHODS.names())
def test_every_option_of_a_method_has_a_help_text_and_survives_being_stored(name: str) -> None:
    kind = METHODS.load(name)
    tree = ast.parse(Path(str(importlib.import_module(kind.__module__).__file__)).read_text())
    body = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == kind.__name__).body
    for line, after in itertools.pairwise(body):
        if isinstance(line, ast.AnnAssign) and not ast.unparse(line.annotation).startswith("ClassVar"):
            assert isinstance(after, ast.Expr), ast.unparse(line)
            assert isinstance(after.value, ast.Constant), ast.unparse(line)
    config = PretrainConfig(method=kind().resolve(RunLength(1000, 100, 64)))
    stored = to_plain(config)
    assert stored["method"]["name"] == name
    assert (
        from_plain(
            {key: value for key, value in stored.items() if not isinstance(value, dict)} | {"method": stored["method"]}
        ).method
        == config.method
    )
    assert issubclass(kind.module, Method)


def test_a_method_is_given_by_name_as_a_group_or_as_itself() -> None:
    wanted = MoCoV2Config(queue_size=4096)
    assert PretrainConfig(method=wanted).method is wanted
    assert PretrainConfig(method={"name": "mocov2", "queue_size": 4096}).method == wanted
    assert PretrainConfig(method="mocov2").method == MoCoV2Config()
    assert PretrainConfig().method == from_plain({}).method == SimCLRConfig()
    assert from_plain({"method": {"symmetric": False}}).method == SimCLRConfig(symmetric=False)
    with pytest.raises(ValueError, match=r"there is no setting method.queue_size: simclr has temperature, hidden, dim"):
        PretrainConfig(method={"name": "simclr", "queue_size": 4})
    with pytest.raises(ValueError, match=r"there is no setting method.queue_sise: did you mean queue_size\?"):
        PretrainConfig(method={"name": "mocov2", "queue_sise": 4})
    with pytest.raises(ValueError, match=r"there is no method 'mocov4': did you mean mocov3\?"):
        PretrainConfig(method={"name": "mocov4"})
    with pytest.raises(ValueError, match=r"--method must be a name, or a group of settings"):
        PretrainConfig(method=3)
    with pytest.raises(
        ValueError, match=r"pathlib.Path is not a valid method: it must be a subclass of mixview.methods.MethodConfig"
    ):
        PretrainConfig(method="pathlib.Path")


@pytest.mark.parametrize(
    ("changes", "merged"),
    [
        ("mocov2", {"name": "mocov2", "queue_size": 64}),
        ("byol", {"name": "byol"}),
        ({"name": "byol", "dim": 8}, {"name": "byol", "dim": 8}),
        ({"name": "mocov2", "dim": 8}, {"name": "mocov2", "queue_size": 64, "dim": 8}),
        ({"queue_size": 32}, {"name": "mocov2", "queue_size": 32}),
    ],
)
def test_another_method_replaces_the_whole_group(changes: Any, merged: dict[str, Any]) -> None:
    below: dict[str, Any] = {"method": {"name": "mocov2", "queue_size": 64}, "epochs": 3}
    merge(below, {"method": changes})
    assert below == {"method": merged, "epochs": 3}
    alone: dict[str, Any] = {"method": "mocov2"}
    merge(alone, {"method": {"dim": 8}})
    assert alone == {"method": {"name": "mocov2", "dim": 8}}


def test_settings_are_read_without_torch() -> None:
    """The module imports nothing but the standard library and modules of which the same is true."""
    waiting, seen = [Path(settings.__file__)], set()
    package = Path(mixing.__file__).parent
    while waiting:
        file = waiting.pop()
        seen.add(file)
        for node in ast.parse(file.read_text()).body:
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert not name.startswith(("torch", "lightning", "numpy")), (file, name)
                if name.startswith("mixview."):
                    place = package.joinpath(*name.split(".")[1:])
                    found = place.with_suffix(".py") if place.with_suffix(".py").exists() else place / "__init__.py"
                    waiting += [] if found in seen else [found]
    assert len(seen) > 3


def test_mixers_by_name_or_import_path() -> None:
    options = {"alpha": 0.5, "lam_per": "batch", "partner": "permutation", "prob": 0.5}
    assert repr(build_mixer(MixingConfig(mixer="cutmix", **options))).startswith("CutMix(alpha=0.5, lam_per='batch'")
    either = build_mixer(MixingConfig(mixer="random_choice", **options))
    assert repr(either).startswith("RandomChoice(Mixup(alpha=0.5, lam_per='batch', partner='permutation'")
    own = build_mixer(MixingConfig(mixer="tests.test_mixing.Squares", **options))
    assert (own.alpha, own.prob) == (0.5, 0.5)  # type: ignore[attr-defined]
    assert repr(build_mixer(MixingConfig(mixer="mixview.mixing:Identity"))) == "Identity()"
    with pytest.raises(
        ValueError, match=r"pathlib.Path is not a valid mixer: it must be a subclass of mixview.mixing.Mixer"
    ):
        build_mixer(MixingConfig(mixer="pathlib.Path"))
    hints = get_type_hints(MixingConfig)
    assert (hints["lam_per"], hints["partner"]) == (mixing.LamPer, mixing.Partner)
    assert get_args(hints["lam_per"])
