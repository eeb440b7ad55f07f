"""Programs: absl mains, read from the top down."""
