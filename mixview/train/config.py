"""The settings of pretraining: fields only, each with the docstring that becomes its help. Importable without torch.

PretrainConfig(data="scenes", method="mocov2")                                   # a method by name
PretrainConfig(data="scenes", method={"name": "mocov2", "queue_size": 4096})     # with options
PretrainConfig(data="scenes", method=MoCoV2Config(queue_size=4096))              # or as its own settings
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any, ClassVar, Literal

from mixview.extensions import METHODS, MIXERS
from mixview.options import (
    MAX_SHOWN,
    NON_EMPTY,
    Accelerator,
    AtLeast,
    AtMost,
    Channels,
    Count,
    Epochs,
    LessThan,
    MoreThan,
    NonNegative,
    NonNegativeFloat,
    Positive,
    Precision,
    Seed,
    Share,
    Side,
    SourceOptions,
    Workers,
    check_options,
    did_you_mean,
    truncated_repr,
)
from mixview.recipes import method_group
from mixview.runs.logging_config import LoggingConfig

ObjectiveName = Literal["sim", "bsim", "wbsim", "mixaug", "unmix"]
DEFAULT_METHOD = "simclr"
Decay = Annotated[float, AtLeast(0), LessThan(1)]
"""The share of a moving average that a step keeps."""


MAY_CHANGE = frozenset(
    {
        "accelerator",
        "augment_device",
        "cache",
        "compile",
        "data",  # moved, perhaps: the fingerprint says whether it is the same data
        "data_options.labels",  # which the fingerprint has, too
        "devices",
        "epochs",
        "max_time",
        "nodes",
        "out",
        "precision",
        "resume",
        "profile",
        "monitor",
        "stop_if_worse",
        "workers",
    }
)
"""Settings, with all below them, that a resumed run may change: place, length and monitoring."""


EARLIER = {"normalize": "imagenet"}
"""Settings that runs of earlier versions do not record, and the values that they had."""


@dataclass(frozen=True)
class MixingConfig:
    """Mixing of views.

    Example:
        >>> MixingConfig(mixer="mixup", alpha=0.5).lam_per
        'image'
    """

    mixer: Annotated[str, NON_EMPTY] = "cutmix"
    """cutmix (a box of the other image), mixup (a blend), resizemix (all of the other image, shrunk), fmix (smooth
    masks), patchmix (a grid of cells), random_choice (CutMix or Mixup, batch by batch, as in Un-Mix), or your own by
    import path, such as mine.Checkerboard."""
    alpha: Positive = 1.0
    """lam ~ Beta(alpha, alpha): 1 is uniform, and toward 0 nothing is mixed."""
    lam_per: Literal["batch", "pair", "image"] = "image"
    """One lam per image; one per pair, so that its two mixtures hold every pixel of both images exactly once; or one
    per batch and device, as in the paper."""
    partner: Literal["reversal", "permutation", "pairs"] = "reversal"
    """Mix image i with image N-1-i (reversal), with a random one (permutation), or in random mutual pairs (pairs)."""
    lam_at_least_half: bool = False
    """Use lam = max(lam, 1 - lam), as i-Mix does."""
    prob: Annotated[float, MoreThan(0), AtMost(1)] = 1.0
    """Probability that an image, pair or batch (see lam_per) is mixed; the others stay unmixed, in the same passes."""
    anchors: Literal["all", "one_per_pair"] = "all"
    """Encode the mixture of every image, or only one of the two of each mutual pair, for half the cost."""
    grid: Annotated[int, AtLeast(1), AtMost(64)] = 4
    """PatchMix: cells per side."""
    parents: Annotated[int, AtLeast(2), AtMost(64)] = 2
    """PatchMix: images per mixture."""
    weight: NonNegativeFloat = 0.5
    """Weight w1 of the mixed term of WBSIM."""
    sim_weight: NonNegativeFloat = 0.5
    """Weight w2 of the unmixed term of WBSIM."""
    mix_groups: Count = 1
    """Number of parts of each device's batch to mix within, as that many devices would."""
    warmup: tuple[Share, Share] | None = None
    """Two fractions of training: nothing is mixed before the first, and the partner's share grows until the second."""

    def __post_init__(self) -> None:
        check_options(self, "mixing")
        MIXERS.check(self.mixer)


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer and its learning-rate schedule.

    Example:
        >>> OptimizerConfig(name="sgd", lr=0.03, schedule="steps", milestones=(120, 160)).gamma
        0.1
    """

    name: Literal["sgd", "lars", "adamw"] = "adamw"
    """sgd (MoCo, SimSiam), lars (SimCLR, BYOL) or adamw (small budgets, ViTs)."""
    lr: Positive = 1e-3
    """Peak learning rate; with scale_lr, for a batch of 256."""
    scale_lr: bool = False
    """Multiply lr by batch_size / 256."""
    weight_decay: NonNegativeFloat = 1e-4
    """Weight decay: added to the gradient (sgd, lars) or decoupled from it (adamw)."""
    weight_decay_end: NonNegativeFloat | None = None
    """Weight decay at the end of training, reached along a cosine (DINO); by default it is constant."""
    momentum: Decay = 0.9
    """Momentum of sgd and lars."""
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    """Betas of adamw."""
    decay_norm_and_bias: bool | None = None
    """Decay norm layers and biases too. By default as published: with sgd, but not with lars and adamw."""
    schedule: Literal["cosine", "steps", "constant"] = "cosine"
    """Decay of lr after the warm-up: along a cosine to 0, in steps, or none."""
    warmup_epochs: NonNegativeFloat = 0.0
    """Epochs of linear warm-up from 0."""
    milestones: tuple[int, ...] = ()
    """Epochs, counted from the start, at which the schedule "steps" multiplies lr by gamma."""
    gamma: Annotated[float, MoreThan(0), AtMost(1)] = 0.1
    """Factor of a milestone."""
    fixed_predictor_lr: bool = False
    """Keep the predictor at the peak lr, without schedule and warm-up (SimSiam)."""
    predictor_rate: Positive = 1.0
    """Learning rate of the predictor relative to everything else (BYOL, SimSiam)."""
    norm_and_bias_rate: Positive = 1.0
    """Learning rate of norm layers and biases relative to everything else (Barlow Twins)."""
    layer_decay: Annotated[float, MoreThan(0), AtMost(1)] | None = None
    """Learning rate of each layer of the encoder relative to the layer above it: 0.75 changes the first layers of
    pretrained weights least. By default all layers learn alike."""
    clip: Positive | None = None
    """Maximum norm of the gradient; by default it is not clipped."""

    def __post_init__(self) -> None:
        check_options(self, "optimizer")
        if list(self.milestones) != sorted(set(self.milestones)) or min(self.milestones, default=1) < 1:
            raise ValueError(
                f"--optimizer.milestones must be epochs in rising order, such as (120, 160), got {self.milestones}"
            )
        if bool(self.milestones) != (self.schedule == "steps"):
            raise ValueError(
                f'--optimizer.milestones {self.milestones} do not go with schedule "{self.schedule}": pass both '
                'schedule="steps" and milestones such as (120, 160), or neither'
            )


@dataclass(frozen=True)
class MonitorConfig(LoggingConfig):
    """Logging, online evaluation and checkpoints of a run.

    Example:
        >>> MonitorConfig(eval_every=10, loggers="none").keep
        2
    """

    option_group: ClassVar[str] = "monitor"

    log_every: Count = 10
    """Optimizer steps between two lines of metrics."""
    loggers: str = "tensorboard"
    """Trackers that get the metrics, besides the run directory: tensorboard, mlflow, wandb, several as in
    tensorboard,mlflow, or none. mlflow and wandb need 'mixview[trackers]'."""
    eval_every: NonNegative = 1
    """Epochs between two online evaluations (k-NN accuracy, where there are labels, and collapse metrics); 0: none."""
    images: Annotated[int, AtLeast(4)] = 2000
    """Maximum number of labeled images in the feature bank of the k-NN; it has a quarter as many queries."""
    hold_out: Annotated[float, AtLeast(0), LessThan(1)] = 0.1
    """Share of labeled images held out from training for the k-NN, where the data has no val or test part."""
    estimate: bool = True
    """Try a few steps first, and estimate the time and memory of the run."""


@dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """Learn an encoder from images without labels.

    Example:
        >>> config = PretrainConfig(data="photos/", method="mocov2", epochs=200, mixing=MixingConfig(alpha=0.5))
        >>> config.method.name, config.objective
        ('mocov2', 'wbsim')
    """

    data: str | None = None
    """Training images: a folder, or any other path, address or name (see `mixview data list`)."""
    out: Annotated[str, NON_EMPTY] = "runs/first"
    """Run directory, which must not exist: settings, metrics, checkpoints, pictures and the encoder."""
    # A `MethodConfig` after construction, whose type would need torch.
    method: Any = DEFAULT_METHOD
    """Self-supervised method: a name, or your own by import path, such as mine.BarlowTwins."""
    objective: ObjectiveName = "wbsim"
    """sim (the method as published), bsim (every anchor is a mixture), wbsim (both, weighted), mixaug (the ablation) or
    unmix (Un-Mix: both, of equal weight)."""
    backbone: str = "resnet50"
    """A torchvision or timm model by name, "small" or "small-vit" for a CPU, or your own as package.module:factory."""

    split: str | None = None
    """Part of the data to learn from, such as train or train[:5000]; by default the one for training."""
    labels: Annotated[str, NON_EMPTY] | None = None
    """CSV file with the columns path and label, for the k-NN accuracy on images without labels of their own."""
    data_options: SourceOptions | None = None
    """Further options of the dataset, such as {"count": 2000, "size": 32} for scenes."""
    validation: str | None = None
    """Labeled images for the k-NN accuracy; by default the val or test part of the data, where there is one."""
    validation_split: str | None = None
    """Part of the validation images or, where none are given, of the data, for the k-NN accuracy."""
    augment: Annotated[str, NON_EMPTY] | None = None
    """Augmentation policy: a name, a YAML file, or your own by import path, such as mine.policy; by default that of the
    method (its small variant for small images)."""
    normalize: Annotated[str, NON_EMPTY] | None = None
    """Normalization of the images: imagenet, weights (that of the initial weights), measured (on a sample of images),
    or MEAN,STD of images from 0 to 1, such as 0.5,0.25, or all means and then all stds of the channels. By default what
    the augmentation says, if it does, or else that of the weights, or else ImageNet's."""
    min_crop_scale: Annotated[float, MoreThan(0), AtMost(1)] | None = None
    """Smallest share of an image that a view shows, 0 to 1; by default the augmentation's own."""
    size: Side | None = None
    """View size in pixels; by default 224, or the size of the images if they are small."""
    channels: Channels = 3
    """Channels of the images: 3 for color, 1 for grayscale, or as many as the files have."""
    value_range: Annotated[str, NON_EMPTY] = "auto"
    """Black and white of images of more than 8 bits: auto (measured on a sample), LO,HI, percentiles such as p1,p99, or
    window (each DICOM file's own)."""

    weights: str | None = None
    """Initial weights: imagenet, a file, or an earlier run. They are evaluated first, as epoch 0."""
    freeze: NonNegative | None = None
    """Number of stages of a ResNet, or blocks of a ViT, to freeze; the first layer (the stem, or the patch embedding)
    is frozen with them."""
    stop_if_worse: bool = False
    """Stop when the k-NN accuracy stays below that of the initial weights for three evaluations, and keep the best
    encoder. Also checked at the end of training."""
    stem: Literal["auto", "small", "standard"] = "auto"
    """Stem of a ResNet: small (3×3, no pooling) or standard; auto decides by the view size. Of small-vit: patches
    of 4 or of 16 pixels."""
    zero_init: bool | None = None
    """Start every residual block of a ResNet as a shortcut; by default as published with the method."""
    drop_path: Annotated[float, AtLeast(0), LessThan(1)] = 0.0
    """Stochastic depth of a timm model or small-vit: probability that its last block is skipped, from 0 in the first
    on. Momentum encoders skip none."""
    mixing: MixingConfig = field(default_factory=MixingConfig)
    """Mixing of views."""

    epochs: Epochs = 100
    """Passes over the images."""
    batch_size: Annotated[int, AtLeast(2)] | Literal["auto"] = 256
    """Images per step, over all devices; auto finds the largest that fits in the memory of one device."""
    accumulate_grad_batches: Count = 1
    """Micro-batches per step and device, to save memory."""
    grad_cache: bool = False
    """Accumulate gradients so that the negatives are the whole batch's, not the micro-batch's (GradCache), for methods
    such as SimCLR, whose negatives are the batch."""
    seed: Seed = 0
    """Seed of everything random."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """The optimizer and its learning-rate schedule."""

    devices: Count | str = "auto"
    """Devices per machine; auto is what torchrun or srun started, else all accelerators, or one CPU process."""
    nodes: Count | Literal["auto"] = "auto"
    """Number of machines; auto is as many as torchrun or srun started processes on."""
    accelerator: Accelerator = "auto"
    """Kind of device: cpu, cuda, mps, or auto, which takes an accelerator where there is one."""
    precision: Precision = "auto"
    """Numeric precision; auto is bf16-mixed on accelerators that support it, else 32-true. Most CPUs are many times
    slower with mixed precision."""
    sync_bn: bool = True
    """Synchronize batch norm over all devices, unless the method shuffles its batches instead (MoCo)."""
    channels_last: bool = True
    """Memory format of images and networks: faster for convolutions on CPUs and tensor cores."""
    compile: bool = False
    """Compile the networks with torch.compile."""
    workers: Workers | None = None
    """Processes per device that read and augment images; by default the device's share of the cores, minus one."""
    augment_device: Literal["cpu", "device"] = "cpu"
    """Device that makes the views: the CPU (in the workers), or the accelerator, which helps when it has few CPU
    cores."""
    cache: Annotated[str, NON_EMPTY] | None = None
    """Folder for shrunk copies of the images, for large photographs and slow disks. The first epoch writes them, and
    any number of runs read them. Views always come from the copies."""
    cache_size: Side | None = None
    """Shorter side of the copies in pixels; by default 12/7 of the views', 384 for 224."""
    exact_decoding: bool = False
    """Decode large photographs whole. By default a JPEG (or JPEG 2000) is decoded at 1/2, 1/4 or 1/8 of its sides where
    every view of it still has to be shrunk, in a third of the time."""

    monitor: MonitorConfig = field(default_factory=MonitorConfig)
    """Logging, online evaluation and checkpoints."""
    max_time: str | Positive | None = None
    """Stop gracefully after this time: 45m, 1h30m, 2d."""
    profile: Count | None = None
    """Number of steps to profile, such as 50. Prints the slowest parts, and writes trace.json.gz, which ui.perfetto.dev
    opens, to the run directory."""
    resume: bool = False
    """Resume the run in `out`, bit-exact; a larger `epochs` extends it."""

    def __post_init__(self) -> None:
        check_options(self)
        from mixview.data.value_range import parse_value_range  # needs NumPy, which help can do without

        parse_value_range(self.value_range)
        object.__setattr__(self, "method", method_config(self.method))
        if self.labels is not None:  # one option of the data, wherever it is opened
            object.__setattr__(self, "data_options", {**(self.data_options or {}), "labels": self.labels})
            object.__setattr__(self, "labels", None)


GROUPS: dict[str, type[Any]] = {"mixing": MixingConfig, "optimizer": OptimizerConfig, "monitor": MonitorConfig}
"""The settings that are groups of settings; `method` is one, too, whose fields depend on its name."""


def method_config(method: Any) -> Any:
    """The settings of a method, given as themselves, as a name, or as `{"name": …, …}`. Imports torch."""
    from mixview.methods.base import MethodConfig

    if isinstance(method, MethodConfig):
        return method
    options = method_group(method)
    name = options.pop("name", DEFAULT_METHOD)
    if not isinstance(name, str):
        raise ValueError(f"--method must be the name of a method, got {truncated_repr(name)}")
    kind = METHODS.load(name)
    check_names(options, [each.name for each in fields(kind)], "method", f"{name} has ")
    return kind(**tuples(options))


def from_plain(settings: Mapping[str, Any]) -> PretrainConfig:
    """The configuration from plain values, as YAML has them: groups of settings are dictionaries."""
    check_names(settings, [each.name for each in fields(PretrainConfig)])
    values = dict(settings)
    for name, kind in GROUPS.items():
        group = values.get(name)
        if name not in values or isinstance(group, kind):
            continue
        names = [each.name for each in fields(kind)]
        if not isinstance(group, Mapping):
            raise ValueError(f"{name} must be a group of settings such as {names[0]}, got {truncated_repr(group)}")
        check_names(group, names, name)
        values[name] = kind(**tuples(group))
    return PretrainConfig(**values)


def to_plain(config: PretrainConfig) -> dict[str, Any]:
    """The settings as plain values, for the run directory: all but those of one session alone."""
    values = {name: value for name, value in asdict(config).items() if name not in ("resume", "profile")}
    return values | {"method": {"name": config.method.name, **values["method"]}}


def check_names(settings: Mapping[str, Any], names: list[str], group: str = "", owner: str = "there are ") -> None:
    """Raise if there is no setting of a name, and say which was probably meant."""
    for name in settings:
        if name not in names:
            shown = f"{group}.{str(name)[:MAX_SHOWN]}" if group else str(name)[:MAX_SHOWN]
            hint = did_you_mean(str(name), names) or f": {owner}{', '.join(names) or 'none'}"
            raise ValueError(f"there is no setting {shown}{hint}")


def tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    """YAML's lists as the tuples that they were."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
