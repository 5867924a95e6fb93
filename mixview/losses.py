"""The losses, each a pure function of features and a `Mixture`: the paper's three, Barlow Twins' and VICReg's.

Needs torch and nothing else.

Each compares an *anchor*, the features of a mixture, with *targets*, the features of unmixed views, and weighs the
two parents of a mixture by `lam` and `1 - lam`. Under `Identity` (lam = 1, partner = self) each is the published loss.
Features come in normalized or not; half precision and autocast are taken to float32 first, float64 stays float64.
Nothing is detached here: stop-gradient is the method's business.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from mixview.mixing import Mixture, check_mixture


def nt_xent(
    mixed_z: Tensor, plain_z: Tensor, mixture: Mixture, temperature: float, *, rows: slice | None = None
) -> Tensor:
    """NT-Xent, one direction of Eq. 1 and 2: mixtures `z'_ij` against the unmixed views `z''_k`. Mean over the anchors.

    The denominator, the same for both parents, holds all N targets and the mixtures that share no parent with the
    anchor. At lam in {0, 1} those are the 2N - 1 terms of SimCLR.

    Args:
        mixed_z: [A, D] projections of the mixtures, the anchors.
        plain_z: [N, D] projections of the unmixed other view, the targets.
        mixture: A mixtures of these N images.
        temperature: tau.
        rows: the anchors to average over, all by default; with features gathered from many processes, this process's.

    Example:
        >>> from mixview import CutMix
        >>> images, other = torch.rand(2, 4, 3, 8, 8)  # two views of four images
        >>> mixture = CutMix(lam_per="image").draw(images, torch.Generator())
        >>> encoder = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 16))
        >>> loss = nt_xent(encoder(mixture(images)), encoder(other), mixture, temperature=0.1)
        >>> loss.backward()
    """
    check_temperature(temperature)
    check_pair(mixed_z, plain_z, mixture, "mixed_z", "plain_z")
    with torch.autocast(mixed_z.device.type, enabled=False):
        mixed, plain = l2_normalize(mixed_z), l2_normalize(plain_z)
        plain = plain.to(mixed.dtype)  # should one be float64
        rows = slice(None) if rows is None else rows
        to_targets = mixed[rows] @ plain.T / temperature  # [n, N]
        to_mixtures = mixed[rows] @ mixed.T / temperature
        to_mixtures = to_mixtures.masked_fill(share_a_parent(mixture, rows), -math.inf)
        denominator = torch.logsumexp(torch.cat([to_targets, to_mixtures], dim=1), dim=1)
        loss = denominator
        for parent, share in mixture.parts(mixed.dtype, rows):
            loss = loss - share * to_targets.gather(1, parent.unsqueeze(1)).squeeze(1)
        return loss.mean()


def info_nce(
    query: Tensor,
    keys: Tensor,
    queue: Tensor,
    mixture: Mixture,
    temperature: float,
    *,
    other_parent: bool = False,
    extra: Tensor | None = None,
) -> Tensor:
    """InfoNCE against a queue, Eq. 3: each parent's key in turn is the positive, the queue the negatives. Batch mean.

    Args:
        query: [A, D] queries of the mixtures.
        keys: [N, D] keys of the unmixed views.
        queue: [K, D] keys of earlier batches.
        mixture: A mixtures of these N images.
        temperature: tau.
        other_parent: count the other parent's key, too, among the negatives of each term.
        extra: [A, S] cosines of each query with negatives of its own, besides the queue.

    Example:
        >>> from mixview import CutMix
        >>> mixture = CutMix().draw(torch.rand(4, 3, 8, 8), torch.Generator())
        >>> query, keys, queue = torch.rand(4, 16), torch.rand(4, 16), torch.rand(64, 16)
        >>> info_nce(query, keys, queue, mixture, temperature=0.2).shape
        torch.Size([])
    """
    check_temperature(temperature)
    check_pair(query, keys, mixture, "query", "keys")
    if queue.ndim != 2 or queue.shape[1] != query.shape[1] or len(queue) == 0:
        raise ValueError(f"queue must be [K, {query.shape[1]}] like the queries, got {list(queue.shape)}")
    with torch.autocast(query.device.type, enabled=False):
        q, k, negatives = l2_normalize(query), l2_normalize(keys), l2_normalize(queue)
        parts = mixture.parts(q.dtype)
        positives = [(q * k[parent]).sum(1) / temperature for parent, _ in parts]
        # The terms share the queue's part of the denominator: one product with the queue, not one per parent.
        cosines = q @ negatives.T.to(q.dtype)
        if extra is not None:
            cosines = torch.cat([cosines, extra.to(q.dtype)], dim=1)
        rest = torch.logsumexp(cosines / temperature, dim=1)
        loss = torch.zeros_like(rest)
        for number, (parent, share) in enumerate(parts):
            denominator = torch.logaddexp(positives[number], rest)
            if other_parent:
                for other, (other_index, other_share) in enumerate(parts):
                    if other != number:  # a parent of no weight is no negative, nor is the same image
                        competes = (share > 0) & (other_share > 0) & (other_index != parent)
                        denominator = torch.where(competes, torch.logaddexp(denominator, positives[other]), denominator)
            loss = loss + share * (denominator - positives[number])
        return loss.mean()


def byol_loss(prediction: Tensor, target: Tensor, mixture: Mixture, *, interpolated: bool = False) -> Tensor:
    """BYOL's regression loss, one direction of Eq. 4: `2 - 2 [lam cos(q, z_i) + (1 - lam) cos(q, z_j)]`. Batch mean.

    Args:
        prediction: [A, D] predictions from the mixtures.
        target: [N, D] projections of the unmixed other view (detached, in BYOL and SimSiam).
        mixture: A mixtures of these N images.
        interpolated: compare with one target instead, the unit vector along `lam z_i + (1 - lam) z_j` (z normalized).

    Example:
        >>> from mixview import Identity
        >>> mixture = Identity().draw(torch.rand(2, 3, 8, 8))
        >>> prediction, target = torch.tensor([[3.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]])
        >>> byol_loss(prediction, target, mixture)  # one is right, and one at a right angle
        tensor(1.)
    """
    check_pair(prediction, target, mixture, "prediction", "target")
    with torch.autocast(prediction.device.type, enabled=False):
        q, z = l2_normalize(prediction), l2_normalize(target)
        parents = mixture.interpolate(z.to(q.dtype))
        if interpolated:
            parents = l2_normalize(parents)
        return 2 - 2 * (q * parents).sum(1).mean()


def barlow_twins_loss(
    mixed_z: Tensor, plain_z: Tensor, mixture: Mixture, lambda_bt: float, *, dims: slice | None = None
) -> Tensor:
    """Barlow Twins, Eq. 1 of https://arxiv.org/abs/2103.03230: `sum_i (1 - C_ii)^2 + lambda_bt sum_{i != j} C_ij^2`.

    C [D, D] is the cross-correlation over the batch of the mixtures' projections and the interpolated targets
    `lam z_i + (1 - lam) z_j`. Projections are interpolated as they are; then both sides are standardized.

        z1, z2 = torch.randn(2, 256, 32).unbind()
        mixture = CutMix(lam_per="image").draw(images, generator)
        loss = barlow_twins_loss(z1, z2, mixture, lambda_bt=0.0051)

    Args:
        mixed_z: [A, D] projections of the mixtures, the anchors.
        plain_z: [N, D] projections of the unmixed other view, the targets.
        mixture: A mixtures of these N images.
        lambda_bt: weight of the off-diagonal part.
        dims: the rows of C to sum over, all by default; many processes with the same features share them out.
    """
    check_pair(mixed_z, plain_z, mixture, "mixed_z", "plain_z")
    with torch.autocast(mixed_z.device.type, enabled=False):
        exact = torch.promote_types(mixed_z.dtype, torch.float32)
        plain = plain_z.to(exact)
        anchors, targets = standardize(mixed_z), standardize(mixture.interpolate(plain))
        dims = slice(0, anchors.shape[1]) if dims is None else dims
        c = anchors[:, dims].T @ targets / len(anchors)  # [d, D]
        diagonal = c.diagonal(dims.start)
        off_diagonal = c.square().sum() - diagonal.square().sum()
        return (1 - diagonal).square().sum() + lambda_bt * off_diagonal


def invariance_loss(mixed_z: Tensor, plain_z: Tensor, mixture: Mixture) -> Tensor:
    """VICReg's invariance, Eq. 5 of https://arxiv.org/abs/2105.04906: `lam |z - z_i|^2 + (1 - lam) |z - z_j|^2`.

    The mean over batch and dimensions, as in the published code.

        z1, z2 = torch.randn(2, 256, 32).unbind()
        mixture = CutMix(lam_per="image").draw(images, generator)
        spread = (variance_loss(z1) + variance_loss(z2)) / 2
        loss = 25 * invariance_loss(z1, z2, mixture) + 25 * spread + covariance_loss(z1) + covariance_loss(z2)

    Args:
        mixed_z: [A, D] projections of the mixtures.
        plain_z: [N, D] projections of the unmixed other view.
        mixture: A mixtures of these N images.
    """
    check_pair(mixed_z, plain_z, mixture, "mixed_z", "plain_z")
    with torch.autocast(mixed_z.device.type, enabled=False):
        exact = torch.promote_types(mixed_z.dtype, torch.float32)
        mixed, plain = mixed_z.to(exact), plain_z.to(exact)
        distance = torch.zeros_like(mixed)
        for parent, share in mixture.parts(exact):
            distance = distance + share.unsqueeze(1) * (mixed - plain[parent]).square()
        return distance.mean()


def variance_loss(z: Tensor) -> Tensor:
    """VICReg's variance, Eq. 1 and 2: the hinge `max(0, 1 - sqrt(Var(z_d) + 1e-4))`, mean over the dimensions d.

    z is [N, D]; the variance is unbiased. For an example see `invariance_loss`.
    """
    check_statistics(z)
    with torch.autocast(z.device.type, enabled=False):
        z = z.to(torch.promote_types(z.dtype, torch.float32))
        return F.relu(1 - torch.sqrt(z.var(dim=0) + 1e-4)).mean()


def covariance_loss(z: Tensor, *, dims: slice | None = None) -> Tensor:
    """VICReg's covariance, Eq. 3 and 4: `sum_{i != j} C_ij^2 / D`, with C the (unbiased) covariance matrix of [N, D].

    For an example see `invariance_loss`.

    Args:
        z: [N, D] projections.
        dims: the rows of C to sum over, all by default; many processes with the same features share them out.
    """
    check_statistics(z)
    with torch.autocast(z.device.type, enabled=False):
        z = z.to(torch.promote_types(z.dtype, torch.float32))
        z = z - z.mean(dim=0)
        dims = slice(0, z.shape[1]) if dims is None else dims
        c = z[:, dims].T @ z / (len(z) - 1)  # [d, D]
        return (c.square().sum() - c.diagonal(dims.start).square().sum()) / z.shape[1]


def standardize(z: Tensor) -> Tensor:
    """[N, D] with mean 0 and (biased) variance 1 over the batch: batch norm without affine, in float32 at least."""
    check_statistics(z)
    return F.batch_norm(z.to(torch.promote_types(z.dtype, torch.float32)), None, None, training=True, eps=1e-5)


def check_statistics(z: Tensor) -> None:
    """Raise if this is not a batch [N, D] that has a variance."""
    if z.ndim != 2 or len(z) < 2:
        raise ValueError(
            f"statistics of a batch need projections [N, D] of at least 2 images, got {list(z.shape)}: use a larger "
            "batch, and drop a short last one (drop_last=True)"
        )


def share_a_parent(mixture: Mixture, rows: slice) -> Tensor:
    """True where mixtures a (of `rows`) and b have a parent of non-zero weight in common; a itself included. [n, A]"""
    parts = mixture.parts()
    parents, shares = (torch.stack(each, dim=1) for each in zip(*parts, strict=True))
    largest = parents.gather(1, shares.argmax(1, keepdim=True))
    parents = torch.where(shares > 0, parents, largest)  # a parent of no weight gives its place to one that has some
    return (parents[rows, None, :, None] == parents[None, :, None, :]).flatten(2).any(2)


def common_parents(mixture: Mixture) -> Mixture:
    """The mixtures of a batch that have parents in common, and how much: SDMP's positives (Ren et al., 2022).

    Mixtures a and b have `c_ab = sum_x min(share of x in a, share of x in b)` in common, 1 with themselves. The result
    is a "mixture" of the A mixtures that every loss can read: anchor a has the parents b with `c_ab > 0`, with shares
    `c_ab / sum_b c_ab`. Under reversal those are a itself and its partner's mixture, with the paper's 1 / (1 + c) and
    c / (1 + c). At lam in {0, 1} it is each mixture alone. Of more than P(P - 1) + 1 such mixtures, as only a mixer
    with more than P mixtures of an image makes, those that have most in common count.

    Example:
        >>> mixture = Mixture(torch.tensor([1, 0]), torch.tensor([0.75, 0.5]))  # 3/4 of image 0; 1/2 of image 1
        >>> common_parents(mixture).lam  # they have 1/2 of image 0 and 1/4 of image 1 in common: 1 / (1 + 3/4)
        tensor([0.5714, 0.5714])
    """
    parts = mixture.parts()
    parents, shares = (torch.stack(each, dim=1) for each in zip(*parts, strict=True))
    content = shares.new_zeros(len(mixture), mixture.images).scatter_add(1, parents, shares)  # [A, N]
    common = content.new_zeros(len(mixture), len(mixture))
    for number, (parent, _) in enumerate(parts):
        both = torch.minimum(content.T[parent], content.gather(1, parent.unsqueeze(1)))  # of this parent, in a and b
        repeated = (parents[:, :number] == parent.unsqueeze(1)).any(1)
        common = common + both.masked_fill(repeated.unsqueeze(1), 0)
    most, others = common.topk(min(len(parts) * (len(parts) - 1) + 1, len(mixture)), dim=1)
    most = (most / most.sum(1, keepdim=True)).clamp(max=1)
    own, *rest = zip(others.unbind(1), most.unbind(1), strict=True)
    partner = rest[0][0] if rest else own[0]
    return Mixture(partner, own[1], own=own[0], further=rest[1:])


def l2_normalize(features: Tensor) -> Tensor:
    """Features of length one, in float32 at least."""
    return F.normalize(features.to(torch.promote_types(features.dtype, torch.float32)), dim=1)


def check_temperature(temperature: float) -> None:
    """Raise if a temperature is not a positive number."""
    if not (math.isfinite(temperature) and temperature > 0):
        raise ValueError(f"temperature must be a positive number, got {temperature}: usual values are 0.07 to 0.5")


def check_sdmp(share: float) -> None:
    """Raise if SDMP's part of a mixed term is not in [0, 1]."""
    if not 0 <= share <= 1:
        raise ValueError(f"sdmp is a share of the mixed terms, 0 to 1, got {share}: published is 0.5")


def check_pair(anchor: Tensor, target: Tensor, mixture: Mixture, anchor_name: str, target_name: str) -> None:
    """Raise if anchors and targets do not fit each other or the mixture."""
    if anchor.ndim != 2 or target.ndim != 2 or anchor.shape[1:] != target.shape[1:] or len(anchor) == 0:
        raise ValueError(
            f"{anchor_name} and {target_name} must both be [N, D], got {list(anchor.shape)} and {list(target.shape)}"
        )
    if len(target) != mixture.images:
        raise ValueError(f"{target_name} has {len(target)} rows, and the mixture is of {mixture.images} images")
    if not (anchor.device == target.device == mixture.lam.device):
        raise ValueError(
            f"{anchor_name} is on {anchor.device}, {target_name} on {target.device} and the mixture on "
            f"{mixture.lam.device}: draw the mixture from images on the features' device"
        )
    check_mixture(mixture.partner, mixture.lam, len(anchor), mixture.images)
