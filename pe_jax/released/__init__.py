"""Released checkpoints: `files` reads one, whatever its format."""
