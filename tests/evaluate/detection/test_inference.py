import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from torch import nn

from mixview.data.augment.policies import Normalize
from mixview.data.loader import EpochSampler
from mixview.data.synthetic.scenes import Scenes
from mixview.evaluate.detection.inference import predict, recount_statistics, truth_of
from mixview.evaluate.detection.metrics import coco_metrics
from mixview.evaluate.detection.models import Model, Scales, build_detector
from mixview.evaluate.detection.targets import Sample, align_classes, training_loader
from mixview.evaluate.detection.training import Engine, Schedule, build_optimizer
from mixview.runs.graceful_stop import GracefulStop
from tests.evaluate.detection.tiny import C4, FPN, detector, encoder, images, objects, targets


def test_crowds_and_difficult_objects_are_ignored_and_nothing_is_cleaned() -> None:
    given = objects([[-5, 0, 4, 4], [2, 2, 2, 5], [1, 1, 9, 9]], crowd=[True, False, False], classes=[1, 0, 1])
    given = given._replace(difficult=np.array([False, False, True]))
    truth = truth_of(given, 10, 10, np.array([4, 7]), masks=False)
    assert truth.boxes.tolist() == [[-5, 0, 4, 4], [2, 2, 2, 5], [1, 1, 9, 9]]
    assert truth.ignored.tolist() == [True, False, True]
    assert truth.classes.tolist() == [7, 4, 7]
    assert truth.areas.tolist() == [36, 0, 64]
    masks = np.zeros((3, 10, 10), np.bool_)
    masks[:, :2, :3] = True
    assert truth_of(given._replace(masks=masks), 10, 10, np.array([4, 7]), masks=True).areas.tolist() == [6, 6, 6]
    assert truth_of(given._replace(areas=np.array([1.5, 2, 3])), 10, 10, np.arange(2), masks=False).areas[0] == 1.5


def test_statistics_are_the_mean_over_batches() -> None:
    """Of the extra norm: what it sees in each batch, averaged; the momentum is put back."""
    built = detector().train()
    norm = built.roi_heads.box_head.norm
    seen: list[torch.Tensor] = []
    norm.register_forward_hook(lambda module, given, out: seen.append(given[0].mean((0, 2, 3))))
    samples = [Sample((image * 255).byte(), target) for image, target in zip(images(), targets(), strict=True)]
    fabric = Fabric(accelerator="cpu", devices=1)
    recount_statistics(built, iter([samples, samples, samples, samples]), 3, fabric)
    assert len(seen) == 3
    torch.testing.assert_close(norm.running_mean, torch.stack(seen).mean(0))
    assert all(m.momentum == 0.1 for m in built.modules() if isinstance(m, nn.BatchNorm2d))
    before = norm.running_mean.clone()
    recount_statistics(built, iter([samples]), 0, fabric)
    assert torch.equal(norm.running_mean, before)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["c4", "fpn"])
def test_a_detector_learns_four_images_by_heart(architecture: str) -> None:
    """Boxes and masks that are tight: whatever is wrong with coordinates anywhere would keep AP75 down."""
    fabric = Fabric(accelerator="cpu", devices=1)
    scenes = Scenes(4, 64, objects="multiple", classes=3, cache=False)
    options = C4 | {"anchors": (12, 24), "pooled": 8} if architecture == "c4" else FPN | {"pooled": 5, "hidden": 64}
    options |= {"regions": 32, "sampled": 64, "channels": 32, "proposals": 50}
    built = build_detector(
        encoder(), classes=3, model=Model(**options), scales=Scales((64,), 64, 64), normalize=Normalize()
    )
    schedule = Schedule("adamw", iterations=300, batch_size=4, lr=2e-3, steps=(240,), warmup=10)
    module, optimizer = fabric.setup(built, build_optimizer(built, schedule))
    batches = EpochSampler(4, 4)

    def loader() -> "torch.utils.data.DataLoader[Sample]":
        return training_loader(scenes, batches, channels=3, masks=True, seed=0, workers=0, pin_memory=False)

    engine = Engine(fabric, module, built, optimizer, batches, loader(), schedule.iterations, schedule=schedule)
    for _ in engine.train(GracefulStop(fabric)):
        pass
    batches.set_epoch(0)
    recount_statistics(built, iter(list(loader()) * 10), 10, fabric)  # type: ignore[arg-type]
    place = align_classes(scenes, scenes.classes)
    found = predict(built, fabric, scenes, place, channels=3, masks=True, workers=0)
    metrics = coco_metrics(found.truth, found.detections, scenes.classes, masks=True)
    print(architecture, metrics)
    assert metrics["AP75"] > 0.8
    assert metrics["mask AP75"] > 0.7
