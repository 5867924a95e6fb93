"""Features of images, computed once: kept on disk, mapped into memory, resumed after a kill.

    features = extract(loaded, source, CenterCrop(224), stages=("res5", "avgpool"))
    features["avgpool"]                                            # [M, D], of the images in features.indices

They are kept in mixview's cache under a key of weights, images and transform. A block of images counts when its
features are on the disk and not before, so that what was cut short is continued and never taken for whole. Several
processes, of one command (`devices`) or started by torchrun, take blocks in turn and need not talk to each other.
"""

import contextlib
import hashlib
import json
import math
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, cast, final

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, start_processes
from torch.utils.data import Dataset

from mixview.data.augment.torch_backend import new_tensor
from mixview.data.cache import cache_folder, reserve
from mixview.data.dataset import ImageDataset
from mixview.data.loader import Loader, WorkerDied, default_workers, to_tensor
from mixview.data.sources.base import BadImage, Source, even_indices
from mixview.encoders.loading import ComputeConfig, LoadedEncoder
from mixview.encoders.transforms import Transform
from mixview.io.environment import process_rank
from mixview.runs.devices import require_accelerator
from mixview.runs.progress_bar import Advance, bar

Stage = Literal["stem", "res2", "res3", "res4", "res5", "avgpool"]
PatchStage = Literal["stem-patches", "res2-patches", "res3-patches", "res4-patches", "res5-patches", "avgpool-patches"]
"""The same stages, not pooled; `avgpool-patches` is what an encoder pools at its end."""

FORMAT = 2
"""Version of the cache; raised when the same key would mean other numbers."""

BLOCK = 64
"""Images that are counted together: a multiple of the number that are encoded together."""

HEAP = 32 << 20
"""Bytes up to which glibc keeps memory that was freed for the next who needs it."""

FLUSH_SECONDS = 1.0
"""Time between two waits for the disk."""

START_METHOD = "spawn"
"""The start method of processes: a forked one could not use CUDA."""

SAMPLE = 32
"""Images whose content is part of the key, besides the names and sizes of all."""


class Pool(NamedTuple):
    """The pooling of a stage's maps to about 9,000 numbers: OpenSelfSup's `MultiPooling` of ResNet-50 at 224²."""

    kernel: int
    stride: int
    padding: int
    made_for: int
    """The side of the maps that the three are for."""
    side: int
    """The side after pooling; maps of another side are pooled to this adaptively, or left as they are if smaller."""

    def __call__(self, maps: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, C * side * side]"""
        if maps.shape[-2:] == (self.made_for, self.made_for):
            return F.avg_pool2d(maps, self.kernel, self.stride, self.padding).flatten(1)
        height, width = (min(self.side, side) for side in maps.shape[-2:])
        return F.adaptive_avg_pool2d(maps, (height, width)).flatten(1)


POOLS: dict[str, Pool] = {
    "stem": Pool(10, 10, 4, 112, 12),
    "res2": Pool(16, 8, 0, 56, 6),
    "res3": Pool(13, 5, 0, 28, 4),
    "res4": Pool(8, 3, 0, 14, 3),
    "res5": Pool(6, 1, 0, 7, 2),
}
PATCHES = "-patches"
AnyStage = TypeVar("AnyStage", Stage, PatchStage, Stage | PatchStage)
STAGES: tuple[Stage, ...] = ("stem", "res2", "res3", "res4", "res5", "avgpool")


def stages_of(encoder: nn.Module) -> tuple[Stage, ...]:
    """The stages that an encoder has: all six of a ResNet, only its output of any other."""
    layers = all(hasattr(encoder, f"layer{number}") for number in range(1, 5))
    return STAGES if layers and (hasattr(encoder, "relu") or hasattr(encoder, "act1")) else ("avgpool",)


def check_stages(encoder: nn.Module, stages: Iterable[str]) -> None:
    """Raise if an encoder lacks one of the stages."""
    missing = [stage for stage in stages if stage not in stages_of(encoder)]
    if missing:
        raise ValueError(
            f"{type(encoder).__name__} has no stage {missing[0]}, only a ResNet has: use avgpool, its output"
        )


def stage_module(encoder: nn.Module, stage: str) -> nn.Module:
    """The part of a ResNet whose output a stage is."""
    stem = "relu" if hasattr(encoder, "relu") else "act1"  # torchvision's name, and timm's
    return encoder.get_submodule(stem if stage == "stem" else f"layer{int(stage[3:]) - 1}")


@final
class PatchMaps(nn.Module):
    """Features of each patch of square images: [N, C, S, S] -> [N, D, h, w].

    They are a ResNet stage's maps (with `avgpool` the last ones) or a vision transformer's normalized patch tokens,
    without class token and registers; of another network the maps that it pools at its end.
    """

    def __init__(self, encoder: nn.Module, stage: Stage = "avgpool") -> None:
        super().__init__()
        check_stages(encoder, (stage,))
        self.encoder = encoder
        if stage == "avgpool" and stages_of(encoder) == STAGES:
            stage = "res5"
        self.stage = stage

    def forward(self, images: Tensor) -> Tensor:
        encoder = self.encoder
        if self.stage != "avgpool":
            return self.run_until(stage_module(encoder, self.stage), images)
        if hasattr(encoder, "forward_features"):  # timm
            features: Tensor = cast(Callable[[Tensor], Tensor], encoder.forward_features)(images)
            if features.ndim == 3:
                return tokens_to_maps(features, int(getattr(encoder, "num_prefix_tokens", 0)))
            return features.permute(0, 3, 1, 2) if getattr(encoder, "output_fmt", "") == "NHWC" else features
        if hasattr(encoder, "conv_proj") and hasattr(encoder, "encoder"):  # torchvision's ViT
            return tokens_to_maps(self.run_until(encoder.get_submodule("encoder"), images), 1)
        if hasattr(encoder, "avgpool"):
            return self.run_until(encoder.get_submodule("avgpool"), images, of_input=True)
        raise ValueError(
            f"{type(encoder).__name__} has no patch features that mixview can find: use a ResNet or a ViT of "
            "torchvision or timm, or give your module a forward_features that returns maps [N, D, h, w]"
        )

    def run_until(self, module: nn.Module, images: Tensor, *, of_input: bool = False) -> Tensor:
        """The output (or input) of a part of the encoder for these images."""
        kept: list[Tensor] = []
        hook = module.register_forward_hook(
            lambda module, inputs, output: kept.append(inputs[0] if of_input else output)
        )
        try:
            self.encoder(images)
        finally:
            hook.remove()
        return kept[-1]


def tokens_to_maps(tokens: Tensor, prefix: int) -> Tensor:
    """Tokens [N, prefix + h * w, D] of square images, `prefix` of them of no place, as maps [N, D, h, w]."""
    patches = tokens[:, prefix:].transpose(1, 2)
    side = math.isqrt(patches.shape[2])
    if side * side != patches.shape[2]:
        raise ValueError(
            f"{patches.shape[2]} patch tokens do not form a square: patch features are for square images only"
        )
    return patches.reshape(*patches.shape[:2], side, side)


@final
class StageFeatures(nn.Module):
    """Several stages of an encoder in one pass: images -> {stage: [N, D]}, `avgpool` being the encoder's own output.

    Of patches D is all of them, row by row: h * w * their width.
    """

    def __init__(self, encoder: nn.Module, stages: Sequence[Stage | PatchStage]) -> None:
        super().__init__()
        check_stages(encoder, [stage.removesuffix(PATCHES) for stage in stages])
        self.encoder = encoder
        self.stages = tuple(stages)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        patches = {
            stage: PatchMaps(self.encoder, cast(Stage, stage.removesuffix(PATCHES)))(images)
            for stage in self.stages
            if stage.endswith(PATCHES)
        }
        pooled: dict[str, Tensor] = {stage: maps.permute(0, 2, 3, 1).flatten(1) for stage, maps in patches.items()}
        if len(pooled) == len(self.stages):
            return pooled
        hooks = []
        for stage in self.stages:
            if stage == "avgpool" or stage in pooled:
                continue

            def keep(module: nn.Module, inputs: Any, maps: Tensor, stage: str = stage) -> None:
                pooled[stage] = POOLS[stage](maps)

            hooks.append(stage_module(self.encoder, stage).register_forward_hook(keep))
        try:
            output: Tensor = self.encoder(images)
        finally:
            for hook in hooks:
                hook.remove()
        return {stage: output if stage == "avgpool" else pooled[stage] for stage in self.stages}


@final
@dataclass(frozen=True)
class Features:
    """The features of a source's images, mapped into memory."""

    folder: Path
    """The folder of the arrays."""
    indices: npt.NDArray[np.int64]
    """[M] the images that could be read, by their index in the source."""
    stages: tuple[Stage | PatchStage, ...]

    def __getitem__(self, stage: Stage | PatchStage) -> Tensor:
        """[M, D] float32"""
        rows: npt.NDArray[np.float32] = np.load(self.folder / f"{stage}.npy", mmap_mode="c")
        return torch.from_numpy(rows if len(self.indices) == len(rows) else rows[self.indices])


def extract_for(
    options: ComputeConfig, loaded: LoadedEncoder, source: Source, transform: Transform, stage: Stage | PatchStage
) -> Features:
    """`extract`, where and as the options of a command say."""
    compute: Any = {"device": options.device, "devices": options.devices, "workers": options.workers}
    return extract(loaded, source, transform, stages=(stage,), **compute)


def extract(
    loaded: LoadedEncoder,
    source: Source,
    transform: Transform,
    *,
    stages: Sequence[Stage | PatchStage] = ("avgpool",),
    device: str = "auto",
    devices: int = 1,
    workers: int | None = None,
) -> Features:
    """The features of all images of a source, from the cache or made now.

    Args:
        loaded: the encoder.
        source: the images; a bad one is left out, and too many of them stop, as everywhere.
        transform: the transform from an image to the input.
        stages: the features to extract; all are computed in one pass.
        device: cpu, cuda, mps … or auto.
        devices: processes to make them with, each on an accelerator of its own where there are any.
        workers: processes that read images, for each of these.
    """
    rank, world_size = rank_and_world_size()
    folder = cache_folder("features") / cache_key(loaded, source, transform, stages)
    if rank > 0:
        wait_until(folder.is_dir)
    elif not folder.is_dir():
        prepare(folder, len(source), measure_widths(loaded, stages))
    done = open_array(folder, "done")
    if not done.all():
        if rank == 0 and world_size == 1:  # what was begun without
            for path in folder.glob("*.npy"):
                reserve(path)
        what = f"features of {len(source)} images"
        with bar(what, len(done), int(done.sum())) as advance:
            job = Job(folder, loaded, source, transform, stages)
            if devices > 1 and world_size == 1:
                spawn(job, device, devices, workers, advance)
            else:
                here = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
                workers = default_workers(here) if workers is None else workers
                fill(job, pick_device(device), rank, world_size, workers, advance)
                wait_until(lambda: bool(done.all()))
    index = np.load(folder / "index.npy")
    good = index == np.arange(len(index))
    if rank == 0:
        images = image_dataset(loaded, source)
        for bad in np.flatnonzero(~good).tolist():
            images[
                bad
            ]  # names it, and stops when there are too many, whether they were met now or by an earlier command
    return Features(folder, np.flatnonzero(good), tuple(stages))


def image_dataset(loaded: LoadedEncoder, source: Source) -> ImageDataset:
    """The images of a source as an encoder takes them."""
    return ImageDataset(source, loaded.decoder(source))


class Job(NamedTuple):
    """The inputs of features, and the folder that they are written into."""

    folder: Path
    loaded: LoadedEncoder
    source: Source
    transform: Transform
    stages: Sequence[Stage | PatchStage]


def fill(
    job: Job, device: torch.device, rank: int, world_size: int, workers: int, advance: Advance = lambda amount: None
) -> None:
    """Make the features of every `world_size`-th block that is missing, and write them where they belong."""
    folder, loaded, source, transform, stages = job
    module = StageFeatures(loaded.encoder, stages).to(device).eval()
    plan = plan_inference(module, loaded, device)
    writer = BlockWriter(folder, stages, loaded.name, len(source), rank, world_size, advance)
    pinned = device.type == "cuda"
    batches = load_blocks(loaded, source, transform, writer.missing, workers, plan, pin_memory=pinned)
    previous: tuple[dict[str, Tensor], Tensor] | None = None
    with contextlib.closing(writer), torch.inference_mode():
        for images, which in batches:
            features = module(images.to(device, non_blocking=True))
            if previous is not None:  # while an accelerator works on the next
                writer.write(*previous)
            previous = features, which
        if previous is not None:
            writer.write(*previous)


class InferencePlan(NamedTuple):
    """Batch size and memory format of the images in a network."""

    batch_size: int
    """Images per batch."""
    channels_last: bool


def plan_inference(module: nn.Module, loaded: LoadedEncoder, device: torch.device) -> InferencePlan:
    """Channels last, unless the network cannot take it; on a CPU as many images as the heap has room for.

    glibc takes larger pieces of memory than `HEAP` from the system and gives them back each time, which then clears
    every page of them again: for a ResNet-18 on batches of 64 that is a quarter of the time.
    """
    largest = 1

    def measure(module: nn.Module, inputs: Any, output: Any) -> None:
        nonlocal largest
        largest = max(largest, output.nbytes if isinstance(output, Tensor) else 1)

    hooks = [each.register_forward_hook(measure) for each in module.modules()]
    image = torch.zeros(1, loaded.channels, loaded.size, loaded.size, device=device)
    try:
        # Outside of inference mode, which would leave weights that nobody can train any more.
        module.to(memory_format=torch.channels_last)
        with torch.inference_mode():
            module(image.to(memory_format=torch.channels_last))
        channels_last = True
    except RuntimeError as error:
        if "view" not in str(error):
            raise
        module.to(memory_format=torch.contiguous_format)
        with torch.inference_mode():
            module(image)
        channels_last = False
    finally:
        for hook in hooks:
            hook.remove()
    fitting = max(1, HEAP // largest) if device.type == "cpu" else BLOCK
    return InferencePlan(min(BLOCK, 1 << (fitting.bit_length() - 1)), channels_last)


@final
class BlockWriter:
    """A writer of features, which from time to time marks the blocks that are on the disk as done.

    Args:
        folder: the folder of the arrays.
        stages: the stages to write.
        name: the name of the encoder, for errors.
        count: number of images.
        rank: the rank of this process.
        world_size: number of processes; each writes blocks in turn.
        advance: a callback that shows progress by blocks.
    """

    def __init__(
        self,
        folder: Path,
        stages: Sequence[Stage | PatchStage],
        name: str,
        count: int,
        rank: int,
        world_size: int,
        advance: Advance,
    ) -> None:
        self.done, self.index = open_array(folder, "done"), open_array(folder, "index")
        self.arrays = {stage: open_array(folder, stage) for stage in stages}
        self.name = name
        self.count = count
        self.advance = advance
        self.missing = [block for block in range(rank, len(self.done), world_size) if not self.done[block]]
        self._next = iter(self.missing)
        self._block, self._row, self._end = -1, 0, 0
        self._whole: list[int] = []
        self._flushed = time.monotonic()

    def write(self, features: Mapping[str, Tensor], which: Tensor) -> None:
        """Write the features of the next images, all of one block."""
        if self._row == self._end:
            self._block = next(self._next)
            self._row, self._end = self._block * BLOCK, min((self._block + 1) * BLOCK, self.count)
        rows = slice(self._row, self._row + len(which))
        for stage, array in self.arrays.items():
            values = features[stage].float().cpu()
            if not bool(values.isfinite().all()):
                raise ValueError(
                    f"the features ({stage}) of {self.name} contain NaN or infinity: look for a loss that diverged, "
                    "or for weights in half precision that overflow"
                )
            array[rows] = values.numpy()
        self.index[rows] = which.numpy()
        self._row = rows.stop
        if self._row == self._end:
            self._whole.append(self._block)
            if time.monotonic() - self._flushed >= FLUSH_SECONDS:
                self.flush()

    def flush(self) -> None:
        """Wait for the disk, and count the blocks that are whole."""
        for array in (*self.arrays.values(), self.index):
            array.flush()
        self.done[self._whole] = True  # after the features, so that a block that counts is whole
        self.done.flush()
        self.advance(len(self._whole))
        self._whole = []
        self._flushed = time.monotonic()

    def close(self) -> None:
        if self._whole:
            self.flush()


@final
class TransformedImages(Dataset[tuple[Tensor, int]]):
    """Images transformed to the encoder's input."""

    def __init__(self, images: ImageDataset, transform: Transform, channels_last: bool = False) -> None:
        self.images = images
        self.transform = transform
        self.channels_last = channels_last

    def __len__(self) -> int:
        return len(self.images)

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        """[B, C, S, S], and which images they are [B]: another image replaces a bad one."""
        batch, numbers = torch.empty(0), []
        for row, index in enumerate(indices):
            sample = self.images.load(index, self.transform.decode_factor)
            image = self.transform(to_tensor(sample.pixels))
            if not row:
                batch = self._new_batch(len(indices), image.shape)
            batch[row] = image
            numbers.append(sample.index)
        return batch, torch.tensor(numbers)

    def _new_batch(self, count: int, shape: torch.Size) -> Tensor:
        channels, height, width = shape
        if self.channels_last:
            return new_tensor((count, height, width, channels)).permute(0, 3, 1, 2)
        return new_tensor((count, channels, height, width))


def load_blocks(
    loaded: LoadedEncoder,
    source: Source,
    transform: Transform,
    blocks: Sequence[int],
    workers: int,
    plan: InferencePlan | None = None,
    pin_memory: bool = False,
) -> Iterator[tuple[Tensor, Tensor]]:
    """The images of these blocks, one block after the other, whole or in batches as planned."""
    images = image_dataset(loaded, source)
    batch_size, channels_last = plan or InferencePlan(BLOCK, False)
    ranges = [range(block * BLOCK, min((block + 1) * BLOCK, len(source))) for block in blocks]
    batches = [list(part[at : at + batch_size]) for part in ranges for at in range(0, len(part), batch_size)]
    yield from Loader(
        TransformedImages(images, transform, channels_last),
        workers=min(workers, len(batches)),
        batch_sampler=batches,
        pin_memory=pin_memory,
    )


# The cache


def cache_key(loaded: LoadedEncoder, source: Source, transform: Transform, stages: Sequence[Stage | PatchStage]) -> str:
    """A hash of everything that decides the features: weights, images, transform, stages."""
    content = hashlib.blake2b(digest_size=8)
    for number in even_indices(len(source), SAMPLE).tolist():
        try:
            stored = source.read(number)
        except BadImage:
            stored = b"bad"
        content.update(stored if isinstance(stored, bytes) else np.ascontiguousarray(stored).tobytes())
    images = [source.fingerprint(), content.hexdigest(), loaded.channels]
    parts: list[Any] = [FORMAT, loaded.weights_key(), images, repr(transform), list(stages)]
    if (value_range := loaded.decoder(source).value_range) is not None:
        parts.append(str(value_range))
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=12).hexdigest()


def prepare(folder: Path, count: int, widths: Mapping[Stage | PatchStage, int]) -> None:
    """Make the empty arrays, all at once: next to the folder, then renamed, so that the folder appears atomically."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        shapes: dict[str, tuple[tuple[int, ...], Any]] = {
            "done": ((-(-count // BLOCK),), np.bool_),
            "index": ((count,), np.int64),
            **{stage: ((count, width), np.float32) for stage, width in widths.items()},
        }
        for name, (shape, kind) in shapes.items():
            np.lib.format.open_memmap(beside / f"{name}.npy", mode="w+", dtype=kind, shape=shape)
            reserve(beside / f"{name}.npy")
        beside.rename(folder)
    except OSError:
        shutil.rmtree(beside, ignore_errors=True)
        if not folder.is_dir():  # unless another process was first
            raise


def open_array(folder: Path, name: str) -> Any:
    """One of the arrays, to read and to write."""
    return np.lib.format.open_memmap(folder / f"{name}.npy", mode="r+")


def measure_widths(loaded: LoadedEncoder, stages: Sequence[AnyStage]) -> dict[AnyStage, int]:
    """The number of features of each stage."""
    parameter = next(loaded.encoder.parameters(), torch.empty(0))
    images = torch.zeros(2, loaded.channels, loaded.size, loaded.size, device=parameter.device)
    with torch.inference_mode():
        features = StageFeatures(loaded.encoder, stages).eval()(images)
    return {stage: features[stage].shape[1] for stage in stages}


def measure_patches(loaded: LoadedEncoder, stage: Stage = "avgpool") -> tuple[int, int, int]:
    """The height and the width of the grid of patches, and the width of their features."""
    images = torch.zeros(2, loaded.channels, loaded.size, loaded.size)
    parameter = next(loaded.encoder.parameters(), images)
    with torch.inference_mode():
        maps = PatchMaps(loaded.encoder, stage).eval()(images.to(parameter.device))
    return maps.shape[2], maps.shape[3], maps.shape[1]


# Processes


def rank_and_world_size() -> tuple[int, int]:
    """This process's rank and the number of processes, as torchrun or mixview itself says; 0 and 1 without them."""
    return process_rank(slurm=False), int(os.environ.get("WORLD_SIZE") or 1)


def pick_device(name: str, number: int | None = None) -> torch.device:
    """The device of a name; `auto` is an accelerator where there is one. With a number, or under torchrun, that one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if re.fullmatch(r"(cpu|cuda|mps|xpu)(:\d+)?", name) is None:
        raise ValueError(f"there is no device {name!r}: pass cpu, cuda, mps or auto")
    require_accelerator(name.partition(":")[0])
    if name == "cuda":
        local = int(os.environ.get("LOCAL_RANK") or 0) if number is None else number
        return torch.device("cuda", local % max(torch.cuda.device_count(), 1))
    return torch.device(name)


def wait_until(condition: Any) -> None:
    """Wait for the other processes; their launcher ends this one if one of them fails."""
    while not condition():
        time.sleep(0.2)


def spawn(job: Job, device: str, devices: int, workers: int | None, advance: Advance) -> None:
    """Fill the arrays with this many processes, and show their joint progress."""
    done = open_array(job.folder, "done")
    before = int(done.sum())
    each = default_workers(devices) if workers is None else workers
    threads = max(1, torch.get_num_threads() // devices)
    arguments = (job, device, devices, each, threads)
    running = start_processes(fill_part, arguments, nprocs=devices, join=False, start_method=START_METHOD)
    try:
        while not running.join(timeout=0.5):
            now = int(done.sum())
            advance(now - before)
            before = now
    except ProcessRaisedException as error:
        # The traceback of the process, which ends in the error's own words: ours say all.
        match = re.search(r"^(?:mixview\.[\w.]+|ValueError|OSError): (.+)", str(error), re.MULTILINE | re.DOTALL)
        if match is None:
            raise
        raise ValueError(match[1].strip()) from None
    except ProcessExitedException as error:
        raise WorkerDied(
            f"a process that computes features died ({error}): if memory is short, use fewer --devices or --workers"
        ) from None


def fill_part(rank: int, job: Job, device: str, world_size: int, workers: int, threads: int) -> None:
    """Fill the part of a spawned process."""
    torch.set_num_threads(threads)
    fill(job, pick_device(device, rank), rank, world_size, workers)
