"""Programs with absl flags, one per file."""
