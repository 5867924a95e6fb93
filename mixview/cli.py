"""The command line: a table of commands. The code of a command is in the module that it names.

A command is a function, or a dataclass with a `run` method: its signature is the options and its docstring the help.
Only the module of the command that is called is imported, so that `mixview --help` answers at once.
"""

import importlib
import os
import signal
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from mixview import __version__
from mixview.extensions import PROTOCOLS, Registry, is_import_path
from mixview.io.terminal import escape_control_chars, print_warnings_plainly, say
from mixview.options import did_you_mean

ABOUT = "Train image encoders without labels, from mixed views of your images."


class Command(NamedTuple):
    """A command."""

    summary: str
    target: str
    """The function or class that is called, as module:name."""
    examples: tuple[str, ...] = ()
    """Command lines that its help ends with, after `mixview`; a test runs them. Protocols have their own."""
    key_options: str = ""
    """The most important options, which come first in its help. Protocols have their own."""
    parse: str = "mixview.parsing:parse"
    """The function that parses its options and calls it, as module:name."""


class Group(NamedTuple):
    """Commands that share their first word."""

    summary: str
    commands: Mapping[str, Command]
    examples: tuple[str, ...] = ()
    """Command lines that its help ends with, after `mixview`."""
    default_command: str | None = None
    """The command that an unknown name is passed to: `mixview study paper-small` runs a study."""
    registry: Registry | None = None
    """The registry of import paths that can take the place of a command: `mixview evaluate mine.NearestMean`."""


EVALUATE = {
    **{name: Command(each.summary, f"{each.module}:{each.attribute}") for name, each in PROTOCOLS.builtins.items()},
    "all": Command(
        "Run every protocol that the labels allow.",
        "mixview.evaluate.all:EvaluateAll",
        (
            "evaluate all runs/first --data imagenette/ --fast",
            'evaluate all runs/first --data imagenette/ --skip "[probe]"',
        ),
        "data skip fast epochs devices out",
    ),
    "show": Command(
        "Show the results in run directories: mean ± std over seeds.",
        "mixview.evaluate:show",
        ("evaluate show runs/first", "evaluate show runs/sim runs/bsim"),
    ),
}
COMMANDS: dict[str, Command | Group] = {
    "pretrain": Command(
        "Learn an encoder from images without labels.",
        "mixview.train.config:PretrainConfig",
        (
            "pretrain --data photos/ --method mocov2 --out runs/mine",
            "pretrain --recipe small/cpu-simclr --data scenes --out runs/tiny",
        ),
        "data out recipe method objective epochs",
        parse="mixview.commands.pretrain:parse",
    ),
    "recipes": Command(
        "List the recipes, or show one.",
        "mixview.commands.recipes:recipes",
        ("recipes", "recipes paper/mocov2-wbsim"),
    ),
    "evaluate": Group(
        "Evaluate an encoder on labeled images.",
        EVALUATE,
        ("evaluate knn runs/first --data imagenette/", "evaluate all runs/first --data imagenette/ --fast"),
        registry=PROTOCOLS,
    ),
    "report": Command(
        "Compare runs on one HTML page.",
        "mixview.report.page:report",
        ("report runs/first --out report.html", "report runs/sim runs/bsim --data imagenette/"),
        "out data images split title device",
    ),
    "figure": Group(
        "Draw the paper's figures from your own images and runs.",
        {
            "mixtures": Command(
                "How CutMix and Mixup mix two images.",
                "mixview.report.figures.mixtures:draw_mixtures",
                ("figure mixtures photos/", "figure mixtures scenes --pairs 3 --out pairs"),
            ),
            "beta": Command(
                "The distribution of λ.",
                "mixview.report.figures.beta:draw_beta",
                ("figure beta", 'figure beta --alphas "[0.2, 1, 5]" --out lam'),
            ),
            "tsne-mixtures": Command(
                "Where the features of mixtures lie.",
                "mixview.report.figures.tsne_mixtures:draw_tsne_mixtures",
                ("figure tsne-mixtures runs/sim runs/bsim", "figure tsne-mixtures runs/bsim --data photos/ --lam 0.5"),
                "out data mixer lam pair seed",
            ),
            "tsne-classes": Command(
                "The features of classes.",
                "mixview.report.figures.tsne_classes:draw_tsne_classes",
                ("figure tsne-classes runs/sim runs/bsim", "figure tsne-classes runs/bsim --classes 5 --samples 1"),
                "out data classes images augmentations samples",
            ),
            "cost": Command(
                "Time and memory of each objective.",
                "mixview.report.figures.cost:draw_cost",
                ("figure cost", 'figure cost --methods "[byol]" --backbone resnet18 --batch_size 16'),
                "out methods backbone batch_size size rounds",
            ),
            "alpha": Command(
                "Accuracy over α.",
                "mixview.report.figures.alpha:draw_alpha",
                ("figure alpha runs/alpha-*", "figure alpha runs/alpha-0.5 runs/alpha-1 --out alpha"),
            ),
        },
        ("figure mixtures photos/", "figure tsne-classes runs/sim runs/bsim"),
    ),
    "embed": Command(
        "Write the features of images to a file.",
        "mixview.encoders.embedding:Embed",
        (
            "embed runs/first --data photos/ --out features.parquet",
            "embed runs/first --data photos/ --out features.npy --stage res5",
        ),
        "data out split stage size devices",
    ),
    "neighbors": Command(
        "Find similar images, duplicates and outliers.",
        "mixview.encoders.neighbors:FindNeighbors",
        (
            "neighbors runs/first --data photos/ --query cat.jpg",
            "neighbors runs/first --data photos/ --find duplicates --threshold 0.98",
        ),
        "data query find count threshold out",
    ),
    "export": Command(
        "Write an encoder in the format of another library.",
        "mixview.encoders.export.command:Export",
        (
            "export runs/first --format torchvision --out exported/torchvision",
            "export runs/first --format onnx --out exported/net.onnx",
        ),
        "format out size backbone weights channels",
    ),
    "import": Command(
        "Turn weights of another library into an encoder file.",
        "mixview.encoders.importing:Import",
        (
            "import moco_v2_200ep_pretrain.pth.tar --out moco.safetensors",
            "import exported/net.onnx --out encoder.safetensors",
        ),
    ),
    "data": Group(
        "List, show, make and pack datasets.",
        {
            "list": Command(
                "List datasets, formats and augmentations.", "mixview.commands.data:list_datasets", ("data list",)
            ),
            "show": Command(
                "Draw a picture of a dataset.",
                "mixview.commands.data:show",
                ("data show photos/", "data show photos/ --augment mocov2 --out views.png"),
            ),
            "make": Command(
                "Write the built-in synthetic dataset to a folder.",
                "mixview.commands.data:make",
                ("data make scenes/ --count 5000", "data make voc/ --count 1000 --size 128 --layout voc"),
            ),
            "pack": Command(
                "Write a dataset to one file that is mapped into memory.",
                "mixview.commands.data:pack",
                ("data pack photos/ photos.npz", "data pack imagenette/ train.npz --split train --size 160"),
            ),
        },
        ("data list", "data show photos/ --augment mocov2"),
    ),
    "selftest": Command(
        "Check mixview on this machine's accelerator.",
        "mixview.commands.selftest:selftest",
        ("selftest", "selftest --device cuda --rounds 50"),
    ),
    "study": Group(
        "Run a grid of pretraining runs that answers one question.",
        {
            "run": Command(
                "Run a study, or continue it.",
                "mixview.experiments.command:run_study",
                ("study run paper-small --data DATA --dry-run", "study run paper-small --data DATA --cores 2"),
                "data out cores seeds max_time dry_run",
            ),
            "show": Command(
                "Show the results of studies.",
                "mixview.experiments.command:show",
                ("study show study", "study show study --trust_remote_code"),
            ),
            "merge": Command(
                "Merge the results of several machines.",
                "mixview.experiments.command:merge_results",
                ("study merge study", "study merge /shared/study"),
            ),
            "list": Command(
                "List the studies that come with mixview.", "mixview.experiments.command:list_studies", ("study list",)
            ),
        },
        ("study list", "study paper-small --data DATA --dry-run"),
        default_command="run",
    ),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """The program `mixview`."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        print_warnings_plainly()
        run(arguments)
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except (ValueError, OSError, RuntimeError, MemoryError, ModuleNotFoundError) as error:
        # Ours say what to do in one sentence; where they came from would only hide it.
        if is_out_of_memory(error):
            exit_with_error(f"out of memory ({first_line(error)}): use a smaller --batch_size, --size or model", 1)
        if isinstance(error, RuntimeError) and not type(error).__module__.startswith("mixview."):
            from mixview.data.loader import explain_lost_worker

            error = explain_lost_worker(error) or error
            if not type(error).__module__.startswith("mixview."):
                raise
        if isinstance(error, ModuleNotFoundError) and "pip install" not in str(error):
            raise
        exit_with_error(str(error), stop_status() or 1)
    except KeyboardInterrupt:
        exit_with_error("interrupted", 128 + signal.SIGINT)
    if status := stop_status():
        sys.exit(status)


def run(arguments: list[str]) -> None:
    """Find the command, parse its options, call it."""
    name, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    if name in ("-h", "--help"):
        say(overview("mixview COMMAND", ABOUT, COMMANDS, EXAMPLES) + GLOBAL_OPTIONS)
        return
    if name == "--version":
        say(f"mixview {__version__}")
        return
    if name == "--print_completion":
        from mixview.completion import print_completion

        print_completion(rest, COMMANDS)
        return
    command = lookup_command(name, COMMANDS, "mixview")
    prog = f"mixview {name}"
    if isinstance(command, Group):
        if not rest or rest[0] in ("-h", "--help"):
            say(overview(f"{prog} COMMAND", command.summary, command.commands, command.examples))
            return
        word = rest[0]
        if word in command.commands:
            prog, rest = f"{prog} {word}", rest[1:]
            command = command.commands[word]
        elif command.default_command is not None:
            prog = f"{prog} {command.default_command}"
            command = command.commands[command.default_command]
        elif command.registry is not None and is_import_path(word):  # typed, and so consented to
            prog, rest = f"{prog} {word}", rest[1:]
            own = command.registry.load(word)
            command = Command("", f"{own.__module__}:{own.__qualname__}")
        else:
            command = lookup_command(word, command.commands, prog)
    assert isinstance(command, Command)
    from mixview import parsing

    parsing.configure()
    target = load(command.target)
    key_options = command.key_options or getattr(target, "first_options", "")
    examples = [f"mixview {each}" for each in command.examples]
    examples = examples or [f"{prog} {each}" for each in getattr(target, "examples", ())]
    load(command.parse)(prog, target, [expand_home(word) for word in rest], key_options.split(), examples)


def load(target: str) -> Any:
    """Import `module:name`."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def lookup_command(name: str, commands: Mapping[str, Any], prog: str) -> Any:
    """The command of a name."""
    if name not in commands:
        hint = did_you_mean(name, commands) or f": see {prog} --help"
        say(f"{prog}: there is no command {escape_control_chars(name[:100])}{hint}", file=sys.stderr)
        sys.exit(2)
    return commands[name]


def overview(usage: str, about: str, commands: Mapping[str, Command | Group], examples: Sequence[str] = ()) -> str:
    """The help of a group of commands, which fits in 80 columns."""
    width = max(map(len, commands))
    lines = [
        textwrap.fill(command.summary, 80, initial_indent=f"  {name:{width}}  ", subsequent_indent=" " * (width + 4))
        for name, command in commands.items()
    ]
    shown = ["", "examples:", *(f"  mixview {each}" for each in examples)] if examples else []
    return "\n".join([f"usage: {usage} [--OPTION VALUE ...]", "", about, "", *lines, *shown, ""])


EXAMPLES = (
    "pretrain --recipe small/cpu-simclr --data scenes --out runs/first",
    "evaluate knn runs/first --data scenes",
)
GLOBAL_OPTIONS = """
  mixview COMMAND --help           options and examples of a command
  mixview --version                the version
  mixview --print_completion bash  a script that completes commands and options
                                   (or zsh, tcsh)
"""


def expand_home(word: str) -> str:
    """`--out=~/runs` with the home directory, which the shell fills in only where a word begins with it."""
    option, equals, value = word.rpartition("=") if word.startswith("--") else ("", "", word)
    return f"{option}{equals}{os.path.expanduser(value)}"  # noqa: PTH111, a path that ends in a slash keeps it


def exit_with_error(message: str, status: int) -> NoReturn:
    """Print the reason, and exit."""
    message = f"mixview: {escape_control_chars(message, keep=chr(10))}"
    if status == 1:
        sys.exit(message)
    say(message, file=sys.stderr)
    sys.exit(status)


def stop_status() -> int | None:
    """The exit status of a command that was stopped by a signal, as a shell reports it."""
    graceful_stop = sys.modules.get("mixview.runs.graceful_stop")
    return None if graceful_stop is None or graceful_stop.last_signal is None else 128 + int(graceful_stop.last_signal)


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an error says that memory has run out; torch's for the CPU is a plain RuntimeError."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError)
        and (type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error))
    )


def first_line(error: BaseException) -> str:
    """The beginning of an error's message, without advice for programmers."""
    return escape_control_chars(str(error).strip().partition("\n")[0][:200]) or type(error).__name__


if __name__ == "__main__":
    main()
