"""The report of a comparison: a page, its figures and tables, and what they say in words."""
