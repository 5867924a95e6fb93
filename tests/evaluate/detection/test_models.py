import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.roi_heads import paste_masks_in_image
from torchvision.ops import roi_align

from mixview.data.augment.policies import Normalize
from mixview.evaluate.detection.components import box_loss
from mixview.evaluate.detection.models import Model, Scales, build_detector
from tests.evaluate.detection.tiny import C4, SCALES, detector, encoder, images, targets


def test_the_c4_head_is_its_modules_composed_by_hand() -> None:
    """Trunk, pooling, res5, norm, mean, predictor and mask head, one after the other."""
    built = detector().eval()
    for module in built.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            nn.init.normal_(module.running_mean, std=0.1)
    heads = built.roi_heads
    heads.score_thresh = 0.2
    pixels = torch.randn(1, 3, 64, 64)
    boxes = torch.tensor([[3.0, 5.0, 30.0, 40.0], [20.0, 10.0, 60.0, 50.0]])
    with torch.no_grad():
        maps = built.backbone(pixels)
        found, losses = heads(maps, [boxes], [(64, 64)])
        assert losses == {}

        own = encoder().eval()
        own.load_state_dict(
            dict(built.backbone.state_dict()) | {f"layer4.{k}": v for k, v in heads.box_head.res5.state_dict().items()}
        )
        x = own.relu(own.bn1(own.conv1(pixels)))
        x = own.layer3(own.layer2(own.layer1(x)))

        def res5(regions: torch.Tensor) -> torch.Tensor:
            cut = roi_align(x, [regions], 4, spatial_scale=1 / 4, sampling_ratio=0, aligned=True)
            return heads.box_head.norm(own.layer4(cut))

        features = res5(boxes).mean((2, 3))
        scores = F.softmax(heads.box_predictor.scores(features), 1)
        shifts = heads.box_predictor.shifts(features).view(2, 4, 4)
    for number in range(len(found[0]["boxes"])):
        score, label = found[0]["scores"][number], int(found[0]["labels"][number])
        row = int((scores[:, label] - score).abs().argmin())
        torch.testing.assert_close(scores[row, label], score)
        width, height = boxes[row, 2] - boxes[row, 0], boxes[row, 3] - boxes[row, 1]
        dx, dy, dw, dh = shifts[row, label] / torch.tensor([10.0, 10.0, 5.0, 5.0])
        cx, cy = boxes[row, 0] + width / 2 + dx * width, boxes[row, 1] + height / 2 + dy * height
        w, h = width * dw.exp(), height * dh.exp()
        wanted = torch.stack([cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2]).clamp(0, 64)
        torch.testing.assert_close(found[0]["boxes"][number], wanted, atol=1e-4, rtol=1e-5)
    assert len(found[0]["boxes"]) >= 2
    with torch.no_grad():
        logits = heads.mask_head(res5(found[0]["boxes"]))
    rows = torch.arange(len(logits))
    torch.testing.assert_close(found[0]["masks"][:, 0], logits[rows, found[0]["labels"]].sigmoid())


@pytest.mark.parametrize("architecture", ["c4", "fpn"])
@pytest.mark.parametrize("name", ["small", "resnet18", "timm/resnet18"])
def test_all_stages_come_from_the_encoder_and_are_trained(name: str, architecture: str) -> None:
    own = encoder(name, 64)
    built = build_detector(
        own,
        classes=3,
        model=Model(architecture=architecture, anchors=(4, 8, 16, 32, 64), pooled=4, channels=8, hidden=8),  # type: ignore[arg-type]
        scales=Scales(**SCALES),
        normalize=Normalize(),
    )
    state = built.state_dict()
    for number in range(1, 5):
        wanted = own.get_submodule(f"layer{number}").state_dict()
        prefix = f"backbone.{'body.' if architecture == 'fpn' else ''}layer{number}."
        if architecture == "c4" and number == 4:
            prefix = "roi_heads.box_head.res5."
        for key, tensor in wanted.items():
            assert torch.equal(state[prefix + key], tensor), key
    assert not any("fc." in key for key in state)
    assert all(parameter.requires_grad for parameter in built.parameters())
    shared = {id(parameter) for parameter in own.parameters()} & {id(parameter) for parameter in built.parameters()}
    assert not shared  # a copy: the encoder itself is left as it is


@pytest.mark.parametrize("architecture", ["c4", "fpn"])
@pytest.mark.parametrize("masks", [True, False])
def test_every_parameter_takes_a_gradient_also_without_objects(architecture: str, masks: bool) -> None:
    built = detector(architecture=architecture, masks=masks).train()
    for found in (targets(), [targets()[1], targets()[1] | {"masks": torch.zeros(0, 32, 36, dtype=torch.uint8)}]):
        if not masks:
            found = [{key: value for key, value in each.items() if key != "masks"} for each in found]
        losses = built(images(), found)
        names = {"loss_classifier", "loss_box_reg", "loss_objectness", "loss_rpn_box_reg"}
        assert set(losses) == names | ({"loss_mask"} if masks else set())
        loss = torch.stack(list(losses.values())).sum()
        assert loss.isfinite()
        loss.backward()
    missing = [name for name, parameter in built.named_parameters() if parameter.grad is None]
    assert not missing


def test_res5_runs_once_over_the_regions_in_training() -> None:
    built = detector().train()
    calls: list[int] = []
    built.roi_heads.box_head.register_forward_hook(lambda module, given, out: calls.append(len(out)))
    built(images(), targets())
    assert len(calls) == 1


def test_batch_norm_is_in_training_mode_and_extra_norm_can_be_left_out() -> None:
    built = detector().train()
    before = built.roi_heads.box_head.norm.running_mean.clone()
    built(images(), targets())
    assert not torch.equal(before, built.roi_heads.box_head.norm.running_mean)
    assert not hasattr(detector(extra_norm=False).roi_heads.box_head, "norm")


def test_what_is_found_is_in_the_pixels_of_the_image() -> None:
    built = detector().eval()
    built.roi_heads.score_thresh = 0.0
    (found,) = built(images(1))
    assert found["masks"].shape[1:] == (1, 32, 36)
    assert (found["boxes"] >= 0).all()
    assert (found["boxes"][:, 2] <= 36).all()
    assert (found["boxes"][:, 3] <= 32).all()
    assert len(found["boxes"]) <= 100


def test_sizes_are_drawn_for_training_and_fixed_for_the_test() -> None:
    transform = detector().transform
    target = targets(1)[0]
    transform.train()
    torch.manual_seed(0)
    seen = set()
    for _ in range(20):
        image, scaled = transform.resize(images(1)[0], target)
        seen.add(min(image.shape[-2:]))
        assert scaled["masks"].shape[-2:] == image.shape[-2:]
        factor = torch.tensor([image.shape[2] / 36, image.shape[1] / 32]).repeat(2)
        torch.testing.assert_close(scaled["boxes"][0], target["boxes"][0] * factor)
    assert seen == {32, 40}
    transform.eval()
    assert transform.resize(images(1)[0])[0].shape == (3, 40, 45)
    assert transform.resize(torch.rand(3, 10, 100))[0].shape == (3, 6, 64)  # the longer side decides
    assert target["boxes"].tolist() == [[4.0, 6.0, 18.0, 20.0]]  # untouched


def test_boxes_stay_in_float32_under_bfloat16() -> None:
    """A detector of large images: bfloat16 could not tell its anchors apart."""
    built = build_detector(
        encoder(), classes=3, model=Model(**C4), scales=Scales(train=(800,), test=800), normalize=Normalize()
    ).eval()
    seen: list[torch.Tensor] = []
    built.roi_heads.box_roi_pool.register_forward_hook(lambda module, given, out: seen.append(given[1][0]))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        maps = {"0": torch.randn(1, 64, 8, 200, dtype=torch.bfloat16)}
        proposals, _ = built.rpn(ImageList(torch.zeros(1, 3, 32, 800), [(32, 800)]), maps)
        built.roi_heads(maps, proposals, [(32, 800)])
    assert seen[0].dtype == torch.float32
    assert not torch.equal(seen[0], seen[0].bfloat16().float())
    trained = detector().train()
    with torch.autocast("cpu", torch.bfloat16):
        losses = trained(images(), targets())
    assert all(loss.dtype == torch.float32 and loss.isfinite() for loss in losses.values())


def test_box_loss_is_l1_of_the_right_class() -> None:
    boxes = torch.arange(24.0).view(2, 12)  # three outputs
    loss = box_loss(boxes, torch.tensor([0, 2]), torch.zeros(2, 4))
    assert float(loss) == (20 + 21 + 22 + 23) / 2
    assert float(box_loss(boxes, torch.tensor([0, 0]), torch.zeros(2, 4))) == 0.0


def test_masks_are_pasted_where_the_boxes_are() -> None:
    """What the pictures rely on: a full mask of a box fills the box."""
    pasted = paste_masks_in_image(torch.ones(1, 1, 14, 14), torch.tensor([[10.0, 20.0, 40.0, 60.0]]), (80, 64))[0, 0]
    rows, columns = (pasted > 0.5).nonzero().unbind(1)
    found = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
    assert all(abs(int(a) - b) <= 2 for a, b in zip(found, (10, 20, 40, 60), strict=True))


def test_mistakes() -> None:
    with pytest.raises(ValueError, match="stages of a ResNet"):
        build_detector(nn.Conv2d(3, 4, 3), classes=2, model=Model(), scales=Scales(), normalize=Normalize())
    with pytest.raises(ValueError, match="an FPN has five levels"):
        Model(architecture="fpn", anchors=(32, 64))
    with pytest.raises(ValueError, match="at least 1"):
        Model(regions=0)
    with pytest.raises(ValueError, match="at least 32 pixels"):
        Scales(train=(16,))
