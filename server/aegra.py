"""hopgate's routes for Aegra, an open LangGraph-compatible server (docs/aegra.md).

aegra.json names `app` as its `http.app`. Aegra accepts nothing but a FastAPI app there; this one
serves the routes of `hopgate.server.web`.
"""

from fastapi import FastAPI

from hopgate.server import web

app = FastAPI(
    routes=web.app.routes,
    middleware=web.app.user_middleware,
    lifespan=web.lifespan,
    title="hopgate",
)
