"""Nothing that a test makes ends up in the user's own cache."""

from tests.data.conftest import private_cache

__all__ = ["private_cache"]
