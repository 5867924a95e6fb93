"""Where images come from, one file per format."""

__all__: list[str] = []
