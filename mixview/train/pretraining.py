"""`mixview pretrain`: from images to an encoder. Builds what a run needs, trains, watches, and leaves it all in a folder."""

import inspect
import os
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import torch
import yaml
from lightning.fabric import Fabric
from lightning.fabric.strategies import DDPStrategy, Strategy
from torch import nn

from mixview import backbones
from mixview.backbones import Backbone
from mixview.data.augmentation import Augmentation, named
from mixview.data.decoding import Decoder
from mixview.data.loading import Batches, view_loader
from mixview.data.opening import open_source
from mixview.data.reading import Reader
from mixview.data.source import Source
from mixview.export import save_encoder
from mixview.methods import Method, MoCo
from mixview.train.checkpoints import Checkpoints
from mixview.train.engine import Engine, NonFiniteLoss
from mixview.train.estimate import estimate
from mixview.train.optimisers import Optimizer, build_optimizer
from mixview.train.progress import Progress
from mixview.train.run_folder import RunFolder
from mixview.train.settings import Head, MethodName, Mixing, ObjectiveName, build_method, build_objective
from mixview.train.stopping import Stopping, seconds_of
from mixview.train.watching import Watch, Watcher, find_validation

SMALL = 64
"""Pixels up to which images count as small: views of their own size, the small stem, the small augmentations."""


@dataclass(frozen=True, kw_only=True)
class Pretraining:
    """Learn an encoder from images without labels."""

    data: str | None = None
    """What to learn from: a folder of images, or any other path, address or name (see `mixview data list`)."""
    out: str = "runs/first"
    """The run's folder, made anew: settings, metrics, checkpoints, pictures and the encoder."""
    method: MethodName = "simclr"
    """What is learned from two views of an image."""
    objective: ObjectiveName = "wbsim"
    """sim is the method as published, bsim mixes every anchor, wbsim does both, mixaug is the ablation."""
    backbone: str = "resnet50"
    """Any torchvision or timm model by name, "small" for a CPU, or your own as package.module:factory."""

    split: str | None = None
    """The part of the data to learn from; by default the one for training."""
    data_options: dict[str, Any] | None = None
    """Further options of the source, such as {"count": 2000, "size": 32} for scenes."""
    validation: str | None = None
    """Labelled images for the k-NN accuracy; by default the val or test part of the data, where there is one."""
    augment: str | None = None
    """The augmentation by name; by default the method's own (its small variant for small images)."""
    size: int | None = None
    """Of the views in pixels; by default that of the images where they are small, else 224."""
    channels: int = 3
    """3 for colour, 1 for greyscale, more for what is stored so."""

    weights: str | None = None
    """Start from these: imagenet, a file, or an earlier run."""
    stem: Literal["auto", "small", "standard"] = "auto"
    """Of a ResNet: small (3×3, no pooling) or standard; auto goes by the size of the views."""
    mixing: Mixing = Mixing()
    """How views are mixed."""
    head: Head = Head()
    """What the method adds to the encoder."""

    epochs: int = 100
    """Passes over the images."""
    batch: int = 256
    """Images a step, over all devices together."""
    accumulate: int = 1
    """Micro-batches in which a device works off its part of a batch, to save memory."""
    exact_batch: bool = False
    """SimCLR: accumulate so that the negatives are the whole batch's, not the micro-batch's (GradCache)."""
    seed: int = 0
    """Of everything random."""
    optimizer: Optimizer = Optimizer()
    """The optimiser and its schedule."""

    devices: int | str = "auto"
    """How many on each machine; auto is all accelerators, or one CPU process."""
    nodes: int = 1
    """How many machines, under torchrun or SLURM."""
    accelerator: str = "auto"
    """cpu, cuda, mps, or auto."""
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    """Mixed precision is for accelerators: most CPUs are many times slower with it."""
    sync_bn: bool = True
    """Batch norm over all devices together, for every method but MoCo, which shuffles instead."""
    channels_last: bool = False
    """Memory format of images: a little faster for convolutions."""
    compile: bool = False
    """Compile the networks with torch.compile."""
    workers: int | None = None
    """Processes a device that read and augment; by default its share of the cores, less one."""

    watch: Watch = Watch()
    """How often the run looks at itself, and what it keeps."""
    max_time: str | None = None
    """Stop in good order after this time: 45m, 1h30m, 2d."""
    resume: bool = False
    """Go on with the run in `out`, bit for bit; a larger `epochs` extends it."""

    def run(self) -> Path:
        """Train. Returns the run's folder."""
        if self.data is None:
            raise ValueError("there is nothing to learn from: give --data a folder of images (scenes, to try it out)")
        if self.exact_batch and self.method != "simclr":
            raise ValueError(f"exact_batch is for simclr, whose negatives are the batch, not for {self.method}")
        options = self.data_options or {}
        whole = open_source(self.data, self.split, **options)
        source, held, words = hold_out(whole, self.data, options, self.validation, self.watch.hold_out, self.seed)
        reader = Reader(source, Decoder(mode=MODES.get(self.channels, "stored")))
        size = self.size or natural_size(reader)
        augment = self.augment or (f"{self.method}-small" if size <= SMALL else self.method)
        settled = replace(self, size=size, augment=augment)
        fabric = settled.make_fabric()
        folder = settled.prepare_folder(whole)
        fabric.launch()
        # On another machine than the first process's there is only the shared folder to look at.
        try:
            settled.train(fabric, folder, reader, held, words)
        except BaseException as error:
            if folder is not None:
                state = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
                folder.set_status(state, message=f"{type(error).__name__}: {error}")
            raise
        return Path(self.out)

    def make_fabric(self) -> Fabric:
        """Devices, processes and precision."""
        on_cpu = self.accelerator == "cpu" or (
            self.accelerator == "auto" and not torch.cuda.is_available() and not torch.backends.mps.is_available()
        )
        devices = 1 if on_cpu and self.devices == "auto" else self.devices
        launched = int(os.environ.get("WORLD_SIZE", "1"))  # by torchrun
        many = self.nodes > 1 or launched > 1 or str(devices) not in ("1", "auto")
        strategy: Strategy | str = "auto"
        if many or (devices == "auto" and torch.cuda.device_count() > 1):
            # The queue and the statistics of batch norms need not be sent every step: only rank 0's are kept.
            names = inspect.signature(nn.parallel.DistributedDataParallel).parameters
            quiet = "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"
            strategy = DDPStrategy(**{quiet: False})
        return Fabric(
            accelerator="cpu" if on_cpu else self.accelerator,
            devices=devices,
            num_nodes=self.nodes,
            strategy=strategy,
            precision=self.precision,
        )

    def prepare_folder(self, source: Source) -> RunFolder | None:
        """The run's folder, made or reopened by the first process before any other starts: a mistake ends here."""
        if first_rank() > 0:
            return None
        data = {"kind": source.kind, "count": len(source), "fingerprint": source.fingerprint()}
        restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0  # goes on by itself
        if RunFolder.exists(self.out) and (self.resume or restarted):
            folder = RunFolder.open(self.out)
            folder.check_resumable(self.config(), data)
            return folder
        if self.resume:
            raise ValueError(f"there is no run to resume in {self.out}: leave --resume out, or correct --out")
        return RunFolder.create(self.out, self.config(), data, seed=self.seed)

    def config(self) -> dict[str, Any]:
        """The settings as plain values, for the run's folder; whether it was resumed is not one of them."""
        return {name: value for name, value in asdict(self).items() if name != "resume"}

    def train(self, fabric: Fabric, folder: RunFolder | None, reader: Reader, held: Held | None, words: str) -> None:
        """What every process does."""
        assert self.size is not None
        assert self.augment is not None
        augmentations = named(self.augment, self.size)
        batches = Batches(len(reader), self.batch, self.seed, fabric.global_rank, fabric.world_size)
        steps = self.epochs * batches.total
        workers = default_workers(fabric.world_size // self.nodes) if self.workers is None else self.workers
        loader = view_loader(reader, augmentations, batches, workers=workers, pin_memory=fabric.device.type == "cuda")

        torch.manual_seed(self.seed)  # the same first weights on every process
        backbone = backbones.build(
            self.backbone,
            size=self.size,
            channels=self.channels,
            stem=self.stem,
            weights=self.weights,
            zero_init_residual=self.method == "simsiam",
        )
        method = build_method(
            self.method, backbone, self.head, images=len(reader), steps=steps, batch=self.batch
        )
        notes = [*backbone.notes, words, *self.adapt(fabric, method)]
        module, optimizer = fabric.setup(method, build_optimizer(method, self.optimizer, self.batch))
        engine = Engine(
            fabric=fabric,
            module=module,
            optimizer=optimizer,
            settings=self.optimizer,
            objective=build_objective(self.objective, self.mixing),
            batches=batches,
            loader=loader,
            epochs=self.epochs,
            seed=self.seed,
            accumulate=self.accumulate,
            exact_batch=self.exact_batch,
            mix_groups=self.mixing.mix_groups,
            channels_last=self.channels_last,
        )
        checkpoints = Checkpoints(Path(self.out) / "checkpoints", keep=self.watch.keep)
        found = checkpoints.load_latest()
        if found is not None:
            engine.load_state(found[0])
            notes.append(f"going on from step {engine.step} of {engine.steps}")
        watcher = Watcher(
            fabric, method, engine.objective, reader, augmentations, held, self.watch, self.seed
        )
        self.loop(engine, watcher, checkpoints, folder, backbone, notes)

    def adapt(self, fabric: Fabric, method: Method) -> list[str]:
        """Fit the method to the devices; what that means, in words."""
        notes = []
        if fabric.world_size > 1 and self.sync_bn and not isinstance(method, MoCo):
            if fabric.device.type == "cuda":
                method.online = nn.SyncBatchNorm.convert_sync_batchnorm(method.online)
                notes.append("batch norm is synchronised over all devices")
            else:
                notes.append("batch norm is each process's own: torch synchronises it on CUDA only")
        if self.channels_last:
            method.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if self.compile:
            method.online.compile()
        return notes

    def loop(
        self,
        engine: Engine,
        watcher: Watcher,
        checkpoints: Checkpoints,
        folder: RunFolder | None,
        backbone: Backbone,
        notes: list[str],
    ) -> None:
        """Train, look, log, save."""
        fabric = engine.fabric
        ask_every = 1 if fabric.device.type == "cpu" else self.watch.log_every
        stopping = Stopping(fabric, seconds_of(self.max_time), every=ask_every)
        journal = Journal(folder, self.watch, engine.step) if folder is not None else None
        with Progress(engine.steps, engine.batches.total, start=engine.step, enabled=journal is not None) as progress:
            for note in notes:
                progress.say(note)
            if journal is not None and engine.step == 0:
                watcher.picture(Path(self.out) / "views.png")
            if journal is not None and engine.step < engine.steps:
                guess = estimate(lambda: engine.try_step(watcher.views_of(self.batch // fabric.world_size)), engine)
                progress.say(str(guess))
