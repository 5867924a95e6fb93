"""SwAV with local crops: the published loss, whatever is mixed; and multi-crop with everything around a method."""

from pathlib import Path

import pytest
import torch
from lightly.loss import SwaVLoss
from torch import Tensor

import mixview
from benchmarks.step_memory import step_memory
from mixview import CutMix, Identity, bsim, mixture_generators, sim
from mixview.data.augment.policies import load_policy
from mixview.encoders import backbones
from mixview.experiments.passes import count_passes
from mixview.methods import SwAV, SwAVConfig, backward
from mixview.nn import MLP
from mixview.objective import Term
from mixview.train.config import MixingConfig, PretrainConfig
from tests.methods.test_dino import crops
from tests.networks import OBJECTIVES, WIDTH, encoder
from tests.reference import sinkhorn as slow_sinkhorn
from tests.reference import swapped_prediction
from tests.train.running import assert_same_runs, resume, stopped_at, tiny

SMALL_HEAD = {"hidden": 16, "dim": 8, "prototypes": 12}


def make(norm: bool = False, **options: int) -> SwAV:
    torch.manual_seed(0)
    method = SwAV(encoder(norm), WIDTH, MLP((WIDTH, 9, 5), norm), 5, prototypes=4, **options).double()
    method.normalize_prototypes()  # in float32 they are of length one to 1e-8 only
    return method


def scores(method: SwAV, views: list[Tensor]) -> list[Tensor]:
    return [method.prototypes(torch.nn.functional.normalize(method.online(view))) for view in views]


@pytest.mark.parametrize("local", [0, 1, 4])
def test_sim_is_lightlys_loss(local: int) -> None:
    method, views = make().float(), crops(local=local, dtype=torch.float32)
    loss, _ = method(views, sim().draw(views[0], mixture_generators(0, 0)))
    with torch.no_grad():
        outputs = scores(method, views)
    expected = SwaVLoss(sinkhorn_iterations=3)(outputs[:2], outputs[2:])
    torch.testing.assert_close(loss, expected.squeeze(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("objective", ["sim", "bsim", "wbsim"])
@pytest.mark.parametrize("local", [0, 3])
def test_ten_steps_are_those_of_the_published_loop(local: int, objective: str) -> None:
    """Every code of a global view against every other view: mixtures of the global one, local crops as they are.

    Prototypes are of length one before every step, and do not learn in the first two, as in main_swav.py.
    """
    fast, slow = make(freeze_steps=2), make()
    optimizers = [torch.optim.SGD(method.parameters(), lr=0.1, momentum=0.9) for method in (fast, slow)]
    for step in range(10):
        views = crops(seed=step, local=local)
        terms = OBJECTIVES[objective]().draw(views[0], mixture_generators(0, step))
        loss, targets = backward(fast, views, terms)
        with torch.no_grad():
            rows = slow.prototypes.weight
            rows.copy_(torch.stack([row / (row * row).sum().sqrt() for row in rows]))
            codes = [slow_sinkhorn(each, 0.05, 3) for each in scores(slow, views[:2])]
        plain, expected = Identity().draw(views[0]), torch.zeros((), dtype=torch.float64)
        for weight, mixture in terms:
            outputs = scores(slow, [mixture(view) for view in views[:2]] + views[2:])
            for index, code in enumerate(codes):
                for view, output in enumerate(outputs):
                    if view != index:
                        own = mixture if view < 2 else plain
                        pair = swapped_prediction(output, code, own, 0.1)
                        expected = expected + weight * pair / 2 / (len(views) - 1)
        expected.backward()
        if step < 2:
            slow.prototypes.weight.grad = None
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-10, atol=1e-10)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        fast.update(targets, progress=step / 10)
    slow.normalize_prototypes()
    for one, other in zip(fast.parameters(), slow.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


def test_lam_of_one_is_sim_and_terms_may_go_backward_together() -> None:
    views = crops()
    whole = CutMix().draw(views[0], torch.Generator().manual_seed(0), lam=1.0)
    plain = Identity().draw(views[0])
    gradients = []
    for terms in ([Term(1.0, plain)], [Term(1.0, whole)], [Term(0.5, whole), Term(0.5, plain)]):
        for joint in (False, True):
            method = make()
            loss = method(views, terms)[0] if joint else backward(method, views, terms)[0]
            if joint:
                loss.backward()
            gradients.append([loss.detach(), *(each.grad for each in method.parameters())])
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0], rtol=1e-9, atol=1e-12)


def test_policies_of_several_sizes() -> None:
    dino = load_policy("dino")
    assert [view.size for view in dino] == [224] * 2 + [96] * 8
    assert [view.crop.scale for view in dino[1:3]] == [(0.4, 1.0), (0.05, 0.4)]
    assert [view.blur.p for view in dino[:3]] == [1.0, 0.1, 0.5]
    assert [view.solarize for view in dino[:3]] == [0.0, 0.2, 0.0]
    small = load_policy("dino-small", 48)
    assert [view.size for view in small] == [48] * 2 + [24] * 4
    assert all(view.blur is None for view in small)
    swav = load_policy("swav-multi-crop")
    assert [(view.size, view.crop.scale) for view in swav[1:3]] == [(224, (0.14, 1.0)), (96, (0.05, 0.14))]
    assert swav[0].jitter.hue == 0.2
    assert [view.size for view in load_policy("swav-multi-crop-small")] == [32] * 2 + [16] * 4


def config(method: str = "dino", **options) -> PretrainConfig:
    return PretrainConfig(method={"name": method, **SMALL_HEAD}, data="scenes", **options)


def test_local_crops_count_by_their_pixels() -> None:
    share = 8 * (96 / 224) ** 2
    for objective, expected in (("sim", 2 + share), ("bsim", 2 + share), ("wbsim", 4 + 2 * share)):
        found = count_passes(config(objective=objective))
        assert found.with_gradient == pytest.approx(expected)
        assert found.without == 2
    assert tuple(count_passes(config("swav", objective="wbsim"))) == (4, 0)
    assert count_passes(config("swav", objective="sim", augment="swav-multi-crop-small", size=32)).with_gradient == 3


def test_memory_of_local_crops() -> None:
    options = {"backbone": "small", "batch_size": 64, "size": 32, "objective": "sim"}
    two, many = (
        step_memory(config("swav", augment=augment, **options), devices=1, images=1000)
        for augment in ("simclr-small", "swav-multi-crop-small")
    )
    assert two.views == 64 * 2 * 3 * 32 * 32 * 4
    assert many.views == 1.5 * two.views
    assert many.activations == pytest.approx(1.5 * two.activations, rel=0.03)
    assert many.weights == two.weights


@pytest.mark.parametrize("objective", ["sim", "bsim", "wbsim"])
def test_a_run_with_local_crops_estimates_evaluates_draws_and_resumes(objective: str, tmp_path: Path) -> None:
    options = {
        "method": {"name": "swav", **SMALL_HEAD},
        "objective": objective,
        "augment": "swav-multi-crop-small",
        "accumulate_grad_batches": 2,
        "mixing": MixingConfig(lam_per="image"),
    }
    watch = {"estimate": True, "eval_every": 1}
    mixview.pretrain(**tiny(tmp_path / "whole", watch, **options))
    assert (tmp_path / "whole" / "views.png").stat().st_size > 0
    with stopped_at(5):
        mixview.pretrain(**tiny(tmp_path / "stopped", watch, **options))
    resume(tmp_path / "stopped")
    assert_same_runs(tmp_path / "whole", tmp_path / "stopped")


def test_mistakes(tmp_path: Path) -> None:
    def refused(**options) -> str:
        with pytest.raises(ValueError, match=": ") as error:
            mixview.pretrain(**tiny(tmp_path / "run", **options))
        assert not (tmp_path / "run" / "checkpoints").exists()
        return str(error.value)

    text = refused(method="byol", augment="dino-small")
    assert "--augment dino-small makes 6 views per image, but byol takes 2: choose another augmentation" in text
    text = refused(
        method="swav", augment="swav-multi-crop-small", objective="unmix", mixing=MixingConfig(lam_per="batch")
    )
    assert "makes 6 views per image, but swav under unmix takes 2" in text
    own = tmp_path / "own.yaml"
    own.write_text("views:\n  - {crop: {size: 32}}\n  - {crop: {size: 96}}\n")
    text = refused(method="swav", augment=str(own))
    assert "views of 5, 16 pixels: two global ones of the largest size must come first" in text
    own.write_text("base: dino-small\nviews:\n  - {count: 2}\n  - {count: 2, crop: {size: 14}}\n")
    text = refused(method="dino", backbone="small-vit", augment=str(own))
    assert "small-vit, with local crops of 7 pixels, cuts images into patches of 4 pixels" in text
    text = refused(method={"name": "swav", "prototypes": 1})
    assert "use at least 2" in text
    vit = backbones.build("torchvision/vit_b_32", size=64)
    with pytest.raises(ValueError, match="made for images of 64 pixels and cannot encode local crops of 32"):
        backbones.check_crops(vit.encoder, "torchvision/vit_b_32", size=64, crop=32, channels=3)


def test_crops_larger_than_the_image_are_enlarged(tmp_path: Path) -> None:
    """Scenes of 16 pixels: global views of 24, and local crops of 20."""
    own = tmp_path / "own.yaml"
    own.write_text("base: dino-small\nviews:\n  - {count: 2}\n  - {count: 2, crop: {size: 28, scale: [0.5, 1.0]}}\n")
    method = {"name": "dino", "hidden": 16, "dim": 8, "prototypes": 12}
    mixview.pretrain(**tiny(tmp_path / "run", method=method, augment=str(own), size=24, epochs=1))
    assert (tmp_path / "run" / "encoder.safetensors").is_file()


def test_views_of_swav_that_do_not_belong_together() -> None:
    method, views = make(), crops()
    with pytest.raises(ValueError, match="two global views"):
        method([views[0], views[2]], bsim().draw(views[0], mixture_generators(0, 0)))
    assert SwAVConfig.module.num_views is None
