"""Accuracy of simple classifiers on the synthetic scenes, and the speed of drawing scenes.

    python benchmarks/scenes.py [--train 5000 --test 1000 --epochs 20] [--pretrain 600] [--picture docs/scenes.png]

Raw pixels, colors and backgrounds should be near chance under k nearest neighbors, a small supervised network near
perfect: then whatever a representation gets is what it has learned. `--pretrain` shows that one without labels learns:
a small ResNet, before and after some steps of SimCLR.
"""

import argparse
import time
from dataclasses import replace

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from mixview import mixture_generators, sim
from mixview.data.augment.policies import load_policy
from mixview.data.augment.reference import make_views
from mixview.data.synthetic.rendering import Numbers, draw
from mixview.data.synthetic.scenes import Scenes
from mixview.methods import SimCLR, backward


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=int, default=5000)
    parser.add_argument("--test", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=20, help="of supervised training; 0 for none")
    parser.add_argument("--pretrain", type=int, default=0, metavar="STEPS", help="of SimCLR without labels")
    parser.add_argument("--picture", metavar="FILE", help="only draw four scenes of each class")
    options = parser.parse_args()
    if options.picture:
        picture(options.picture)
        return
    torch.set_num_threads(1)
    speed()

    train, test = Scenes(options.train, cache=False), Scenes(options.test, split="test", cache=False)
    (x, x_mask, x_bare), (t, t_mask, t_bare) = images(train), images(test)
    y, truth = torch.as_tensor(train.labels()), torch.as_tensor(test.labels())

    def neighbors(name: str, reference: Tensor, query: Tensor) -> None:
        plain = accuracy(knn(reference, query, y), truth)
        mean = reference.mean(0)
        centered = F.normalize(reference - mean, dim=1), F.normalize(query - mean, dim=1)
        print(f"{name:50} {plain:6.1%} {accuracy(knn(*centered, y), truth):8.1%}")

    classes = len(train.classes)
    print(f"\n{train}: accuracy on {len(test)} test images, chance {1 / classes:.0%}")
    print(f"{'20 nearest neighbors of':50} {'L2':>6} {'cosine':>8}")
    neighbors("raw pixels", x.flatten(1), t.flatten(1))
    neighbors("gray pixels", x.mean(1).flatten(1), t.mean(1).flatten(1))
    neighbors("color histograms (4 × 4 × 4)", histogram(x), histogram(t))
    holes = [pixels.masked_fill(mask.unsqueeze(1), 0.5).flatten(1) for pixels, mask in ((x, x_mask), (t, t_mask))]
    neighbors("pixels, the object grayed out (its outline stays)", *holes)
    neighbors("pixels of the scene without its object", x_bare.flatten(1), t_bare.flatten(1))
    print(f"{'linear on raw pixels':50} {accuracy(ridge(x.flatten(1), t.flatten(1), y), truth):6.1%}")
    if options.epochs:
        begin = time.process_time()
        network = supervise(x, y, options.epochs)
        with torch.inference_mode():
            reached = accuracy(network(t * 2 - 1).argmax(1), truth)
        name = f"supervised, {options.epochs} epochs, {time.process_time() - begin:.0f} s of one core"
        print(f"{name:50} {reached:6.1%}", flush=True)
    if options.pretrain:
        torch.manual_seed(0)
        encoder = SmallResNet()

        def probe(name: str) -> None:
            a, b = features(encoder, x), features(encoder, t)
            near = accuracy(knn(F.normalize(a, dim=1), F.normalize(b, dim=1), y), truth)
            print(f"{name:50} {near:6.1%} {accuracy(logistic(a, b, y), truth):8.1%}", flush=True)

        print(f"\n{'features of a ResNet of 0.3 M parameters':50} {'k-NN':>6} {'linear':>8}")
        probe("at random")
        begin = time.process_time()
        pretrain(encoder, x, options.pretrain)
        probe(f"after {options.pretrain} steps of SimCLR, {time.process_time() - begin:.0f} s of one core")


def picture(file: str) -> None:
    scenes = Scenes(40, size=80, cache=False)
    labels = scenes.labels()
    assert labels is not None
    order = np.argsort(labels, kind="stable").reshape(10, 4).T
    cells = [
        [np.pad(scenes.read(int(index)), ((2, 2), (2, 2), (0, 0)), constant_values=255) for index in row]
        for row in order
    ]
    Image.fromarray(np.concatenate([np.concatenate(row, axis=1) for row in cells])).save(file)


def speed() -> None:
    """Images per second, one core, nothing cached."""
    print("drawn by one core:", end="")
    for size, count in ((32, 1024), (64, 256), (96, 96), (224, 24)):
        scenes = Scenes(count, size, seed=1, cache=False)
        begin = time.process_time()
        for index in range(0, count, scenes.chunk_size):
            scenes.read(index)
        print(f"  {count / (time.process_time() - begin):.0f} /s at {size}²", end="", flush=True)
    print()


def images(scenes: Scenes) -> tuple[Tensor, Tensor, Tensor]:
    """Images [N, 3, H, W] in [0, 1], the masks [N, H, W] of their objects, and the same scenes without their object."""
    labels = scenes.labels()
    assert labels is not None
    pixels, masks, bare = [], [], []
    for part in np.array_split(np.arange(len(scenes)), -(-len(scenes) // 100)):
        numbers = Numbers(scenes.seed, scenes.split, part)
        drawn, mask = draw(numbers, labels[part, None], scenes.size)
        pixels.append(drawn)
        masks.append(mask[:, 0])
        bare.append(draw(numbers, np.full((len(part), 1), -1), scenes.size)[0])
    full, without = (torch.from_numpy(np.concatenate(x)).permute(0, 3, 1, 2) / 255 for x in (pixels, bare))
    return full, torch.from_numpy(np.concatenate(masks)), without


def knn(reference: Tensor, query: Tensor, labels: Tensor, k: int = 20) -> Tensor:
    nearest = torch.cdist(query, reference).topk(k, largest=False).indices
    return F.one_hot(labels[nearest]).sum(1).argmax(1)


def ridge(reference: Tensor, query: Tensor, labels: Tensor) -> Tensor:
    """One linear classifier per class, least squares with some weight decay."""
    mean, std = reference.mean(0), reference.std(0) + 1e-5
    a, b = (reference - mean) / std, (query - mean) / std
    weight = torch.linalg.solve(a.T @ a + 1000 * torch.eye(a.shape[1]), a.T @ F.one_hot(labels).float())
    return (b @ weight).argmax(1)


def histogram(images: Tensor) -> Tensor:
    """[N, 64] the share of pixels of each color."""
    level = (images * 3.999).long()
    color = (level[:, 0] * 16 + level[:, 1] * 4 + level[:, 2]).flatten(1)
    return torch.zeros(len(images), 64).scatter_add_(1, color, torch.ones(color.shape)) / color.shape[1]


def accuracy(predicted: Tensor, truth: Tensor) -> float:
    return (predicted == truth).float().mean().item()


def supervise(images: Tensor, labels: Tensor, epochs: int, width: int = 24, batch_size: int = 64) -> nn.Module:
    """A plain network of six convolutions, trained with turns, flips and shifts."""
    torch.manual_seed(0)

    def layer(into: int, out: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(into, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU())

    network = nn.Sequential(
        *(layer(3, width), nn.MaxPool2d(2)),
        *(layer(width, 2 * width), layer(2 * width, 2 * width), nn.MaxPool2d(2)),
        *(layer(2 * width, 4 * width), layer(4 * width, 4 * width), nn.MaxPool2d(2)),
        *(layer(4 * width, 4 * width), nn.AdaptiveMaxPool2d(1), nn.Flatten()),
        nn.Linear(4 * width, int(labels.max()) + 1),
    )
    steps = len(images) // batch_size
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=epochs * steps)
    for _ in range(epochs):
        order = torch.randperm(len(images))
        for step in range(steps):
            rows = order[step * batch_size : (step + 1) * batch_size]
            turn, flip, down, right = torch.randint(0, 840, (4,)).tolist()
            x = torch.rot90(images[rows] * 2 - 1, turn % 4, (2, 3))
            x = torch.roll(x.flip(3) if flip % 2 else x, (down % 7 - 3, right % 7 - 3), (2, 3))
            loss = F.cross_entropy(network(x), labels[rows], label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return network.eval()


class Block(nn.Module):
    """Two 3 × 3 convolutions and a shortcut."""

    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(into, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU()),
            *(nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or into != out:
            self.shortcut = nn.Sequential(nn.Conv2d(into, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


class SmallResNet(nn.Sequential):
    """Images [N, 3, H, W] in [0, 1] -> features [N, 128]."""

    def __init__(self) -> None:
        stem = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()
        blocks = Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2), Block(64, 128, 2)
        super().__init__(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def pretrain(encoder: nn.Module, images: Tensor, steps: int, batch_size: int = 128, rate: float = 2e-3) -> None:
    """SimCLR as it is for small images, without a label."""
    encoder.to(memory_format=torch.channels_last)  # a third faster on CPUs
    method = SimCLR(encoder, 128, temperature=0.2)
    optimizer = torch.optim.AdamW(method.parameters(), rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    # Crops of at least a fifth of the image: a twelfth, as for photographs, would be 9 pixels of 32.
    augmentation = load_policy("simclr-small", images.shape[-1])[0]
    augmentation = replace(augmentation, crop=replace(augmentation.crop, scale=(0.2, 1.0)), normalize=None)
    generator = torch.Generator().manual_seed(0)
    pixels = (images * 255).round().to(torch.uint8)
    for step in range(steps):
        rows = torch.randint(len(pixels), (batch_size,), generator=generator).tolist()
        drawn = [make_views(pixels[row], 0, step, row, (augmentation, augmentation)) for row in rows]
        first, second = torch.stack([pair[0] for pair in drawn]), torch.stack([pair[1] for pair in drawn])
        backward(method, (first, second), sim().draw(first, mixture_generators(0, step)))
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()


@torch.inference_mode()
def features(encoder: nn.Module, images: Tensor) -> Tensor:
    encoder.eval()
    found = torch.cat([encoder(part) for part in images.split(500)])
    encoder.train()
    return found


def logistic(reference: Tensor, query: Tensor, labels: Tensor) -> Tensor:
    """A linear probe: softmax regression on standardized features, to the optimum."""
    mean, std = reference.mean(0), reference.std(0) + 1e-5
    a, b = ((z - mean) / std for z in (reference.clone(), query.clone()))
    linear = nn.Linear(a.shape[1], int(labels.max()) + 1)
    optimizer = torch.optim.LBFGS(linear.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(linear(a), labels) + 1e-3 * linear.weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    with torch.inference_mode():
        return linear(b).argmax(1)


if __name__ == "__main__":
    main()
