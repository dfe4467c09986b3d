"""Tests of `certs` and the certs command."""
