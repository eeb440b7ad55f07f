"""Helpers of several encodings: angles, running sums, arrays."""
