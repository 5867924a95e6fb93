"""The process that cases are forked from: it has imported the libraries and mixview, compiled what is compiled, and
waits for one JSON object a line on its standard input. `tests.hostile.harness` starts it.

A case runs `mixview.cli.main` with its arguments, or a function of `tests.hostile`, in a process and a process group of
its own, which ends with it.
"""

import contextlib
import faulthandler
import importlib
import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any


def resident() -> int:
    """Bytes of memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def address_space() -> int:
    """Bytes of addresses that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def prepare() -> None:
    """Import and compile what nearly every case needs."""
    for name in (
        *("torch", "torchvision.transforms.v2", "lightning_fabric", "sklearn.svm", "scipy.stats", "timm", "hypothesis"),
        *("matplotlib.pyplot", "pycocotools.mask", "safetensors.torch", "tensorboard", "rich.console"),
        *("mixview.cli", "mixview.evaluate.detection.protocol", "mixview.evaluate.base", "mixview.encoders.embedding"),
        *(
            "mixview.encoders.neighbors",
            "mixview.encoders.export.command",
            "mixview.encoders.importing",
            "mixview.report.page",
        ),
        *("mixview.experiments.command", "mixview.experiments.plots", "mixview.experiments.runner"),
        *("mixview.train.pretraining", "mixview.report.figures.mixtures", "mixview.report.figures.beta"),
        *("mixview.report.figures.tsne_mixtures", "mixview.report.figures.tsne_classes"),
        *("mixview.report.figures.cost", "mixview.report.figures.alpha"),
    ):
        importlib.import_module(name)
    from mixview.data.augment.policies import load_policy
    from mixview.data.dataset import ImageDataset
    from mixview.data.loader import EpochSampler, view_loader
    from mixview.data.synthetic.scenes import Scenes

    reader = ImageDataset(Scenes(8, 16))
    next(iter(view_loader(reader, load_policy("simclr-small", 16), EpochSampler(8, 4, 0), workers=0)))


def become(case: dict[str, Any]) -> None:
    """Enter the case's world: its process group, folders, environment, files for output, limits."""
    os.setsid()
    sys.dont_write_bytecode = True
    os.environ.update(case["environment"] | {"PYTHONDONTWRITEBYTECODE": "1"})
    for name in case["unset"]:
        os.environ.pop(name, None)
    os.chdir(case["folder"])
    for number, name, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, case["stdout"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        (2, case["stderr"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    ):
        opened = os.open(name, flags, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    if case["close_stdin"]:
        os.close(0)
    sys.stdin = None  # type: ignore[assignment]
    sys.stdout = os.fdopen(1, "w", closefd=False, encoding="utf-8")
    sys.stderr = os.fdopen(
        2, "w", closefd=False, encoding="utf-8", errors="backslashreplace", buffering=1
    )  # as Python's
    tempfile.tempdir = None
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, signal.default_int_handler if signal_number == signal.SIGINT else signal.SIG_DFL)
    sys.path[:] = case["path"] + [each for each in sys.path if each not in ("", *case["path"])]
    sys.argv = ["mixview", *case.get("arguments", [])]
    sys.modules["__main__"] = ModuleType("__main__")
    limit = address_space() + case["memory"]
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if case["file_size"] is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (case["file_size"], case["file_size"]))


def run(case: dict[str, Any]) -> int:
    """What the process of a case does; its exit status, as the interpreter would have it."""
    from tests.hostile.watching import watch

    Path(case["baseline"]).write_text(str(resident()))
    log = os.open(case["trespasses"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    watch(
        lambda line: void(os.write(log, f"{line}\n".encode(errors="backslashreplace"))),
        [Path(each) for each in case["allowed"]],
        Path(case["sandbox"]),
        [(host, port) for host, port in case["servers"]],
    )
    try:
        if "call" in case:
            module, _, name = case["call"].partition(":")
            getattr(importlib.import_module(module), name)(**case["options"])
        else:
            importlib.import_module("mixview.cli").main(case["arguments"])
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def void(_: object) -> None:
    """Nothing."""


def start(case: dict[str, Any]) -> int:
    """Fork the process of a case."""
    process = os.fork()
    if process:
        return process
    status = 70
    try:
        become(case)
        status = run(case)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def waited(process: int) -> float:
    """Seconds that a process was ready to run and got no core: a busy machine is no hang."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{process}/schedstat").read_text().split()[1]) / 1e9
    return 0.0


def follow(process: int, case: dict[str, Any]) -> dict[str, Any]:
    """Wait for a case, send it what it is to be sent, and end its process group."""
    began = time.monotonic()
    sent = False
    timed_out = False
    baseline, queued, looked = 0, 0.0, began
    while True:
        if time.monotonic() - looked > 0.1:
            looked, queued = time.monotonic(), max(queued, waited(process))
        ended, status, used = os.wait4(process, os.WNOHANG)
        if ended:
            break
        spent = time.monotonic() - began - queued
        if case["signal"] and not sent and (Path(case["signal_when"]).exists() if case["signal_when"] else True):
            sent = True
            time.sleep(case["signal_after"])
            os.kill(process, case["signal"])
        if spent > case["seconds"] and not timed_out:
            timed_out = True
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGUSR1)  # where it hangs goes to its standard error
            time.sleep(0.2)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)
        time.sleep(0.003)
    seconds = time.monotonic() - began - queued
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process, signal.SIGKILL)
    with contextlib.suppress(OSError, ValueError):
        baseline = int(Path(case["baseline"]).read_text())
    return {
        "status": os.waitstatus_to_exitcode(status),
        "seconds": seconds,
        "hung": timed_out,
        "memory": max(0, used.ru_maxrss * 1024 - baseline),
    }


def main() -> None:
    """Serve cases until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print on import is no answer
    prepare()
    faulthandler.register(signal.SIGUSR1)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        case = json.loads(line)
        print(json.dumps(follow(start(case), case)), file=answers, flush=True)


if __name__ == "__main__":
    main()
