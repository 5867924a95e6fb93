"""A bar with the time to go, for work that takes a while; nothing where there is no terminal."""

import contextlib
from collections.abc import Callable, Iterator

Advance = Callable[[int], None]
"""Called with how much was done since the last call."""


@contextlib.contextmanager
def bar(what: str, total: int, done: int = 0) -> Iterator[Advance]:
    """A bar while the block runs; it is drawn from the calls, not by a thread, so that data loaders may fork."""
    import rich.progress  # not before it is drawn: the help of commands need not wait for it
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda amount: None
        return
    columns = (
        rich.progress.TextColumn("{task.description}", markup=False),
        rich.progress.BarColumn(bar_width=None),
        rich.progress.MofNCompleteColumn(),
        rich.progress.TimeRemainingColumn(),
    )
    with rich.progress.Progress(*columns, console=console, auto_refresh=False, expand=True, transient=True) as progress:
        task = progress.add_task(what, total=total, completed=done)

        def advance(amount: int) -> None:
            progress.advance(task, amount)
            progress.refresh()

        yield advance
