"""`POST /hopgate/feedback`: a user's opinion of an answer in one of their threads.

The route asks the server's own API for the thread, with the request's own headers. So nobody can
give feedback on a thread that they may not use, whatever `auth` the server has.
"""

from typing import Any
from uuid import UUID

import httpx
from langgraph_sdk.client import LangGraphClient
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hopgate.nodes.run.feedback import NODE, Thumbs, feedback_edit
from hopgate.server.access.bodies import read_body
from hopgate.server.access.refusals import refusal, refused

OF_THE_BODY = ("connection", "content-length", "content-type", "transfer-encoding")
"""Headers that are not passed on."""
REFUSED = {
    401: "this server does not let you use the thread",
    403: "this server does not let you use the thread",
    404: "there is no such thread; take the id of one of your threads",
    409: "the thread is answering a question; give feedback after it",
}


class Opinion(BaseModel):
    """A user's opinion of an answer; without any field, they withdraw it."""

    model_config = ConfigDict(extra="forbid")

    thumbs: Thumbs | None = None
    answer: str | None = None
    """The right answer."""


class ThreadOpinion(Opinion):
    """The body of a request."""

    thread_id: UUID
    message_id: str | None = None
    """The id of the answer's message; None takes the thread's newest answer."""


async def feedback(request: Request) -> Response:
    """Keep a user's opinion of an answer, in the state of its thread."""
    try:
        given = await read_body(request, ThreadOpinion)
        kept = await _keep(_as_user(request), given)
    except httpx.HTTPStatusError as failed:
        status = failed.response.status_code
        return refusal(status, REFUSED[status]) if status in REFUSED else refused(failed)
    except (HTTPException, ValueError) as wrong:
        return refused(wrong)
    return JSONResponse(kept)


async def _keep(client: LangGraphClient, given: ThreadOpinion) -> dict[str, Any]:
    thread = str(given.thread_id)
    opinion = given.model_dump(exclude={"thread_id"})
    async with client:
        state: Any = await client.threads.get_state(thread)
        values = state["values"] or {}
        rated, kept = feedback_edit(values, state["next"] or (), **opinion)
        if kept or rated in values.get("feedback", {}):
            edit = {"feedback": {rated: kept}}
            await client.threads.update_state(thread, edit, as_node=NODE)
    return {"thread_id": thread, "message_id": rated, "feedback": kept}


def _as_user(request: Request) -> LangGraphClient:
    """Return a client of this server that has the rights of the request."""
    headers = {name: value for name, value in request.headers.items() if name not in OF_THE_BODY}
    transport = httpx.ASGITransport(request.app, raise_app_exceptions=False)
    return LangGraphClient(
        httpx.AsyncClient(transport=transport, base_url="http://server", headers=headers)
    )
