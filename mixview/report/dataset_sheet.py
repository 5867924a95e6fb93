"""Pictures of a source: its images with their classes, boxes and masks, their views and their mixtures."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from mixview.data.augment.policies import load_policy
from mixview.data.augment.reference import make_views
from mixview.data.contact_sheet import TILE, Row, caption, crop, draw_objects, to_rgb
from mixview.data.dataset import ImageDataset, find_range
from mixview.data.decode import Decoder, Mode
from mixview.data.sources.base import BadImage, Pixels, Source
from mixview.mixing import CutMix, Mixup


def source_rows(
    source: Source, count: int = 8, seed: int = 0, tile: int = TILE, augment: str | None = None
) -> list[Row]:
    """Rows of pictures of a source: `count` of its images, drawn by the seed, their views, and their mixtures.

    With an augmentation there are all views of each image, and the first ones are mixed, as in training; without one,
    the images themselves are mixed.
    """
    order = torch.randperm(len(source), generator=torch.Generator().manual_seed(seed))
    mode: Mode = "RGB" if is_encoded(source, int(order[0])) else "stored"
    dataset = ImageDataset(source, Decoder(mode, value_range=find_range(source), eight_bits=True))
    samples = [dataset[index] for index in order[:count].tolist()]
    pictures = [to_rgb(sample.pixels) for sample in samples]
    objects = [source.objects(sample.index) for sample in samples]
    marked = [draw_objects(picture, each) for picture, each in zip(pictures, objects, strict=True)]
    captions = [f"{number + 1}: {caption(source, sample.index)}" for number, sample in enumerate(samples)]
    rows = [Row(f"{source.kind}: {len(source):,} images", marked, captions)]
    if augment is None:
        square = np.stack([np.array(crop(picture, tile)) for picture in pictures])
        batch = torch.from_numpy(square).permute(0, 3, 1, 2).float() / 255
    else:
        policy = tuple(replace(view, normalize=None) for view in load_policy(augment))
        images = [torch.from_numpy(picture).permute(2, 0, 1) for picture in pictures]
        made = [make_views(image, seed, 0, sample.index, policy) for image, sample in zip(images, samples, strict=True)]
        for number, each in enumerate(zip(*made, strict=True)):
            batch = torch.stack(each)
            rows.append(Row(f"{augment}, view {number + 1}", to_pictures(batch), [""] * len(each)))
        batch = torch.stack([views[0] for views in made])
    if len(pictures) > 1:
        for mixer in (CutMix(alpha=1.0, lam_per="image"), Mixup(alpha=1.0, lam_per="image")):
            mixture = mixer.draw(batch, torch.Generator().manual_seed(seed))
            shares = [f"{share:.0%} of {number + 1}" for number, share in enumerate(mixture.lam.tolist())]
            others = [f"{shares[i]}, the rest of {j + 1}" for i, j in enumerate(mixture.partner.tolist())]
            rows.append(Row(f"{type(mixer).__name__}, the first with the last", to_pictures(mixture(batch)), others))
    return rows


def to_pictures(batch: Tensor) -> list[Pixels]:
    """[H, W, 3] of each image of a batch [N, 3, H, W] in [0, 1]."""
    return list((batch.clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy())


def is_encoded(source: Source, index: int) -> bool:
    """Return True if a source reads files, not arrays, which may have any number of channels."""
    try:
        return isinstance(source.read(index), bytes)
    except BadImage:
        return True
