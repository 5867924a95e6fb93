"""`mixview recipes`: lists recipes by names that can be copied, and shows one."""

import shutil
import sys
from itertools import groupby

import yaml  # type: ignore[import-untyped, unused-ignore]

from mixview.io.terminal import say
from mixview.recipes import Recipe, names, read

USES = {False: "mixview pretrain --recipe NAME", True: "mixview evaluate detection ENCODER --recipe NAME"}


def recipes(name: str | None = None, /) -> None:
    """List the recipes, or show one: what it is, what it costs, what the paper measured with it, and its settings.

    Args:
        name: Recipe to show, such as paper/mocov2-wbsim, or a YAML file.
    """
    if name is None:
        list_recipes()
    else:
        show(read(name))


def list_recipes() -> None:
    """One line per recipe: its name, whole, and what it is."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for detection, use in USES.items():
        recipe_names = names(detection=detection)
        longest = max(map(len, recipe_names))
        say(f"{use}\n")
        for _, group in groupby(recipe_names, key=lambda each: each.partition("/")[0]):
            for each in group:
                line = f"  {each:{longest}}  {read(each).about.get('what', '')}"
                say(line if width is None or len(line) <= width else f"{line[: width - 1]}…")
            say("")
    say("mixview recipes NAME shows one.")


def show(recipe: Recipe) -> None:
    """Everything that a recipe says."""
    say(recipe.name)
    for key, text in recipe.about.items():
        say(f"  {key}: {text}")
    say("\n" + yaml.safe_dump(recipe.settings, sort_keys=False, allow_unicode=True).rstrip())
