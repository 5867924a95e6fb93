"""Lightning's Fabric, imported without torchmetrics: it only asks for its version, and the import takes seconds."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hidden(name: str) -> Iterator[None]:
    """A package that cannot be imported while the block runs, unless it has been."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]


with hidden("torchmetrics"):
    from lightning_fabric import Fabric as Fabric
    from lightning_fabric.strategies.ddp import DDPStrategy as DDPStrategy
    from lightning_fabric.strategies.strategy import Strategy as Strategy
