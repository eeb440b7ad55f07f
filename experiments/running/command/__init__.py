"""From a command line to a config: flags, config files, help."""
