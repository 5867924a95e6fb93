"""The protocols that train: per-stage probe, semi-supervised and supervised."""

from pathlib import Path

import pytest
import torch
from torch import nn

from mixview.data.augment.params import sample_params, view_generator
from mixview.data.augment.policies import Augmentation, Crop, Jitter, Normalize
from mixview.data.augment.reference import apply
from mixview.data.dataset import ImageDataset
from mixview.data.loader import EpochSampler, to_tensor
from mixview.data.sources.files import ClassFolders
from mixview.encoders.loading import LoadedEncoder, Pixels
from mixview.encoders.transforms import CenterCrop
from mixview.evaluate import probe, semi_supervised
from mixview.evaluate.classifier import (
    AugmentedImages,
    Classifier,
    LabeledImages,
    Lighting,
    accuracy,
    evaluate_classifier,
    head,
    train_on_features,
)
from mixview.evaluate.linear import SCHEDULES, linear_on_images, logistic_regression
from mixview.evaluate.schedule import Schedule
from mixview.evaluate.supervised import from_scratch
from mixview.runs.checkpoints import Checkpoints
from mixview.runs.devices import make_fabric
from tests.evaluate.small_encoders import SIZE, colored, means, small
from tests.evaluate.test_linear import blobs
from tests.evaluate.trainings import task, training_run


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> LabeledImages:
    return task(tmp_path_factory.mktemp("colors"))


def test_published_settings() -> None:
    assert (probe.SCHEDULE.lr, probe.SCHEDULE.weight_decay, probe.SCHEDULE.epochs) == (0.01, 1e-4, 90)
    assert probe.SCHEDULE.nesterov
    assert probe.SCHEDULE.steps == (30, 60, 90)
    semi = semi_supervised.SCHEDULE
    assert (semi.epochs, semi.lr, semi.weight_decay, semi.batch_size) == (20, 0.01, 5e-4, 256)
    assert [semi.lr_factor(epoch) for epoch in (11, 12, 16)] == pytest.approx([1, 0.2, 0.04])
    assert semi_supervised.HEAD_RATE == 100


def test_the_probe_trains_every_stage_and_leaves_the_encoder_alone(three: LabeledImages, tmp_path: Path) -> None:
    loaded = small()
    before = loaded.weights_key()
    schedule = Schedule(epochs=5, lr=0.05, weight_decay=1e-4, steps=(), batch_size=30, nesterov=True)

    def run(name: str) -> dict[str, dict[str, float]]:
        return probe.probe(loaded, three, schedule, training_run(tmp_path / name, seed=1))

    found = run("first")
    assert list(found) == ["stem", "res2", "res3", "res4", "res5", "avgpool"]
    assert min(each["top-1"] for each in found.values()) > 0.6
    assert found == run("second")
    assert loaded.weights_key() == before
    assert list(probe.probe(means(), three, schedule, training_run(tmp_path / "means"))) == ["avgpool"]


def test_heads_in_one_pass_are_heads_alone() -> None:
    """Losses that share nothing: each head's weights are those it would have had by itself."""
    features, labels = blobs(64)
    features = features.float()
    views = {"a": features[:, :4], "b": features[:, 4:]}

    def heads(names: list[str]) -> nn.ModuleDict:
        made = nn.ModuleDict()
        for name in names:
            torch.manual_seed(len(name))
            made[name] = nn.Sequential(nn.BatchNorm1d(4, affine=False), nn.Linear(4, 4))
        return made

    def fit(names: list[str]) -> nn.ModuleDict:
        made = heads(names)
        schedule = Schedule(epochs=4, lr=0.1, weight_decay=1e-2, steps=(2,), batch_size=16, nesterov=True)

        def loss(rows: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            split = {"a": rows[:, :4], "b": rows[:, 4:]}
            return torch.stack([nn.functional.cross_entropy(made[name](split[name]), targets) for name in names]).sum()

        train_on_features(loss, schedule.build_optimizer(made.parameters()), features, labels, schedule, seed=0)
        return made

    both, alone = fit(["a", "b"]), fit(["b"])
    torch.testing.assert_close(both["b"].state_dict(), alone["b"].state_dict())
    assert views["a"].shape == (64, 4)


def test_a_probe_reaches_the_optimum_of_its_objective() -> None:
    """Batch norm over the whole set standardizes; weight decay on weight alone is logistic regression's."""
    features, labels = blobs(80)
    standard = (features - features.mean(0)) / (features.var(0, correction=0) + 1e-5).sqrt()
    optimum = logistic_regression(standard, labels, classes=4, weight_decay=0.05)
    layer = nn.Linear(8, 4).double()
    probe_head = nn.Sequential(nn.BatchNorm1d(8, affine=False).double(), layer)
    schedule = Schedule(epochs=600, lr=0.5, weight_decay=0.05, steps=(400, 500), batch_size=80, nesterov=True)
    groups = [{"params": [layer.weight]}, {"params": [layer.bias], "weight_decay": 0.0}]
    train_on_features(
        lambda rows, targets: nn.functional.cross_entropy(probe_head(rows), targets),
        schedule.build_optimizer(groups),
        features,
        labels,
        schedule,
        seed=0,
    )
    fitted = layer.requires_grad_(False)(standard)
    expected = optimum(standard)
    torch.testing.assert_close(
        fitted - fitted.mean(1, keepdim=True), expected - expected.mean(1, keepdim=True), atol=1e-4, rtol=1e-3
    )
    assert accuracy(fitted, labels) == accuracy(expected, labels)


def test_fine_tuning_learns_and_leaves_the_encoder_as_it_was(three: LabeledImages, tmp_path: Path) -> None:
    loaded = small()
    before = loaded.weights_key()
    schedule = Schedule(epochs=6, lr=0.01, weight_decay=5e-4, steps=(4,), factor=0.2, batch_size=20)

    def run(name: str) -> dict[str, float]:
        return semi_supervised.finetune(loaded, three, schedule, training_run(tmp_path / name), head_rate=10)

    found = run("first")
    assert found["top-1"] > 0.8
    assert found == run("second")
    assert loaded.weights_key() == before


def test_the_head_learns_faster(three: LabeledImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = []

    def build(schedule: Schedule, groups: list[dict[str, object]]) -> torch.optim.Optimizer:
        rates.append([group["lr"] for group in groups])
        return torch.optim.SGD(groups)

    monkeypatch.setattr(Schedule, "build_optimizer", build)
    schedule = semi_supervised.SCHEDULE.changed(1, 60, None)
    semi_supervised.finetune(small(), three, schedule, training_run(tmp_path))
    assert rates == [[0.01, 1.0]]


def test_from_scratch_is_the_same_network_with_weights_of_the_seed() -> None:
    loaded = small(7)
    fresh = from_scratch(loaded, 3)
    assert fresh.weights_key() == from_scratch(loaded, 3).weights_key()
    assert len({loaded.weights_key(), fresh.weights_key(), from_scratch(loaded, 4).weights_key()}) == 3
    own = LoadedEncoder(small(7).encoder, "own", SIZE, 3, 128, spec={"name": "my.module:net"})
    assert from_scratch(own, 3).weights_key() == from_scratch(own, 3).weights_key() != own.weights_key()
    with pytest.raises(ValueError, match="raw pixels has no network to train: name a backbone"):
        from_scratch(LoadedEncoder(Pixels(), "raw pixels", SIZE, 3, 768), 0)


def test_seeds_change_what_is_drawn(tmp_path: Path) -> None:
    features, labels = blobs(64)

    def weights(seed: int) -> torch.Tensor:
        layer = nn.Linear(8, 4)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        schedule = Schedule(epochs=1, lr=0.1, weight_decay=0.0, steps=(), batch_size=16)
        train_on_features(
            lambda rows, targets: nn.functional.cross_entropy(layer(rows), targets),
            schedule.build_optimizer(layer.parameters()),
            features.float(),
            labels,
            schedule,
            seed=seed,
        )
        return layer.weight.detach()

    assert torch.equal(weights(0), weights(0))
    assert not torch.equal(weights(0), weights(1))


def test_lighting_is_noise_along_the_principal_components() -> None:
    """Covariance V diag((0.1 e)²) Vᵀ, with AlexNet's eigenvectors V and eigenvalues e."""
    generator = torch.Generator().manual_seed(0)
    shifts = torch.stack([Lighting().shift(generator) for _ in range(20_000)]).double()
    vectors = torch.tensor(
        [[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]], dtype=torch.float64
    )
    values = torch.tensor([0.2175, 0.0188, 0.0045], dtype=torch.float64)
    expected = vectors @ torch.diag((0.1 * values) ** 2) @ vectors.T
    torch.testing.assert_close(torch.cov(shifts.T), expected, atol=6e-6, rtol=0.04)
    # Component by component: the smallest is not lost in the largest.
    along = (shifts @ vectors).std(0)
    torch.testing.assert_close(along, 0.1 * values, atol=0, rtol=0.03)


def test_training_images_are_cropped_flipped_jittered_lit_and_normalized(three: LabeledImages) -> None:
    """In this order, as in OpenSelfSup's pipeline, and the lighting in units of [0, 1]."""
    reader, normalize = ImageDataset(three.train), Normalize()
    plain = AugmentedImages(reader, SIZE, normalize, seed=5)
    full = AugmentedImages(reader, SIZE, normalize, 5, probe.JITTER, probe.LIGHTING)
    keys = [(2, index) for index in range(0, 60, 7)]
    views, which = full.__getitems__(keys)
    assert which.tolist() == [index for _, index in keys]
    assert Jitter(0.4, 0.4, 0.4, 0.0, p=1.0) == probe.JITTER
    policy = Augmentation(crop=Crop(SIZE), jitter=probe.JITTER, order=("jitter",), normalize=None)
    for view, (epoch, index) in zip(views, keys, strict=True):
        generator = view_generator(5, epoch, index)
        image = to_tensor(reader[index].pixels)
        pixels = apply(image, policy, sample_params(policy, *image.shape[1:], generator))
        pixels = pixels + probe.LIGHTING.shift(generator).view(3, 1, 1)
        mean, std = (torch.tensor(each).view(3, 1, 1) for each in normalize.values(3))
        torch.testing.assert_close(view, (pixels - mean) / std, atol=2e-3, rtol=0)
    assert not torch.equal(plain.__getitems__(keys)[0], views)


@pytest.mark.parametrize(("color_jitter", "lighting"), [(True, True), (False, True), (True, False), (False, False)])
def test_the_probe_jitters_and_lights_by_default(
    color_jitter: bool, lighting: bool, three: LabeledImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, bool] = {} if color_jitter and lighting else {"color_jitter": color_jitter, "lighting": lighting}
    seen = []

    def spy(*_: object, jitter: object, lighting: object, **more: object) -> dict[str, dict[str, float]]:
        seen.append((jitter, lighting))
        return {}

    monkeypatch.setattr(probe, "train_classifier", spy)
    probe.probe(small(), three, probe.SCHEDULE, training_run(tmp_path), **options)
    assert seen == [(probe.JITTER if color_jitter else None, probe.LIGHTING if lighting else None)]


def test_lars_and_the_cosine_of_simsiams_protocol_move_the_weights_as_by_hand(
    three: LabeledImages, tmp_path: Path
) -> None:
    """Two epochs of one batch each: v = 0.9 v + lr r g, r = 0.001 |w| / |g| (1 where |w| is 0, as the first bias)."""
    loaded, images = small(), len(three.train)
    schedule = SCHEDULES["simsiam"].changed(2, None, None).fitted(images)
    linear_on_images(loaded, three, schedule, training_run(tmp_path, seed=2))
    state = Checkpoints(tmp_path / "checkpoints").load_latest()
    assert state is not None
    layer = head(loaded.feature_dim, 3, 2)
    velocity = [torch.zeros_like(each) for each in layer.parameters()]
    views = AugmentedImages(ImageDataset(three.train), SIZE, loaded.normalize, 2)
    batches = EpochSampler(images, images, 2)
    for epoch, rate in enumerate((1.0, 0.5)):
        batches.set_epoch(epoch)
        (keys,) = batches
        inputs, which = views.__getitems__(keys)
        with torch.no_grad():
            features = loaded.encoder(inputs)
        layer.zero_grad()
        nn.functional.cross_entropy(layer(features), three.labels[which]).backward()
        with torch.no_grad():
            for weight, v in zip(layer.parameters(), velocity, strict=True):
                assert weight.grad is not None
                norm = float(weight.norm())
                trust = 0.001 * norm / float(weight.grad.norm()) if norm else 1.0
                v.mul_(0.9).add_(weight.grad, alpha=0.1 * images / 256 * rate * trust)
                weight.sub_(v)
    torch.testing.assert_close(state[0]["network"]["avgpool.weight"], layer.weight.detach(), atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(state[0]["network"]["avgpool.bias"], layer.bias.detach(), atol=1e-6, rtol=1e-4)


def test_accuracies_are_counted_over_the_images_that_can_be_read(tmp_path: Path) -> None:
    """Top-1 and top-5 of every head, block by block, against a loop; another image that stands in is not counted."""
    classes, count = 7, 11  # 77 images, more than a block
    names = {f"{number}": count for number in range(classes)}
    for split in ("train", "val"):
        colored(tmp_path / split, names)
    (tmp_path / "val" / "3" / "004.png").write_bytes(b"no image")
    train, test = ClassFolders(tmp_path, "train"), ClassFolders(tmp_path, "val")
    labels = torch.arange(classes).repeat_interleave(count)
    seven, loaded = LabeledImages(train, labels, test, labels, classes), small()
    torch.manual_seed(0)
    heads = {stage: nn.Linear(128, classes) for stage in ("res5", "avgpool")}
    heads["res5"] = nn.Sequential(nn.Flatten(), nn.LazyLinear(classes))  # type: ignore[assignment]
    network = Classifier(loaded.encoder, heads, frozen=True)  # type: ignore[arg-type]
    fabric = make_fabric(accelerator="cpu", precision="32-true")
    found = evaluate_classifier(network, loaded, seven, fabric, workers=0)
    reader, transform = ImageDataset(test), CenterCrop(SIZE, loaded.normalize)
    hits: dict[str, list[tuple[bool, bool]]] = {"res5": [], "avgpool": []}
    for index in range(len(test)):
        if reader[index].index != index:
            continue
        with torch.no_grad():
            scores = network(transform(to_tensor(reader[index].pixels))[None])
        for stage, each in scores.items():
            place = each[0].argsort(descending=True).tolist().index(int(labels[index]))
            hits[stage].append((place < 1, place < 5))
    assert len(hits["res5"]) == len(test) - 1 == 76
    for stage, each in hits.items():
        assert found[stage]["top-1"] == pytest.approx(sum(first for first, _ in each) / 76)
        assert found[stage]["top-5"] == pytest.approx(sum(fifth for _, fifth in each) / 76)
        assert 0 < found[stage]["top-1"] < found[stage]["top-5"] < 1
