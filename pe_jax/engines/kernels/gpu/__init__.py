"""Attention on NVIDIA GPUs: `engine` prepares and launches what `kernels` compute."""
