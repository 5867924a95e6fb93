"""What mixview learns from: sources of images, decoding, augmentation, and the embedded scenes."""
