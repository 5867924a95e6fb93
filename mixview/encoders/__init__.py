"""Encoders: backbones, weights, the encoder file, inference and export."""
