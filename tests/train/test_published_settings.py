"""Every recipe against what the papers say, typed here from the papers and their code, not from the recipes.

A recipe is resolved as a run resolves it, up to the optimizer: what counts is what would be trained, whether a number
comes from a recipe, from its bases or from a default in the code.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from mixview import extensions, recipes
from mixview.data.augment.policies import Augmentation, Blur, Crop, Jitter, RandAugment, load_policy
from mixview.encoders import backbones
from mixview.evaluate.base import build
from mixview.evaluate.detection.models import Model, Scales
from mixview.evaluate.detection.training import Schedule, build_optimizer
from mixview.methods import BarlowTwins, Method, MoCoV3, VICReg
from mixview.train import build as building
from mixview.train import pretraining
from mixview.train.build import build_objective
from mixview.train.config import PretrainConfig
from mixview.train.optim import set_learning_rate

IMAGENET = 1_281_167
"""Training images of ImageNet-1k."""
EPOCHS_LOOKED_AT = (0, 1, 5, 9.99, 10, 30, 60, 100, 119.99, 120, 159.99, 160, 199.9)


# --- what the papers say ----------------------------------------------------------------------------------------------


def cosine(epoch: float, epochs: int) -> float:
    """MoCo v2, SimSiam: half a cosine from the first epoch on."""
    return 0.5 * (1 + math.cos(math.pi * epoch / epochs))


def warm_cosine(epoch: float, epochs: int) -> float:
    """SimCLR, BYOL: ten epochs up in a line, then half a cosine over the others."""
    return epoch / 10 if epoch < 10 else cosine(epoch - 10, epochs - 10)


def moco_steps(epoch: float, epochs: int) -> float:
    """MoCo v1: a tenth at 120 and at 160 of 200."""
    return 1.0 if epoch < 120 else 0.1 if epoch < 160 else 0.01


BLURRED = Blur(p=0.5, sigma=(0.1, 2.0), kernel=None)
# SimCLR, appendix A: crop of 8 % to 100 %, flip, distortion of strength 1 in 80 %, gray in 20 %, blur in 50 %.
SIMCLR = Augmentation(Crop(224, (0.08, 1.0)), 0.5, Jitter(0.8, 0.8, 0.8, 0.2, 0.8), 0.2, BLURRED)
# moco/main_moco.py without --aug-plus: gray, then jitter of 0.4 all around, always; no blur.
MOCO_V1 = Augmentation(Crop(224, (0.2, 1.0)), 0.5, Jitter(0.4, 0.4, 0.4, 0.4, 1.0), 0.2, order=("grayscale", "jitter"))
# moco/main_moco.py --aug-plus, and simsiam/main_simsiam.py.
MOCO_V2 = Augmentation(Crop(224, (0.2, 1.0)), 0.5, Jitter(0.4, 0.4, 0.4, 0.1, 0.8), 0.2, BLURRED)
# BYOL, appendix B, table 6: T and T'.
BYOL = tuple(
    Augmentation(
        Crop(224, (0.08, 1.0), interpolation="bicubic"), 0.5, Jitter(0.4, 0.4, 0.2, 0.1, 0.8), 0.2, Blur(blur), solarize
    )
    for blur, solarize in ((1.0, 0.0), (0.1, 0.2))
)
# PyContrast datasets/util.py, augmentation D: distortion, blur, rand-n2-m10-mstd0.5, gray.
INFOMIN = Augmentation(
    Crop(224, (0.2, 1.0)),
    0.5,
    Jitter(0.8, 0.8, 0.8, 0.2, 0.8),
    0.2,
    BLURRED,
    randaugment=RandAugment(2, 10, 0.5, 0.5),
    order=("jitter", "blur", "randaugment", "grayscale"),
)


@dataclass(frozen=True)
class Published:
    """The settings of a method."""

    source: str
    optimizer: str
    lr: Callable[[int], float]
    """Of a batch of so many images."""
    decay: float
    schedule: Callable[[float, int], float] | None
    views: tuple[Augmentation, ...] | None
    projector: str
    decays_all: bool = True
    """Also norms and biases. LARS leaves these out of its adaptation too."""
    predictor: str = ""
    temperature: float | None = None
    ema: float | None = None
    queue: int | None = None
    fixed_predictor: bool = False
    zero_init: bool | None = False
    more: dict[str, Any] = field(default_factory=dict)
    """Further attributes of the method."""


def constant(value: float) -> Callable[[int], float]:
    return lambda batch: value


METHODS = {
    "simclr": Published(
        "paper, appendix: LARS, wd 1e-6, momentum 0.9, batch 256, lr 0.3, 10 warm-up epochs, cosine, MLP of 2 to 128; "
        "OpenSelfSup's SimCLR: temperature 0.1, batch norm in the head; SimCLR: bias and batch norm out of LARS",
        "LARS",
        constant(0.3),
        1e-6,
        warm_cosine,
        (SIMCLR, SIMCLR),
        "2048 BN ReLU 128 BN",
        decays_all=False,
        temperature=0.1,
    ),
    "mocov1": Published(
        "paper, appendix: SGD 0.9, lr 0.03, batch 256, wd 1e-4, linear neck of 128, temperature 0.07; He et al., 2020: "
        "queue 65536, momentum 0.999, lr × 0.1 at 120 and 160",
        "SGD",
        constant(0.03),
        1e-4,
        moco_steps,
        (MOCO_V1, MOCO_V1),
        "128",
        temperature=0.07,
        ema=0.999,
        queue=65_536,
    ),
    "mocov2": Published(
        "paper, appendix: as v1, FC layers 2048, 2048, 128, temperature 0.2; Chen et al., 2020: cosine, queue 65536",
        "SGD",
        constant(0.03),
        1e-4,
        cosine,
        (MOCO_V2, MOCO_V2),
        "2048 ReLU 128",
        temperature=0.2,
        ema=0.999,
        queue=65_536,
    ),
    "byol": Published(
        "paper, appendix: LARS, wd 1.5e-6 (printed 10^6), lr 3.2 at batch 4096, EMA 0.996 to 1; Grill et al., 2020: "
        "lr 0.2 × batch / 256, 10 warm-up epochs, cosine, MLPs 4096-256, bias and batch norm out of LARS",
        "LARS",
        lambda batch: 0.2 * batch / 256,
        1.5e-6,
        warm_cosine,
        BYOL,
        "4096 BN ReLU 256",
        decays_all=False,
        predictor="4096 BN ReLU 256",
        ema=0.996,
    ),
    "simsiam": Published(
        "paper, appendix: wd 1e-4 of all parameters; Chen and He, 2021: SGD 0.9, lr 0.05 × batch / 256, cosine, "
        "projector of three layers of 2048 and no affine at its end, predictor 512 at a fixed rate, zero-init blocks",
        "SGD",
        lambda batch: 0.05 * batch / 256,
        1e-4,
        cosine,
        (MOCO_V2, MOCO_V2),
        "2048 BN ReLU 2048 BN ReLU 2048 plainBN",
        predictor="512 BN ReLU 2048",
        fixed_predictor=True,
        zero_init=None,  # wherever the backbone can
    ),
}


class Mixed(NamedTuple):
    """A mixer as the paper has it: one lam a batch and device, image i with N-1-i."""

    mixer: str = "CutMix"
    alpha: float = 1.0
    lam_per: str = "batch"
    partner: str = "reversal"
    lam_at_least_half: bool = False
    prob: float = 1.0


Terms = tuple[tuple[float, str | Mixed], ...]
SIM: Terms = ((1.0, "Identity"),)
BSIM: Terms = ((1.0, Mixed()),)
WBSIM: Terms = ((0.5, Mixed()), (0.5, "Identity"))


class Row(NamedTuple):
    """What a recipe is."""

    method: str
    terms: Terms = SIM
    epochs: int = 200
    batches: tuple[int, ...] = (256,)
    changes: dict[str, Any] = {}  # noqa: RUF012  (a NamedTuple's default, not a class's)


def of_method(method: str, suffix: str = "", **options: Any) -> dict[str, Row]:
    """SIM, BSIM and WBSIM of a method, as all tables of the paper compare them."""
    return {
        f"paper/{method}{name}{suffix}": Row(method, terms, **options)
        for name, terms in {"": SIM, "-bsim": BSIM, "-wbsim": WBSIM}.items()
    }


ROWS: dict[str, Row] = {
    **of_method("simclr"),
    **of_method("mocov1"),
    **of_method("mocov2"),
    **of_method("mocov2", "-800", epochs=800),  # tab:lc_longer_epoch
    **of_method("byol", batches=(4096,)),
    **of_method("byol", "-300", epochs=300, batches=(4096,)),
    **of_method("simsiam"),
    # tab:sensitivity_alpha, tab:mix_strategy and tab:mix_strategy_drop
    **{f"paper/mocov2-cutmix-{a:g}": Row("mocov2", ((1.0, Mixed(alpha=a)),)) for a in (0.25, 0.5, 0.75, 1.0)},
    **{f"paper/mocov2-mixup-{a:g}": Row("mocov2", ((1.0, Mixed("Mixup", a)),)) for a in (0.5, 1.0)},
    "paper/mocov2-mixaug": Row("mocov2", ((1.0, "MixAug(CutMix)"),)),
    # i-Mix, kibok90/imix run.sh for ImageNet: Mixup, alpha 0.2, a random partner, lam at least a half, MoCo's settings.
    "related/imix": Row("mocov2", ((1.0, Mixed("Mixup", 0.2, "image", "permutation", True)),)),
    # InfoMin, Tian et al., 2020: its augmentation, and temperature 0.15.
    "related/infomin": Row("mocov2", changes={"temperature": 0.15, "views": (INFOMIN, INFOMIN)}),
    # MixCo, exp_mix_res50_imgnet.sh: MoCo v2's settings; its own term of the same weight, at temperature 1.
    "related/mixco": Row("mocov2", ((1.0, Mixed("Mixup", 1.0, "image", "permutation")), (1.0, "Identity"))),
    # MoCHi, Kalantidis et al., 2020: a queue of 16k, synthetic negatives from the 10th epoch on.
    "related/mochi": Row("mocov2", changes={"queue": 16_384}),
    # Un-Mix, UnMix_MoCo/for_ImageNet/run.sh: MoCo v2's settings, Mixup or CutMix at even chances, both terms at 1.
    "related/unmix": Row("mocov2", ((1.0, "RandomChoice(Mixup, CutMix)"), (1.0, "Identity"))),
}
ROWS["paper/byol-wbsim"] = ROWS["paper/byol-wbsim"]._replace(batches=(4096, 1024))  # 1024 in the paper's cost table

NOT_PUBLISHED = {name for name in recipes.names() if name.startswith(("small/", "continue/"))}
"""Recipes of our own: for little data and few cores, and for weights to continue from."""
SWAV = "related/swav"
NEWER = {"related/barlow-twins", "related/vicreg", "related/mocov3", "vit/mocov3-small", "related/sdmp"}
SWAV_MULTI_CROP, DINO_SMALL = "related/swav-multi-crop", "vit/dino-small"


# --- what a run would do ----------------------------------------------------------------------------------------------


class Resolved(BaseException):
    """A run that has come as far as its optimizer."""

    def __init__(self, method: Method, optimizer: torch.optim.Optimizer) -> None:
        super().__init__()
        self.method, self.optimizer = method, optimizer


class Images:
    """As many as ImageNet has, none of which is ever read."""

    kind = "stub"
    skipped = ()
    notes = ()

    def __len__(self) -> int:
        return IMAGENET

    def fingerprint(self) -> str:
        return "none"

    def name(self, index: int) -> str:
        return f"{index}.jpg"


class Stub(nn.Module):
    """In place of a ResNet-50: as wide."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2048)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layer(images.mean((2, 3)))


class Run(NamedTuple):
    settings: PretrainConfig
    method: Method
    optimizer: torch.optim.Optimizer
    backbone: dict[str, Any]
    """What the backbone was asked to be."""


@pytest.fixture
def resolve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Run]:
    """Runs a recipe up to its first step, on as many images as ImageNet has."""
    asked: dict[str, Any] = {}
    resolved: list[PretrainConfig] = []
    build_optimizer, build = building.build_optimizer, pretraining.build

    def stub_backbone(name: str, **options: Any) -> backbones.Backbone:
        asked.update(options, name=name)
        return backbones.Backbone(Stub(), 2048, (), {})  # type: ignore[arg-type]

    def stop_at_optimizer(method: Method, *more: Any, **options: Any) -> torch.optim.Optimizer:
        raise Resolved(method, build_optimizer(method, *more, **options))

    def watched(config: PretrainConfig, *more: Any) -> Any:
        resolved.append(config)
        return build(config, *more)

    monkeypatch.setattr(building, "open_dataset", lambda *_, **__: Images())
    monkeypatch.setattr(building, "hold_out", lambda whole, *_, **__: (whole, None, ""))
    monkeypatch.setattr(backbones, "build", stub_backbone)
    monkeypatch.setattr(building, "build_optimizer", stop_at_optimizer)
    monkeypatch.setattr(pretraining, "start_or_resume", lambda *_, **__: None)
    monkeypatch.setattr(pretraining, "build", watched)

    def run(name: str) -> Run:
        recipe = recipes.read(name).settings | {"out": str(tmp_path / "run"), "workers": 0}
        with pytest.raises(Resolved) as caught:
            pretraining.pretrain(**recipe)
        return Run(resolved[-1], caught.value.method, caught.value.optimizer, dict(asked))

    return run


def layers(module: nn.Module | None) -> str:
    """A head in words: widths, norms and activations."""
    words = []
    for layer in [] if module is None else module.modules():
        if isinstance(layer, nn.Linear):
            words.append(str(layer.out_features))
        elif isinstance(layer, nn.BatchNorm1d):
            words.append("BN" if layer.affine else "plainBN")
        elif isinstance(layer, nn.ReLU):
            words.append("ReLU")
    return " ".join(words)


def described(run: Run) -> dict[str, Any]:
    """What a run would do, in the terms of `Published`."""
    groups = run.optimizer.param_groups
    names = {id(weight): name for name, weight in run.method.named_parameters()}
    decays: dict[bool, set[Any]] = {True: set(), False: set()}
    fixed: dict[bool, set[bool]] = {True: set(), False: set()}
    for group in groups:
        for weight in group["params"]:
            decays[weight.ndim > 1].add((group["weight_decay"], group.get("adapt", False)))
            fixed[names[id(weight)].startswith("predictor")].add(group["fixed"])
    queue = getattr(run.method, "queue", None)
    assert run.settings.augment is not None
    return {
        "backbone": (run.backbone["name"], run.backbone["size"], run.backbone["channels"], run.backbone["weights"]),
        "zero_init": run.backbone["zero_init_residual"],
        "epochs": run.settings.epochs,
        "images": (run.settings.data, run.settings.split, run.settings.size),
        "optimizer": type(run.optimizer).__name__,
        "momentum": {group.get("momentum") for group in groups},
        "trust": {group.get("trust") for group in groups},
        "clip": run.settings.optimizer.clip,
        "lr": sorted({group["base_lr"] for group in groups}),
        "decay of matrices": decays[True],
        "decay of norms and biases": decays[False],
        "fixed predictor": fixed[True],
        "fixed others": fixed[False],
        "projector": layers(run.method.online.projector),
        "predictor": layers(getattr(run.method, "predictor", None)),
        "temperature": getattr(run.method, "temperature", None),
        "ema": getattr(run.method, "momentum", None),
        "queue": None if queue is None else len(queue.keys),
        "views": load_policy(run.settings.augment, run.settings.size, run.settings.min_crop_scale),
        "sync_bn": run.settings.sync_bn,
    }


def expected(row: Row, batch_size: int) -> dict[str, Any]:
    """The same, as published."""
    method = METHODS[row.method]
    lars = method.optimizer == "LARS"
    return {
        "backbone": ("resnet50", 224, 3, None),
        "zero_init": method.zero_init,
        "epochs": row.epochs,
        "images": ("imagenet", None, 224),
        "optimizer": method.optimizer,
        "momentum": {0.9},
        "trust": {1e-3 if lars else None},
        "clip": None,
        "lr": pytest.approx([method.lr(batch_size)]),
        "decay of matrices": {(method.decay, lars)},
        "decay of norms and biases": {(method.decay if method.decays_all else 0.0, False)},
        "fixed predictor": {method.fixed_predictor} if method.predictor else set(),
        "fixed others": {False},
        "projector": method.projector,
        "predictor": method.predictor,
        "temperature": row.changes.get("temperature", method.temperature),
        "ema": method.ema,
        "queue": row.changes.get("queue", method.queue),
        "views": row.changes.get("views", method.views),
        "sync_bn": True,
    }


def terms_of(run: Run) -> Terms:
    def of_mixer(mixer: Any) -> str | Mixed:
        name = type(mixer).__name__
        if name == "Identity":
            return name
        if name == "MixAug":
            assert of_mixer(mixer.mixer) == Mixed()
            return "MixAug(CutMix)"
        if name == "RandomChoice":
            assert [of_mixer(each) for each in (mixer.first, mixer.second)] == [Mixed("Mixup"), Mixed("CutMix")]
            assert mixer.p == 0.5
            return "RandomChoice(Mixup, CutMix)"
        return Mixed(name, mixer.alpha, mixer.lam_per, mixer.partner, mixer.lam_at_least_half, mixer.prob)

    objective = build_objective(run.settings.objective, run.settings.mixing)
    return tuple((weight, of_mixer(mixer)) for weight, mixer in objective.terms)


def test_every_recipe_is_checked() -> None:
    assert set(recipes.names()) == set(ROWS) | NOT_PUBLISHED | {SWAV, SWAV_MULTI_CROP, DINO_SMALL} | NEWER


@pytest.mark.parametrize("name", ROWS)
def test_a_recipe_is_as_published(name: str, resolve: Callable[[str], Run]) -> None:
    row, run = ROWS[name], resolve(name)
    assert run.settings.batch_size in row.batches
    assert isinstance(run.settings.batch_size, int)
    found, wanted = described(run), expected(row, run.settings.batch_size)
    for key, value in wanted.items():
        assert found[key] == value, key
    assert terms_of(run) == row.terms
    assert (run.settings.mixing.mix_groups, run.settings.mixing.warmup) == (1, None)
    schedule, [lr] = METHODS[row.method].schedule, found["lr"]
    assert schedule is not None
    rates = [set_learning_rate(run.optimizer, run.settings.optimizer, each, row.epochs) for each in EPOCHS_LOOKED_AT]
    assert rates == pytest.approx([lr * schedule(epoch, row.epochs) for epoch in EPOCHS_LOOKED_AT])


@pytest.mark.parametrize("name", [SWAV, SWAV_MULTI_CROP])
def test_swav_is_as_published_but_for_what_its_recipe_says(name: str, resolve: Callable[[str], Run]) -> None:
    """facebookresearch/swav, swav_400ep_2x224_pretrain.sh and swav_200ep_pretrain.sh; 64 devices of 64 images."""
    run = resolve(name)
    found = described(run)
    assert (found["optimizer"], found["momentum"], run.settings.batch_size) == ("LARS", {0.9}, 4096)
    assert found["lr"] == [4.8]
    assert {decay for decay, _ in found["decay of matrices"]} == {1e-6}
    assert run.settings.optimizer.warmup_epochs == 10
    assert run.settings.optimizer.schedule == "cosine"
    assert found["projector"] == "2048 BN ReLU 128"
    assert (run.method.prototypes.out_features, run.method.temperature) == (3000, 0.1)  # type: ignore[union-attr]
    assert (run.method.epsilon, run.method.iterations) == (0.05, 3)
    assert terms_of(run) == SIM


def test_swavs_crops(resolve: Callable[[str], Run]) -> None:
    """--nmb_crops 2 6 --size_crops 224 96 --min_scale_crops 0.14 0.05 --max_scale_crops 1. 0.14; colors of SimCLR."""
    crops = [(Crop(224, (0.14, 1.0)), 2), (Crop(96, (0.05, 0.14)), 6)]
    expected = [replace(SIMCLR, crop=crop) for crop, count in crops for _ in range(count)]
    assert described(resolve(SWAV_MULTI_CROP))["views"] == tuple(expected)


def test_dino_is_as_published_but_for_what_its_recipe_says(resolve: Callable[[str], Run]) -> None:
    """facebookresearch/dino main_dino.py: its defaults, and --teacher_temp 0.07 --warmup_teacher_temp_epochs 30."""
    run = resolve(DINO_SMALL)
    method: Any = run.method
    found, steps = run.settings.optimizer, IMAGENET // 1024
    assert (run.backbone["name"], run.backbone["size"]) == ("timm/vit_small_patch16_224", 224)
    assert run.backbone["drop_path"] == 0.1
    assert (run.settings.batch_size, run.settings.epochs, found.warmup_epochs, found.clip) == (1024, 100, 10, 3.0)
    assert type(run.optimizer) is torch.optim.AdamW
    for epoch, lr, decay in ((0, 0.0, 0.04), (5, 1e-3, None), (10, 2e-3, None), (55, 1e-3, None), (100, 0.0, 0.4)):
        assert set_learning_rate(run.optimizer, found, epoch, 100) == pytest.approx(lr)
        for group in run.optimizer.param_groups:
            for weight in group["params"]:
                if weight.ndim <= 1 or decay is not None:
                    assert group["weight_decay"] == pytest.approx(decay if weight.ndim > 1 else 0.0)
    head = [(each.in_features, each.out_features) for each in method.online.projector if isinstance(each, nn.Linear)]
    assert head == [(2048, 2048), (2048, 2048), (2048, 256)]  # of the stub's 2048 features
    assert [type(each).__name__ for each in method.online.projector][1::2] == ["GELU", "GELU"]
    assert method.prototypes.weight.shape == (65536, 256)
    assert method.prototypes.length is None
    assert (method.freeze_steps, method.warmup_steps) == (steps, 30 * steps)
    assert (method.temperature, method.teacher_temperatures) == (0.1, (0.04, 0.07))
    assert (method.momentum, method.center_momentum) == (0.996, 0.9)
    large, local = (
        Crop(size, scale, interpolation="bicubic") for size, scale in ((224, (0.4, 1.0)), (96, (0.05, 0.4)))
    )
    colors = replace(BYOL[0], crop=large)
    views = [colors, replace(BYOL[1], crop=large), *[replace(colors, crop=local, blur=Blur(0.5))] * 8]
    assert described(run)["views"] == tuple(views)
    assert terms_of(run) == SIM


VICREG = Augmentation(
    Crop(224, (0.08, 1.0), interpolation="bicubic"), 0.5, Jitter(0.4, 0.4, 0.2, 0.1, 0.8), 0.2, Blur(0.5), 0.1
)


@pytest.mark.parametrize(
    ("name", "decay", "rates", "views"),
    [
        # facebookresearch/barlowtwins main.py, and section 3 of its paper: 0.2 and 0.0048 × batch / 256, decay 1.5e-6.
        ("related/barlow-twins", 1.5e-6, [0.0048 * 8, 0.2 * 8], BYOL),
        # facebookresearch/vicreg README for 1000 epochs, main_vicreg.py; its augmentation is the paper's.
        ("related/vicreg", 1e-6, [0.2 * 8], (VICREG, VICREG)),
    ],
)
def test_barlow_twins_and_vicreg_are_as_published(
    name: str, decay: float, rates: list[float], views: Any, resolve: Callable[[str], Run]
) -> None:
    run = resolve(name)
    found = described(run)
    assert found["backbone"] == ("resnet50", 224, 3, None)
    assert found["zero_init"] is None  # zero-initialized, wherever the backbone can
    assert (run.settings.batch_size, found["epochs"]) == (2048, 1000)
    assert (found["optimizer"], found["momentum"], found["trust"]) == ("LARS", {0.9}, {1e-3})
    assert found["lr"] == pytest.approx(rates)
    for group in run.optimizer.param_groups:
        vectors = {weight.ndim <= 1 for weight in group["params"]}
        assert len(vectors) == 1
        assert group["base_lr"] == pytest.approx(rates[0] if vectors == {True} else rates[-1])
    assert found["decay of matrices"] == {(decay, True)}
    assert found["decay of norms and biases"] == {(0.0, False)}
    assert found["projector"] == "8192 BN ReLU 8192 BN ReLU 8192"
    assert (found["views"], found["sync_bn"], terms_of(run)) == (views, True, SIM)
    lr = max(rates)
    for epoch in EPOCHS_LOOKED_AT:
        rate = set_learning_rate(run.optimizer, run.settings.optimizer, epoch, 1000)
        assert rate == pytest.approx(lr * warm_cosine(epoch, 1000)), epoch
    if isinstance(run.method, BarlowTwins):
        assert (run.method.lambda_bt, run.method.mix_regularizer, run.method.symmetric) == (0.0051, 0.0, False)
    else:
        assert isinstance(run.method, VICReg)
        weights = run.method.invariance_weight, run.method.variance_weight, run.method.covariance_weight
        assert weights == (25, 25, 1)


SDMP: dict[str, Any] = {"mixer": "resizemix", "lam_per": "image", "weight": 1.0, "sim_weight": 1.0}


@pytest.mark.parametrize(
    ("name", "backbone", "sdmp"),
    [
        ("related/mocov3", "vit_base_patch16_224", 0.0),
        ("vit/mocov3-small", "timm/vit_small_patch16_224", 0.0),
        ("related/sdmp", "timm/vit_small_patch16_224", 0.5),
    ],
)
def test_mocov3_is_as_published(name: str, backbone: str, sdmp: float, resolve: Callable[[str], Run]) -> None:
    """facebookresearch/moco-v3 CONFIG.md for ViTs: AdamW of all parameters, 40 warm-up epochs; OliverRensu/SDMP."""
    run = resolve(name)
    assert isinstance(run.method, MoCoV3)
    assert (run.backbone["name"], run.backbone["drop_path"], run.method.sdmp) == (backbone, 0.0, sdmp)
    assert (run.settings.batch_size, run.settings.epochs, run.settings.size) == (4096, 300, 224)
    assert type(run.optimizer) is torch.optim.AdamW
    for group in run.optimizer.param_groups:
        assert (group["base_lr"], group["weight_decay"], group["betas"]) == (1.5e-4 * 4096 / 256, 0.1, (0.9, 0.999))
    for epoch in (0, 20, 40, 100, 299):
        rate = set_learning_rate(run.optimizer, run.settings.optimizer, epoch, 300)
        assert rate == pytest.approx(2.4e-3 * (epoch / 40 if epoch < 40 else cosine(epoch - 40, 260))), epoch
    assert layers(run.method.online.projector) == "4096 BN ReLU 4096 BN ReLU 256 plainBN"
    assert (run.method.temperature, run.method.momentum) == (0.2, 0.99)
    assert load_policy(str(run.settings.augment), 224) == BYOL
    if sdmp:
        assert SDMP.items() <= vars(run.settings.mixing).items()
    assert (run.settings.objective == "wbsim") if sdmp else (terms_of(run) == SIM)


def test_options_of_related_methods(resolve: Callable[[str], Run]) -> None:
    """MoCHi's 1024 hardest, (1024, 128) synthetic, after 10 of 200 epochs; MixCo's temperature 1 for mixtures."""
    mochi = resolve("related/mochi").method.loss_fn
    assert (mochi.hardest, mochi.pairs, mochi.with_query) == (1024, 1024, 128)
    assert mochi.start == 10 * (IMAGENET // 256)
    assert resolve("related/mixco").method.loss_fn.args == (1.0,)


@pytest.mark.parametrize(("name", "temperature"), [("simclr", 0.1), ("mocov1", 0.07), ("mocov2", 0.2)])
def test_the_temperature_of_a_method_without_a_recipe_is_published(name: str, temperature: float) -> None:
    assert extensions.METHODS.load(name)().temperature == temperature


def test_zero_init_is_simsiams() -> None:
    """What the backbones are asked for does what it says: the last norm of a block is 0, or 1."""
    for zero_init, value in ((None, 0.0), (False, 1.0)):
        encoder = backbones.build("resnet18", size=32, zero_init_residual=zero_init).encoder
        assert {float(each.max()) for name, each in encoder.state_dict().items() if "bn2.weight" in name} == {value}


# --- detection --------------------------------------------------------------------------------------------------------

VOC = (
    # MoCo's protocol: detection/configs/pascal_voc_R_50_C4_24k_moco.yaml and Base-RCNN-C4-BN.yaml, in Detectron2.
    Model(
        "c4", masks=False, extra_norm=True, anchors=(32, 64, 128, 256, 512), sampled=256, regions=512, proposals=1000
    ),
    Scales(tuple(range(480, 801, 32)), 800, 1333),
    Schedule("sgd", 24_000, 16, 0.02, (18_000, 22_000), 100, 1e-4, 0.9),
)
COCO = (
    # detection/configs/coco_R_50_C4_2x_moco.yaml: 2x, short sides 640 to 800; Detectron2 warms up for 1000 iterations.
    Model("c4", True, extra_norm=True, anchors=(32, 64, 128, 256, 512), sampled=256, regions=512, proposals=1000),
    Scales(tuple(range(640, 801, 32)), 800, 1333),
    Schedule("sgd", 180_000, 16, 0.02, (120_000, 160_000), 1000, 1e-4, 0.9),
)


@pytest.mark.parametrize(("protocol", "published"), [("voc-c4", VOC), ("coco-c4-2x", COCO)])
def test_a_detection_protocol_is_as_published(protocol: str, published: tuple[Model, Scales, Schedule]) -> None:
    resolved: Any = build("detection", {"encoder": "random", "recipe": protocol})
    assert (resolved.model, resolved.scales, resolved.schedule) == published
    assert (resolved.batch_size, resolved.iterations, resolved.lr, resolved.accumulate_grad_batches) == (
        None,
        None,
        None,
        1,
    )
    assert (resolved.empty, resolved.precise_bn, resolved.sync_bn) == (False, 200, True)
    schedule: Schedule = resolved.schedule.resolve(None, None, None)
    last = published[2]
    boundaries = {each + offset for each in last.steps for offset in (-1, 0)}
    for step in sorted({0, last.warmup // 2, last.warmup, *boundaries, last.iterations - 1}):
        rise = min(1.0, 0.001 + 0.999 * step / last.warmup)
        falls = sum(step >= each for each in last.steps)
        assert schedule.rate(step) == pytest.approx(0.02 * rise * 0.1**falls), step
    optimizer = build_optimizer(nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)), schedule)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [1e-4, 0.0]
