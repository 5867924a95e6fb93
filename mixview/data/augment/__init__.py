"""Augmentation policies and the backends that apply them."""

__all__: list[str] = []
