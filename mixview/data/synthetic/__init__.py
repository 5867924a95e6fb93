"""The built-in synthetic dataset."""

from typing import TYPE_CHECKING

from mixview.lazy import attach

if TYPE_CHECKING:
    from mixview.data.synthetic.scenes import Scenes as Scenes
    from mixview.data.synthetic.writers import write as write

PUBLIC = {
    "Scenes": "mixview.data.synthetic.scenes",
    "write": "mixview.data.synthetic.writers",
}
"""Every public name of the package, and the module that defines it."""

__all__ = [*PUBLIC]
__getattr__, __dir__ = attach(__name__, PUBLIC)
