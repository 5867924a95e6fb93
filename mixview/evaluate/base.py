"""The base of all evaluation protocols: one file and one class each, labeled features or images in, metrics out.

    @dataclass(frozen=True, kw_only=True)
    class NearestMean(Protocol):
        def evaluate(self, context: EvalContext) -> Iterator[tuple[str, float]]:
            train, train_labels, test, test_labels = context.labeled_features()
            means = torch.stack([train[train_labels == label].mean(0) for label in train_labels.unique()])
            correct = torch.cdist(test, means).argmin(1) == test_labels
            yield "top-1", 100 * correct.double().mean().item()

    result = NearestMean(encoder="runs/first", data="imagenette/").run()

Its fields are its options, on the command line and in studies too; `run` writes the result into the run's folder.
"""

import math
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, Self, get_type_hints

from torch import Tensor

from mixview.data.sources.registry import SourceOptions
from mixview.encoders.features import Features, Stage, extract_for, pick_device
from mixview.encoders.loading import ComputeConfig, EncoderConfig, LoadedEncoder
from mixview.encoders.transforms import CenterCrop, Transform
from mixview.evaluate import overlap, results
from mixview.evaluate.labeled import LabeledSplits, as_tensor, open_splits
from mixview.evaluate.results import Result
from mixview.extensions import PROTOCOLS
from mixview.io.terminal import say
from mixview.options import NON_EMPTY, Count, Seed
from mixview.runs.launching import process_rank

NAME = re.compile(r"[A-Za-z0-9][\w.-]*")


class TrainingStopped(RuntimeError):
    """A training that was stopped before its end, and can be resumed."""


class LabeledFeatures(NamedTuple):
    """Features [N, D] and labels [N] of both splits, on the device.

    Example:
        >>> import torch
        >>> features = LabeledFeatures(torch.rand(8, 4), torch.arange(8) % 2, torch.rand(2, 4), torch.arange(2))
        >>> train, train_labels, test, test_labels = features
    """

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor


@dataclass(kw_only=True)
class EvalContext:
    """The encoder and the images that a protocol evaluates, and what it records besides its metrics.

    Example:
        >>> from mixview.evaluate.knn import KNN
        >>> knn = KNN(encoder="pixels", data="scenes", data_options={"count": 50, "size": 16}, workers=0)
        >>> context = knn.open()
        >>> context.encoder.name, len(context.splits.train)
        ('raw pixels', 50)
    """

    protocol: "Protocol"
    encoder: LoadedEncoder
    splits: LabeledSplits
    started: float = field(default_factory=time.monotonic)
    """The start of the evaluation by the monotonic clock; time limits count from here."""
    settings: dict[str, Any] = field(default_factory=dict)
    """The options that the metrics depend on, as they are stored."""
    description: str = ""
    """The computation of the metrics in one sentence; by default the protocol's docstring."""
    std: dict[str, float] = field(default_factory=dict)
    """Standard deviations of metrics that are means over samples."""
    details: dict[str, Any] = field(default_factory=dict)
    """Plain values behind the metrics, such as the average precision of each class."""
    notes: list[str] = field(default_factory=list)
    """Sentences that the user should read."""
    warnings: tuple[str, ...] = ()

    def features(self, transform: Transform, stage: Stage = "avgpool") -> tuple[Features, Features]:
        """Features of both splits, cached. Notes the images that cannot be read."""
        train, test = (
            extract_for(self.protocol, self.encoder, source, transform, stage)
            for source in (self.splits.train, self.splits.test)
        )
        for name, source, features in (("training", self.splits.train, train), ("test", self.splits.test, test)):
            if len(features.indices) < len(source):
                missing = sorted(set(range(len(source))) - set(features.indices.tolist()))
                some = ", ".join(source.name(index) for index in missing[:3])
                self.notes.append(f"{len(missing)} {name} images cannot be read and are left out: {some}.")
        return train, test

    def labeled_features(self) -> LabeledFeatures:
        """Features of center crops, and labels, of all images that can be read."""
        train_labels, test_labels = self.splits.single_labels(self.protocol.name)
        train, test = self.features(CenterCrop(self.encoder.size, self.encoder.normalize))
        device = pick_device(self.protocol.device)
        return LabeledFeatures(
            train["avgpool"].to(device),
            as_tensor(train_labels[train.indices]).to(device),
            test["avgpool"].to(device),
            as_tensor(test_labels[test.indices]).to(device),
        )

    def result(self, metrics: dict[str, float]) -> Result:
        """The metrics, with everything that they depend on."""
        fingerprints = {"train": self.splits.train.fingerprint(), "test": self.splits.test.fingerprint()}
        return Result(
            protocol=self.protocol.name,
            metrics=metrics,
            description=self.description or (type(self.protocol).__doc__ or "").strip().partition("\n")[0],
            encoder=self.encoder.name,
            data=self.splits.description,
            seed=self.protocol.seed,
            std=self.std,
            settings=self.settings,
            about=self.encoder.metadata,
            details={"data": fingerprints, **self.details},
            notes=tuple(self.notes),
            warnings=self.warnings,
        )


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Labeled images to evaluate on, and where the results go."""

    data: str | None = None
    """Labeled images: a folder, or any other path, address or name (see `mixview data list`)."""
    train: str | None = None
    """Split to train on; by default the one for training."""
    test: str | None = None
    """Split to evaluate on; by default test, or else val, or else a fifth of the images, which is held out."""
    test_data: str | None = None
    """Test images, if they are not part of --data."""
    labels: Annotated[str, NON_EMPTY] | None = None
    """CSV file with the columns path and label, for images without labels of their own (test_data has its own)."""
    data_options: SourceOptions | None = None
    """Further options of the dataset, such as {"count": 2000, "size": 32} for scenes."""

    seed: Seed = 0
    """Random seed. Results of several seeds are kept side by side, and averaged."""
    out: Annotated[str, NON_EMPTY] | None = None
    """Folder for the results; by default the run's, and none for an encoder without a run."""


@dataclass(frozen=True, kw_only=True)
class Protocol(DataConfig, ComputeConfig, EncoderConfig, ABC):
    """One way to evaluate an encoder on labeled images: see the example at the top of this file.

    Example:
        >>> import torch
        >>> @dataclass(frozen=True, kw_only=True)
        ... class NearestMean(Protocol):
        ...     def evaluate(self, context):
        ...         train, train_labels, test, test_labels = context.labeled_features()
        ...         means = torch.stack([train[train_labels == label].mean(0) for label in train_labels.unique()])
        ...         yield "top-1", 100 * (torch.cdist(test, means).argmin(1) == test_labels).double().mean().item()
        >>> options = {"data": "scenes", "data_options": {"count": 50, "size": 16}, "workers": 0}
        >>> result = NearestMean(encoder="pixels", **options).run()  # doctest: +ELLIPSIS
        encoder ...
        >>> list(result.metrics)
        ['top-1']
    """

    trials: Count = 1
    """Number of evaluations, with seeds from --seed on; results are shown as mean ± std."""

    name: ClassVar[str]
    """Its short name, in tables and results; by default its import path."""
    examples: ClassVar[tuple[str, ...]] = ()
    """Arguments of `mixview evaluate NAME`, which its help ends with; a test runs them."""
    first_options: ClassVar[str] = "data test_data size device seed out"
    """The options that stand first in its help."""
    run_order: ClassVar[float] = math.inf
    """Its place in `mixview evaluate all`, which starts with the lowest: the cheapest."""
    excluded_from_all: ClassVar[str] = ""
    """The reason why `mixview evaluate all` leaves it out, if it does."""
    multi_label: ClassVar[bool] = False
    """True if an image may have several classes."""
    needs_network: ClassVar[bool] = False
    """True if it trains the encoder itself."""
    needs_folder: ClassVar[bool] = False
    """True if it works only with a folder for its results."""
    runtime_options: ClassVar[frozenset[str]] = frozenset({"nodes", "logging", "max_time", "resume"})
    """Its options that do not change the metrics: place, duration and logging."""

    def __init_subclass__(cls) -> None:
        if "name" not in cls.__dict__:
            cls.name = f"{cls.__module__}.{cls.__name__}"
        if not NAME.fullmatch(cls.name):
            raise ValueError(f"an evaluation protocol's name is made of letters, digits, . and -, not {cls.name!r}")

    @abstractmethod
    def evaluate(self, context: EvalContext) -> Iterable[tuple[str, float]]:
        """Yield the name and the value, in percent, of every metric; put everything else into the context."""

    def resolve(self, device: str) -> Self:
        """The protocol with a value for every "auto" that its metrics depend on, on this device."""
        return self

    @property
    def trains_on_images(self) -> bool:
        """True if it trains on images, in a run of its own."""
        return False

    def run(self) -> Result:
        """Evaluate, write the result and show it; several trials are written one by one, and averaged."""
        if self.trials == 1:
            return run_each([self], self.open())[0]
        trials = [replace(self, seed=self.seed + number, trials=1) for number in range(self.trials)]
        return results.average(run_each(trials, self.open()))

    def open(self) -> EvalContext:
        """Open the encoder and the images, which any number of protocols can evaluate."""
        if self.needs_folder and self.folder() is None:
            raise ValueError(f"{self.name} trains in a folder, and {self.encoder} has none: pass --out FOLDER")
        if self.data is None:
            raise ValueError("no evaluation data: pass labeled images as --data (scenes, to try it out)")
        options = dict(self.data_options or {}) | ({"labels": self.labels} if self.labels else {})
        splits = open_splits(self.data, self.train, self.test, self.test_data, options, run_dir_of(self.encoder))
        encoder = self.load_for(splits.train, self.seed)
        notes, warnings = overlap.check(encoder.run, splits.train, splits.test)
        return EvalContext(
            protocol=self,
            encoder=encoder,
            splits=splits,
            notes=[*encoder.notes, *splits.notes, *notes],
            warnings=tuple(warnings),
        )

    def unsupported_reason(self, context: EvalContext) -> str | None:
        """The reason why this protocol cannot evaluate this encoder on these images; None if it can."""
        if not self.multi_label and context.splits.train_labels is None:
            return f"it needs one class per image, and the images of {self.data} have several"
        if self.needs_network and context.encoder.spec is None:
            return f"{context.encoder.name} have no network to train"
        return None

    def result(self, context: EvalContext) -> Result:
        """Evaluate on an open context, without writing the result."""
        reason = self.unsupported_reason(context)
        if reason is not None:
            raise ValueError(f"{self.name} cannot be used: {reason}; mixview evaluate all runs what can be run")
        shared = {each.name for each in fields(Protocol)}
        protocol = self.resolve(self.device)
        omitted = self.runtime_options | shared
        own = {name: value for name, value in sorted(asdict(protocol).items()) if name not in omitted}
        record = replace(
            context,
            protocol=protocol,
            settings=own | {"size": context.encoder.size},
            description="",
            std={},
            details={},
            notes=list(context.notes),
        )
        metrics = {name: float(value) for name, value in protocol.evaluate(record)}
        return record.result(metrics)

    def folder(self) -> Path | None:
        """The folder that keeps the results: `out`, or that of the encoder's run."""
        if self.out is not None:
            return Path(self.out)
        return run_dir_of(self.encoder)


def run_dir_of(encoder: str) -> Path | None:
    """The folder of an encoder's run; None if it has none."""
    path = Path(encoder).expanduser()
    run = path if path.is_dir() else path.parent
    return run if path.exists() and (run / "config.yaml").is_file() else None


def run_each(protocols: Sequence[Protocol], context: EvalContext) -> list[Result]:
    """Evaluate by each protocol, write each result immediately, and show them all at the end."""
    new_results: list[Result] = []
    stopped: TrainingStopped | None = None
    folder = protocols[0].folder() if protocols else None
    paths = []
    for protocol in protocols:
        try:
            new_results.append(protocol.result(context))
        except TrainingStopped as error:
            stopped = error
            break
        if folder is not None and process_rank() == 0:  # one process of many writes
            paths.append(results.save(new_results[-1], folder))
    if new_results and process_rank() == 0:
        report(new_results, folder, paths)
    if stopped is not None:
        raise stopped
    return new_results


def report(new_results: list[Result], folder: Path | None, paths: list[Path]) -> None:
    """Show results, the files they were written to, and their mean over earlier seeds."""
    results.show(new_results)
    if folder is None:
        say("results not saved: pass --out FOLDER to keep the results of an encoder without a run")
        return
    say(f"wrote {paths[0] if len(paths) == 1 else f'{len(paths)} results to {paths[0].parent}'}")
    names = {result.protocol for result in new_results}
    stored_results = [result for result in results.read(folder) if result.protocol in names]
    if len(stored_results) > len(new_results) and any(row.runs > 1 for row in results.summarize(stored_results)):
        say("\nTogether with earlier results:")
        results.show(stored_results)


def build(name: str, options: dict[str, Any]) -> Protocol:
    """The protocol of a name or import path, its options as plain values: groups of options may be dictionaries.

    Where a protocol has recipes, `recipe` names the one to start from, as on the command line.
    """
    protocol: type[Protocol] = PROTOCOLS.load(name)
    read_recipe = getattr(protocol, "read_recipe", None)
    if read_recipe is not None and options.get("recipe") is not None:
        options = merged(read_recipe(options["recipe"]), options)
    hints = get_type_hints(protocol)
    for key, value in options.items():
        group = hints.get(key)
        if isinstance(value, dict) and isinstance(group, type) and is_dataclass(group):
            plain = {each: tuple(part) if isinstance(part, list) else part for each, part in value.items()}
            options = options | {key: group(**plain)}
    return protocol(**options)


def merged(settings: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Settings with changes, group by group."""
    groups = {
        name: settings[name] | (asdict(value) if is_dataclass(value) and not isinstance(value, type) else value)
        for name, value in changes.items()
        if isinstance(settings.get(name), dict)
    }
    return settings | changes | groups


def protocols() -> list[type[Protocol]]:
    """All built-in protocols, the cheapest first."""
    return sorted((PROTOCOLS.load(name) for name in PROTOCOLS.names()), key=lambda each: each.run_order)
