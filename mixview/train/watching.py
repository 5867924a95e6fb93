"""How a run looks at itself: metrics, k-NN accuracy on held-out images, signs of collapse, pictures of what it sees."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F
from torchvision.utils import make_grid, save_image

from mixview.atomic import atomic_write
from mixview.data.augmentation import Augmentation
from mixview.data.fused import views
from mixview.data.identity import find_shared, identities
from mixview.data.loading import to_tensor
from mixview.data.opening import open_source
from mixview.data.reading import Reader
from mixview.data.source import Source, SourceError
from mixview.data.splits import Subset, take_fraction
from mixview.evaluate.knn import knn_accuracy
from mixview.evaluate.overlap import read_learned
from mixview.evaluate.transforms import CentreCrop
from mixview.methods import Method
from mixview.mixing import Mixture, mixture_generators
from mixview.objective import Objective
from mixview.options import AtLeast, Count, LessThan, NonNegative, check_options
from mixview.train.collapse import diagnose, verdict


@dataclass(frozen=True)
class Watch:
    """How often a run looks at itself, and what it keeps."""

    log_every: Count = 10
    """Optimiser steps between two lines of metrics."""
    look_every: NonNegative = 1
    """Epochs between two looks: k-NN accuracy where there are labels, and signs of collapse; 0 never looks."""
    images: Annotated[int, AtLeast(4)] = 2000
    """At most so many labelled images are the k-NN's memory, and a quarter as many its questions."""
    hold_out: Annotated[float, AtLeast(0), LessThan(1)] = 0.1
    """Share of labelled images kept from training for the k-NN, where the data has no val or test part of its own."""
    checkpoint_every: NonNegative = 0
    """Optimiser steps between two checkpoints; 0 is one an epoch."""
    keep: Count = 2
    """Checkpoints that are kept."""
    tensorboard: bool = True
    """Write TensorBoard events."""
    estimate: bool = True
    """Before it starts, try a few steps and say what the run is going to cost."""
    wandb: str | None = None
    """Also log to this Weights & Biases project (needs the wandb package)."""

    def __post_init__(self) -> None:
        check_options(self, "watch")


@dataclass(frozen=True)
class Held:
    """Labelled images that the encoder is asked about: the memory of the k-NN, and its questions."""

    memory: Source
    questions: Source


def hold_out(
    source: Source,
    data: str,
    options: dict[str, Any],
    validation: str | None,
    share: float,
    seed: int,
    validation_split: str | None = None,
) -> tuple[Source, Held | None, str]:
    """What is left to learn from, the labelled images to watch with, and a sentence about them."""
    if validation is not None or validation_split is not None:
        asked = open_source(validation or data, validation_split, **({} if validation else options))
        validation = " ".join(each for each in (validation or data, validation_split) if each)
        if asked.labels() is None:
            raise SourceError(f"--validation {validation} has no labels for a k-NN accuracy: leave it out")
        if source.labels() is not None and source.classes == asked.classes:
            return source, Held(source, asked), f"k-NN: memory from the data, {len(asked)} questions from {validation}."
        memory = take_fraction(asked, 0.5, seed)
        return source, Held(memory, rest(asked, memory)), f"k-NN: memory and questions from {validation}."
    if source.labels() is None:
        return source, None, "The images have no labels: there will be no k-NN accuracy."
    for part in ("val", "test"):
        try:
            asked = open_source(data, part, **options)
        except (SourceError, ValueError):
            continue
        if asked.labels() is not None and asked.fingerprint() != source.fingerprint():
            if source.classes != asked.classes:  # labels count the classes of their own part
                memory = take_fraction(asked, 0.5, seed)
                return source, Held(memory, rest(asked, memory)), f"k-NN: memory and questions from the {part} part."
            return source, Held(source, asked), f"k-NN: {len(asked)} images of the {part} part are its questions."
    if share <= 0:
        return source, None, "No images are held out (hold_out 0): there will be no k-NN accuracy."
    asked = take_fraction(source, share, seed)
    kept = rest(source, asked)
    words = f"k-NN: {len(asked)} labelled images are held out from training (--watch.hold_out 0 learns from all)."
    return kept, Held(kept, asked), words


def separate(held: Held, images: int) -> tuple[Held | None, str]:
    """The feature bank and the queries that the k-NN really uses, and a note (empty if they share no image).

    A query whose copy is in the bank finds itself, so images that are in both, by content, leave the bank. Where that
    would cost most of the bank, there are fewer queries; None if even then less than half of the bank remains.

    Args:
        images: size limit of the bank; the limit for the queries is a quarter of it.
    """
    bank = pick(held.memory, images)
    for limit in (images, len(bank)):
        queries = pick(held.questions, max(1, limit // 4))
        shared = find_shared(bank, identities(queries, range(len(queries))))
        count = int(shared.sum())
        if not count:
            return Held(bank, queries), ""
        overlap = f"{count} of the {len(bank)} images in the feature bank are also among the {len(queries)} queries"
        if 2 * count <= len(bank):
            note = f"k-NN: {overlap}, by content, and were excluded: {len(bank) - count} remain in the bank."
            return Held(Subset(bank, np.flatnonzero(~shared)), queries), note
    return None, f"There will be no k-NN accuracy: {overlap}, by content."


def note_trained_on(run: Path, held: Held) -> list[str]:
    """A note if the run in a folder trains on images that are among the queries."""
    queries = identities(held.questions, range(len(held.questions)))
    learned = read_learned(run, [])
    shared = learned and learned.shared(queries, "k-NN queries")
    return [f"{shared}: the k-NN accuracy is not that of unseen images."] if shared else []


def rest(source: Source, part: Subset) -> Subset:
    """The images of a source that are not in a part of it."""
    return Subset(source, np.setdiff1d(np.arange(len(source)), part.indices))


def pick(source: Source, count: int) -> Source:
    """At most so many images, evenly over the source."""
    if len(source) <= count:
        return source
    return Subset(source, np.linspace(0, len(source) - 1, count).astype(np.int64))


def names_parents(mixture: Mixture) -> bool:
    """Whether any image has a partner other than itself: none has with SIM, nor by what MixAug says."""
    return not torch.equal(mixture.partner.cpu(), torch.arange(len(mixture)))


class Watcher:
    """Looks at an encoder every now and then. The first process's: the others wait.

    Args:
        method: whose encoder is watched.
        reader: the images that it learns from.
        held: labelled images for the k-NN, where there are any, as `separate` returns them.
    """

    def __init__(
        self,
        fabric: Fabric,
        method: Method,
        objective: Objective,
        reader: Reader,
        augmentations: tuple[Augmentation, Augmentation],
        held: Held | None,
        watch: Watch,
        seed: int,
    ) -> None:
        self.fabric = fabric
        self.method = method
        self.objective = objective
        self.augmentations = augmentations
        self.size = augmentations[0].crop.size
        self.held = held
        self.watch = watch
        count = min(len(reader), 256)
        shown = [reader[index] for index in np.linspace(0, len(reader) - 1, count).astype(int).tolist()]
        pairs = [views(each.pixels, seed, 0, each.index, augmentations) for each in shown]
        self.views = torch.stack([first for first, _ in pairs]), torch.stack([second for _, second in pairs])
        # Of this moment alone, so that a look at any epoch compares with a look at any other.
        terms = objective.draw(self.views[0], mixture_generators(seed, 0))
        self.mixture = next((term.mixture for term in terms if names_parents(term.mixture)), None)
        self.decoder = reader.decoder
        self.prepare = CentreCrop(self.size, augmentations[0].normalise)

    def look(self) -> tuple[dict[str, float], str | None]:
        """Metrics of the encoder as it is now, and a warning in words if it is collapsing."""
        # Projections are what the loss sees, and what collapses first; features are what one keeps, and asks about.
        network = self.method.online
        training = network.training
        network.eval()
        try:
            with torch.no_grad():
                first, second = (self.encode(network, view) for view in self.views)
                mixed = None if self.mixture is None else self.encode(network, self.mixture(self.views[0]))
                diagnostics = diagnose(first, second, mixed=mixed, mixture=self.mixture)
                metrics = diagnostics.items()
                if self.held is not None:
                    metrics["knn"] = self.ask(network.encoder, self.held)
        finally:
            network.train(training)
        return metrics, verdict(diagnostics, min(first.shape))

    def ask(self, encoder: nn.Module, held: Held) -> float:
        """k-NN accuracy: the share of questions whose neighbours in memory have their label."""
        parts = held.memory, held.questions
        (bank, bank_labels), (asked, labels) = (self.features(encoder, part) for part in parts)
        classes = 1 + int(max(bank_labels.max(), labels.max()))
        return knn_accuracy(bank, bank_labels, asked, labels, classes=classes, k=20)

    def features(self, encoder: nn.Module, source: Source) -> tuple[Tensor, Tensor]:
        """Features [N, D] and labels [N] of a source's images."""
        reader, found, known = Reader(source, self.decoder), [], source.labels()
        assert known is not None
        labels = []
        for start in range(0, len(reader), 256):
            read = [reader[index] for index in range(start, min(start + 256, len(reader)))]
            images = torch.stack([self.prepare(to_tensor(each.pixels)) for each in read])
            found.append(self.encode(encoder, images))
            labels += [int(known[each.index]) for each in read]
        return torch.cat(found), torch.tensor(labels, device=found[0].device)

    def encode(self, encoder: nn.Module, images: Tensor) -> Tensor:
        with self.fabric.autocast():
            parts = [encoder(part.to(self.fabric.device)).float() for part in images.split(256)]
        return torch.cat(parts)

    def some_views(self, count: int) -> tuple[Tensor, Tensor]:
        """So many views, on the device, to try a step with."""
        index = torch.arange(count) % len(self.views[0])
        first, second = (view[index].to(self.fabric.device) for view in self.views)
        return first, second

    def picture(self, path: Path, count: int = 8) -> None:
        """What people check first: images' two views and, where the objective mixes, their mixtures."""
        rows = [self.views[0][:count], self.views[1][:count]]
        for term in self.objective.draw(rows[0], mixture_generators(0, 0)):
            if not term.mixture.is_identity:
                rows.append(term.mixture(rows[0]))
        pixels = torch.cat(rows)
        if self.augmentations[0].normalise is not None:
            mean, std = self.augmentations[0].normalise.values(pixels.shape[1])
            pixels = pixels * torch.tensor(std).view(-1, 1, 1) + torch.tensor(mean).view(-1, 1, 1)
        grid = make_grid(pixels[:, :3].clamp(0, 1), nrow=len(rows[0]), padding=max(1, self.size // 16), pad_value=1)
        shown = F.resize(grid, [max(grid.shape[1], 96 * len(rows))], interpolation=InterpolationMode.NEAREST)
        with atomic_write(path) as file:
            save_image(shown, file, format="png")
