"""An encoder in the formats of other libraries, one file each."""

from typing import TYPE_CHECKING

from mixview.lazy import attach

if TYPE_CHECKING:
    from mixview.encoders.export.command import export as export
    from mixview.encoders.export.detectron2 import load_detectron2 as load_detectron2
    from mixview.encoders.export.detectron2 import save_detectron2 as save_detectron2

PUBLIC = {
    "export": "mixview.encoders.export.command",
    **dict.fromkeys(("load_detectron2", "save_detectron2"), "mixview.encoders.export.detectron2"),
}
"""Every public name of the package, and the module that defines it."""

__all__ = [*PUBLIC]
__getattr__, __dir__ = attach(__name__, PUBLIC)
