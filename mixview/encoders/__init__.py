"""Encoders: backbones, weights, the encoder file, inference and export."""

from typing import TYPE_CHECKING

from mixview.lazy import attach

if TYPE_CHECKING:
    from mixview.encoders.backbones import build as build
    from mixview.encoders.embedding import embed as embed
    from mixview.encoders.embedding import read_features as read_features
    from mixview.encoders.encoder_file import load_encoder as load_encoder
    from mixview.encoders.encoder_file import save_encoder as save_encoder
    from mixview.encoders.importing import import_encoder as import_encoder
    from mixview.encoders.inference import Encoder as Encoder
    from mixview.encoders.inference import load as load

PUBLIC = {
    "build": "mixview.encoders.backbones",
    **dict.fromkeys(("embed", "read_features"), "mixview.encoders.embedding"),
    **dict.fromkeys(("load_encoder", "save_encoder"), "mixview.encoders.encoder_file"),
    "import_encoder": "mixview.encoders.importing",
    **dict.fromkeys(("Encoder", "load"), "mixview.encoders.inference"),
}
"""Every public name of the package, and the module that defines it."""

__all__ = [*PUBLIC]
__getattr__, __dir__ = attach(__name__, PUBLIC)
