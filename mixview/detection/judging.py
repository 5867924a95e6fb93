"""`mixview evaluate detection`: fine-tunes a detector around an encoder, and judges what it finds.

    from mixview.detection.judging import detect
    results = detect("runs/first", protocol="voc-c4", data="VOCdevkit", trials=5)

Each trial is a run of its own, in a folder as pretraining's: settings, metrics, checkpoints, pictures, detections.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import torch
from lightning_fabric import Fabric
from torchvision.models.detection.generalized_rcnn import GeneralizedRCNN

from mixview.atomic import atomic_write
from mixview.data.loading import Batches, default_workers
from mixview.data.source import Source
from mixview.data.splits import Subset
from mixview.detection.metrics import as_text, coco_metrics, coco_results, library, voc_metrics
from mixview.detection.models import Model, Scales, build_detector
from mixview.detection.pictures import draw_judged
from mixview.detection.predicting import Judged, predict, recount_statistics
from mixview.detection.targets import Sample, align_classes, objects_of, training_loader, with_objects
from mixview.detection.training import Engine, Keeping, Schedule, build_optimizer
from mixview.distributed import synchronize_batch_norm
from mixview.evaluate.judging import Case, Setting
from mixview.evaluate.results import Result, percentages
from mixview.export import write_atomically
from mixview.options import Count, NonNegative, Positive
from mixview.records import RecordError, read_json
from mixview.train import recipes
from mixview.train.checkpoints import Checkpoints
from mixview.train.devices import Precision, agree_on_checkpoint, launch_once, make_fabric
from mixview.train.launching import launcher, losing_no_process
from mixview.train.run_folder import RunFolder, RunFolderError, is_run, recorded, start_or_resume
from mixview.train.stopping import seconds_of
from mixview.train.supervised import run_supervised
from mixview.train.watching import pick

GROUPS = {"model": Model, "scales": Scales, "schedule": Schedule, "keeping": Keeping}
MAY_CHANGE = frozenset(
    {
        "data",
        "device",
        "devices",
        "encoder",
        "keeping",
        "max_time",
        "nodes",
        "out",
        "precision",
        "test_data",
        "trust",
        "workers",
    }
)
"""Settings that a resumed trial may change: they say where, how long and how closely watched."""
ABSENT = frozenset({"resume", "trials", "seed", "trust"})
"""Settings that are not of one trial."""


@dataclass(frozen=True, kw_only=True)
class Detection(Setting):
    """Object detection and instance segmentation, the whole network fine-tuned."""

    protocol: str | None = None
    """The settings to start from: `mixview recipes` lists them under detection; or a YAML file of yours."""
    model: Model = field(default_factory=Model)
    """The detector around the encoder."""
    scales: Scales = field(default_factory=Scales)
    """The sizes at which images are shown."""
    schedule: Schedule = field(default_factory=Schedule)
    """The published schedule, which --batch, --iterations and --lr change as a whole."""
    batch: Count | None = None
    """Images a step, over all devices: k times as many is k times the rate and a k-th of the iterations."""
    iterations: Count | None = None
    """Another length; the steps of the rate keep their place in it."""
    lr: Positive | None = None
    """Another learning rate, of this batch."""
    accumulate: Count = 1
    """Micro-batches in which a device works off its part of a batch, to save memory; each has its own batch norm."""
    empty: bool = False
    """Train on images without any object too; the protocols leave them out."""
    precise_bn: NonNegative = 200
    """Training batches over which batch norms count their statistics anew before the detector is asked; 0 for none."""
    sync_bn: bool = True
    """Synchronize batch norm over all devices."""
    questions: Count | None = None
    """At most so many test images, evenly over them; by default all."""
    trials: Count = 1
    """How often all of it is done, by seeds from --seed on: the results are shown as mean ± deviation."""
    nodes: Count | Literal["auto"] = "auto"
    """How many machines; auto is as many as torchrun or srun started processes on."""
    precision: Precision = "32-true"
    """Mixed precision is for accelerators; boxes stay in float32."""
    keeping: Keeping = field(default_factory=Keeping)
    """How often a run says how it fares, and what it keeps."""
    max_time: str | None = None
    """Stop in good order after this time, all trials together: 45m, 1h30m, 2d."""
    resume: bool = False
    """Go on with what was stopped, bit for bit; finished trials stay as they are."""

    def run(self) -> list[Result]:
        """Train and judge, trial by trial; what is finished is written down and shown."""
        if self.accumulate < 1 or self.trials < 1:
            raise ValueError(f"accumulate and trials must be at least 1, got {self.accumulate} and {self.trials}")
        limit = seconds_of(self.max_time)
        deadline = None if limit is None else time.monotonic() + limit
        library()
        if self.folder() is None:
            raise ValueError(f"a detector is trained in a folder, and {self.encoder} has none: give --out FOLDER")
        settled = replace(self, schedule=self.schedule.settle(self.iterations, self.batch, self.lr))
        case = settled.open()
        check_boxes(case.parts.train)
        devices = self.devices if launcher() is None or self.devices > 1 else "auto"
        fabric = make_fabric(devices=devices, nodes=self.nodes, accelerator=self.device, precision=self.precision)
        results = []
        for number in range(self.trials):
            trial = Trial(replace(settled, seed=self.seed + number, trials=1), case, fabric, deadline)
            if self.resume and trial.is_finished:
                RunFolder.open(trial.out).check_resumable(trial.config(), trial.data(), MAY_CHANGE)
            elif not trial.run():  # stopped: the next ones would be too
                break
            if fabric.is_global_zero:
                results.append(trial.read_result())
        if results:
            self.report(results)
        return results


@dataclass
class Trial:
    """One training of a detector by one seed, and what comes out."""

    settings: Detection
    case: Case
    fabric: Fabric
    deadline: float | None = None
    """When to stop, by the monotonic clock."""

    @property
    def out(self) -> Path:
        """The folder of this trial."""
        base = self.settings.folder()
        assert base is not None
        name = Path(self.settings.protocol or "detection").stem
        return base / "detection" / f"{name}-{Path(str(self.settings.data)).name}-seed-{self.settings.seed}"

    @property
    def is_finished(self) -> bool:
        """Whether its result is there."""
        return (self.out / "result.json").is_file()

    def read_result(self) -> Result:
        """What a finished trial found."""
        path = self.out / "result.json"
        try:
            return read_json(path, Result)
        except RecordError as error:
            raise RunFolderError(f"{path} cannot be read ({error.reason}): remove it, and resume again") from None

    def run(self) -> bool:
        """Train, judge and write everything down; False if it was stopped before its end. The same on every process."""
        resume = self.settings.resume and is_run(self.out)
        folder = start_or_resume(self.out, self.config(), self.data(), resume=resume, may_change=MAY_CHANGE)
        with recorded(folder), losing_no_process():
            launch_once(self.fabric)
            self.fabric.barrier()  # the folder is there now
            return self.train(folder)

    def data(self) -> dict[str, Any]:
        """What it is trained on, for the folder."""
        train = self.case.parts.train
        return {"kind": train.kind, "count": len(train), "fingerprint": train.fingerprint()}

    def config(self) -> dict[str, Any]:
        """The settings as plain values, for the folder."""
        every = {name: value for name, value in asdict(self.settings).items() if name not in ABSENT}
        return every | {"seed": self.settings.seed, "weights_key": self.case.subject.weights_key()}

    def train(self, folder: RunFolder | None) -> bool:
        """What every process does."""
        settings, fabric, subject = self.settings, self.fabric, self.case.subject
        source, empty = (self.case.parts.train, 0) if settings.empty else with_objects(self.case.parts.train)
        notes = [*self.case.notes]
        if empty:
            notes.append(f"{empty} training images show no object and are left out (--empty true keeps them).")
        batches = self.batches(source)
        torch.manual_seed(settings.seed)  # the same first weights on every process
        detector = build_detector(
            subject.encoder,
            classes=len(self.case.parts.classes),
            model=settings.model,
            scales=settings.scales,
            normalise=subject.normalise,
            channels=subject.channels,
        )
        if settings.sync_bn:
            notes += synchronize_batch_norm(detector, fabric.device)
        module, optimizer = fabric.setup(detector, build_optimizer(detector, settings.schedule))
        loader = self.loader(source, batches)
        engine = Engine(
            fabric=fabric,
            module=module,
            network=detector,
            optimizer=optimizer,
            batches=batches,
            loader=loader,
            steps=settings.schedule.iterations,
            seed=settings.seed,
            accumulate=settings.accumulate,
            schedule=settings.schedule,
        )
        found = Checkpoints(self.out / "checkpoints").load_latest(fabric.device)
        agree_on_checkpoint(fabric, -1 if found is None else found[1], str(self.out))
        if found is not None:
            engine.load_state(found[0])
            notes.append(f"Going on from iteration {engine.step} of {settings.schedule.iterations}.")
        last: list[tuple[Judged, dict[str, float]]] = []

        def ask() -> dict[str, float]:
            judged = self.ask(detector, source)
            last[:] = [(judged, self.metrics(judged))]
            return last[0][1]

        metrics = run_supervised(
            engine,
            folder,
            settings.keeping,
            out=self.out,
            seconds=None if self.deadline is None else self.deadline - time.monotonic(),
            notes=notes,
            evaluate=ask,
            evaluate_every=settings.keeping.evaluate_every,
        )
        if metrics is None:
            return False
        if folder is not None:
            self.write(folder, engine, *last[0])
        return True

    def batches(self, source: Source, shift: int = 0) -> Batches:
        """Which images when, for this process."""
        fabric, settings = self.fabric, self.settings
        batches = Batches(
            len(source), settings.schedule.batch, settings.seed + shift, fabric.global_rank, fabric.world_size
        )
        each = settings.schedule.batch // fabric.world_size
        if settings.accumulate > each:
            raise ValueError(f"accumulate {settings.accumulate} is more than the {each} images of a device: use {each}")
        return batches

    def loader(self, source: Source, batches: Batches) -> Any:
        """Samples to train on."""
        settings = self.settings
        return training_loader(
            source,
            batches,
            channels=self.case.subject.channels,
            masks=settings.model.masks,
            seed=settings.seed,
            workers=self.workers,
            pin_memory=self.fabric.device.type == "cuda",
        )

    @property
    def workers(self) -> int:
        """Processes that read images for this one."""
        nodes = getattr(self.fabric.strategy, "num_nodes", 1)
        given = self.settings.workers
        return default_workers(self.fabric.world_size // nodes) if given is None else given

    @property
    def test(self) -> Source:
        """The images that are asked about."""
        whole, count = self.case.parts.test, self.settings.questions
        return whole if count is None else pick(whole, count)

    def ask(self, detector: GeneralizedRCNN, source: Source) -> Judged:
        """What the detector finds in the test images, as it is now."""
        settings, test = self.settings, self.test
        batches = self.batches(source, shift=1)
        torch.manual_seed(settings.seed)
        recount_statistics(detector, endless(self.loader(source, batches), batches), settings.precise_bn, self.fabric)
        return predict(
            detector,
            self.fabric,
            test,
            align_classes(test, self.case.parts.classes),
            channels=self.case.subject.channels,
            masks=settings.model.masks,
            workers=self.workers,
        )

    def metrics(self, judged: Judged) -> dict[str, float]:
        """Everything that is counted, in per cent; only the first process counts."""
        if not self.fabric.is_global_zero:
            return {}
        classes = self.case.parts.classes
        found = coco_metrics(judged.truth, judged.detections, classes, masks=self.settings.model.masks)
        return percentages(found | voc_metrics(judged.truth, judged.detections, classes))

    def write(self, folder: RunFolder, engine: Engine, judged: Judged, metrics: dict[str, float]) -> None:
        """The detections in COCO's format, the picture and, last, the result."""
        count = self.settings.keeping.pictures
        result = self.result(metrics, unread=len(self.test) - len(judged.indices))
        with folder.explained("write what was found into"):
            self.write_detections(judged)
            if count and judged.indices:
                sheet = draw_judged(judged, self.test, self.case.parts.classes, count, self.case.subject.channels)
                with atomic_write(self.out / "detections.png") as file:
                    sheet.save(file, format="png")
            write_atomically(self.out / "result.json", json.dumps(asdict(result), ensure_ascii=False).encode())
        folder.set_status("finished", engine.step, engine.epoch)

    def result(self, metrics: dict[str, float], unread: int) -> Result:
        """The figures, and everything that they depend on."""
        settings, case = self.settings, self.case
        model, scales = settings.model, settings.scales
        name = "Mask R-CNN" if model.masks else "Faster R-CNN"
        sizes = f"{min(scales.train)}–{max(scales.train)}" if len(scales.train) > 1 else f"{scales.train[0]}"
        statistics = f"over {settings.precise_bn} batches" if settings.precise_bn else "as running averages"
        asked = "" if settings.questions is None else f", {len(self.test)} of the test images"
        words = (
            f"{name} {model.architecture.upper()}, everything fine-tuned ({settings.schedule.words}), shorter side "
            f"{sizes} in training and {scales.test} in test, batch norm statistics {statistics}; AP is COCO's mean "
            "over IoU 0.50 to 0.95, 101-point; 11-point and all-points are VOC's, over the same IoUs; last iteration"
            f"{asked}."
        )
        notes = (*case.notes, *((f"{unread} test images cannot be read and are left out.",) if unread else ()))
        own = {each.name for each in fields(settings)} - {each.name for each in fields(Setting)}
        left_out = {*ABSENT, *MAY_CHANGE, "batch", "iterations", "lr"}
        every = asdict(settings)
        return Result(
            protocol=f"detection-{Path(settings.protocol or 'own').stem}",
            metrics=metrics,
            words=words,
            encoder=case.subject.name,
            data=case.parts.words,
            seed=settings.seed,
            settings={name: every[name] for name in sorted(own - left_out)},
            about=case.subject.about,
            details={
                "data": {"train": case.parts.train.fingerprint(), "test": case.parts.test.fingerprint()},
                "folder": str(self.out),
                "picture": str(self.out / "detections.png"),
            },
            notes=notes,
            warnings=case.warnings,
        )

    def write_detections(self, judged: Judged) -> None:
        """All detections in COCO's results format, by COCO's own ids where the data has them."""
        test, whole, places = self.test, self.case.parts.test, judged.indices
        if isinstance(test, Subset) and test is not whole:
            places = test.indices[places].tolist()
        ids, categories = getattr(whole, "image_ids", None), getattr(self.case.parts.train, "category_ids", None)
        image_ids = [place + 1 for place in places] if ids is None else [int(ids[place]) for place in places]
        masks = self.settings.model.masks
        rows = coco_results(judged.detections, masks=False, image_ids=image_ids, category_ids=categories)
        if masks:
            codes = [as_text(code) for each in judged.detections for code in each.masks or ()]
            rows = [row | {"segmentation": code} for row, code in zip(rows, codes, strict=True)]
        write_atomically(self.out / "detections.json", json.dumps(rows).encode())


def endless(loader: Any, batches: Batches) -> Iterator[list[Sample]]:
    """Batches of one epoch after the other."""
    epoch = 0
    while True:
        batches.go_to(epoch)
        yield from loader
        epoch += 1


def check_boxes(source: Source) -> None:
    """Refuse data without boxes before anything starts."""
    objects_of(source, 0)


def protocol_settings(protocol: str) -> dict[str, Any]:
    """What a protocol sets."""
    return recipes.read(protocol if protocol.endswith((".yaml", ".yml")) else f"detection/{protocol}").settings


def detect(encoder: str, protocol: str, **options: Any) -> list[Result]:
    """Judge an encoder by detection. The options are the fields of `Detection`, groups as dictionaries or objects."""
    settings = protocol_settings(protocol)
    for name in GROUPS.keys() & options.keys():
        if not isinstance(options[name], dict):
            options[name] = asdict(options[name])
    recipes.merge(settings, options)
    groups = {
        name: make(**{key: tuple(value) if isinstance(value, list) else value for key, value in settings[name].items()})
        for name, make in GROUPS.items()
        if name in settings
    }
    return Detection(encoder=encoder, protocol=protocol, **(settings | groups)).run()


def detection(encoder: str, **options: Any) -> list[Result]:
    """Judge by detection and instance segmentation: everything fine-tuned as a Faster or Mask R-CNN.

    Args:
        encoder: what is judged: a run's folder, a file of weights, a model by name, or random.
        options: of `Detection`.
    """
    return Detection(encoder=encoder, **options).run()
