"""Parsers of the command line, made from signatures and docstrings by jsonargparse.

Specific to mixview: switches are switches (`--resume`, `--no_sync_bn`), several folders are several arguments, dashes
and underscores are the same in the names of options, errors name the option, the value and what was probably meant,
and no value names code.
"""

import argparse
import inspect
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, NoReturn, get_args, get_origin

import docstring_parser
import yaml  # type: ignore[import-untyped, unused-ignore]
from jsonargparse import ActionYesNo, ArgumentParser, DefaultHelpFormatter, get_loader, set_loader, set_parsing_settings

from mixview.extensions import require_consent
from mixview.io.terminal import escape_control_chars, say
from mixview.io.yaml_files import SettingsError, check, read_yaml
from mixview.options import describe, did_you_mean, negated, suggest

MAX_MESSAGE = 1000
"""Maximum length of an error message, which may repeat what it was given."""

HELP_WIDTH = 80
"""Maximum width of help, in columns."""

EXAMPLES = "examples:\n"
"""Heading of the examples at the end of a command's help."""

MIN_OPTIONS_FOR_GROUPS = 9
"""Minimum number of options for help in groups."""

NEGATIVE_NUMBERS = re.compile(r"-(\d+\.?\d*|\.\d+)(e[+-]?\d+)?(,.*)?$", re.ASCII | re.IGNORECASE)
"""Values that begin with a minus: argparse itself takes -1000,400 and -1e-3 for options."""

GROUPS: dict[str, str] = {
    "images": """data train test test_data validation split validation_split kind data_options labels size channels
        resize augment normalize value_range min_crop_scale cache cache_size exact_decoding""",
    "encoder": "backbone weights stem zero_init drop_path freeze stage patches trust_remote_code",
    "training": """recipe epochs iterations batch_size lr schedule accumulate_grad_batches grad_cache sync_bn seed
        trials stop_if_worse resume max_time""",
    "devices and speed": """device devices nodes accelerator precision workers augment_device channels_last compile
        profile""",
}
"""Groups of the help, and their options in any command; other options are specific to a command."""


class Formatter(DefaultHelpFormatter):
    """Help with the default of an option, and without its type, which is Python's: the metavar and errors say it."""

    def __init__(self, prog: str, *args: Any, **kwargs: Any) -> None:
        width = min(HELP_WIDTH, shutil.get_terminal_size().columns)
        super().__init__(prog, *args, **{"width": width} | kwargs)  # type: ignore[no-untyped-call]

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith(EXAMPLES) else super()._fill_text(text, width, indent)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        text = super()._format_action_invocation(action)
        if isinstance(action, Switch) and len(action.option_strings) > 1:
            text = action.option_strings[0].replace("--", "--[no_]", 1)
        if len(text) > HELP_WIDTH - 2:
            text = text.partition(" ")[0]  # the choices are in the help of the option
        return text.replace(".name ", " ") if action.dest.endswith(".name") and action.metavar else text

    def _expand_help(self, action: argparse.Action) -> str:
        text = action.help or ""
        default = action.default
        if not action.option_strings or default is None or default is False or default in (argparse.SUPPRESS, [], ()):
            return text
        shown = "yes" if default is True else dump(default)
        return f"{text} (default: {shown})"


def dump(value: Any) -> str:
    """A value as a user would type it."""
    return json.dumps(value) if isinstance(value, dict | list | tuple) else str(value)


class Switch(ActionYesNo):
    """An option without a value: `--resume` is true, `--no_resume` is false, with dashes or underscores."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        *others, option = args
        return super().__call__(  # type: ignore[no-untyped-call]
            *others, "--" + option.removeprefix("--").replace("-", "_")
        )


class Parser(ArgumentParser):
    """Names the nearest option or command when it is given one that does not exist; takes -1000,400 for a value."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._negative_number_matcher = NEGATIVE_NUMBERS

    def format_help(self, formatter: argparse.HelpFormatter | None = None) -> str:
        if len(self._actions) >= MIN_OPTIONS_FOR_GROUPS:  # all of them in brackets are no help, and longer than a line
            positionals = [action.metavar or action.dest for action in self._actions if not action.option_strings]
            self.usage = " ".join(["%(prog)s", *map(str, positionals), "[--OPTION VALUE ...]"])
        return super().format_help(formatter)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        options = list(self._option_string_actions)
        if unknown := re.search(r"unrecognized arguments: ([^\s=]+)", message):
            message += did_you_mean(unknown[1], options).replace(":", ";", 1)
        if switch := re.search(r"argument ([^\s:/]+).*: ignored explicit argument '(.*)'", message):
            name = switch[1].rstrip(",")
            message = f"{name} is a switch and takes no value, got {switch[2]!r}: write {name}, or {negated(name)}"
        wrong = re.match(r'Parser key "([^"]+)":', message)
        got = re.search(r"(?:Given value|Got value): (?!.*(?:Given value|Got value): )(.*)", message, re.DOTALL)
        hint = next(
            (getattr(each, "_typehint", None) for each in self._actions if wrong and each.dest == wrong[1]), None
        )
        if wrong and got and hint is not None:
            message = f"--{wrong[1]} must be {describe(hint)}, got {got[1]}{suggest(hint, got[1])}"
        message = " ".join(message.split())
        message = message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]}…"
        say(f"{self.prog}: {escape_control_chars(message)}", file=sys.stderr)
        sys.exit(2)


def configure() -> None:
    """Set up jsonargparse: docstrings are help, and values are plain."""
    set_parsing_settings(
        docstring_parse_attribute_docstrings=True,
        instantiate_subclass_spec_in_any=False,
        import_path_denylist=["*"],  # no value names code, whatever the type of its option
    )
    set_loader("yaml", load_value, (yaml.YAMLError,))


YAML_LOAD: Callable[[str], Any] = get_loader("yaml")
"""jsonargparse's own: PyYAML's safe loader, for which 1e-3 is a number."""


def load_value(text: str) -> Any:
    """A value on the command line, as YAML within limits."""
    try:
        content = YAML_LOAD(text)
    except RecursionError:
        raise SettingsError("a value on the command line is nested too deeply: write it on fewer levels") from None
    check(content, "a value on the command line")
    return content


def parse(
    prog: str,
    target: Callable[..., Any],
    arguments: list[str],
    key_options: Sequence[str] = (),
    examples: Sequence[str] = (),
) -> None:
    """Parse the options of a function, or of a dataclass with a `run` method, and call it.

    Args:
        prog: the command, for help and errors.
        target: the function or class that is called with the options.
        arguments: the command line after the command.
        key_options: the most important options, which come first in the help.
        examples: command lines that stand last in it.
    """
    parser = make_parser(prog, target)
    add_switches(parser)
    group_options(parser, key_options, examples)
    given = preparse(arguments, "config", "recipe", "trust_remote_code")
    read_recipe = getattr(target, "read_recipe", None)
    if read_recipe is not None and given["recipe"] is not None:
        set_defaults(parser, read_recipe(given["recipe"]), f"the recipe {given['recipe']}")
    if given["config"] is not None:
        settings = read_settings(given["config"], arguments, bool(given["trust_remote_code"]))
        set_defaults(parser, settings, given["config"])
    call(target, parser, arguments)


def call(target: Callable[..., Any], parser: Parser, arguments: list[str]) -> None:
    """Call a function or run a dataclass with the options on the command line."""
    values = parser.instantiate(parser.parse_args(arguments)).as_dict()
    values.pop("config", None)
    parameters = inspect.signature(target).parameters
    for name, each in parameters.items():
        if each.annotation is Path and isinstance(values[name], str):  # a positional argument
            values[name] = Path(values[name])
    first = [values.pop(name) for name, each in parameters.items() if each.kind is each.POSITIONAL_ONLY]
    built = target(*first, **values)
    if inspect.isclass(target):
        built.run()


def read_settings(file: str, arguments: list[str], trust_remote_code: bool) -> dict[str, Any]:
    """Settings from a YAML file, which name no code unless that is consented to."""
    settings = read_yaml(Path(file))
    if not isinstance(settings, dict):
        raise ValueError(f"{file} holds no settings: it should be lines such as `method: mocov2`")
    require_consent(settings, file, trust_remote_code, arguments)
    return settings


SWITCHES = ("trust_remote_code", "resume")
"""Switches among the options that are read first."""


def preparse(arguments: list[str], *names: str) -> dict[str, Any]:
    """The values of a few options, parsed first, since they decide which other options exist."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in names:
        flags = {f"--{name}", f"--{name.replace('_', '-')}"}
        switch: Any = {"action": "store_true"} if name in SWITCHES else {}
        parser.add_argument(*sorted(flags), dest=name, **switch)
    try:
        return vars(parser.parse_known_args(arguments)[0])
    except argparse.ArgumentError:  # which the parser of all options explains better
        return dict.fromkeys(names)


def make_parser(prog: str, target: Callable[..., Any], skip: Iterable[str] = ()) -> Parser:
    """A parser of the options of a function or dataclass.

    Parameters that have no default, or are positional only, are positional; a list takes any number of arguments.

    Args:
        prog: the command, for help and errors.
        target: the function or class that is called with the options.
        skip: parameters that are no options, or are added by the caller.
    """
    parser = Parser(prog=prog, description=description_of(target), formatter_class=Formatter)
    texts = help_texts(target)
    positional = []
    for name, parameter in inspect.signature(target).parameters.items():
        required = parameter.default is parameter.empty
        if name in skip or not (required or parameter.kind is parameter.POSITIONAL_ONLY):
            continue
        positional.append(name)
        kinds = (parameter.annotation, *get_args(parameter.annotation))
        several = any(get_origin(kind) in (list, Sequence) for kind in kinds)
        count: Any = {"nargs": "+" if required else "*"} if several else {} if required else {"nargs": "?"}
        parser.add_argument(name, type=str, help=texts.get(name), metavar=name.upper(), **count)
    names: set[str | int] = {*positional, *skip}
    add = parser.add_class_arguments if inspect.isclass(target) else parser.add_function_arguments
    add(target, as_group=False, skip=names)
    parser.add_argument("--config", type=str, help="YAML file of options to start from.")
    return parser


def description_of(target: Callable[..., Any]) -> str:
    """The description of a command: its docstring without the parameters."""
    docs = docstring_parser.parse(target.__doc__ or "")
    return "\n\n".join(each for each in (docs.short_description, docs.long_description) if each)


def help_texts(target: Callable[..., Any]) -> dict[str, str]:
    """The help of each parameter of a function, or of each field of a dataclass and its bases."""
    if not inspect.isclass(target):
        docs = [docstring_parser.parse(target.__doc__ or "")]
    else:
        docs = [docstring_parser.parse_from_object(each) for each in reversed(target.__mro__) if is_dataclass(each)]
    return {each.arg_name: each.description or "" for doc in docs for each in doc.params}


def add_switches(parser: Parser) -> None:
    """Turn options that are true or false into switches, and accept dashes for underscores."""
    for action in list(parser._actions):
        hint = getattr(action, "_typehint", None)
        if any(each.dest.startswith(f"{action.dest}.") for each in parser._actions):
            # jsonargparse lets each group come from a file of its own; here all settings come from one file.
            action.help = argparse.SUPPRESS
            parser._option_string_actions.pop(f"--{action.dest}", None)
        if action.option_strings and (hint is bool or set(get_args(hint)) == {bool, type(None)}):
            switch = Switch(
                option_strings=list(action.option_strings), dest=action.dest, default=action.default, help=action.help
            )
            for actions in (parser._actions, *(group._group_actions for group in parser._action_groups)):
                actions[:] = [switch if each is action else each for each in actions]
            parser._option_string_actions |= dict.fromkeys(switch.option_strings, switch)
            if action.default is False:  # help need not name what is so already
                switch.option_strings = switch.option_strings[:1]
    for option, action in list(parser._option_string_actions.items()):
        parser._option_string_actions.setdefault(option.replace("_", "-"), action)


def group_options(parser: Parser, key_options: Sequence[str], examples: Sequence[str]) -> None:
    """Put the most important options of a long help first and the others into groups; end it with examples."""
    if examples:
        parser.epilog = EXAMPLES + "\n".join(f"  {each}" for each in examples)
    (positionals, options), nested = parser._action_groups[:2], parser._action_groups[2:]
    positionals.title = "arguments"
    if len(options._group_actions) < MIN_OPTIONS_FOR_GROUPS:
        return
    names = {"most important options": key_options} | {title: each.split() for title, each in GROUPS.items()}
    groups = []
    for title, members in names.items():
        actions = {action.dest.removesuffix(".name"): action for action in options._group_actions}
        chosen = [actions[name] for name in members if name in actions]
        if chosen:
            groups.append(parser.add_argument_group(title))
            groups[-1]._group_actions.extend(chosen)
            options._group_actions[:] = [action for action in options._group_actions if action not in chosen]
    options.title = "other options"
    parser._action_groups = [positionals, *groups, options, *nested]


def add_group(parser: Parser, target: type[Any], name: str, chosen: str, text: str) -> None:
    """Add a group of options that depends on a choice: `--method mocov2 --method.queue_size 4096`.

    Args:
        target: dataclass of the options.
        name: name of the group, and of the option that chooses.
        chosen: the choice.
        text: help of that option.
    """
    choose = parser.add_argument(f"--{name}.name", type=str, default=chosen, help=text, metavar=name.upper())
    parser._option_string_actions[f"--{name}"] = choose
    group = parser.add_argument_group(f"options of {chosen}", description_of(target))
    before = list(parser._actions)
    parser.add_class_arguments(target, name, as_group=False)
    added = [action for action in parser._actions if action not in before]
    for each in parser._action_groups:
        each._group_actions[:] = [action for action in each._group_actions if action not in added]
    group._group_actions.extend(added)


def set_defaults(parser: Parser, settings: Mapping[str, Any], where: str) -> None:
    """Let options begin from settings that have a name or were stored, such as a recipe's.

    Args:
        where: source of the settings, for errors.
    """
    for name, value in settings.items():
        action = next((each for each in parser._actions if each.dest == name), None)
        nested = any(each.dest.startswith(f"{name}.") for each in parser._actions)
        if nested and isinstance(value, Mapping):
            set_defaults(parser, {f"{name}.{key}": each for key, each in value.items()}, where)
        elif action is None or nested:
            known = sorted({each.dest for each in parser._actions if each.dest != "help"})
            hint = did_you_mean(str(name), known) or f": see {parser.prog} --help"
            raise ValueError(f"{where} has the setting {escape_control_chars(str(name))}, which does not exist{hint}")
        else:
            parser.set_defaults({name: value})
