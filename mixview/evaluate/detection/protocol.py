"""Object detection and instance segmentation: a detector around the encoder, everything fine-tuned.

    from mixview.evaluate import evaluate
    result = evaluate("runs/first", "detection", recipe="voc-c4", data="VOCdevkit", trials=5)

Each trial is a run of its own, in a folder like pretraining's: settings, metrics, checkpoints, pictures, detections.
"""

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torchvision.models.detection.generalized_rcnn import GeneralizedRCNN

from mixview import recipes
from mixview.data.loader import EpochSampler
from mixview.data.sources.base import Source
from mixview.data.sources.splits import Subset, take_evenly
from mixview.distributed import synchronize_batch_norm
from mixview.evaluate import training
from mixview.evaluate.base import EvalContext, Protocol, TrainingStopped
from mixview.evaluate.detection.drawing import draw_predictions
from mixview.evaluate.detection.inference import Predictions, predict, recount_statistics
from mixview.evaluate.detection.metrics import as_text, coco_metrics, coco_results, library, voc_metrics
from mixview.evaluate.detection.models import Model, Scales, build_detector
from mixview.evaluate.detection.targets import Sample, align_classes, objects_of, training_loader, with_objects
from mixview.evaluate.detection.training import DetectionLogging, Engine, Schedule, build_optimizer
from mixview.evaluate.results import Result, percentages
from mixview.evaluate.training import TrainingConfig, resume_engine, workers_of
from mixview.evaluate.training_loop import run_supervised
from mixview.io.atomic import atomic_write, write_bytes
from mixview.io.records import RecordError, read_json
from mixview.io.run_folders import is_run
from mixview.options import Count, NonNegative, Positive
from mixview.runs.devices import launch_once
from mixview.runs.fabric import Fabric
from mixview.runs.launching import explain_lost_peer
from mixview.runs.run_directory import RunDirectory, RunDirectoryError, record_failure, start_or_resume

MAY_CHANGE = training.MAY_CHANGE | {"precision"}
"""Settings that a resumed trial may change: place, duration and logging."""
NOT_OF_A_TRIAL = frozenset({"resume", "trials", "trust_remote_code"})


@dataclass(frozen=True, kw_only=True)
class Detection(TrainingConfig, Protocol):
    """Evaluate by detection and instance segmentation: everything fine-tuned as a Faster or Mask R-CNN.

    Example:
        >>> scenes = {"count": 8, "size": 32, "objects": "multiple"}
        >>> few = {"iterations": 1, "batch_size": 2, "max_test_images": 2, "precise_bn": 1, "model": Model(regions=8)}
        >>> options = {"data": "scenes", "data_options": scenes, "recipe": "small-c4", "out": "detection", "workers": 0}
        >>> result = Detection(encoder="random", backbone="small", **options, **few).run()  # doctest: +ELLIPSIS
        encoder ...
        >>> "AP50" in result.metrics
        True
    """

    recipe: str | None = None
    """Settings to start from: `mixview recipes` lists them under detection; or a YAML file of yours."""
    model: Model = field(default_factory=Model)
    """The detector around the encoder."""
    scales: Scales = field(default_factory=Scales)
    """Image sizes in training and testing."""
    schedule: Schedule = field(default_factory=Schedule)
    """The published schedule: --batch_size, --iterations and --lr scale all of it."""
    iterations: Count | None = None
    """Number of iterations; the learning-rate steps scale with it."""
    lr: Positive | None = None
    """Learning rate for this batch size; by default it is scaled with the batch size, the iterations inversely."""
    empty: bool = False
    """Also train on images without objects, which the published settings leave out."""
    precise_bn: NonNegative = 200
    """Training batches over which batch norm statistics are recomputed before testing; 0 for none."""
    sync_bn: bool = True
    """Synchronize batch norm over all devices."""
    max_test_images: Count | None = None
    """Maximum number of test images, evenly chosen; by default all."""
    logging: DetectionLogging = field(default_factory=DetectionLogging)
    """Intervals of logging and of checkpoints, and what is kept."""

    name: ClassVar[str] = "detection"
    examples: ClassVar[tuple[str, ...]] = (
        "runs/first --data VOCdevkit --recipe voc-c4",
        "runs/first --data coco --recipe small-fpn",
    )
    first_options: ClassVar[str] = "data recipe iterations devices resume out"
    run_order: ClassVar[float] = 8
    excluded_from_all: ClassVar[str] = "it needs boxes and a recipe: mixview evaluate detection"
    multi_label: ClassVar[bool] = True
    needs_network: ClassVar[bool] = True
    needs_folder: ClassVar[bool] = True
    runtime_options: ClassVar[frozenset[str]] = (
        training.MAY_CHANGE | NOT_OF_A_TRIAL | {"batch_size", "iterations", "lr"}
    )

    def evaluate(self, context: EvalContext) -> Iterable[tuple[str, float]]:
        library()
        objects_of(context.splits.train, 0)  # raises if the data has no boxes
        resolved = replace(self, schedule=self.schedule.resolve(self.iterations, self.batch_size, self.lr))
        context.settings["schedule"] = asdict(resolved.schedule)
        trial = Trial(resolved, context, self.fabric(context), self.deadline(context))
        if self.resume and trial.is_finished:
            RunDirectory.open(trial.out).check_resumable(trial.config(), trial.data(), MAY_CHANGE)
        else:
            trial.run()
        if not trial.fabric.is_global_zero:  # the first process has the metrics
            return []
        result = trial.read_result()
        context.description, context.details, context.notes = result.description, result.details, list(result.notes)
        return result.metrics.items()

    @staticmethod
    def read_recipe(recipe: str) -> dict[str, Any]:
        """The settings of a recipe: one of mixview's own by name, or a YAML file."""
        return recipes.read(recipe if recipe.endswith((".yaml", ".yml")) else f"detection/{recipe}").settings


@dataclass
class Trial:
    """One training of a detector with one seed, and its result."""

    settings: Detection
    context: EvalContext
    fabric: Fabric
    deadline: float | None = None
    """The time to stop, by the monotonic clock."""

    @property
    def out(self) -> Path:
        """The folder of this trial."""
        base = self.settings.folder()
        assert base is not None
        name = Path(self.settings.recipe or "detection").stem
        return base / "detection" / f"{name}-{Path(str(self.settings.data)).name}-seed-{self.settings.seed}"

    @property
    def is_finished(self) -> bool:
        """True if its result exists."""
        return (self.out / "result.json").is_file()

    def read_result(self) -> Result:
        """The result of a finished trial."""
        path = self.out / "result.json"
        try:
            return read_json(path, Result)
        except RecordError as error:
            raise RunDirectoryError(f"{path} cannot be read ({error.reason}): remove it, and resume again") from None

    def run(self) -> None:
        """Train, evaluate and write everything; raise `TrainingStopped` if it was stopped before its end."""
        resume = self.settings.resume and is_run(self.out)
        folder = start_or_resume(self.out, self.config(), self.data(), resume=resume, may_change=MAY_CHANGE)
        with record_failure(folder), explain_lost_peer():
            launch_once(self.fabric)
            self.fabric.barrier()  # the folder is there now
            stopped = not self.train(folder)
        if stopped:
            raise TrainingStopped(
                f"the training in {self.out} was stopped: the same command with --resume continues it"
            )

    def data(self) -> dict[str, Any]:
        """The training images, as the folder records them."""
        train = self.context.splits.train
        return {"kind": train.kind, "count": len(train), "fingerprint": train.fingerprint()}

    def config(self) -> dict[str, Any]:
        """The settings as plain values, for the folder."""
        every = {name: value for name, value in asdict(self.settings).items() if name not in NOT_OF_A_TRIAL}
        return every | {"weights_key": self.context.encoder.weights_key()}

    def train(self, folder: RunDirectory | None) -> bool:
        """Train and evaluate, on every process; False if it was stopped before its end."""
        settings, train = self.settings, self.context.splits.train
        source, empty = (train, 0) if settings.empty else with_objects(train)
        notes = [*self.context.notes]
        if empty:
            notes.append(f"{empty} training images show no object and are left out (--empty keeps them).")
        engine, synchronized = self.build_engine(source)
        notes += [*synchronized, *resume_engine(engine, self.out)]
        last: list[tuple[Predictions, dict[str, float]]] = []

        def evaluate() -> dict[str, float]:
            predictions = self.predict(engine.network, source)
            last[:] = [(predictions, self.metrics(predictions))]
            return last[0][1]

        metrics = run_supervised(
            engine,
            folder,
            settings.logging,
            out=self.out,
            seconds=None if self.deadline is None else self.deadline - time.monotonic(),
            notes=notes,
            evaluate=evaluate,
            evaluate_every=settings.logging.eval_every,
        )
        if metrics is None:
            return False
        if folder is not None:
            self.write(folder, engine, *last[0])
        return True

    def build_engine(self, source: Source) -> tuple[Engine, list[str]]:
        """The engine at its first step, and notes on what was changed for several devices."""
        settings, fabric, loaded = self.settings, self.fabric, self.context.encoder
        batches = self.batches(source)
        torch.manual_seed(settings.seed)  # the same first weights on every process
        detector = build_detector(
            loaded.encoder,
            classes=len(self.context.splits.classes),
            model=settings.model,
            scales=settings.scales,
            normalize=loaded.normalize,
            channels=loaded.channels,
        )
        notes = synchronize_batch_norm(detector, fabric.device) if settings.sync_bn else []
        module, optimizer = fabric.setup(detector, build_optimizer(detector, settings.schedule))
        engine = Engine(
            fabric=fabric,
            module=module,
            network=detector,
            optimizer=optimizer,
            batches=batches,
            loader=self.loader(source, batches),
            steps=settings.schedule.iterations,
            seed=settings.seed,
            accumulate_grad_batches=settings.accumulate_grad_batches,
            schedule=settings.schedule,
        )
        return engine, notes

    def batches(self, source: Source, shift: int = 0) -> EpochSampler:
        """The order of the images, for this process."""
        fabric, settings = self.fabric, self.settings
        batches = EpochSampler(
            len(source), settings.schedule.batch_size, settings.seed + shift, fabric.global_rank, fabric.world_size
        )
        each = settings.schedule.batch_size // fabric.world_size
        if settings.accumulate_grad_batches > each:
            raise ValueError(
                f"accumulate_grad_batches {settings.accumulate_grad_batches} is more than the {each} images per "
                f"device: use {each}"
            )
        return batches

    def loader(self, source: Source, batches: EpochSampler) -> Any:
        """The loader of training samples."""
        settings = self.settings
        return training_loader(
            source,
            batches,
            channels=self.context.encoder.channels,
            masks=settings.model.masks,
            seed=settings.seed,
            workers=self.workers,
            pin_memory=self.fabric.device.type == "cuda",
        )

    @property
    def workers(self) -> int:
        """Data-loading processes of this process."""
        return workers_of(self.fabric, self.settings.workers)

    @property
    def test(self) -> Source:
        """The test images."""
        images, count = self.context.splits.test, self.settings.max_test_images
        return images if count is None else take_evenly(images, count)

    def predict(self, detector: GeneralizedRCNN, source: Source) -> Predictions:
        """The detections in the test images, with batch norm statistics of the training images `source`."""
        settings, test = self.settings, self.test
        batches = self.batches(source, shift=1)
        torch.manual_seed(settings.seed)
        recount_statistics(detector, endless(self.loader(source, batches), batches), settings.precise_bn, self.fabric)
        return predict(
            detector,
            self.fabric,
            test,
            align_classes(test, self.context.splits.classes),
            channels=self.context.encoder.channels,
            masks=settings.model.masks,
            workers=self.workers,
        )

    def metrics(self, predictions: Predictions) -> dict[str, float]:
        """All metrics, in percent, on the first process; empty on others."""
        if not self.fabric.is_global_zero:
            return {}
        classes = self.context.splits.classes
        metrics = coco_metrics(predictions.truth, predictions.detections, classes, masks=self.settings.model.masks)
        return percentages(metrics | voc_metrics(predictions.truth, predictions.detections, classes))

    def write(self, folder: RunDirectory, engine: Engine, predictions: Predictions, metrics: dict[str, float]) -> None:
        """Write the detections in COCO's format, the picture and, last, the result."""
        count = self.settings.logging.pictures
        result = self.result(metrics, unread=len(self.test) - len(predictions.indices))
        with folder.explain_disk_error("write the result into"):
            self.write_detections(predictions)
            if count and predictions.indices:
                sheet = draw_predictions(
                    predictions, self.test, self.context.splits.classes, count, self.context.encoder.channels
                )
                with atomic_write(self.out / "detections.png") as file:
                    sheet.save(file, format="png")
            write_bytes(self.out / "result.json", json.dumps(asdict(result), ensure_ascii=False).encode())
        folder.set_status("finished", engine.step, engine.epoch)

    def result(self, metrics: dict[str, float], unread: int) -> Result:
        """The metrics, with everything that they depend on."""
        settings, context = self.settings, self.context
        model, scales = settings.model, settings.scales
        name = "Mask R-CNN" if model.masks else "Faster R-CNN"
        recipe = f" ({Path(settings.recipe).stem})" if settings.recipe else ""
        sizes = f"{min(scales.train)}–{max(scales.train)}" if len(scales.train) > 1 else f"{scales.train[0]}"
        statistics = f"over {settings.precise_bn} batches" if settings.precise_bn else "as running averages"
        subset = "" if settings.max_test_images is None else f", {len(self.test)} of the test images"
        context.description = (
            f"{name} {model.architecture.upper()}{recipe}, everything fine-tuned ({settings.schedule.description}), "
            f"shorter side {sizes} in training and {scales.test} in testing, batch norm statistics {statistics}; AP is "
            "COCO's mean over IoU 0.50 to 0.95, 101-point; 11-point and all-points are VOC's, over the same IoUs; last "
            f"iteration{subset}."
        )
        if unread:
            context.notes.append(f"{unread} test images cannot be read and are left out.")
        context.details |= {"folder": str(self.out), "picture": str(self.out / "detections.png")}
        return context.result(metrics)

    def write_detections(self, predictions: Predictions) -> None:
        """Write all detections in COCO's results format, with COCO's own ids where the data has them."""
        test, all_images, places = self.test, self.context.splits.test, predictions.indices
        if isinstance(test, Subset) and test is not all_images:
            places = test.indices[places].tolist()
        ids, categories = (
            getattr(all_images, "image_ids", None),
            getattr(self.context.splits.train, "category_ids", None),
        )
        image_ids = [place + 1 for place in places] if ids is None else [int(ids[place]) for place in places]
        masks = self.settings.model.masks
        rows = coco_results(predictions.detections, masks=False, image_ids=image_ids, category_ids=categories)
        if masks:
            codes = [as_text(code) for each in predictions.detections for code in each.masks or ()]
            rows = [row | {"segmentation": code} for row, code in zip(rows, codes, strict=True)]
        write_bytes(self.out / "detections.json", json.dumps(rows).encode())


def endless(loader: Any, batches: EpochSampler) -> Iterator[list[Sample]]:
    """Batches of one epoch after the other."""
    epoch = 0
    while True:
        batches.set_epoch(epoch)
        yield from loader
        epoch += 1
