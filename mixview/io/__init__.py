"""Reading and writing files that anybody may have written."""

__all__: list[str] = []
