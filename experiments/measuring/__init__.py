"""Measures time, memory and operations of programs."""
