"""What gives the class of an embedded scene away, and how fast scenes are drawn.

    python benchmarks/scenes.py [--train 5000 --test 1000 --epochs 20]

Raw pixels, colours and backgrounds should be near chance under k nearest neighbours, a small supervised network near
perfect: then whatever a representation gets is what it has learned.
"""

import argparse
import time

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mixview.data.drawing import Numbers, draw
from mixview.data.scenes import Scenes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=int, default=5000)
    parser.add_argument("--test", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=20, help="of supervised training; 0 for none")
    options = parser.parse_args()
    torch.set_num_threads(1)
    speed()

    train, test = Scenes(options.train, cache=False), Scenes(options.test, split="test", cache=False)
    (x, x_mask, x_bare), (t, t_mask, t_bare) = images(train), images(test)
    y, truth = torch.as_tensor(train.labels()), torch.as_tensor(test.labels())

    def neighbours(name: str, reference: Tensor, query: Tensor) -> None:
        plain = accuracy(knn(reference, query, y), truth)
        mean = reference.mean(0)
        centred = F.normalize(reference - mean, dim=1), F.normalize(query - mean, dim=1)
        print(f"{name:44} {plain:6.1%} {accuracy(knn(*centred, y), truth):8.1%}")

    classes = len(train.classes)
    print(f"\n{train}: accuracy on {len(test)} test images, chance {1 / classes:.0%}")
    print(f"{'20 nearest neighbours of':44} {'L2':>6} {'cosine':>8}")
    neighbours("raw pixels", x.flatten(1), t.flatten(1))
    neighbours("grey pixels", x.mean(1).flatten(1), t.mean(1).flatten(1))
    neighbours("colour histograms (4 × 4 × 4)", histogram(x), histogram(t))
    grey = x_mask.unsqueeze(1), t_mask.unsqueeze(1)
    neighbours(
        "pixels, the object greyed out", x.masked_fill(grey[0], 0.5).flatten(1), t.masked_fill(grey[1], 0.5).flatten(1)
    )
    neighbours("pixels of the scene without its object", x_bare.flatten(1), t_bare.flatten(1))
    print(f"{'linear on raw pixels':44} {accuracy(ridge(x.flatten(1), t.flatten(1), y), truth):6.1%}")
    if options.epochs:
        begin = time.process_time()
        network = supervise(x, y, options.epochs)
        with torch.inference_mode():
            reached = accuracy(network(t * 2 - 1).argmax(1), truth)
        name = f"supervised, {options.epochs} epochs, {time.process_time() - begin:.0f} s of one core"
        print(f"{name:44} {reached:6.1%}")


def speed() -> None:
    """Images a second, one core, nothing cached."""
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
    """One linear classifier a class, least squares with some weight decay."""
    mean, std = reference.mean(0), reference.std(0) + 1e-5
    a, b = (reference - mean) / std, (query - mean) / std
    weight = torch.linalg.solve(a.T @ a + 1000 * torch.eye(a.shape[1]), a.T @ F.one_hot(labels).float())
    return (b @ weight).argmax(1)


def histogram(images: Tensor) -> Tensor:
    """[N, 64] the share of pixels of each colour."""
    level = (images * 3.999).long()
    colour = (level[:, 0] * 16 + level[:, 1] * 4 + level[:, 2]).flatten(1)
    return torch.zeros(len(images), 64).scatter_add_(1, colour, torch.ones(colour.shape)) / colour.shape[1]


def accuracy(predicted: Tensor, truth: Tensor) -> float:
    return (predicted == truth).float().mean().item()


def supervise(images: Tensor, labels: Tensor, epochs: int, width: int = 24, batch: int = 64) -> nn.Module:
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
    steps = len(images) // batch
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=epochs * steps)
    for _ in range(epochs):
        order = torch.randperm(len(images))
        for step in range(steps):
            rows = order[step * batch : (step + 1) * batch]
            turn, flip, down, right = torch.randint(0, 840, (4,)).tolist()
            x = torch.rot90(images[rows] * 2 - 1, turn % 4, (2, 3))
            x = torch.roll(x.flip(3) if flip % 2 else x, (down % 7 - 3, right % 7 - 3), (2, 3))
            loss = F.cross_entropy(network(x), labels[rows], label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return network.eval()


if __name__ == "__main__":
    main()
