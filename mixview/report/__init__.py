"""Runs in; pictures, tables and one HTML page out."""
