"""Reports: files of runs → results → statistics → verdicts → figures, tables and pages."""
