"""One training run, and reading one that is finished."""
