"""The forms of an exponential moving average over ResNet-50's parameters, side by side.

python benchmarks/ema.py [--rounds 30]
"""

import argparse
import statistics

import torch
from timing import interleaved, row
from torchvision.models import resnet50

from mixview.nn import follow, momentum_copy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    online, m = resnet50(weights=None), 0.999
    target = momentum_copy(online)
    pairs = list(zip(target.parameters(), online.parameters(), strict=True))
    targets, onlines = [t for t, _ in pairs], [o for _, o in pairs]

    @torch.no_grad()
    def loop_of_mul_add() -> None:
        for t, o in pairs:
            t.data = t.data * m + o.data * (1.0 - m)

    @torch.no_grad()
    def loop_of_in_place() -> None:
        for t, o in pairs:
            t.mul_(m).add_(o, alpha=1 - m)

    @torch.no_grad()
    def loop_of_lerp() -> None:
        for t, o in pairs:
            t.lerp_(o, 1 - m)

    @torch.no_grad()
    def foreach_mul_add() -> None:
        torch._foreach_mul_(targets, m)
        torch._foreach_add_(targets, onlines, alpha=1 - m)

    seconds = interleaved(
        {
            "loop, t = m t + (1 - m) o (MoCo)": loop_of_mul_add,
            "loop, in place": loop_of_in_place,
            "loop, lerp": loop_of_lerp,
            "foreach, mul and add (lightly)": foreach_mul_add,
            "mixview.nn.follow": lambda: follow(target, online, m),
        },
        options.rounds,
    )
    print(f"EMA of ResNet-50 on the CPU, {torch.get_num_threads()} threads, {options.rounds} rounds")
    print(f"{'':34} {'median ms':>10}   (min – max)")
    for name, times in seconds.items():
        print(row(name, times))
    ours = statistics.median(seconds["mixview.nn.follow"])
    for name in ("loop, t = m t + (1 - m) o (MoCo)", "foreach, mul and add (lightly)"):
        print(f"{name} / ours: {statistics.median(seconds[name]) / ours:.2f}")


if __name__ == "__main__":
    main()
