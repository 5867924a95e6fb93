"""SwAV (Caron et al., 2020): an image's code, its share in each of some prototypes, is predicted from its other view.

Two views, no multi-crop and no queue. Under a mixture the prediction is made from the mixture, and the codes are those
of its two unmixed parents, weighed by lam: the loss is linear in the code, so that SwAV-BSIM is Eq. 4's idea with
cross-entropy for cosine.
"""

from collections.abc import Sequence
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixview.distributed import gather, own_rows
from mixview.losses import check_temperature, unit
from mixview.methods.method import Method, Targets, Views, check_progress, check_views, once, unmixed_first
from mixview.mixing import Mixture
from mixview.nn import MLP, Projected
from mixview.objective import Term


@torch.no_grad()
def sinkhorn(scores: Tensor, epsilon: float = 0.05, iterations: int = 3) -> Tensor:
    """Codes [N, K]: every row sums to 1, and (nearly, after a few iterations) every prototype has N / K images.

    The Sinkhorn-Knopp algorithm on exp(scores / epsilon), in logarithms: nothing overflows.

    Args:
        scores: [N, K] cosines of images and prototypes.
        epsilon: the smaller, the harder the codes.
        iterations: of normalising columns and rows in turn.
    """
    exact = torch.promote_types(scores.dtype, torch.float32)
    log_q = scores.to(exact) / epsilon
    for _ in range(iterations):
        log_q = log_q - torch.logsumexp(log_q, dim=0, keepdim=True)
        log_q = log_q - torch.logsumexp(log_q, dim=1, keepdim=True)
    return log_q.exp()


def swapped_prediction(scores: Tensor, codes: Tensor, mixture: Mixture, temperature: float) -> Tensor:
    """Cross-entropy of the codes of a mixture's parents with what is predicted from the mixture. Mean over the batch.

    Args:
        scores: [N, K] cosines of the mixtures with the prototypes.
        codes: [N, K] of the unmixed other views.
        mixture: of these N images.
        temperature: tau.
    """
    check_temperature(temperature)
    with torch.autocast(scores.device.type, enabled=False):
        exact = torch.promote_types(scores.dtype, torch.float32)
        log_p = F.log_softmax(scores.to(exact) / temperature, dim=1)
        lam = mixture.lam.to(log_p.dtype).unsqueeze(1)
        wanted = lam * codes + (1 - lam) * codes[mixture.partner]
        return -(wanted * log_p).sum(1).mean()


@final
class SwAV(Method):
    """Predict the code of one view from the other, or from a mixture of the other.

    Passes with gradient under SIM / BSIM / WBSIM: 2 / 2 / 4; without: 0 / 2 / 0.

    Args:
        encoder: images [N, C, H, W] -> features [N, feature_dim].
        feature_dim: the encoder's width.
        projector: features -> projections of width `dim`; by default feature_dim-2048-128 with batch norm between.
        dim: the width of projections.
        prototypes: K; 3000 as published.
        temperature: tau, 0.1 as published.
        epsilon: of Sinkhorn-Knopp, 0.05 as published.
        iterations: of Sinkhorn-Knopp, 3 as published.
    """

    def __init__(
        self,
        encoder: nn.Module,
        feature_dim: int,
        projector: nn.Module | None = None,
        dim: int = 128,
        prototypes: int = 3000,
        temperature: float = 0.1,
        epsilon: float = 0.05,
        iterations: int = 3,
    ) -> None:
        super().__init__()
        check_temperature(temperature)
        if prototypes < 2 or epsilon <= 0 or iterations < 1:
            raise ValueError(
                "SwAV needs at least 2 prototypes, a positive epsilon and an iteration, got "
                f"{prototypes}, {epsilon} and {iterations}"
            )
        projector = MLP((feature_dim, 2048, dim)) if projector is None else projector
        self.online = Projected(encoder, projector, feature_dim)
        self.prototypes = nn.Linear(dim, prototypes, bias=False)
        self.temperature = temperature
        self.epsilon = epsilon
        self.iterations = iterations
        self.normalise_prototypes()

    def forward(self, views: Views, terms: Sequence[Term], targets: Targets = None) -> tuple[Tensor, Targets]:
        check_views(views)
        first, second = views
        score = once(lambda images: self.prototypes(unit(self.online(images))))
        if targets is None:
            if any(mixture.is_identity for _, mixture in terms):
                # An unmixed term needs these scores with their graph: one pass serves as both.
                targets = self.assign(score(first)), self.assign(score(second))
            else:
                with torch.no_grad():
                    targets = self.assign(score.encode(first)), self.assign(score.encode(second))
        code_first, code_second = targets
        loss = first.new_zeros(())
        for weight, mixture in unmixed_first(terms):
            side = swapped_prediction(score(mixture(first)), code_second, mixture, self.temperature)
            other = swapped_prediction(score(mixture(second)), code_first, mixture, self.temperature)
            loss = loss + weight * (side + other) / 2
        return loss, targets

    @torch.no_grad()
    def assign(self, scores: Tensor) -> Tensor:
        """The codes of this process's images: those of all processes are balanced together."""
        codes = sinkhorn(gather(scores.detach()), self.epsilon, self.iterations)
        return codes[own_rows(len(scores))]

    @torch.no_grad()
    def normalise_prototypes(self) -> None:
        self.prototypes.weight.copy_(F.normalize(self.prototypes.weight, dim=1))

    def advance(self, *targets: Targets, progress: float) -> None:
        """Prototypes return to length one."""
        check_progress(progress)
        self.normalise_prototypes()
