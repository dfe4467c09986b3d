"""`slotwise doctor`: the first-day check of an installation. Facts are read once, then judged by plain functions."""
