"""Commands that are no part of another package."""

__all__: list[str] = []
