"""Time, memory and operations of programs: timing, what is timed, counts."""
