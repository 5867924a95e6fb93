"""Datasets: sources of images, decoding, augmentation, and the built-in synthetic scenes."""
