"""What programs share to run things: flags, locks, devices, the training loop, files of a run."""
