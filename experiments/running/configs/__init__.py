"""The configs of programs that train many models, one file per program."""
