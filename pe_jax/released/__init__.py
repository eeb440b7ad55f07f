"""Released checkpoints: `files` reads one, whatever its format; `load` makes a model of it."""
