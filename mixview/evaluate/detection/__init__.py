"""Object detection and instance segmentation."""

from typing import TYPE_CHECKING

from mixview.lazy import attach

if TYPE_CHECKING:
    from mixview.evaluate.detection.protocol import Detection as Detection

PUBLIC = {
    "Detection": "mixview.evaluate.detection.protocol",
}
"""Every public name of the package, and the module that defines it."""

__all__ = [*PUBLIC]
__getattr__, __dir__ = attach(__name__, PUBLIC)
