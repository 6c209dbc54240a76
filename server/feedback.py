"""`POST /hopgate/feedback`: what a user says about an answer of a thread of theirs.

The route asks the server's own API for the thread, with the request's own headers, so whoever may
not use a thread there cannot give feedback on it here, whatever `auth` the server has.
"""

from typing import Any
from uuid import UUID

import httpx
from langgraph_sdk.client import LangGraphClient
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hopgate.nodes.feedback import NODE, Thumbs, Unfinished, UnknownAnswer, feedback_edit
from hopgate.server.bodies import read_body
from hopgate.server.refusals import INTERNAL, refusal

OF_THE_BODY = ("connection", "content-length", "content-type", "transfer-encoding")
"""Headers that are not handed on."""
PASSED_ON = (401, 403)


class Opinion(BaseModel):
    """What a user says about an answer; with neither, they take back what they said."""

    model_config = ConfigDict(extra="forbid")

    thumbs: Thumbs | None = None
    answer: str | None = None
    """The right answer."""


class ThreadOpinion(Opinion):
    """The body of a request."""

    thread_id: UUID
    message_id: str | None = None
    """The id of the answer's message; None is the thread's newest answer."""


async def feedback(request: Request) -> Response:
    """Keep what a user says about an answer, in the state of its thread."""
    try:
        given = await read_body(request, ThreadOpinion)
        kept = await _keep(_as_user(request), given)
    except HTTPException as refused:
        return refusal(refused.status_code, refused.detail)
    except httpx.HTTPStatusError as refused:
        return _refused(refused)
    except ValueError as wrong:
        return refusal(status_of(wrong), str(wrong))
    return JSONResponse(kept)


def status_of(wrong: ValueError) -> int:
    """Return the HTTP status of feedback that cannot be kept."""
    kinds = ((UnknownAnswer, 404), (Unfinished, 409))
    return next((status for kind, status in kinds if isinstance(wrong, kind)), 400)


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


def _refused(refused: httpx.HTTPStatusError) -> Response:
    status = refused.response.status_code
    if status == 404:
        return refusal(status, "there is no such thread; take the id of one of your threads")
    if status == 409:
        return refusal(status, "the thread is answering a question; give feedback after it")
    if status in PASSED_ON:
        return refusal(status, _detail(refused.response))
    return refusal(500, INTERNAL)


def _detail(response: httpx.Response) -> str:
    try:
        return str(response.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return "this server does not let you use the thread"
