"""The graph's nodes, one function of state and runtime in each file.

`run` holds their state, settings, limits and events; `answers`, `prompts` and `texts` hold the text
they send and read.
"""
