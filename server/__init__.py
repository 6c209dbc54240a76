"""What hopgate adds to a LangGraph server: its page, and what operators need.

A LangGraph server imports these modules by the names in langgraph.json, and brings starlette,
which they need, with it. Nothing else in hopgate imports them.
"""
