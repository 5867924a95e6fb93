"""From settings to everything that a run needs: resolves every None and "auto", opens data, builds networks.

config = validate(config)
data = open_data(config)
config, data = resolve(config, data, fabric)       # what is stored in the run directory
run = build(config, fabric, data)                  # what the loop trains
"""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from mixview.data.augment.policies import Normalize, Policy, load_policy
from mixview.data.dataset import MODES, SMALL_IMAGE_SIZE, ImageDataset, decoder_for, find_range, natural_size
from mixview.data.image_cache import CacheFolder, ShrunkImages, default_size
from mixview.data.loader import EpochSampler, default_workers, view_loader
from mixview.data.sources.base import BadImage, Source, SourceError, even_indices
from mixview.data.sources.registry import open_dataset
from mixview.distributed import synchronize_batch_norm
from mixview.encoders import backbones
from mixview.encoders.encoder_file import save_encoder
from mixview.encoders.layers import freeze
from mixview.encoders.loading import weights_normalize
from mixview.encoders.transforms import IMAGENET
from mixview.extensions import MIXERS
from mixview.methods import Method, MethodConfig, RunLength, UnMix, backward
from mixview.mixing import Mixer, mixture_generators
from mixview.objective import Objective, bsim, mixaug, sim, unmix, wbsim
from mixview.options import describe, is_valid, suggest
from mixview.runs.devices import describe_precision, grad_scaler, latest_state, precision_of
from mixview.runs.fabric import Fabric
from mixview.runs.graceful_stop import seconds_of
from mixview.runs.launching import process_rank
from mixview.runs.run_directory import RunDirectoryError
from mixview.train.config import MixingConfig, ObjectiveName, PretrainConfig
from mixview.train.estimate import largest_batch
from mixview.train.loop import Engine, Run
from mixview.train.monitor import KNNImages, Monitor, drop_shared_images, hold_out
from mixview.train.optim import build_optimizer, schedule_factor

DEFAULT_SIZE = 224
"""View size in pixels where nothing says one."""


def validate(config: PretrainConfig) -> PretrainConfig:
    """The settings with `~` expanded; raise for a mistake that shows without any data."""
    config = replace(config, out=str(Path(os.fspath(config.out)).expanduser()))
    if config.data is None:
        raise ValueError("no training data: pass --data FOLDER (or --data scenes for a demo)")
    wrapped = config.objective == "unmix" and config.method.module.unmix_targets
    if config.grad_cache and (wrapped or not config.method.module.grad_cache):
        raise ValueError(
            "--grad_cache is for methods whose negatives are the batch, such as simclr and imix, not for "
            f"{config.method.name} under {config.objective}"
        )
    if Path(config.data).is_dir() and Path(config.out).resolve() == Path(config.data).resolve():
        raise ValueError(f"--out is the folder of the images, {config.data}: pass another folder, such as runs/first")
    seconds_of(config.max_time)
    schedule_factor(config.optimizer, 0, config.epochs)
    check_normalize(config)
    if config.stop_if_worse and (config.weights is None or not config.monitor.eval_every):
        raise ValueError(
            "--stop_if_worse compares with the weights that a run starts from, epoch by epoch: pass --weights, and an "
            "--monitor.eval_every of at least 1"
        )
    return config


def check_normalize(config: PretrainConfig) -> None:
    """Raise if this is no normalization, or not one of images of these channels."""
    choice = config.normalize
    if choice == "weights" and config.weights is None:
        raise ValueError("--normalize weights needs weights to start from: pass --weights, or another normalization")
    if choice in (None, "imagenet", "weights", "measured"):
        return
    assert choice is not None
    try:
        count = len(Normalize.parse(choice).mean)
    except ValueError as error:
        raise ValueError(f"--normalize {error}") from None
    if count not in (1, config.channels):
        raise ValueError(
            f"--normalize {choice} has {count} means and as many standard deviations, and the images have "
            f"{config.channels} channels: pass one of each, or {config.channels}"
        )


class TrainingData(NamedTuple):
    """The images of a run."""

    whole: Source
    """All images of the data."""
    images: ImageDataset
    """Training images: all but the ones held out."""
    knn: KNNImages | None
    """Labeled images for online evaluation, on the first process, where there are any."""
    notes: list[str]
    """Notes about them for the user."""


def open_data(config: PretrainConfig) -> TrainingData:
    """Open the images, and hold some out for the k-NN accuracy."""
    assert config.data is not None
    options: dict[str, Any] = {**(config.data_options or {})}
    whole = open_dataset(config.data, config.split, **options)
    source, knn, note = hold_out(
        whole,
        config.data,
        options,
        config.validation,
        config.monitor.hold_out,
        config.seed,
        config.validation_split,
    )
    if knn is None and config.stop_if_worse:
        raise SourceError(f"{note} --stop_if_worse needs it: pass --labels, or labeled images as --validation.")
    notes = [note]
    if process_rank() > 0 or not config.monitor.eval_every:
        knn = None  # the first process alone evaluates
    if knn is not None:
        knn, note = drop_shared_images(knn, config.monitor.images)
        if knn is None and (config.validation or config.validation_split):
            raise SourceError(f"{note} Pass other images as --validation or --validation_split, or leave them out.")
        notes += [note] if note else []
        if knn is None and config.stop_if_worse:
            raise SourceError(f"{note} --stop_if_worse needs it: pass other images as --validation, or leave it out.")
    decoder = decoder_for(config.channels, find_range(source, config.value_range))
    return TrainingData(whole, ImageDataset(source, decoder), knn, notes)


def resolve(config: PretrainConfig, data: TrainingData, fabric: Fabric) -> tuple[PretrainConfig, TrainingData]:
    """The settings with a value for each that depends on the data or the device, and the data with notes about them."""
    notes, count = [*data.notes], len(data.images)
    size = config.size or natural_size(data.images)
    config = replace(config, size=size, augment=augment_for(config, size))
    if data.images.decoder.value_range is not None:
        config = replace(config, value_range=str(data.images.decoder.value_range))
    if config.cache is not None and config.cache_size is None:
        config = replace(config, cache_size=default_size(size))
    policy = load_policy(augment_for(config, size), size, config.min_crop_scale)
    check_views(config, policy)
    normalize, note = resolve_normalize(config, policy, data.images)
    config = replace(config, normalize="imagenet" if normalize == IMAGENET else normalize.text)
    notes.append(note)
    if config.precision == "auto":
        precision = precision_of(fabric)
        config = replace(config, precision=precision)
        notes.append(describe_precision(precision))
    if config.batch_size == "auto":
        config = replace(config, batch_size=find_batch_size(config, fabric, count))
        notes.append(f"A batch of {config.batch_size} fits.")
    assert config.batch_size != "auto"
    if count < config.batch_size:
        few = f"pass --batch_size {count}, or use more images" if count > 1 else "use more images"
        raise SourceError(f"{count} training images do not fill a batch of {config.batch_size}: {few}")
    steps = config.epochs * (count // config.batch_size)
    run = RunLength(count, steps, config.batch_size, size, config.channels)
    return replace(config, method=config.method.resolve(run)), data._replace(notes=notes)


def with_image_cache(config: PretrainConfig, data: TrainingData) -> TrainingData:
    """The data with shrunk images, kept in the cache, where the settings have one; its notes are those about that."""
    if config.cache_size is None:
        return data._replace(notes=[])
    folder = None if config.cache is None else Path(config.cache).expanduser()
    caches = CacheFolder(folder, config.cache_size, data.images.decoder, config.exact_decoding)
    images = ImageDataset(caches.shrunk(data.images.source), data.images.decoder)
    knn = None if data.knn is None else KNNImages(*map(caches.shrunk, data.knn))
    return data._replace(images=images, knn=knn, notes=caches.notes)


MEASURED_IMAGES = 500
"""Maximum number of images that a normalization is measured on."""


def resolve_normalize(config: PretrainConfig, policy: Policy, images: ImageDataset) -> tuple[Normalize, str]:
    """The normalization that the settings mean, and a note about it.

    Args:
        policy: the augmentation, which may have a normalization of its own.
        images: the training images, to measure.
    """
    choice, own = config.normalize, policy[0].normalize
    if choice is None and own != IMAGENET:
        normalize, what = own or Normalize((0.0,), (1.0,)), "of the augmentation"
    elif choice == "weights" or (choice is None and config.weights is not None):
        normalize, what = weights_normalize(full_name(config.backbone), config.weights), "of the weights"
    elif choice == "measured":
        normalize = measure_normalize(images)
        what = f"measured on {min(len(images), MEASURED_IMAGES)} images"
    elif choice in (None, "imagenet"):
        normalize, what = IMAGENET, "of ImageNet"
    else:
        assert choice is not None
        normalize, what = Normalize.parse(choice), "as given"
    mean, std = (", ".join(f"{each:.4g}" for each in values) for values in normalize.values(config.channels))
    return normalize, f"Normalization {what}: mean {mean}; std {std}."


def full_name(backbone: str) -> str:
    """The name of a backbone with that of its library."""
    library, name = backbones.resolve_name(backbone)
    return f"{library}/{name}"


def measure_normalize(images: ImageDataset) -> Normalize:
    """Mean and standard deviation of each channel over all pixels of a sample of images."""
    sums: list[npt.NDArray[np.float64]] = []
    indices = even_indices(len(images), MEASURED_IMAGES).tolist()
    for index in indices:
        pixels = images[index].pixels
        values = pixels.reshape(-1, pixels.shape[2]).astype(np.float64) / (255 if pixels.dtype == np.uint8 else 1)
        sums.append(np.stack([np.full(values.shape[1], len(values)), values.sum(0), np.square(values).sum(0)]))
    number, first, second = np.sum(sums, axis=0)
    mean = first / number
    std = np.sqrt(np.maximum(second / number - mean**2, 0))
    if not (std > 1e-6).all():
        raise SourceError(
            f"channel {int(np.argmin(std))} has the same value in all pixels of {len(indices)} images, by which "
            "nothing can be normalized: pass --normalize MEAN,STD, or use images that differ"
        )
    return Normalize(tuple(round(float(each), 6) for each in mean), tuple(round(float(each), 6) for each in std))


def augment_for(config: PretrainConfig, size: int) -> str:
    """The augmentation policy that was chosen, or else the method's own, for views of this size."""
    published = config.method.augment
    return config.augment or (f"{published}-small" if size <= SMALL_IMAGE_SIZE else published)


def view_sizes(config: PretrainConfig) -> list[int]:
    """The size of each view in pixels; a policy is read only for methods that take any number of views."""
    num_views = config.method.module.num_views
    if num_views is not None:
        return [config.size or DEFAULT_SIZE] * num_views
    size = config.size or DEFAULT_SIZE
    return [view.size for view in load_policy(augment_for(config, size), size)]


def check_views(config: PretrainConfig, policy: Policy) -> None:
    """Raise if the method cannot take the views of this policy."""
    module, sizes = config.method.module, [view.size for view in policy]
    wrapped = config.objective == "unmix" and module.unmix_targets
    num_views = 2 if wrapped else module.num_views
    name = f"{config.method.name} under unmix" if wrapped else config.method.name
    if num_views not in (None, len(policy)):
        raise ValueError(
            f"--augment {config.augment} makes {len(policy)} views per image, but {name} takes "
            f"{num_views}: choose another augmentation"
        )
    if len(set(sizes)) > 1 and (sizes[0] != sizes[1] or max(sizes) > sizes[0]):
        raise ValueError(
            f"--augment {config.augment} makes views of {', '.join(map(str, sizes))} pixels: two global ones of the "
            "largest size must come first, then the local crops"
        )


def find_batch_size(config: PretrainConfig, fabric: Fabric, images: int) -> int:
    """The largest batch that fits in memory, by trying."""
    if fabric.world_size > 1:
        raise ValueError(
            "--batch_size auto works on one device only: run it with --devices 1, then pass the number it prints"
        )
    assert config.size is not None
    assert config.augment is not None
    device, sizes = fabric.device, [view.size for view in load_policy(config.augment, config.size)]
    objective = build_objective(config.objective, config.mixing)

    def step(batch_size: int) -> None:
        backbone = backbones.build(config.backbone, size=sizes[0], channels=config.channels, stem=config.stem)
        run = RunLength(images, 1, batch_size, sizes[0], config.channels)
        method = build_method(config.method, backbone, run, config.objective).to(device)
        optimizer = build_optimizer(method, config.optimizer, batch_size)
        count = -(-batch_size // config.accumulate_grad_batches)
        views = [torch.rand(count, config.channels, size, size, device=device) for size in sizes]
        terms = objective.draw(views[0], mixture_generators(0, 0))
        with fabric.autocast():
            _, targets = backward(method, views, terms)
        optimizer.step()
        method.update(targets, progress=0.0)

    limit = min(max(images // 4, 8), 4096)  # a few steps per epoch, at least
    return largest_batch(step, 32, limit, device=device, multiple=8 * config.mixing.mix_groups)


def build(config: PretrainConfig, fabric: Fabric, data: TrainingData) -> Run:
    """Everything that a process trains with, from settings that are resolved."""
    assert config.size is not None
    assert config.augment is not None
    assert config.batch_size != "auto"
    per_device = config.batch_size // fabric.world_size
    if config.accumulate_grad_batches * 2 > per_device:
        raise ValueError(
            f"--accumulate_grad_batches {config.accumulate_grad_batches} leaves fewer than 2 images per micro-batch "
            f"({per_device} per device): use a smaller one"
        )
    data = with_image_cache(config, data)
    assert config.normalize is not None
    normalize = IMAGENET if config.normalize == "imagenet" else Normalize.parse(config.normalize)
    policy = load_policy(config.augment, config.size, config.min_crop_scale, normalize)
    sampler = EpochSampler(len(data.images), config.batch_size, config.seed, fabric.global_rank, fabric.world_size)
    free = default_workers(fabric.world_size // getattr(fabric.strategy, "num_nodes", 1))
    workers = free if config.workers is None else config.workers
    loader = view_loader(
        data.images,
        policy,
        sampler,
        workers=workers,
        pin_memory=fabric.device.type == "cuda",
        device=fabric.device if config.augment_device == "device" else None,
        exact_decoding=config.exact_decoding,
    )
    backbone, notes = build_backbone(config, policy)
    steps = config.epochs * sampler.batches_per_epoch
    colors = normalize.values(config.channels)
    length = RunLength(len(data.images), steps, config.batch_size, config.size, config.channels, colors)
    method = build_method(config.method, backbone, length, config.objective)
    channels_last = config.channels_last and supports_channels_last(method.encoder, config.channels, config.size)
    notes += [*data.notes, *prepare_for_devices(config, fabric, method, channels_last)]
    scaled = grad_scaler(fabric) is not None
    module, optimizer = fabric.setup(
        method, build_optimizer(method, config.optimizer, config.batch_size, scaled=scaled)
    )
    engine = Engine(
        fabric=fabric,
        module=module,
        network=method,
        optimizer=optimizer,
        config=config,
        objective=build_objective(config.objective, config.mixing),
        sampler=sampler,
        loader=loader,
        channels_last=channels_last,
    )
    notes += load_checkpoint(config, engine)
    monitor = Monitor(
        fabric, method, engine.objective, data.images, policy, data.knn, config.seed, config.exact_decoding
    )

    def export(about: dict[str, str], name: str) -> None:
        save_encoder(Path(config.out) / name, method.encoder, backbone.spec, about)

    return Run(config, engine, monitor, export, notes, workers, data_loading_hints(config, data, fabric, workers, free))


def build_backbone(config: PretrainConfig, policy: Policy) -> tuple[backbones.Backbone, list[str]]:
    """The encoder to train, and notes about it."""
    assert config.size is not None
    torch.manual_seed(config.seed)  # the same initial weights on every process
    backbone = backbones.build(
        config.backbone,
        size=config.size,
        channels=config.channels,
        stem=config.stem,
        weights=config.weights,
        zero_init_residual=config.method.zero_init_residual if config.zero_init is None else config.zero_init,
        drop_path=config.drop_path,
    )
    notes = list(backbone.notes)
    if config.freeze is not None:
        notes.append(freeze(backbone.encoder, config.backbone, config.freeze))
    for crop in sorted({view.size for view in policy} - {config.size}):
        backbones.check_crops(backbone.encoder, config.backbone, size=config.size, crop=crop, channels=config.channels)
    return backbone, notes


def data_loading_hints(
    config: PretrainConfig, data: TrainingData, fabric: Fabric, workers: int, free: int
) -> list[str]:
    """Ways to speed up data loading where training waits for it, the most effective first.

    Args:
        workers: number of data loading workers of this process.
        free: number of workers that there are cores for.
    """
    hints, source = [], data.images.source
    if isinstance(source, ShrunkImages):
        if source.cache is not None and source.cache.writable and len(source.cache) < len(source):
            hints.append("the cache, once this epoch has filled it")
    elif config.channels in MODES and is_encoded(source):
        hints.append("--cache DIR in a new run, which decodes each image only once, to a shrunk copy")
    if workers < free:
        hints.append(f"--workers {free}, as many as there are cores for")
    if fabric.device.type != "cpu" and config.augment_device == "cpu":
        hints.append("--augment_device device")
    if workers >= free:
        hints.append("more cores")
    return hints


def is_encoded(source: Source) -> bool:
    """Return True if images are files, which take time to decode, and not pixels."""
    try:
        return isinstance(source.read(0), bytes)
    except BadImage:
        return True


def load_checkpoint(config: PretrainConfig, engine: Engine) -> list[str]:
    """Put the engine where the last checkpoint of the run left it, if there is one; returns notes."""
    state = latest_state(engine.fabric, config.out)
    if state is None:
        return []
    engine.load_state(state)
    if engine.step > engine.steps:
        done = -(-engine.step // engine.sampler.batches_per_epoch)
        raise RunDirectoryError(
            f"the run in {config.out} has done {done} epochs already, more than --epochs {config.epochs}"
        )
    return [f"Resuming from step {engine.step} of {engine.steps}."]


def prepare_for_devices(config: PretrainConfig, fabric: Fabric, method: Method, channels_last: bool) -> list[str]:
    """Fit the method to the devices; returns notes about what that means."""
    notes = synchronize_batch_norm(method, fabric.device) if config.sync_bn and method.batch_norm == "sync" else []
    if channels_last:
        method.to(memory_format=torch.channels_last)
    elif config.channels_last:
        notes.append("The backbone calls view on feature maps, so it runs without channels_last.")
    if config.compile:
        method.online.compile()
    return notes


def build_method(
    config: MethodConfig, backbone: backbones.Backbone, run: RunLength, objective: ObjectiveName = "sim"
) -> Method:
    """The method around a backbone; under Un-Mix in its wrapper, where the method's targets are mixed."""
    method = config.resolve(run).build(backbone.encoder, backbone.feature_dim, run)
    return UnMix(method) if objective == "unmix" and method.unmix_targets else method


def build_mixer(mixing: MixingConfig) -> Mixer:
    """The mixer of these settings."""
    kind: type[Mixer] = MIXERS.load(mixing.mixer)
    return kind.from_options(
        alpha=mixing.alpha,
        lam_per=mixing.lam_per,
        partner=mixing.partner,
        lam_at_least_half=mixing.lam_at_least_half,
        prob=mixing.prob,
        anchors=mixing.anchors,
        grid=mixing.grid,
        parents=mixing.parents,
    )


def build_objective(name: ObjectiveName, mixing: MixingConfig) -> Objective:
    """The objective of this name under these mixtures."""
    if not is_valid(ObjectiveName, name):
        raise ValueError(f"objective must be {describe(ObjectiveName)}, got {name!r}{suggest(ObjectiveName, name)}")
    mutual = mixing.lam_per != "image" and mixing.partner != "permutation"
    if name == "unmix" and not (mutual and mixing.anchors == "all"):
        raise ValueError(
            "unmix needs mutual partners that share one lam: set --mixing.lam_per batch, --mixing.partner reversal and "
            "--mixing.anchors all"
        )
    if name == "sim":
        return sim()
    if name == "wbsim":
        return wbsim(mixing.weight, mixing.sim_weight, build_mixer(mixing))
    return {"bsim": bsim, "mixaug": mixaug, "unmix": unmix}[name](build_mixer(mixing))


def supports_channels_last(encoder: nn.Module, channels: int, size: int) -> bool:
    """Return True if an encoder can take images in channels_last: one that calls `view` on its feature maps cannot."""
    training = encoder.training
    images = torch.zeros(2, channels, size, size).to(memory_format=torch.channels_last)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            encoder.eval()(images)
        except RuntimeError as error:
            if "view" not in str(error):
                raise
            return False
        finally:
            encoder.train(training)
    return True
