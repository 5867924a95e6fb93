"""Sources of images, one file per format."""

__all__: list[str] = []
