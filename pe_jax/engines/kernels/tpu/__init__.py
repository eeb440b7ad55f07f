"""Attention on TPUs: `engine` prepares and launches what `kernels` compute."""
