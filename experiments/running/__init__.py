"""Shared by the programs: flags, locks, devices, the training loop, files of a run."""
