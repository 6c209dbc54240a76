"""Reports: result documents, pages and plots."""
