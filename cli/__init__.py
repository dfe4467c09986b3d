"""The `slotwise` command, one file a subcommand."""
