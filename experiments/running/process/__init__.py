"""A program as a process: how it ends, who else runs in the workdir, the other processes."""
