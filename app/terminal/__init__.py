"""Output of the command line: JSON, pages, tables, progress and errors."""
