"""PretrainConfig: from a source of images to an encoder."""
