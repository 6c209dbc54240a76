"""Documents: finding, parsing and cutting them into passages."""
