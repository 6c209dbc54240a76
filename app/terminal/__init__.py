"""What the command line prints: JSON, pages, tables, progress and errors."""
