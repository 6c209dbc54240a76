"""A server that requires users but cannot load them answers nobody."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from langgraph_sdk import Auth
from starlette.applications import Starlette
from starlette.authentication import BaseUser, SimpleUser, UnauthenticatedUser
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from hopgate.server import auth, serving, tokens
from hopgate.server.access import setup as access
from hopgate.server.access.users import Users, user_of

TOKEN = "ada-1c5f0e2b9a774d31"
USERS = {tokens.digest(TOKEN): "ada"}
MORE = USERS | {tokens.digest("ben-77d0c1b64e9f2a35"): "ben"}
OWN = "hopgate.server.auth:auth"


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A server's folder, on a server that is not LangGraph's own."""
    for name in (tokens.VARIABLE, access.AUTH, access.AUTH_TYPE, "AEGRA_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delitem(sys.modules, "langgraph_api", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def configure(path: str | None, file: str = "langgraph.json") -> None:
    Path(file).write_text(json.dumps({"auth": {"path": path}} if path else {"graphs": {}}))


# The auth module


async def handled(headers: Any) -> Any:
    """The module's reply, called by position, as by servers other than LangGraph's own."""
    handler: Any = auth.auth._authenticate_handler
    return await handler(headers)


@pytest.mark.parametrize("name", ["authorization", "Authorization", "AUTHORIZATION"])
@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
@pytest.mark.parametrize("form", [str, str.encode])
async def test_headers_are_read_in_the_forms_that_servers_give(
    monkeypatch: pytest.MonkeyPatch, form: Callable[[str], Any], scheme: str, name: str
) -> None:
    monkeypatch.setenv(tokens.VARIABLE, json.dumps(USERS))
    headers = {form("accept"): form("*/*"), form(name): form(f"{scheme} {TOKEN}")}
    assert await handled(headers) == {"identity": "ada"}


@pytest.mark.parametrize(
    "headers",
    [{}, {"authorization": TOKEN}, {b"authorization": b"Bearer \xff"}, {"x-api-key": TOKEN}],
)
async def test_other_headers_are_refused(
    monkeypatch: pytest.MonkeyPatch, headers: dict[Any, Any]
) -> None:
    monkeypatch.setenv(tokens.VARIABLE, json.dumps(USERS))
    with pytest.raises(Auth.exceptions.HTTPException) as refused:
        await handled(headers)
    assert (refused.value.status_code, refused.value.detail) == (401, tokens.REFUSAL)


LOADED = """
import asyncio
from hopgate.server import auth
for headers in ({}, {"authorization": "Bearer "}, {b"authorization": b"Bearer %s"}):
    try:
        print(asyncio.run(auth.auth._authenticate_handler(headers)))
    except auth.Auth.exceptions.HTTPException as refused:
        print(refused.status_code, refused.detail)
"""


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        (None, "HOPGATE_TOKENS names no users"),
        (json.dumps({TOKEN: "ada"}), "the key of 'ada' is not a SHA-256"),
    ],
)
def test_without_users_the_module_loads_and_refuses_everyone(value: str | None, cause: str) -> None:
    """A server that goes on without the module would let everyone in."""
    env = os.environ | ({} if value is None else {tokens.VARIABLE: value})
    command = [sys.executable, "-c", LOADED % TOKEN]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"401 {auth.NO_USERS}"] * 3
    assert cause in done.stderr
    assert TOKEN not in done.stderr


def test_a_file_of_users_is_read_again_and_a_malformed_one_ignored(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = folder / "tokens.json"
    monkeypatch.setenv(tokens.VARIABLE, str(file))
    # An empty one takes the last user out: nobody may ask.
    for content, known in ((USERS, USERS), ({"x": 1}, USERS), ({}, {}), (MORE, MORE)):
        file.write_text(json.dumps(content))
        assert tokens.users_now() == known


# The routes


async def hello(request: Request) -> PlainTextResponse:
    return PlainTextResponse(getattr(user_of(request.scope), "identity", "nobody"))


def app() -> ASGIApp:
    return Starlette(routes=[Route("/", hello, middleware=[Middleware(Users)])])


@pytest.mark.parametrize(
    ("path", "given", "cause"),
    [
        (None, "", "HOPGATE_TOKENS names no users; create"),
        (None, "{", "HOPGATE_TOKENS is not valid JSON"),
        (OWN, None, "HOPGATE_TOKENS names no users; create"),
    ],
)
def test_without_the_required_users_nobody_is_served(
    monkeypatch: pytest.MonkeyPatch, path: str | None, given: str | None, cause: str
) -> None:
    configure(path)
    if given is not None:
        monkeypatch.setenv(tokens.VARIABLE, given)
    for start in (
        lambda: TestClient(app()).get("/"),
        partial(serving.serve, "", 0, None, {}, print, drain=0, check=True),
    ):
        with pytest.raises(ValueError, match=cause) as refused:
            start()
        assert "\n" not in str(refused.value)


def test_any_configuration_file_counts_where_the_server_names_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure("a:b")
    configure(None, "aegra.json")
    assert access.configured() == "a:b"
    configure("c:d", "other.json")
    monkeypatch.setenv("AEGRA_CONFIG", str(folder / "other.json"))
    assert access.configured() == "c:d"
    (folder / "other.json").write_text("{")
    with pytest.raises(ValueError, match=r"other\.json cannot be read: JSONDecodeError"):
        access.configured()
    monkeypatch.setenv(access.AUTH, '{"path": "e:f"}')
    assert access.configured() == "e:f"


def test_a_server_that_went_on_without_its_auth_serves_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server is a fake: Aegra keeps None where the module raised."""
    configure("./mine.py:auth")
    loaded = SimpleNamespace(get_auth_instance=lambda: None)
    monkeypatch.setitem(sys.modules, "aegra_api.core.auth_middleware", loaded)
    with pytest.raises(ValueError, match=r"auth '\./mine\.py:auth', but the server could not"):
        TestClient(app()).get("/")
    loaded.get_auth_instance = Auth
    assert TestClient(app()).get("/").status_code == 403


def test_tokens_without_auth_are_said_to_guard_only_hopgate_s_routes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    access.warn_if_open()
    monkeypatch.setenv(tokens.VARIABLE, json.dumps(USERS))
    configure(OWN)
    access.warn_if_open()
    assert caplog.messages == []
    configure(None)
    access.warn_if_open()
    (message,) = caplog.messages
    assert "HOPGATE_TOKENS guards only hopgate's own routes" in message


# Who is a user


class Nameless(BaseUser):
    """Starlette's base: authenticated, with no identity."""

    is_authenticated = True


def named(**fields: Any) -> SimpleNamespace:
    return SimpleNamespace(**fields)


@pytest.mark.parametrize(
    ("user", "name"),
    [
        (named(identity="ada", is_authenticated=True), "ada"),
        ({"identity": "ada"}, "ada"),
        ({"identity": "ada", "is_authenticated": False}, None),
        ({"display_name": "ada", "is_authenticated": True}, None),
        (named(identity="anonymous", is_authenticated=True), None),
        (named(identity="", is_authenticated=True), None),
        (named(is_authenticated=True), None),
        (SimpleUser("ada"), "ada"),
        (UnauthenticatedUser(), None),
        (Nameless(), None),
        (None, None),
    ],
)
async def test_only_an_authenticated_user_with_a_name_counts(
    monkeypatch: pytest.MonkeyPatch, user: Any, name: str | None
) -> None:
    monkeypatch.setenv(tokens.VARIABLE, json.dumps(USERS))
    guarded = app()

    async def known(scope: Any, receive: Any, send: Any) -> None:
        await guarded({**scope, "user": user}, receive, send)

    answer = TestClient(known).get("/")
    assert (answer.status_code, answer.text if name else None) == (200 if name else 401, name)
