"""`mixview pretrain`: from images to an encoder. Builds what a run needs, trains, watches, leaves all in a folder."""

import difflib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from lightning_fabric import Fabric
from torch import nn

from mixview import backbones
from mixview.data.augmentation import named
from mixview.data.loading import Batches, default_workers, view_loader
from mixview.data.opening import SourceOptions, open_source
from mixview.data.reading import SMALL, Reader, decoder_for, natural_size
from mixview.data.source import Source, SourceError
from mixview.distributed import synchronize_batch_norm
from mixview.evaluate.provenance import encoder_settings
from mixview.export import save_encoder
from mixview.methods import Method, backward
from mixview.mixing import mixture_generators
from mixview.options import (
    MAX_SHOWN,
    ROOM,
    AtLeast,
    AtMost,
    Channels,
    Count,
    Epochs,
    MoreThan,
    Positive,
    Seed,
    Side,
    Workers,
    brief,
    check_options,
)
from mixview.train.checkpoints import Checkpoints
from mixview.train.devices import Accelerator, Precision, agree_on_checkpoint, grad_scaler, launch_once, make_fabric
from mixview.train.engine import Engine
from mixview.train.estimate import estimate, largest_batch
from mixview.train.journal import Journal
from mixview.train.launching import alone, losing_no_process, process_rank
from mixview.train.optimisers import Optimizer, build_optimizer, schedule_factor
from mixview.train.progress import Progress
from mixview.train.run_folder import RunFolder, RunFolderError, State, read_metrics, recorded, start_or_resume
from mixview.train.settings import (
    AUGMENTED_LIKE,
    Head,
    MethodName,
    Mixing,
    ObjectiveName,
    build_method,
    build_objective,
)
from mixview.train.stopping import Stopping, seconds_of
from mixview.train.watching import Held, Watch, Watcher, hold_out, note_trained_on, separate


@dataclass(frozen=True, kw_only=True)
class Pretraining:
    """Learn an encoder from images without labels."""

    data: str | None = None
    """What to learn from: a folder of images, or any other path, address or name (see `mixview data list`)."""
    out: Annotated[str, ROOM] = "runs/first"
    """The run's folder, made anew: settings, metrics, checkpoints, pictures and the encoder."""
    method: MethodName = "simclr"
    """What is learned from two views of an image."""
    objective: ObjectiveName = "wbsim"
    """sim is the method as published, bsim mixes every anchor, wbsim does both, mixaug is the ablation; unmix is
    Un-Mix's: both, of equal weight."""
    backbone: str = "resnet50"
    """Any torchvision or timm model by name, "small" for a CPU, or your own as package.module:factory."""

    split: str | None = None
    """The part of the data to learn from, such as train or train[:5000]; by default the one for training."""
    data_options: SourceOptions | None = None
    """Further options of the source, such as {"count": 2000, "size": 32} for scenes."""
    validation: str | None = None
    """Labelled images for the k-NN accuracy; by default the val or test part of the data, where there is one."""
    validation_split: str | None = None
    """The part of these images, or, where none are given, of the data, that the k-NN accuracy is of."""
    augment: Annotated[str, ROOM] | None = None
    """The augmentation by name; by default the method's own (its small variant for small images)."""
    smallest_crop: Annotated[float, MoreThan(0), AtMost(1)] | None = None
    """The smallest share of an image that a view shows, 0 to 1; by default the augmentation's own."""
    size: Side | None = None
    """Of the views in pixels; by default that of the images where they are small, else 224."""
    channels: Channels = 3
    """3 for colour, 1 for greyscale, more for what is stored so."""

    weights: str | None = None
    """Start from these: imagenet, a file, or an earlier run."""
    stem: Literal["auto", "small", "standard"] = "auto"
    """Of a ResNet: small (3×3, no pooling) or standard; auto goes by the size of the views."""
    zero_init: bool | None = None
    """Of a ResNet: start every residual block as a shortcut; by default as published: SimSiam does."""
    mixing: Mixing = field(default_factory=Mixing)
    """How views are mixed."""
    head: Head = field(default_factory=Head)
    """What the method adds to the encoder."""

    epochs: Epochs = 100
    """Passes over the images."""
    batch: Annotated[int, AtLeast(2)] | Literal["auto"] = 256
    """Images a step, over all devices together; auto finds the largest that fits in the memory of one device."""
    accumulate: Count = 1
    """Micro-batches in which a device works off its part of a batch, to save memory."""
    exact_batch: bool = False
    """SimCLR: accumulate so that the negatives are the whole batch's, not the micro-batch's (GradCache)."""
    seed: Seed = 0
    """Of everything random."""
    optimizer: Optimizer = field(default_factory=Optimizer)
    """The optimiser and its schedule."""

    devices: Count | str = "auto"
    """How many on each machine; auto is what torchrun or srun started, else all accelerators, or one CPU process."""
    nodes: Count | Literal["auto"] = "auto"
    """How many machines; auto is as many as torchrun or srun started processes on."""
    accelerator: Accelerator = "auto"
    """cpu, cuda, mps, or auto."""
    precision: Precision = "32-true"
    """Mixed precision is for accelerators: most CPUs are many times slower with it."""
    sync_bn: bool = True
    """Synchronize batch norm over all devices, in every network of a method; MoCo shuffles instead."""
    channels_last: bool = True
    """Memory format of images and networks: faster for convolutions on CPUs and tensor cores."""
    compile: bool = False
    """Compile the networks with torch.compile."""
    workers: Workers | None = None
    """Processes a device that read and augment; by default its share of the cores, less one."""

    augment_on: Literal["cpu", "device"] = "cpu"
    """Who makes the views: the workers, or the accelerator, of the pixels that they send: for few cores beside it."""

    watch: Watch = field(default_factory=Watch)
    """How often the run looks at itself, and what it keeps."""
    max_time: str | Positive | None = None
    """Stop in good order after this time: 45m, 1h30m, 2d."""
    resume: bool = False
    """Go on with the run in `out`, bit for bit; a larger `epochs` extends it."""

    def __post_init__(self) -> None:
        check_options(self)

    def run(self) -> Path:
        """Train. Returns the run's folder."""
        with alone():
            return self.run_alone()

    def run_alone(self) -> Path:
        """`run`, when nothing else trains in this process."""
        out = os.fspath(self.out)
        if out.startswith("~") or out is not self.out:  # from a file: what is typed, the command line has expanded
            return replace(self, out=str(Path(out).expanduser())).run_alone()
        if self.data is None:
            raise ValueError("there is nothing to learn from: give --data a folder of images (scenes, to try it out)")
        if self.exact_batch and (self.method not in ("simclr", "imix") or self.objective == "unmix"):
            raise ValueError(
                f"--exact_batch is for simclr and imix, whose negatives are the batch, not for {self.method} under "
                f"{self.objective}"
            )
        if Path(self.data).is_dir() and Path(self.out).resolve() == Path(self.data).resolve():
            raise ValueError(f"--out is the folder of the images, {self.data}: give a folder in it, such as runs/first")
        seconds_of(self.max_time)
        schedule_factor(self.optimizer, 0, self.epochs)
        options: dict[str, Any] = {**(self.data_options or {})}
        whole = open_source(self.data, self.split, **options)
        share, part = self.watch.hold_out, self.validation_split
        source, held, words = hold_out(whole, self.data, options, self.validation, share, self.seed, part)
        notes = [words]
        if process_rank() > 0 or not self.watch.look_every:
            held = None  # the first process alone evaluates
        if held is not None:
            held, note = separate(held, self.watch.images)
            if held is None and (self.validation or part):
                raise SourceError(f"{note} Give --validation or --validation_split other images, or leave them out.")
            notes += [note] if note else []
        reader = Reader(source, decoder_for(self.channels))
        size = self.size or natural_size(reader)
        own = AUGMENTED_LIKE.get(self.method, self.method)
        augment = self.augment or (f"{own}-small" if size <= SMALL else own)
        settled = replace(self, size=size, augment=augment)
        named(augment, size, self.smallest_crop)
        fabric = settled.make_fabric()
        if settled.batch == "auto":
            settled = replace(settled, batch=settled.find_batch(fabric, len(reader)))
            notes.append(f"A batch of {settled.batch} fits.")
        assert settled.batch != "auto"
        if len(reader) < settled.batch:
            few = f"give --batch {len(reader)}, or more images" if len(reader) > 1 else "give more images"
            raise SourceError(f"{len(reader)} images to learn from do not fill a batch of {settled.batch}: {few}")
        steps = settled.epochs * (len(reader) // settled.batch)
        head = settled.head.settle(self.method, images=len(reader), steps=steps, batch=settled.batch)
        settled = replace(settled, head=head)
        folder = settled.prepare_folder(whole)
        with recorded(folder), losing_no_process():
            if folder is not None:
                folder.note_images(source)
                notes += [] if held is None else note_trained_on(folder.path, held)
            launch_once(fabric)
            fabric.barrier()  # the folder is there now
            settled.train(fabric, folder, reader, held, notes)
        return Path(self.out)

    def make_fabric(self) -> Fabric:
        """Devices, processes and precision."""
        return make_fabric(
            devices=self.devices, nodes=self.nodes, accelerator=self.accelerator, precision=self.precision
        )

    def find_batch(self, fabric: Fabric, images: int) -> int:
        """The largest batch that fits in memory, by trying."""
        if fabric.world_size > 1:
            raise ValueError("--batch auto looks at one device: find it with --devices 1, then give it by number")
        assert self.size is not None
        device, size = fabric.device, self.size

        def step(batch: int) -> None:
            backbone = backbones.build(self.backbone, size=size, channels=self.channels, stem=self.stem)
            method = build_method(
                self.method, backbone, self.head, images=images, steps=1, batch=batch, objective=self.objective
            ).to(device)
            optimizer = build_optimizer(method, self.optimizer, batch)
            first, second = torch.rand(2, -(-batch // self.accumulate), self.channels, size, size, device=device)
            terms = build_objective(self.objective, self.mixing).draw(first, mixture_generators(0, 0))
            with fabric.autocast():
                _, targets = backward(method, (first, second), terms)
            optimizer.step()
            method.advance(targets, progress=0.0)

        limit = min(max(images // 4, 8), 4096)  # a few steps an epoch, at least
        return largest_batch(step, 32, limit, device=device, multiple=8 * self.mixing.mix_groups)

    def prepare_folder(self, source: Source) -> RunFolder | None:
        """The run's folder, made or reopened by the first process before any other starts: a mistake ends here."""
        data = {"kind": source.kind, "count": len(source), "fingerprint": source.fingerprint()}
        return start_or_resume(self.out, self.config(), data, resume=self.resume)

    def config(self) -> dict[str, Any]:
        """The settings as plain values, for the run's folder; whether it was resumed is not one of them."""
        return {name: value for name, value in asdict(self).items() if name != "resume"}

    def train(
        self, fabric: Fabric, folder: RunFolder | None, reader: Reader, held: Held | None, notes: list[str]
    ) -> None:
        """What every process does."""
        assert self.size is not None
        assert self.augment is not None
        assert self.batch != "auto"
        augmentations = named(self.augment, self.size, self.smallest_crop)
        batches = Batches(len(reader), self.batch, self.seed, fabric.global_rank, fabric.world_size)
        if self.accumulate * 2 > self.batch // fabric.world_size:
            raise ValueError(
                f"--accumulate {self.accumulate} cuts the {self.batch // fabric.world_size} images of a device into "
                "less than two each: use a smaller one"
            )
        nodes = getattr(fabric.strategy, "num_nodes", 1)
        workers = default_workers(fabric.world_size // nodes) if self.workers is None else self.workers
        loader = view_loader(
            reader,
            augmentations,
            batches,
            workers=workers,
            pin_memory=fabric.device.type == "cuda",
            device=fabric.device if self.augment_on == "device" else None,
        )
        published_zero_init = None if self.method == "simsiam" else False
        torch.manual_seed(self.seed)  # the same first weights on every process
        backbone = backbones.build(
            self.backbone,
            size=self.size,
            channels=self.channels,
            stem=self.stem,
            weights=self.weights,
            zero_init_residual=published_zero_init if self.zero_init is None else self.zero_init,
        )
        method = build_method(
            self.method,
            backbone,
            self.head,
            images=len(reader),
            steps=self.epochs * batches.total,
            batch=self.batch,
            objective=self.objective,
        )
        channels_last = self.channels_last and stands_channels_last(method.encoder, self.channels, self.size)
        notes = [*backbone.notes, *notes, *self.adapt(fabric, method, channels_last)]
        scaled = grad_scaler(fabric) is not None
        module, optimizer = fabric.setup(method, build_optimizer(method, self.optimizer, self.batch, scaled=scaled))
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
            ramp=self.mixing.ramp,
            channels_last=channels_last,
        )
        found = Checkpoints(Path(self.out) / "checkpoints").load_latest(fabric.device)
        agree_on_checkpoint(fabric, -1 if found is None else found[1], self.out)
        if found is not None:
            engine.load_state(found[0])
            if engine.step > engine.steps:
                done = -(-engine.step // batches.total)
                raise RunFolderError(
                    f"the run in {self.out} has done {done} epochs already, more than --epochs {self.epochs}"
                )
            notes.append(f"Going on from step {engine.step} of {engine.steps}.")
        watcher = Watcher(fabric, method, engine.objective, reader, augmentations, held, self.watch, self.seed)
        export = partial(save_encoder, Path(self.out) / "encoder.safetensors", method.encoder, backbone.spec)
        self.loop(engine, watcher, folder, export, notes)

    def adapt(self, fabric: Fabric, method: Method, channels_last: bool) -> list[str]:
        """Fit the method to the devices; what that means, in words."""
        notes = synchronize_batch_norm(method, fabric.device) if self.sync_bn and method.batch_norm == "sync" else []
        if channels_last:
            method.to(memory_format=torch.channels_last)
        elif self.channels_last:
            notes.append("The backbone calls view on feature maps, so it runs without channels_last.")
        if self.compile:
            method.online.compile()
        return notes

    def loop(
        self,
        engine: Engine,
        watcher: Watcher,
        folder: RunFolder | None,
        export: Callable[[dict[str, str]], None],
        notes: list[str],
    ) -> None:
        """Train; log, look and save every now and then; stop when asked to. Rank 0, which has the folder, writes."""
        assert self.batch != "auto"
        fabric, watch, epoch_steps = engine.fabric, self.watch, engine.batches.total
        read_every = 1 if fabric.device.type == "cpu" else watch.log_every  # reading a value waits for an accelerator
        save_every = watch.checkpoint_every or epoch_steps
        checkpoints = Checkpoints(Path(self.out) / "checkpoints", keep=watch.keep)
        about = {"method": self.method, "objective": self.objective, "data": str(self.data), "seed": str(self.seed)}
        if folder is not None:
            folder.begin()
            shaping = (encoder_settings(folder.path) or {}) | {"processes": fabric.world_size}  # each mixes on its own
            about["settings"] = json.dumps(shaping, sort_keys=True)
        with (
            Progress(engine.steps, epoch_steps, start=engine.step, shown=folder is not None) as progress,
            Journal(folder, watch, engine.step) as journal,
            Stopping(fabric, seconds_of(self.max_time), every=read_every) as stopping,
        ):
            self.begin(engine, watcher, folder, progress, notes)
            if folder is not None and engine.step == engine.steps:  # killed between the last checkpoint and its encoder
                export(about | {"step": str(engine.step), "epoch": f"{engine.epoch:g}"})
            if self.looks_at(engine.step, epoch_steps, engine.steps):  # killed between a checkpoint and its look
                if folder is not None and not any(
                    record["step"] == engine.step and "loss" not in record for record in read_metrics(folder.path)
                ):
                    self.look(engine.step, watcher, journal, progress)
                fabric.barrier()
            for loss, rate, reason in engine.train(stopping):
                step, epoch_ends = engine.step, engine.step % epoch_steps == 0
                save = step % save_every == 0 or step == engine.steps or reason is not None
                progress.update(step, self.batch, loss)
                if step % read_every == 0 or save:
                    engine.check_finite(weights=save)
                # A stop adds neither line nor look: the resumed run's metrics are those of an uninterrupted one.
                if step % watch.log_every == 0 or epoch_ends:
                    journal.log(step, {"epoch": engine.epoch, "loss": engine.loss_of_all(loss), "lr": rate})
                if folder is not None and save:
                    folder.sync()
                    checkpoints.save(engine.state(), step)
                    export(about | {"step": str(step), "epoch": f"{engine.epoch:g}"})
                    state: State = "interrupted" if reason else "running"
                    folder.set_status(state, step, engine.epoch, reason or "", engine.cpu_seconds)
                if self.looks_at(step, epoch_steps, engine.steps):  # after saving: a failure costs nothing
                    if folder is not None:
                        self.look(step, watcher, journal, progress)
                    fabric.barrier()
                if reason is not None:
                    progress.say(f"Stopped by {reason} at step {step}; --resume goes on from here.")
            if folder is not None and engine.step == engine.steps:
                folder.set_status("finished", engine.step, engine.epoch, cpu_seconds=engine.cpu_seconds)
                progress.say(f"Done: {self.out}/encoder.safetensors")
        fabric.barrier()

    def looks_at(self, step: int, epoch_steps: int, steps: int) -> bool:
        """Whether the encoder is looked at after this step: at the end of every so many epochs, and of the last."""
        every = self.watch.look_every
        if not every or not step or step % epoch_steps:
            return False
        return step == steps or step // epoch_steps % every == 0

    def look(self, step: int, watcher: Watcher, journal: Journal, progress: Progress) -> None:
        """Look at the encoder, and write down what is seen. A look that fails is reported, and training goes on."""
        try:
            seen, warning = watcher.look()
        except Exception as error:
            progress.warn(f"The look after step {step} failed, and training goes on: {type(error).__name__}: {error}")
            return
        journal.log(step, seen)
        progress.update(step, 0, knn=seen.get("knn"))
        if warning:
            progress.warn(warning)

    def begin(
        self, engine: Engine, watcher: Watcher, folder: RunFolder | None, progress: Progress, notes: list[str]
    ) -> None:
        """Say what is about to happen, show it, and guess what it costs."""
        for note in notes:
            progress.say(note)
        if folder is not None:
            folder.rewind(engine.step if engine.step else -1)
            before = folder.status  # of a later step, perhaps, than that of the checkpoint that it goes on from
            share = min(1.0, engine.step / before["step"]) if before.get("step") else 0.0
            engine.cpu_seconds = share * before.get("cpu_seconds", 0.0)
            folder.set_status("running", engine.step, engine.epoch, cpu_seconds=engine.cpu_seconds)
            if engine.step == 0:
                with folder.explained("draw the views of"):
                    watcher.picture(Path(self.out) / "views.png")
        left = engine.steps - engine.step
        if self.watch.estimate and left > 0:
            count = engine.batches.batch // engine.fabric.world_size
            views, device = watcher.some_views(count), engine.fabric.device
            cost = estimate(lambda: engine.try_step(views), left, device=device, trials=2)
            progress.say(f"{left} steps to go: {cost}, without reading images and looking.")


def pretrain(**options: Any) -> Path:
    """Learn an encoder from images without labels. The options are the fields of `Pretraining`; returns the folder."""
    return Pretraining(**options).run()


def resume(out: str | Path, *, trust: bool = False, **changes: Any) -> Path:
    """Go on with a run, bit for bit, as it was or with changes such as `epochs=200`.

    Args:
        trust: import a backbone of one's own, which the run's file names. That runs its code.
        changes: fields of `Pretraining`.
    """
    known = {each.name for each in fields(Pretraining)}
    stored = {name: value for name, value in RunFolder.open(out).config.items() if name in known}
    if "backbone" not in changes:
        backbones.require_consent(stored, str(Path(out) / "config.yaml"), trust)
    settings: dict[str, Any] = {"out": str(out), "resume": True} | changes
    return replace(from_plain(stored), **settings).run()


def from_plain(settings: dict[str, Any]) -> Pretraining:
    """The settings that plain values say, as YAML gives them: groups of options are dictionaries."""
    groups = {"mixing": Mixing, "head": Head, "optimizer": Optimizer, "watch": Watch}
    known: dict[str, list[str]] = {name: [each.name for each in fields(group)] for name, group in groups.items()}
    known[""] = [each.name for each in fields(Pretraining)]
    for name in groups:
        if not isinstance(settings.get(name, {}), dict):
            raise ValueError(
                f"{name} must be a group of settings such as {known[name][0]}, got {brief(settings[name])}"
            )
    given = {"": list(settings)} | {name: list(settings.get(name, {})) for name in groups}
    for group, names in given.items():
        for name in names:
            if name not in known[group]:
                close = difflib.get_close_matches(str(name)[:MAX_SHOWN], known[group], n=1)
                hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known[group])}"
                raise ValueError(f"there is no setting {f'{group}.' if group else ''}{str(name)[:MAX_SHOWN]}: {hint}")
    return Pretraining(
        **{name: groups[name](**tuples(value)) if name in groups else value for name, value in settings.items()}
    )


def tuples(values: dict[str, Any]) -> dict[str, Any]:
    """YAML's lists as the tuples that they were."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def stands_channels_last(encoder: nn.Module, channels: int, size: int) -> bool:
    """Whether an encoder can take images in channels_last: one that calls `view` on its feature maps cannot."""
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
