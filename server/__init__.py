"""What hopgate adds to a LangGraph server: a page, authentication, limits and observability.

A LangGraph server imports these modules by the names in langgraph.json and installs starlette,
which they need. No other package of hopgate imports them.
"""
