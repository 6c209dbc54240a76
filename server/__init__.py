"""hopgate's additions to a LangGraph server: a page, MCP, authentication, limits, observability.

A LangGraph server imports these modules by the names in langgraph.json and installs starlette,
which they need. Of hopgate, only the command line imports any: `mcp`, which needs no server.
"""
