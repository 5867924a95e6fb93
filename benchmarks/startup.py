"""CPU time until a command answers, against `python -c "import torch"` in the same run.

    python benchmarks/startup.py

Medians of five, in turns. `--help` and `recipes` must not wait for torch; the help of a command may, and for nothing
else.
"""

import resource
import subprocess
import sys
from statistics import median

ROUNDS = 5
TORCH = "import torch"
COMMANDS = {
    "mixview --help": (["--help"], 0.35),
    "mixview --version": (["--version"], 0.35),
    "mixview recipes": (["recipes"], 0.35),
    "mixview study list": (["study", "list"], 0.35),
    "mixview --print_completion bash": (["--print_completion", "bash"], 0.35),
    "mixview pretrain --help": (["pretrain", "--help"], 1.3),
    "mixview pretrain --method mocov2 --help": (["pretrain", "--method", "mocov2", "--help"], 1.3),
    "mixview evaluate knn --help": (["evaluate", "knn", "--help"], 1.3),
}


def cpu_seconds(arguments: list[str]) -> float:
    """CPU time of a process, user and system."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    torch = ["-c", TORCH]
    lines = {name: ["-m", "mixview", *words] for name, (words, _) in COMMANDS.items()}
    seconds: dict[str, list[float]] = {name: [] for name in ("torch", *lines)}
    for _ in range(ROUNDS):
        seconds["torch"].append(cpu_seconds(torch))
        for name, arguments in lines.items():
            seconds[name].append(cpu_seconds(arguments))
    base = median(seconds["torch"])
    print(f"{'':42} {'CPU s':>6} {'× torch':>8} {'limit':>6}")
    print(f"{TORCH:42} {base:6.2f} {1:8.2f}")
    for name, (_, limit) in COMMANDS.items():
        ratio = median(seconds[name]) / base
        note = "" if ratio <= limit else "  TOO SLOW"
        print(f"{name:42} {median(seconds[name]):6.2f} {ratio:8.2f} {limit:6.2f}{note}")


if __name__ == "__main__":
    main()
