"""Bodies of requests to hopgate's own routes: JSON, checked."""

from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request

Body = TypeVar("Body", bound=BaseModel)


async def read_body(request: Request, model: type[Body]) -> Body:
    """Read a request's JSON.

    Raises:
        HTTPException: 415: it is not sent as JSON.
        ValueError: It does not fit the model; names the field.
    """
    # A browser sends other types across sites without asking the server.
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "send the request as JSON: Content-Type: application/json")
    try:
        return model.model_validate_json(await request.body())
    except ValidationError as invalid:
        first = invalid.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        message = first["msg"].removeprefix("Value error, ")
        raise ValueError(f"{where}: {message}" if where else message) from invalid
