"""The built-in synthetic dataset."""
