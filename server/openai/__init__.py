"""`/v1`: the graph as a model of OpenAI's API."""
