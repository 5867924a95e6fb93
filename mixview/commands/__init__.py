"""Commands that are no part of another package."""
