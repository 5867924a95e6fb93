"""Online evaluation: k-NN accuracy on held-out images, collapse metrics, and a picture of the views."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F
from torchvision.utils import make_grid, save_image

from mixview.data.augment.policies import Policy
from mixview.data.dataset import ImageDataset
from mixview.data.loader import ViewDataset, to_tensor
from mixview.data.sources.base import Source, SourceError, even_indices
from mixview.data.sources.identity import content_hashes, find_shared
from mixview.data.sources.registry import open_dataset, other_parts
from mixview.data.sources.splits import Subset, drop_unlabeled, hold_out_labeled, take_evenly, take_fraction, without
from mixview.encoders.transforms import CenterCrop
from mixview.evaluate.knn import knn_accuracy
from mixview.evaluate.overlap import read_training_images
from mixview.io.atomic import atomic_write
from mixview.methods import Method
from mixview.mixing import Mixture, mixture_generators
from mixview.objective import Objective
from mixview.runs.fabric import Fabric
from mixview.train.collapse import collapse_warning, diagnose


class KNNImages(NamedTuple):
    """Labeled images for the k-NN accuracy."""

    bank: Source
    """Images of the feature bank."""
    queries: Source
    """Images that are classified by their nearest neighbors in the bank."""


def hold_out(
    source: Source,
    data: str,
    options: dict[str, Any],
    validation: str | None,
    share: float,
    seed: int,
    validation_split: str | None = None,
) -> tuple[Source, KNNImages | None, str]:
    """The images to learn from, the labeled images to evaluate with, and a note about them.

    Args:
        source: all images that were given to learn from.
        data: origin of these images, as in the settings.
        options: options of the dataset.
        validation: another dataset to evaluate with.
        share: the share of the images that is held out if there is no other part to evaluate with.
        seed: seed that chooses them.
        validation_split: the part of `validation`, or of the data, to evaluate with.
    """
    if validation is not None or validation_split is not None:
        queries = open_dataset(validation or data, validation_split, **({} if validation else options))
        validation = " ".join(each for each in (validation or data, validation_split) if each)
        if queries.labels() is None:
            raise SourceError(f"--validation {validation} has no labels for a k-NN accuracy: leave it out")
        if source.labels() is not None and source.classes == queries.classes:
            note = f"k-NN: feature bank from the data, {len(queries)} queries from {validation}."
            return source, KNNImages(drop_unlabeled(source)[0], drop_unlabeled(queries)[0]), note
        return source, split_bank_and_queries(queries, seed), f"k-NN: feature bank and queries from {validation}."
    if source.labels() is None:
        return source, None, "The images have no labels: there will be no k-NN accuracy."
    for name, part in other_parts(data, source, ("val", "test"), **options):
        if part.labels() is None:
            continue
        if source.classes != part.classes:  # labels count the classes of their own part
            return source, split_bank_and_queries(part, seed), f"k-NN: feature bank and queries from the {name} part."
        queries = drop_unlabeled(part)[0]
        note = f"k-NN: {len(queries)} images of the {name} part are the queries."
        return source, KNNImages(drop_unlabeled(source)[0], queries), note
    if share <= 0:
        return source, None, "No images are held out (hold_out 0): there will be no k-NN accuracy."
    queries = hold_out_labeled(source, share, seed)
    learned = without(source, queries)
    note = f"k-NN: {len(queries)} labeled images are held out from training (--monitor.hold_out 0 learns from all)."
    return learned, KNNImages(drop_unlabeled(learned)[0], queries), note


def split_bank_and_queries(source: Source, seed: int) -> KNNImages:
    """Half of the images as feature bank, and half as queries."""
    source, _ = drop_unlabeled(source)
    bank = take_fraction(source, 0.5, seed)
    return KNNImages(bank, without(source, bank))


def drop_shared_images(knn: KNNImages, images: int) -> tuple[KNNImages | None, str]:
    """The feature bank and the queries that the k-NN really uses, and a note (empty if they share no image).

    A query whose copy is in the bank finds itself, so images that are in both, by content, leave the bank. Where that
    would cost most of the bank, there are fewer queries; None if even then less than half of the bank remains.

    Args:
        images: size limit of the bank; the limit for the queries is a quarter of it.
    """
    bank = take_evenly(knn.bank, images)
    for limit in (images, len(bank)):
        queries = take_evenly(knn.queries, max(1, limit // 4))
        shared = find_shared(bank, content_hashes(queries, range(len(queries))))
        count = int(shared.sum())
        if not count:
            return KNNImages(bank, queries), ""
        overlap = f"{count} of the {len(bank)} images in the feature bank are also among the {len(queries)} queries"
        if 2 * count <= len(bank):
            note = f"k-NN: {overlap}, by content, and were excluded: {len(bank) - count} remain in the bank."
            return KNNImages(Subset(bank, np.flatnonzero(~shared)), queries), note
    return None, f"There will be no k-NN accuracy: {overlap}, by content."


def note_trained_on(run: Path, knn: KNNImages) -> list[str]:
    """A note if the run in a folder trains on images that are among the queries."""
    queries = content_hashes(knn.queries, range(len(knn.queries)))
    learned = read_training_images(run, [])
    shared = learned and learned.shared(queries, "k-NN queries")
    return [f"{shared}: the k-NN accuracy is not measured on unseen images."] if shared else []


def has_mixtures(mixture: Mixture) -> bool:
    """Return True if any image has a partner other than itself, which none has with SIM and MixAug."""
    return not torch.equal(mixture.partner, mixture.own)


def upsample_to(crops: Tensor, views: Tensor) -> Tensor:
    """Local crops at the size of global views, each pixel repeated, so that one picture shows both."""
    if crops.shape == views.shape:
        return crops
    resized: Tensor = F.resize(crops, list(views.shape[-2:]), interpolation=InterpolationMode.NEAREST)
    return resized


class Monitor:
    """Evaluates an encoder while it learns, on the first process.

    Args:
        fabric: device and precision.
        method: the method whose encoder is evaluated.
        objective: the objective of the run, which mixes views.
        images: the training images.
        policy: the augmentation of each view.
        knn: labeled images for the k-NN accuracy, where there are any, as `drop_shared_images` returns them.
        seed: seed of the views and mixtures.
        exact_decoding: decode large images whole for the views.
    """

    def __init__(
        self,
        fabric: Fabric,
        method: Method,
        objective: Objective,
        images: ImageDataset,
        policy: Policy,
        knn: KNNImages | None,
        seed: int,
        exact_decoding: bool = False,
    ) -> None:
        self.fabric = fabric
        self.method = method
        self.objective = objective
        self.knn = knn
        self.normalize = policy[0].normalize
        self.size = policy[0].size
        indices = even_indices(len(images), 256).tolist()
        views, _ = ViewDataset(images, policy, seed, exact_decoding=exact_decoding).__getitems__(
            [(0, index) for index in indices]
        )
        self.views = list(views)
        # Drawn once, so that evaluations of different epochs compare.
        terms = objective.draw(self.views[0], mixture_generators(seed, 0))
        self.mixture = next((term.mixture for term in terms if has_mixtures(term.mixture)), None)
        self.decoder = images.decoder
        self.prepare = CenterCrop(self.size, self.normalize)

    def evaluate(self) -> tuple[dict[str, float], str | None]:
        """Metrics of the encoder as it is now, and a warning if it is collapsing."""
        # Projections are what the loss sees, and what collapses first; features are what one keeps, and evaluates.
        network = self.method.online
        training = network.training
        network.eval()
        try:
            with torch.no_grad():
                first, second = (self.encode(network, view) for view in self.views[:2])
                mixed = None if self.mixture is None else self.encode(network, self.mixture(self.views[0]))
                diagnostics = diagnose(first, second, mixed=mixed, mixture=self.mixture)
                metrics = diagnostics.items()
                if self.knn is not None:
                    metrics["knn"] = self.knn_accuracy(network.encoder, self.knn)
        finally:
            network.train(training)
        return metrics, collapse_warning(diagnostics, min(first.shape))

    def knn_accuracy(self, encoder: nn.Module, images: KNNImages) -> float:
        """The share of queries whose nearest neighbors in the feature bank have their label."""
        (bank, bank_labels), (queries, labels) = (self.features(encoder, part) for part in images)
        classes = 1 + int(max(bank_labels.max(), labels.max()))
        return knn_accuracy(bank, bank_labels, queries, labels, classes=classes, k=20)

    def features(self, encoder: nn.Module, source: Source) -> tuple[Tensor, Tensor]:
        """Features [N, D] and labels [N] of a source's images."""
        dataset, all_labels = ImageDataset(source, self.decoder), source.labels()
        assert all_labels is not None
        features, labels = [], []
        for start in range(0, len(dataset), 256):
            indices = range(start, min(start + 256, len(dataset)))
            samples = [dataset.load(index, self.prepare.decode_factor) for index in indices]
            images = torch.stack([self.prepare(to_tensor(each.pixels)) for each in samples])
            features.append(self.encode(encoder, images))
            labels += [int(all_labels[each.index]) for each in samples]
        return torch.cat(features), torch.tensor(labels, device=features[0].device)

    def encode(self, encoder: nn.Module, images: Tensor) -> Tensor:
        with self.fabric.autocast():
            parts = [encoder(part.to(self.fabric.device)).float() for part in images.split(256)]
        return torch.cat(parts)

    def sample_views(self, count: int) -> list[Tensor]:
        """A number of views, on the device, to try a step with."""
        index = torch.arange(count) % len(self.views[0])
        return [view[index].to(self.fabric.device) for view in self.views]

    def save_views(self, path: Path, count: int = 8) -> None:
        """Draw what people check first: views of some images and, where the objective mixes, their mixtures."""
        first = self.views[0][:count]
        rows = [upsample_to(view[:count], first) for view in self.views]
        for term in self.objective.draw(first, mixture_generators(0, 0)):
            if not term.mixture.is_identity:
                rows.append(term.mixture(first))
        pixels = torch.cat(rows)
        if self.normalize is not None:
            mean, std = self.normalize.values(pixels.shape[1])
            pixels = pixels * torch.tensor(std).view(-1, 1, 1) + torch.tensor(mean).view(-1, 1, 1)
        grid = make_grid(pixels[:, :3].clamp(0, 1), nrow=len(first), padding=max(1, self.size // 16), pad_value=1)
        shown = F.resize(grid, [max(grid.shape[1], 96 * len(rows))], interpolation=InterpolationMode.NEAREST)
        with atomic_write(path) as file:
            save_image(shown, file, format="png")
