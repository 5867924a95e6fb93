"""The command line: parse, build, call. What a command does is in the module that it calls.

Commands are functions: their signatures are the options and their docstrings the help.
"""

import difflib
import importlib
import itertools
import json
import os
import re
import signal
import sys
from argparse import HelpFormatter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

import yaml  # type: ignore[import-untyped, unused-ignore]
from jsonargparse import ArgumentParser, auto_cli, get_loader, set_loader, set_parsing_settings
from rich.console import Console
from rich.table import Table

from mixview import __version__
from mixview.options import brief, describe, suggest
from mixview.terminal import plain, print_warnings_plainly, printable, say
from mixview.yaml_files import SettingsError, check, read_yaml

MAX_MESSAGE = 1000
"""Characters of an error of the parser, which repeats what it was given."""


class Parser(ArgumentParser):
    """Names the nearest option or command when it is given one that it does not know."""

    def format_help(self, formatter: HelpFormatter | None = None) -> str:
        if len(self._actions) > 20:  # all of them in brackets are no help, and longer than a line
            self.usage = "%(prog)s [--OPTION VALUE ...]"
        return super().format_help(formatter)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        parser = getattr(ex, "subcommand_parser", None) or self
        unknown = re.search(r"(?:unrecognized arguments: |invalid choice: ')([^\s'=]+)", message)
        if unknown:
            options = [option for action in parser._actions for option in action.option_strings]
            choices = [str(choice) for action in parser._actions for choice in action.choices or ()]
            close = difflib.get_close_matches(unknown[1], options + choices, n=1)
            if close:
                message = f"{message}; did you mean {close[0]}?"
        message = message.removeprefix('Parser key "config": ')  # a recipe is one, to the parser
        wrong = re.match(r'Parser key "([^"]+)":', message)
        got = re.search(r"(?:Given value|Got value): (?!.*(?:Given value|Got value): )(.*)", message, re.DOTALL)
        hint = next(
            (getattr(each, "_typehint", None) for each in parser._actions if wrong and each.dest == wrong[1]), None
        )
        if wrong and got and hint is not None:
            message = f"--{wrong[1]} must be {describe(hint)}, got {got[1]}{suggest(hint, got[1])}"
        message = " ".join(message.split())
        message = message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]}…"
        say(f"{parser.prog.replace(' [options]', '')}: {printable(message)}", file=sys.stderr)
        sys.exit(2)


def data_list() -> None:
    """What can be named: data sets and where they are, what a path can be, and augmentations."""
    from mixview.data import augmentation
    from mixview.data.opening import FAMILIES, NAMES, locate_named

    console = Console(highlight=False)
    names = Table("name", "what", title="By name", title_justify="left", box=None, padding=(0, 2, 0, 0))
    names.add_column("where", overflow="fold")
    names.add_row("scenes", "drawn by mixview itself, any number of images", "always there")
    for name, (what, places) in NAMES.items():
        place = locate_named(name)
        names.add_row(name, what, plain(place) if place else f"not found: $MIXVIEW_DATA/{places[0]}")
    kinds = Table("kind", "what", title="By path", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for kind, family in FAMILIES.items():
        kinds.add_row(kind, family.about)
    console.print(names)
    console.print()
    console.print(kinds)
    console.print()
    console.print("Augmentations", style="italic")
    console.print(", ".join(augmentation.names()))


def data_show(
    path: str,
    split: str | None = None,
    kind: str | None = None,
    augment: str | None = None,
    out: Path = Path("picture.png"),
    count: int = 8,
    seed: int = 0,
) -> None:
    """Draw a picture of a source: images with their classes, boxes and masks, their views, and their mixtures.

    Args:
        path: a path, an address or a name; `mixview data list` has them.
        split: train, val, test …; by default the part for training.
        kind: what the path is, where looking at it would say something else.
        augment: an augmentation to show the views of, such as mocov2; `mixview data list` has them.
        out: the picture to write.
        count: how many images.
        seed: which images, and how they are mixed.
    """
    from mixview.atomic import atomic_write
    from mixview.data.opening import open_source
    from mixview.data.picture import contact_sheet, picture_format, source_rows

    picture_format(out)
    if count < 1:
        raise ValueError(f"--count must be at least 1, got {count}")
    source = open_source(path, split, kind=kind)
    sheet = contact_sheet(source_rows(source, count, seed, augment=augment))
    with atomic_write(out) as file:
        sheet.save(file, format=picture_format(out))
    say(f"{source!r}: {source.fingerprint()}")
    say(f"wrote {out}")


def list_recipes() -> None:
    """The settings that have a name: what they are, what they cost, and what the paper measured with them."""
    from mixview.train import recipes

    console = Console(highlight=False)
    for title, found in (
        ("mixview pretrain --recipe …", recipes.names()),
        ("mixview evaluate detection … --protocol …", recipes.names(detection=True)),
    ):
        table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
        for column in ("recipe", "what", "cost", "the paper's figures"):
            table.add_column(column)
        for name in found:
            about = recipes.read(name).about
            shown = (about.get(key, "") for key in ("what", "cost", "paper"))
            table.add_row(name.removeprefix(recipes.DETECTION), *shown)
        console.print(table)


def pretrain(recipe: str | None = None, trust: bool = False, **options: Any) -> None:
    """Learn an encoder from images without labels.

    Args:
        recipe: start from these settings (`mixview recipes` lists them, or a YAML file of yours); other options change
            them.
        trust: import a backbone of your own that a file names: a recipe, or the run that is resumed. That runs its
            code; a backbone that you give here needs no such consent.
        options: of `Pretraining`.
    """
    from mixview.train.pretraining import Pretraining

    Pretraining(**options).run()


FLAGS = (
    *("--resume", "--compile", "--channels_last", "--exact_batch", "--sync_bn", "--fast", "--trust", "--empty"),
    *("--keep_runs", "--dry_run", "--fetch"),
)
"""Options that may stand alone, for true."""

STUDY_COMMANDS = ("run", "show", "list")

FOLDERS: dict[tuple[str, ...], str | None] = {
    ("evaluate", "show"): None,
    ("report",): None,
    ("figure", "tsne-mixtures"): None,
    ("figure", "tsne-classes"): None,
    ("figure", "alpha"): None,
    ("figure", "beta"): "--runs",
    ("figure", "cost"): "--runs",
}
"""Commands that take any number of folders, as one list; under the name of an option where they need not be there."""


def gather_folders(arguments: list[str], option: str | None) -> list[str]:
    """The arguments of a command with all that stands without an option's name in one list, as JSON."""
    folders, others = [], []
    rest = iter(arguments)
    for each in rest:
        if not each.startswith("-"):
            folders.append(each)
            continue
        others.append(each)
        if "=" not in each and each not in ("-h", "--help", *FLAGS):
            others += itertools.islice(rest, 1)
    if not folders:
        return others
    listed = json.dumps(folders)
    return [listed, *others] if option is None else [f"{option}={listed}", *others]


def expand(arguments: list[str]) -> list[str]:
    """Arguments as the parser takes them: underscores for dashes in the names of options, folders as one list, flags
    with their value, and named or stored settings as a configuration."""
    named = [re.sub(r"^--[a-z][^=]*", lambda name: "--" + name[0][2:].replace("-", "_"), each) for each in arguments]
    for words, option in FOLDERS.items():
        if tuple(named[: len(words)]) == words:
            named = [*words, *gather_folders(named[len(words) :], option)]
    if named[:1] == ["study"] and named[1:] and named[1] not in STUDY_COMMANDS and not named[1].startswith("-"):
        named.insert(1, "run")  # `mixview study paper-small` is what one types
    for place in reversed(range(len(named))):
        alone = place + 1 == len(named) or named[place + 1].startswith("--")
        if named[place] in FLAGS and alone:
            named[place] += "=true"
    named = [re.sub(r"^(--[a-z_.]+=)?(~.*)", expand_home, each) for each in named]
    given = given_options(named)
    if given.get("--out") == "":
        raise ValueError("--out is empty: give it the path to write to")
    if os.path.exists(config := given.get("--config", "")):  # noqa: PTH110, of JSON Path.exists says "name too long"
        read_yaml(Path(config))  # with its name in the error
    trust = given.get("--trust", "").lower() in ("true", "yes", "1")
    set_loader("yaml", settings_loader(trust, {*named, *given.values()}), (yaml.YAMLError,))
    for words, read in SETTINGS.items():
        if tuple(named[: len(words)]) == words and (settings := read(given)) is not None:
            return [*words, "--config", json.dumps(settings), *named[len(words) :]]
    return named


def expand_home(found: re.Match[str]) -> str:
    """`--out=~/runs` with the home folder, which the shell puts in only where a word begins with it."""
    return (found[1] or "") + os.path.expanduser(found[2])  # noqa: PTH111, a path that ends in a slash keeps it


def given_options(named: Sequence[str]) -> dict[str, str]:
    """The options on the command line and their values."""
    return dict(itertools.pairwise(named)) | dict(
        each.split("=", 1) for each in named if each.startswith("--") and "=" in each
    )


GROUPS = {"mixing", "head", "optimizer", "watch", "model", "scales", "schedule", "keeping", "logging", "fit"}
"""Options that are groups of options."""


def settings_loader(trust: bool, typed: Collection[str]) -> Callable[[str], Any]:
    """How the parser reads YAML and JSON: plain values within limits, which name no code unless that is consented to.

    Every file of settings passes through here: `--config`, recipes, protocols, and the config.yaml of a resumed run.

    Args:
        trust: whether the command line gives the consent.
        typed: the words of the command line: a backbone that is one of them is consented to.
    """

    def load(text: str) -> Any:
        try:
            content = yaml_load(text)
        except RecursionError:
            raise SettingsError("the settings nest their values too deeply: write them on fewer levels") from None
        check(content, "the file of settings")
        for name in GROUPS & content.keys() if isinstance(content, dict) else ():
            if not isinstance(content[name], dict | str | None):  # text is the path of a file of its own
                raise SettingsError(f"{name} must be a group of settings, got {brief(content[name])}")
        if isinstance(content, dict | list):
            from mixview.backbones import require_consent

            require_consent(content, "the file of settings", trust, typed)
        return content

    return load


yaml_load: Callable[[str], Any] = get_loader("yaml")
"""jsonargparse's own: PyYAML's safe loader, for which 1e-3 is a number."""


def pretrain_settings(given: dict[str, str]) -> dict[str, Any] | None:
    """Those of the run that is resumed, or of a recipe."""
    if given.get("--resume") == "true":
        if "--out" not in given:
            raise ValueError("--resume needs the folder of the run: give --out")
        from mixview.train.run_folder import RunFolder

        return RunFolder.open(given["--out"]).config
    if "--recipe" in given:
        from mixview.train import recipes

        return recipes.read(given["--recipe"]).settings
    return None


def detection_settings(given: dict[str, str]) -> dict[str, Any] | None:
    """Those of a protocol."""
    if "--protocol" not in given:
        return None
    from mixview.detection.judging import protocol_settings

    return protocol_settings(given["--protocol"])


SETTINGS: dict[tuple[str, ...], Callable[[dict[str, str]], dict[str, Any] | None]] = {
    ("pretrain",): pretrain_settings,
    ("evaluate", "detection"): detection_settings,
}
"""Commands whose options may begin from settings that have a name, or were stored."""


def data_make(
    folder: Path,
    count: int = 5000,
    layout: Literal["folder", "voc", "coco"] = "folder",
    size: int = 32,
    seed: int = 0,
    test_count: int | None = None,
) -> None:
    """Write the embedded data set, scenes, to a new folder.

    Args:
        folder: where to; it must not exist, or be empty.
        count: images to train on.
        layout: class folders, PASCAL VOC or COCO; the last two with several objects an image.
        size: of the images, both ways.
        seed: another seed is another data set.
        test_count: images to test on; by default a fifth of `count`.
    """
    from mixview.data.layouts import write
    from mixview.data.scenes import Scenes

    objects: Literal["single", "multiple"] = "single" if layout == "folder" else "multiple"
    held_out: Literal["val", "test"] = "test" if layout == "voc" else "val"
    train = Scenes(count, size, seed, "train", objects)
    held = Scenes(max(1, count // 5) if test_count is None else test_count, size, seed, held_out, objects)
    say(f"wrote {write([train, held], folder, layout)}")


def data_pack(
    path: str,
    out: Path,
    size: int = 256,
    split: str | None = None,
    kind: str | None = None,
    format: Literal["jpeg", "pixels"] = "jpeg",
    quality: int = 90,
) -> None:
    """Write a source to one file that is mapped into memory: for small images and slow disks.

    Args:
        path: a path, an address or a name; `mixview data list` has them.
        out: the .npz file to write; it must not exist.
        size: images are shrunk until their shorter side is this.
        split: train, val, test …; by default the part for training.
        kind: what the path is, where looking at it would say something else.
        format: JPEG files, or pixels, for which all images must have one size.
        quality: of the JPEGs of images that were shrunk; others stay as they are.
    """
    from mixview.data.opening import open_source
    from mixview.data.pack import pack

    packed = pack(open_source(path, split, kind=kind), out, size, format, quality)
    for name, reason in packed.bad.items():
        say(f"skipped {printable(name)}: {reason}")
    say(f"wrote {packed.path}: {packed.images} images, {packed.path.stat().st_size / 1e6:.1f} MB")


COMMANDS: dict[str, Any] = {
    "pretrain": pretrain,
    "recipes": list_recipes,
    "data": {
        "_help": "What mixview learns from: any images, by path or by name.",
        "list": data_list,
        "show": data_show,
        "make": data_make,
        "pack": data_pack,
    },
}


def evaluations() -> dict[str, Any]:
    """How a representation is judged, each protocol a command."""
    from mixview.detection.judging import detection
    from mixview.evaluate import judging

    return {
        "_help": "Judge an encoder, mixview's or anybody's, by labelled images.",
        "knn": judging.knn,
        "linear": judging.linear,
        "probe": judging.probe,
        "svm": judging.svm,
        "lowshot": judging.lowshot,
        "semi": judging.semi,
        "supervised": judging.supervised,
        "detection": detection,
        "all": judging.everything,
        "show": judging.show,
    }


def studies() -> dict[str, Any]:
    """Studies: run, or go on; show; list."""
    from mixview.study import command

    about = "Many runs that answer one question: seeds, spread, and what they cost."
    return {"_help": about, "run": command.run, "show": command.show, "list": command.list_studies}


def figures() -> dict[str, Any]:
    """The figures of the paper, each a command."""
    from mixview.report.figures.alpha import alpha
    from mixview.report.figures.beta import beta
    from mixview.report.figures.cost import cost
    from mixview.report.figures.mixtures import mixtures
    from mixview.report.figures.tsne_classes import tsne_classes
    from mixview.report.figures.tsne_mixtures import tsne_mixtures

    return {
        "_help": "The figures of the paper, from your own images and runs, as PNG and SVG.",
        "mixtures": mixtures,
        "beta": beta,
        "tsne-mixtures": tsne_mixtures,
        "tsne-classes": tsne_classes,
        "cost": cost,
        "alpha": alpha,
    }


LATE: dict[str, Callable[[], Any]] = {
    "evaluate": evaluations,
    "embed": lambda: importlib.import_module("mixview.using.embedding").embed,
    "neighbours": lambda: importlib.import_module("mixview.using.neighbours").neighbours,
    "export": lambda: importlib.import_module("mixview.formats.exporting").export,
    "import": lambda: importlib.import_module("mixview.formats.importing").import_encoder,
    "report": lambda: importlib.import_module("mixview.report.page").report,
    "figure": figures,
    "study": studies,
}
"""Commands whose modules take a while to import."""


def commands(asked: str) -> dict[str, Any]:
    """All commands; of the late ones only the one that is asked for, if the word is a command."""
    known = asked in COMMANDS or asked in LATE
    return COMMANDS | {name: make() for name, make in LATE.items() if name == asked or not known}


def main(arguments: Sequence[str] | None = None) -> None:
    """The program `mixview`."""
    try:
        set_parsing_settings(
            docstring_parse_attribute_docstrings=True,
            add_print_completion_argument=True,
            instantiate_subclass_spec_in_any=False,
            import_path_denylist=["*"],  # no value names code, whatever the type of its option
        )
        print_warnings_plainly()
        given = list(sys.argv[1:] if arguments is None else arguments)
        auto_cli(
            commands(given[0] if given else ""),
            args=expand(given),
            prog="mixview",
            version=__version__,
            parser_class=Parser,
            description="Image representations without labels, learned from mixed views.",
        )
    except (ValueError, OSError, RuntimeError, MemoryError, ModuleNotFoundError) as error:
        # Ours say what to do in one sentence; where they came from would only hide it.
        if is_out_of_memory(error):
            leave(f"the memory is full ({first_line(error)}): use a smaller --batch, --size or model", 1)
        if isinstance(error, RuntimeError) and not type(error).__module__.startswith("mixview."):
            from mixview.data.loading import explain_lost_worker

            error = explain_lost_worker(error) or error
            if not type(error).__module__.startswith("mixview."):
                raise
        if isinstance(error, ModuleNotFoundError) and "pip install" not in str(error):
            raise
        leave(str(error), stop_status() or 1)
    except KeyboardInterrupt:
        leave("interrupted", 128 + signal.SIGINT)
    if status := stop_status():
        sys.exit(status)


def leave(message: str, status: int) -> NoReturn:
    """Say why, and end."""
    message = f"mixview: {printable(message, keep=chr(10))}"
    if status == 1:
        sys.exit(message)
    say(message, file=sys.stderr)
    sys.exit(status)


def stop_status() -> int | None:
    """The exit status of a command whose training a signal has stopped, as a shell reports it."""
    stopping = sys.modules.get("mixview.train.stopping")
    return None if stopping is None or stopping.received is None else 128 + int(stopping.received)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there is not enough memory; torch's for the CPU is a plain RuntimeError."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError)
        and (type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error))
    )


def first_line(error: BaseException) -> str:
    """The beginning of an error's message, without advice for programmers."""
    return printable(str(error).strip().partition("\n")[0][:200]) or type(error).__name__


if __name__ == "__main__":
    main()
