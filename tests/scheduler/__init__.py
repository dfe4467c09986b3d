"""Tests of `scheduler`."""
