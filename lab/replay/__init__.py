"""Recorded scenarios played through the same decision, admission and ledger code, without HTTP, clock or waiting."""
