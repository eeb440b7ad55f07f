"""Oracles: implementations that this project did not write, run on the same random numbers."""
