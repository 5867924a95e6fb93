"""Augmentation policies and the backends that apply them."""
