"""Training routers: from label rows to cost and reliability weights."""
