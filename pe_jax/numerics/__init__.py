"""Arithmetic that encodings and engines share: angles, exact sums, products, resampling."""
