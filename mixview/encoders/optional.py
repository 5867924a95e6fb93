"""Libraries that only some commands need, imported when they are needed: timm alone takes seconds."""

import importlib
from types import ModuleType


def import_optional(name: str, extra: str | None = None) -> ModuleType:
    """Import a library, or raise an error that says how to install it.

    Args:
        extra: the extra of mixview that installs it, if any.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0]:
            raise
        package = f"'mixview[{extra}]'" if extra else error.name
        raise ModuleNotFoundError(f"{error.name} is not installed: pip install {package}", name=error.name) from None
