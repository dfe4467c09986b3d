"""Admission: `/webhook` mutates device pods, `/validate` refuses what must not run."""
