"""Sources derived from another: mixtures of its images, and views of them. Their features are extracted and cached
like any others (`mixview.encoders.features`).
"""

import hashlib
from typing import ClassVar, Literal, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from mixview.data.augment.numba_backend import make_views
from mixview.data.augment.policies import Policy
from mixview.data.decode import Decoder
from mixview.data.loader import to_tensor
from mixview.data.sources.base import Pixels, Source
from mixview.encoders.transforms import CenterCrop
from mixview.mixing import CutMix, Mixture, Mixup, Paste, mixture_generators
from mixview.report.dataset_sheet import to_pictures

MixerName = Literal["cutmix", "mixup"]


class Recipe(NamedTuple):
    """Settings of the mixtures: always the same, so that encoders see the same mixtures."""

    mixer: MixerName = "cutmix"
    lam: float | None = 0.5
    """The share of the first image that is requested; None draws it, as training does with alpha 1."""
    seed: int = 0


@final
class Mixtures(Source):
    """The mixture of each image with another: image i with image N-1-i, as in the paper.

    Args:
        source: the images.
        size: side of the mixtures, and of the center crops that they are made of.
        decoder: the decoder of the images.
        recipe: settings of the mixtures.
    """

    kind: ClassVar[str] = "mixtures"

    def __init__(self, source: Source, size: int, decoder: Decoder, recipe: Recipe) -> None:
        self.source = source
        self.size = size
        self.crop = CenterCrop(size, None)
        self.decoder = decoder
        self.recipe = recipe

    def __len__(self) -> int:
        return len(self.source)

    def name(self, index: int) -> str:
        return f"{index}_{self.partner(index)}"

    def partner(self, index: int) -> int:
        """The index of the image that image i is mixed with."""
        return len(self.source) - 1 - index

    def fingerprint(self) -> str:
        content = f"mixtures {self.size} {self.recipe} {self.source.fingerprint()}"
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()

    def read(self, index: int) -> Pixels:
        pair = torch.stack([self.input_of(each) for each in (index, self.partner(index))])
        return to_pictures(self.draw(index, pair)(pair)[:1])[0]

    def input_of(self, index: int) -> Tensor:
        """[C, size, size] an image as an encoder sees it, in [0, 1]."""
        data, name = self.source.read(index), self.source.name(index)
        return self.crop(to_tensor(self.decoder(data, name, self.crop.decode_factor)))

    def draw(self, index: int, pair: Tensor) -> Mixture:
        """The mixture of a pair [2, C, size, size], of which the first counts; a function of the index alone."""
        make = CutMix if self.recipe.mixer == "cutmix" else Mixup
        generators = mixture_generators(self.recipe.seed, index)
        return make(lam_per="image").draw(pair, generators, lam=self.recipe.lam)

    def boxes(self) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
        """[N, 4] CutMix's boxes (top, bottom, left, right) in 255ths of the side, to draw them again."""
        blank, boxes = torch.zeros(2, 1, self.size, self.size), []
        for index in range(len(self)):
            pixels = self.draw(index, blank).pixels
            assert isinstance(pixels, Paste)
            boxes.append(pixels.box[0])
        return (torch.stack(boxes).double() * 255 / self.size).round().to(torch.uint8).numpy()

    def share(self, index: int) -> float:
        """The share of image i in the mixture: the requested one, minus the part that the image's border cut off."""
        return float(self.draw(index, torch.zeros(2, 1, self.size, self.size)).lam[0])


@final
class Augmented(Source):
    """Several views of each image, one after the other: image i's are `times * i` to `times * (i + 1) - 1`.

    Args:
        source: the images.
        policy: an augmentation policy without normalization; of its views, the first is used.
        times: views per image.
        decoder: the decoder of the images.
        seed: random seed of the views.
    """

    kind: ClassVar[str] = "augmented"

    def __init__(
        self,
        source: Source,
        policy: Policy,
        times: int,
        decoder: Decoder,
        seed: int = 0,
    ) -> None:
        if any(each.normalize is not None for each in policy):
            raise ValueError("views to look at are not normalized: pass a policy with normalize=None")
        self.source = source
        self.policy = policy
        self.times = times
        self.decoder = decoder
        self.seed = seed

    def __len__(self) -> int:
        return self.times * len(self.source)

    def name(self, index: int) -> str:
        return f"{self.source.name(index // self.times)}, view {index % self.times + 1}"

    def fingerprint(self) -> str:
        content = f"views {self.policy} {self.times} {self.seed} {self.source.fingerprint()}"
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()

    def read(self, index: int) -> Pixels:
        image, number = divmod(index, self.times)
        pixels = self.decoder(self.source.read(image), self.source.name(image))
        first, *_ = make_views(pixels, self.seed, number, image, self.policy)
        return to_pictures(first[None])[0]
