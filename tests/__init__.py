"""The tests, a folder per package."""
