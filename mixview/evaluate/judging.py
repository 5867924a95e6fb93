"""`mixview evaluate …`: opens images and encoder, runs a protocol, writes down and shows what it found.

    from mixview.evaluate import judging
    result = judging.knn("runs/first", data="imagenette/")
    result.metrics["top-1"]

The protocols themselves are in files of their own and know nothing of this one.
"""

import contextlib
import functools
import re
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from lightning_fabric import Fabric
from torch import Tensor

from mixview.atomic import refuse_link
from mixview.data.opening import SourceOptions
from mixview.data.source import Source
from mixview.data.splits import Subset, take_files, take_fraction
from mixview.evaluate import finetune as finetuning
from mixview.evaluate import overlap, results
from mixview.evaluate import probe as probing
from mixview.evaluate.encoders import Encoding, Subject
from mixview.evaluate.features import Features, Stage, extract, pick_device, stages_of
from mixview.evaluate.knn import knn_predict
from mixview.evaluate.labelled import Parts, open_parts
from mixview.evaluate.linear import (
    SCHEDULES,
    Recipe,
    Standard,
    choose_strength,
    linear_on_features,
    linear_on_images,
    logistic_regression,
)
from mixview.evaluate.low_shot import SHOTS, LowShotSettings, evaluate_low_shot
from mixview.evaluate.progress import Advance, bar
from mixview.evaluate.results import Result, percentages
from mixview.evaluate.svm import Difficult, Labelled, SvmSettings, evaluate_svm, from_label_sets
from mixview.evaluate.svm_fitting import Fit
from mixview.evaluate.training import Logging, Schedule, Stopped, Task, Work, accuracy, as_tensor
from mixview.evaluate.transforms import CentreCrop, Squash, Transform
from mixview.options import ROOM, AtMost, Count, Epochs, MoreThan, Positive, Seed
from mixview.terminal import say
from mixview.train.devices import Precision, make_fabric
from mixview.train.launching import launcher, process_rank
from mixview.train.stopping import seconds_of

Fraction = Annotated[float, MoreThan(0), AtMost(1)]

EXACT = 2**27
"""Up to so many numbers features are fitted in double precision."""


class Case(NamedTuple):
    """What is judged, and with what."""

    subject: Subject
    parts: Parts
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


class Outcome(NamedTuple):
    """What a protocol found, in per cent."""

    metrics: dict[str, float]
    words: str
    spread: Mapping[str, float] = MappingProxyType({})
    details: Mapping[str, Any] = MappingProxyType({})
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Setting(Encoding):
    """What all protocols ask for: an encoder, labelled images, and where to work."""

    data: str | None = None
    """Labelled images: a folder, or any other path, address or name (see `mixview data list`)."""
    train: str | None = None
    """The split that is learned from; by default the one for training."""
    test: str | None = None
    """The split that is asked about; by default test, or else val."""
    test_data: str | None = None
    """Where the test images are, if not with the others."""
    data_options: SourceOptions | None = None
    """Further options of the source, such as {"count": 2000, "size": 32} for scenes."""

    seed: Seed = 0
    """Of everything random. Results of several seeds are kept side by side, and averaged."""
    out: Annotated[str, ROOM] | None = None
    """Where results go; by default into the run's folder, and nowhere for an encoder without one."""

    def open(self) -> Case:
        """The encoder and the images."""
        if self.data is None:
            raise ValueError("there is nothing to judge with: give --data labelled images (scenes, to try it out)")
        parts = open_parts(self.data, self.train, self.test, self.test_data, self.data_options)
        subject = self.load_for(parts.train, self.seed)
        notes, warnings = overlap.check(subject.run, parts.train, parts.test)
        return Case(subject, parts, (*subject.notes, *parts.notes, *notes), tuple(warnings))

    def report(self, found: list[Result]) -> None:
        """Write results to where they are kept, and show them; one process of many does."""
        if process_rank() > 0:
            return
        results.show(found)
        folder, paths = self.folder(), self.keep(found)
        if folder is None:
            say("not written anywhere: --out FOLDER keeps the results of an encoder without a run")
            return
        say(f"wrote {paths[0] if len(paths) == 1 else f'{len(paths)} results to {paths[0].parent}'}")
        names = {result.protocol for result in found}
        kept = [result for result in results.read(folder) if result.protocol in names]
        if any(row.runs > 1 for row in results.summarise(kept)):
            say("\nWith what is there already:")
            results.show(kept)

    def keep(self, found: list[Result]) -> list[Path]:
        """Write results to where they are kept; one process of many does."""
        folder = self.folder()
        return [] if folder is None or process_rank() > 0 else [results.save(result, folder) for result in found]

    def folder(self) -> Path | None:
        """Where results are kept."""
        if self.out is not None:
            return Path(self.out)
        path = Path(self.encoder).expanduser()
        run = path if path.is_dir() else path.parent
        return run if path.exists() and (run / "config.yaml").is_file() else None


@dataclass(frozen=True, kw_only=True)
class Evaluation(Setting, ABC):
    """One protocol."""

    protocol: ClassVar[str]
    needs_network: ClassVar[bool] = False
    """Whether it trains the encoder itself."""
    trains_on_images: ClassVar[bool] = False
    """Whether it trains on images, in a run of its own."""
    sets: ClassVar[bool] = False
    """Whether an image may have several classes."""

    @abstractmethod
    def judge(self, case: Case) -> Outcome:
        """Run the protocol."""

    def run(self) -> Result:
        """Judge, write the result down and show it."""
        result = self.result(self.open())
        self.report([result])
        return result

    def refusal(self, case: Case) -> str | None:
        """Why this protocol cannot judge this encoder with these images; None when it can."""
        if not self.sets and case.parts.train_labels is None:
            return f"it needs one class an image, and those of {self.data} have several"
        if self.needs_network and case.subject.spec is None:
            return f"{case.subject.name} have no network to train"
        return None

    def result(self, case: Case) -> Result:
        """Run the protocol, and put down everything that its figures depend on."""
        refusal = self.refusal(case)
        if refusal is not None:
            raise ValueError(f"{self.protocol} is not for this: {refusal}; mixview evaluate all runs what can be run")
        return self.describe(case, self.judge(case))

    def describe(self, case: Case, outcome: Outcome) -> Result:
        """What a protocol found, with everything that its figures depend on."""
        own = {each.name for each in fields(self)} - {each.name for each in fields(Setting)} - NOT_OF_THE_RESULT
        every = asdict(self)
        settings = {name: every[name] for name in sorted(own)} | {"size": case.subject.size}
        fingerprints = {"train": case.parts.train.fingerprint(), "test": case.parts.test.fingerprint()}
        return Result(
            protocol=self.protocol,
            metrics=outcome.metrics,
            words=outcome.words,
            encoder=case.subject.name,
            data=case.parts.words,
            seed=self.seed,
            spread=dict(outcome.spread),
            settings=settings,
            about=case.subject.about,
            details={"data": fingerprints, **outcome.details},
            notes=(*case.notes, *outcome.notes),
            warnings=case.warnings,
        )

    def features(self, case: Case, transform: Transform, stage: Stage) -> tuple[Features, Features]:
        """The features of both parts."""
        train, test = (
            extract(
                case.subject,
                source,
                transform,
                stages=(stage,),
                device=self.device,
                devices=self.devices,
                workers=self.workers,
            )
            for source in (case.parts.train, case.parts.test)
        )
        return train, test

    def centre_features(self, case: Case) -> tuple[Tensor, Tensor, Tensor, Tensor, tuple[str, ...]]:
        """Features and labels of the centre crops of both parts, on the device, and notes on bad images."""
        labels, test_labels = case.parts.single(self.protocol)
        train, test = self.features(case, CentreCrop(case.subject.size, case.subject.normalise), "avgpool")
        device = pick_device(self.device)
        return (
            train["avgpool"].to(device),
            as_tensor(labels[train.kept]).to(device),
            test["avgpool"].to(device),
            as_tensor(test_labels[test.kept]).to(device),
            bad_images(case.parts, train, test),
        )


def bad_images(parts: Parts, train: Features, test: Features) -> tuple[str, ...]:
    """A sentence for each part that has images which cannot be read."""
    notes = []
    for name, source, features in (("training", parts.train, train), ("test", parts.test, test)):
        if len(features.kept) < len(source):
            missing = sorted(set(range(len(source))) - set(features.kept.tolist()))
            some = ", ".join(source.name(index) for index in missing[:3])
            notes.append(f"{len(missing)} {name} images cannot be read and are left out: {some}.")
    return tuple(notes)


@dataclass(frozen=True, kw_only=True)
class Knn(Evaluation):
    """Weighted k-NN classification: nothing is trained."""

    k: Count = 20
    """Neighbours that vote."""
    temperature: Positive = 0.07
    """A vote weighs exp(cosine / temperature): the smaller, the more the nearest decide."""

    protocol: ClassVar[str] = "knn"

    def judge(self, case: Case) -> Outcome:
        bank, bank_labels, queries, labels, notes = self.centre_features(case)
        classes = len(case.parts.classes)
        top = 5 if classes > 5 else 1
        ranked = knn_predict(
            bank, bank_labels, queries, classes=classes, top=top, k=self.k, temperature=self.temperature
        )
        hits = ranked == labels.unsqueeze(1)
        found = {f"top-{each}": float(hits[:, :each].any(1).cpu().double().mean()) for each in sorted({1, top})}
        words = (
            f"the {self.k} nearest training images by cosine vote with exp(cosine / {self.temperature:g}), "
            f"features of a {CentreCrop(case.subject.size).words}."
        )
        return Outcome(percentages(found), words, notes=notes)


@dataclass(frozen=True, kw_only=True)
class Machines(Evaluation):
    """What the protocols of linear SVMs ask for."""

    stage: Stage | None = None
    """Which features; by default res5 pooled to 2×2 (the paper writes res4), and the output of what is no ResNet."""
    shown: Literal["squash", "crop"] = "squash"
    """The whole image squashed into a square, as published, or its centre."""
    fit: Fit = field(default_factory=Fit)
    """How the SVMs are trained and judged."""

    sets: ClassVar[bool] = True

    def labelled(self, case: Case) -> tuple[Labelled, Labelled, str, tuple[str, ...]]:
        """Features and labels of both parts, what the features are in words, and notes."""
        notes: tuple[str, ...] = ()
        stage = self.stage
        if stage is None:
            stage = "res5" if "res5" in stages_of(case.subject.encoder) else "avgpool"
            if stage == "avgpool":
                notes = (f"{case.subject.name}: no ResNet, so that the features are its output (avgpool).",)
        make = Squash if self.shown == "squash" else CentreCrop
        transform = make(case.subject.size, case.subject.normalise)
        train, test = self.features(case, transform, stage)
        device = pick_device(self.device)
        if device.type == "mps":  # which has no double precision
            device = torch.device("cpu")
        sets = (from_label_sets(each) for each in case.parts.sets())
        known, asked = (
            Labelled(part[stage].to(device), labels[torch.from_numpy(part.kept)].to(device))
            for part, labels in zip((train, test), sets, strict=True)
        )
        words = f"{stage} ({known.features.shape[1]} numbers), {transform.words}"
        return known, asked, words, (*notes, *bad_images(case.parts, train, test))


@dataclass(frozen=True, kw_only=True)
class Svm(Machines):
    """A linear SVM a class, on all training images."""

    difficult: Difficult = "negative"
    """What an object marked difficult makes of its image in training: a negative, as published, or nothing."""

    protocol: ClassVar[str] = "svm"

    def judge(self, case: Case) -> Outcome:
        known, asked, words, notes = self.labelled(case)
        settings = SvmSettings(fit=self.fit, difficult=self.difficult)
        with counted("SVMs") as report:
            found = evaluate_svm(known, asked, classes=case.parts.classes, settings=settings, report=report)
        details = {"classes": found.classes, "AP": found.per_class, "C": found.costs}
        words = f"{found.protocol}; features {words}."
        return Outcome(percentages(found.metrics()), words, details=details, notes=(*notes, *found.notes))


@dataclass(frozen=True, kw_only=True)
class LowShot(Machines):
    """Linear SVMs on a few images a class."""

    shots: list[Count] = field(default_factory=lambda: list(SHOTS))
    """k, how many positives a class; of a class with fewer all are taken."""
    samples: Count = 3
    """How often they are drawn; the paper's table of α has 5."""
    negatives: Count | None = None
    """How many for each positive; by default as many as there are other classes, 19 for VOC."""

    protocol: ClassVar[str] = "lowshot"

    def judge(self, case: Case) -> Outcome:
        known, asked, words, notes = self.labelled(case)
        settings = LowShotSettings(
            fit=self.fit, shots=tuple(self.shots), samples=self.samples, negatives=self.negatives, seed=self.seed
        )
        with counted("SVMs") as report:
            found = evaluate_low_shot(known, asked, classes=case.parts.classes, settings=settings, report=report)
        metrics, spread = {}, {}
        for row in found.shots:
            for name, each in (("oracle", row.oracle), ("cross-validated", row.cross_validated)):
                metrics[f"k={row.k} {name}"] = each.mean
                spread[f"k={row.k} {name}"] = each.std
        words = f"mAP; {found.protocol}; features {words}."
        details = {"C": {row.k: {"oracle": row.oracle_cost, "cross-validated": row.costs} for row in found.shots}}
        return Outcome(percentages(metrics), words, percentages(spread), details, (*notes, *found.notes))


@contextlib.contextmanager
def counted(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar for what says how much of how much is done."""
    with contextlib.ExitStack() as stack:
        shown: list[tuple[Advance, int]] = []

        def report(done: int, total: int) -> None:
            advance, before = shown.pop() if shown else (stack.enter_context(bar(what, total)), 0)
            advance(done - before)
            shown.append((advance, done))

        yield report


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(Setting):
    """What the protocols that train ask for, and `all` of them together."""

    epochs: Epochs | None = None
    """Passes over the images; by default as published. The steps of the learning rate keep their place in them."""
    batch: Count | None = None
    """Images per step, over all devices; by default as published, or all if there are fewer."""
    accumulate: Count = 1
    """Micro-batches per step and device, to save memory; each has its own batch norm."""
    nodes: Count | Literal["auto"] = "auto"
    """Number of machines; auto is as many as torchrun or srun started processes on."""
    precision: Precision = "32-true"
    """Mixed precision is for accelerators: most CPUs are many times slower with it."""
    logging: Logging = field(default_factory=Logging)
    """How often a training logs and saves, and what it keeps."""
    max_time: str | None = None
    """Stop gracefully after this time: 45m, 1h30m, 2d."""
    resume: bool = False
    """Continue what was stopped or killed, bit for bit; what is finished stays as it is."""


NOT_OF_THE_RESULT = frozenset({"nodes", "logging", "max_time", "resume"})
"""Options that say where, how long and how closely logged a training is: its outcome does not depend on them."""


@dataclass(frozen=True, kw_only=True)
class Trained(TrainingOptions, Evaluation):
    """A protocol that trains on images: a run of its own, which can be resumed."""

    lr: Positive | None = None
    """Learning rate; by default as published."""

    trains_on_images: ClassVar[bool] = True

    def schedule(self, published: Schedule, images: int) -> Schedule:
        """The published schedule, changed as the options say, for so many training images."""
        return published.changed(self.epochs, self.batch, self.lr).fitted(images)

    def task(self, case: Case) -> Task:
        """The images to train on and those to be asked about."""
        labels, test_labels = (as_tensor(labels) for labels in case.parts.single(self.protocol))
        return Task(case.parts.train, labels, case.parts.test, test_labels, len(case.parts.classes))

    @contextlib.contextmanager
    def training(self, case: Case) -> Iterator[Work]:
        """Where the classifiers of this protocol are trained: in a folder beside the result's file, of the same name.

        Without a place for results it is a temporary folder.
        """
        limit = seconds_of(self.max_time)
        deadline = None if limit is None else time.monotonic() + limit
        config = {name: value for name, value in asdict(self).items() if name not in ("resume", "trust")}
        kept = self.folder()
        if kept is not None:
            refuse_link(kept / results.FOLDER)
        with contextlib.nullcontext(kept) if kept else tempfile.TemporaryDirectory() as folder:
            try:
                yield Work(
                    trained_fabric(self.device, self.devices, self.nodes, self.precision),
                    Path(folder) / results.FOLDER / Path(self.describe(case, Outcome({}, "")).file_name()).stem,
                    config | {"protocol": self.protocol, "weights_key": case.subject.weights_key()},
                    self.seed,
                    self.workers,
                    self.accumulate,
                    self.logging,
                    deadline,
                    self.resume,
                )
            except Stopped:
                if kept:
                    raise
                raise Stopped(
                    f"{self.protocol} was stopped, and {self.encoder} has no folder to keep checkpoints in: with --out "
                    "FOLDER a stopped training can be resumed"
                ) from None


@functools.cache
def trained_fabric(device: str, devices: int, nodes: int | Literal["auto"], precision: Precision) -> Fabric:
    """Devices, processes and precision; one for all trainings of a command, which share their processes."""
    several = devices if launcher() is None or devices > 1 else "auto"
    return make_fabric(devices=several, nodes=nodes, accelerator=device, precision=precision)


@dataclass(frozen=True, kw_only=True)
class Linear(Trained):
    """A linear classifier on the frozen encoder."""

    recipe: Recipe = "moco"
    """moco: lr 30, steps at 30 and 60, as the paper prints; moco-code: at 60 and 80; byol: lr 0.01, weight decay;
    simsiam: LARS, batch 4096, cosine."""
    fast: bool = False
    """Fit features of centre crops instead of training on augmented images: seconds, and close to it."""
    solver: Literal["optimum", "sgd"] = "optimum"
    """With --fast: the best there is (weight decay chosen on held-out images), or the recipe's descent."""

    protocol: ClassVar[str] = "linear"

    def result(self, case: Case) -> Result:
        if self.fast and self.solver == "optimum" and self.epochs is not None:
            raise ValueError("--fast finds the optimum, which has no epochs: leave --epochs out, or use --solver sgd")
        return super().result(case)

    def judge(self, case: Case) -> Outcome:
        schedule = self.schedule(SCHEDULES[self.recipe], len(case.parts.train))
        if self.fast:
            classes = len(case.parts.classes)
            features, labels, asked, answers, notes = self.centre_features(case)
            if self.solver == "optimum":
                return fit_optimum(features, labels, asked, answers, classes, self.seed, notes)
            layer = linear_on_features(features, labels, classes=classes, schedule=schedule, seed=self.seed)
            words = f"fast mode, on features of centre crops without augmentation: {schedule.words}; last epoch."
            with torch.no_grad():
                return Outcome(percentages(accuracy(layer(asked), answers)), words, notes=notes)
        with self.training(case) as work:
            found = linear_on_images(case.subject, self.task(case), schedule, work)
        words = (
            f"a linear classifier on the frozen encoder's output, trained on random crops and flips "
            f"({self.recipe}: {schedule.words}); last epoch, {CentreCrop(case.subject.size).words}."
        )
        return Outcome(percentages(found), words)


def fit_optimum(
    features: Tensor,
    labels: Tensor,
    asked: Tensor,
    answers: Tensor,
    classes: int,
    seed: int,
    notes: tuple[str, ...],
) -> Outcome:
    """Multinomial logistic regression on standardised features, its weight decay chosen on held-out training images."""
    if features.numel() <= EXACT and features.device.type != "mps":
        features, asked = features.double(), asked.double()
    standard = Standard.of(features)
    features, asked = standard(features), standard(asked)
    strength = choose_strength(features, labels, classes=classes, seed=seed)
    fit = logistic_regression(features, labels, classes=classes, strength=strength, tolerance=1e-5)
    words = (
        "fast mode, on features of centre crops without augmentation: the optimum of multinomial logistic regression "
        f"on standardised features, weight decay {strength:g} chosen on a held-out fifth of the training images."
    )
    return Outcome(percentages(accuracy(fit(asked), answers)), words, details={"strength": strength}, notes=notes)


@dataclass(frozen=True, kw_only=True)
class Probe(Trained):
    """A linear classifier on every stage of a frozen ResNet, all in one pass."""

    color_jitter: bool = True
    """Vary brightness, contrast and saturation of the training images by 0.4, as OpenSelfSup does."""
    lighting: bool = True
    """Add AlexNet's PCA noise to the colors of the training images, as OpenSelfSup does."""

    protocol: ClassVar[str] = "probe"

    def judge(self, case: Case) -> Outcome:
        schedule = self.schedule(probing.SCHEDULE, len(case.parts.train))
        with self.training(case) as work:
            found = probing.probe(
                case.subject, self.task(case), schedule, work, color_jitter=self.color_jitter, lighting=self.lighting
            )
        metrics = {f"{stage} {name}": value for stage, each in found.items() for name, value in each.items()}
        notes: tuple[str, ...] = ()
        lighting = self.lighting and case.subject.channels == 3
        if stages_of(case.subject.encoder) == ("avgpool",):
            notes = (f"{case.subject.name} is no ResNet and has no stages: only its output (avgpool) is probed.",)
        views = ["random crops", "flips"]
        views += ["color jitter"] if self.color_jitter else []
        views += ["PCA lighting"] if lighting else []
        words = (
            "linear classifiers on every stage of the frozen encoder, pooled to about 9,000 numbers, batch-normalised, "
            f"trained together on {', '.join(views[:-1])} and {views[-1]} ({schedule.words}); last epoch, "
            f"{CentreCrop(case.subject.size).words}. The paper's headline is the better of res5 and avgpool."
        )
        return Outcome(percentages(metrics), words, notes=notes)


@dataclass(frozen=True, kw_only=True)
class Semi(Trained):
    """Fine-tuning of the whole network on a few of the labels."""

    fractions: list[Fraction] = field(default_factory=lambda: [0.01, 0.1])
    """Shares of the labels, each class alike, chosen by the seed; every class keeps at least one image."""
    files: list[str] | None = None
    """Lists of the images to fine-tune on instead, such as the published 1percent.txt and 10percent.txt."""
    head_rate: Positive = finetuning.HEAD_RATE
    """How many times as fast as the encoder the classifier learns."""

    protocol: ClassVar[str] = "semi"
    needs_network: ClassVar[bool] = True

    def judge(self, case: Case) -> Outcome:
        schedule = self.schedule(finetuning.SEMI, len(case.parts.train))
        metrics: dict[str, float] = {}
        counts: dict[str, int] = {}
        with self.training(case) as work:
            for name, part in self.choose(case.parts.train).items():
                labels = part.labels()
                assert labels is not None
                counts[name] = len(part)
                found = finetuning.finetune(
                    case.subject,
                    self.task(case)._replace(train=part, labels=as_tensor(labels)),
                    schedule.fitted(len(part)),
                    work._replace(out=work.out / re.sub(r"\W+", "-", name).strip("-")),
                    head_rate=self.head_rate,
                )
                metrics |= {f"{name} {metric}": value for metric, value in found.items()}
        chosen = ", ".join(f"{name} is {count} images" for name, count in counts.items())
        words = (
            f"everything fine-tuned on {chosen} ({'given lists' if self.files else 'a seeded stratified split'}), "
            f"random crops and flips, {schedule.words}, the classifier's lr ×{self.head_rate:g}; last epoch, "
            f"{CentreCrop(case.subject.size).words}."
        )
        return Outcome(percentages(metrics), words, details={"images": counts})

    def choose(self, source: Source) -> dict[str, Subset]:
        """The parts to fine-tune on, by name."""
        if self.files is not None:
            return {Path(file).stem: take_files(source, file) for file in self.files}
        return {f"{100 * share:g} %": take_fraction(source, share, self.seed) for share in self.fractions}


@dataclass(frozen=True, kw_only=True)
class Supervised(Trained):
    """The same network trained with all labels from scratch, for comparison."""

    protocol: ClassVar[str] = "supervised"
    needs_network: ClassVar[bool] = True

    def judge(self, case: Case) -> Outcome:
        schedule = self.schedule(finetuning.SCRATCH, len(case.parts.train))
        fresh = finetuning.from_scratch(case.subject, self.seed)
        with self.training(case) as work:
            found = finetuning.finetune(fresh, self.task(case), schedule, work, head_rate=1.0)
        words = (
            f"the encoder's network trained from scratch with all labels, random crops and flips, {schedule.words}; "
            f"last epoch, {CentreCrop(case.subject.size).words}. The encoder's own weights play no part."
        )
        return Outcome(percentages(found), words)


@dataclass(frozen=True, kw_only=True)
class All(TrainingOptions):
    """Every protocol that the labels allow, one after the other."""

    fast: bool = False
    """linear on features; and leave out probe, semi and supervised, which train on images."""
    skip: list[str] = field(default_factory=list)
    """Protocols to leave out, such as supervised."""

    def run(self) -> list[Result]:
        """Judge by every protocol and write each result as soon as it is there; what is left out, and why, is said."""
        strange = sorted(set(self.skip) - {each.protocol for each in PROTOCOLS})
        if strange:
            known = ", ".join(each.protocol for each in PROTOCOLS)
            raise ValueError(f"there is no protocol {strange[0]!r} to skip: there are {known}")
        limit = seconds_of(self.max_time)
        deadline = None if limit is None else time.monotonic() + limit
        case = self.open()
        found: list[Result] = []
        left_out: dict[str, str] = {}
        stopped: Stopped | None = None
        for make in PROTOCOLS:
            options = {each.name: getattr(self, each.name) for each in fields(Setting)}
            if make is Linear:
                options["fast"] = self.fast
            if issubclass(make, Trained) and not (make is Linear and self.fast):
                options |= {each.name: getattr(self, each.name) for each in fields(TrainingOptions)}
                if deadline is not None:
                    options["max_time"] = f"{max(0.0, deadline - time.monotonic()):.3f}"
            protocol = make(**options)
            reason = protocol.refusal(case)
            if make.protocol in self.skip:
                reason = "as asked"
            elif self.fast and make.trains_on_images and make is not Linear:
                reason = "--fast trains nothing on images"
            elif launcher() is None and process_rank() > 0 and not make.trains_on_images:
                continue  # started by the first process to train with it, which has all other results
            if reason is not None:
                left_out[make.protocol] = reason
                continue
            try:
                found.append(protocol.result(case))
            except Stopped as error:
                stopped = error
                break
            self.keep(found[-1:])
        if found:
            self.report(found)
        for name, reason in left_out.items():
            say(f"left out {name}: {reason}")
        if stopped is not None:
            raise stopped
        return found


PROTOCOLS: tuple[type[Evaluation], ...] = (Knn, Svm, LowShot, Linear, Probe, Semi, Supervised)
"""In the order of their cost."""


def knn(encoder: str, **options: Any) -> Result:
    """Judge by the nearest labelled images. Nothing is trained; seconds once there are features.

    Args:
        encoder: what is judged: a run's folder, a file of weights, a model by name, random, or pixels.
        options: of `Knn`.
    """
    return Knn(encoder=encoder, **options).run()


def linear(encoder: str, **options: Any) -> Result:
    """Judge by a linear classifier on the frozen encoder, trained on augmented images; --fast on features.

    Args:
        encoder: what is judged: a run's folder, a file of weights, a model by name, random, or pixels.
        options: of `Linear`.
    """
    return Linear(encoder=encoder, **options).run()


def svm(encoder: str, **options: Any) -> Result:
    """Judge by a linear SVM a class, as published for VOC2007: mean average precision.

    Args:
        encoder: what is judged: a run's folder, a file of weights, a model by name, random, or pixels.
        options: of `Svm`.
    """
    return Svm(encoder=encoder, **options).run()


def lowshot(encoder: str, **options: Any) -> Result:
    """Judge by linear SVMs on 1, 2, 4 … 96 images a class: mean average precision, mean and deviation over samples.

    Args:
        encoder: what is judged: a run's folder, a file of weights, a model by name, random, or pixels.
        options: of `LowShot`.
    """
    return LowShot(encoder=encoder, **options).run()


def probe(encoder: str, **options: Any) -> Result:
    """Judge every stage of a frozen ResNet by a linear classifier, all trained in one pass.

    Args:
        encoder: what is judged: a run's folder, a file of weights, a model by name, random, or pixels.
        options: of `Probe`.
    """
    return Probe(encoder=encoder, **options).run()


def semi(encoder: str, **options: Any) -> Result:
    """Judge by fine-tuning the whole network on 1 % and 10 % of the labels.

    Args:
        encoder: what is judged: a run's folder, a file of weights, a model by name, or random.
        options: of `Semi`.
    """
    return Semi(encoder=encoder, **options).run()


def supervised(encoder: str, **options: Any) -> Result:
    """Train the encoder's network from scratch with all labels: the row to compare with.

    Args:
        encoder: whose network it is: a run's folder, a file of weights, a model by name, or random.
        options: of `Supervised`.
    """
    return Supervised(encoder=encoder, **options).run()


def everything(encoder: str, **options: Any) -> list[Result]:
    """Judge by every protocol that the labels allow, and say which were left out and why.

    Args:
        encoder: what is judged: a run's folder, a file of weights, a model by name, random, or pixels.
        options: of `All`.
    """
    return All(encoder=encoder, **options).run()


def show(folders: list[str]) -> None:
    """Show the results in folders of runs: mean and standard deviation over runs that differ in nothing but the seed.

    Args:
        folders: of runs, or whatever --out was.
    """
    read = [results.read_what_fits(folder) for folder in folders]
    for fault in (fault for _, faults in read for fault in faults):
        say(fault)
    found = [result for kept, _ in read for result in kept]
    if not found:
        raise ValueError(f"there are no results in {', '.join(folders)}: judge first, with mixview evaluate knn …")
    results.show(found)
