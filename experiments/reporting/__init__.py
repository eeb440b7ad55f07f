"""From the files of runs to results, statistics, verdicts, figures, tables and pages."""
