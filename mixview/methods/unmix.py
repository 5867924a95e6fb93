"""Un-Mix (Shen et al., 2022) on methods that compare both ways: one view is mixed, the other is not.

    method = UnMix(SimCLR(encoder, feature_dim))
    objective = unmix()                      # the method's own loss, and that of the mixtures: CutMix or Mixup

Of MoCo its published code mixes the queries, and leaves the keys alone: that is MoCo itself under `unmix()`, or WBSIM
with weights of one, and needs nothing of this file.

With mixtures `m_k = lam x_k'' + (1 - lam) x_p(k)''` of the second view and partners that are mutual (p(p(i)) = i),
image i is in two of them, by lam in m_i and by 1 - lam in m_p(i), and its loss is

    lam D(x_i', m_i) + (1 - lam) D(x_i', m_p(i))

which has the form of BSIM with the sides exchanged. (BSIM's paper calls this "mixture to mixture", after an earlier
version that compared two mixtures as they were.) A method that sums over both views does both: the mixtures are its
targets once and its anchors once.
"""

from collections.abc import Sequence
from typing import ClassVar, final

from torch import Tensor, nn

from mixview.methods.base import Method, Targets, Views, check_two_views, unmixed_first
from mixview.mixing import Mixture, unmixed
from mixview.nn import EncoderWithProjector
from mixview.objective import Term


@final
class UnMix(Method):
    """A method whose mixed terms mix the second view and leave the first alone.

    Mixtures need mutual partners and one lam per batch, as published, or per pair: another lam, or another partner,
    would put other shares of an image into its targets than the loss says.

    Args:
        method: SimCLR, BYOL, SimSiam, SwAV …; what follows by itself (EMA) goes by the unmixed targets.

    Example:
        >>> import torch
        >>> from mixview import unmix
        >>> from mixview.methods import SimSiam
        >>> views = torch.rand(2, 4, 3, 4, 4)  # two views of four images
        >>> method = UnMix(SimSiam(nn.Sequential(nn.Flatten(), nn.Linear(48, 8)), feature_dim=8))
        >>> loss, targets = method(views, unmix().draw(views[0], torch.Generator()))
    """

    independent_terms: ClassVar[bool] = False  # the terms of one step have different targets: one call keeps them apart
    unmix_targets: ClassVar[bool] = False

    def __init__(self, method: Method) -> None:
        super().__init__()
        if isinstance(method, UnMix):
            raise TypeError("this method mixes its targets already: UnMix goes around it once")
        if not method.unmix_targets:
            name = type(method).__name__
            raise TypeError(f"Un-Mix mixes the queries of {name}: use {name} itself, with the objective unmix()")
        self.method = method

    @property
    def online(self) -> EncoderWithProjector:  # type: ignore[override]
        """The inner method's."""
        return self.method.online

    @property
    def frozen(self) -> Sequence[nn.Parameter]:
        """The inner method's."""
        return self.method.frozen

    @property
    def predictor(self) -> nn.Module | None:
        """The inner method's, where it has one."""
        predictor = getattr(self.method, "predictor", None)
        return predictor if isinstance(predictor, nn.Module) else None

    def forward(self, views: Views, terms: Sequence[Term], targets: Targets = None) -> tuple[Tensor, Targets]:
        first, second = check_two_views(views)
        ordered = unmixed_first(terms)
        plain = [term for term in ordered if term.mixture.is_identity]
        loss = first.new_zeros(())
        kept = targets
        if plain:
            loss, kept = self.method(views, plain, targets)
        for weight, mixture in ordered[len(plain) :]:
            if len(mixture) != mixture.images or mixture.further:
                raise ValueError('Un-Mix needs a mixture of two images for every image: use anchors="all"')
            swapped = Mixture(mixture.partner, mixture.lam, unmixed)
            mixed, made = self.method((first, mixture(second)), [Term(weight, swapped)])
            loss = loss + mixed
            kept = made if kept is None else kept
        return loss, kept

    def update(self, *targets: Targets, progress: float | Tensor) -> None:
        """Update the inner method."""
        self.method.update(*targets, progress=progress)
