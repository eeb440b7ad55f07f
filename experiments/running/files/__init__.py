"""What lies in a workdir: the manifest, the table of results, names of folders, provenance."""
