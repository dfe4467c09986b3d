"""Tests of the drop-in for HAMi's extender container."""
