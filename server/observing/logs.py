"""Logs: one line for every run of the graph, without questions or answers.

A failed run's line has the error's text, unless the request is to blame. An endpoint may repeat a
part of the prompt in it.
"""

import logging
import os
from typing import Any

from hopgate.server.observing.turns import Turn

NAMES = {"asctime": "timestamp", "levelname": "level", "name": "logger", "message": "event"}
"""Of the parts of a JSON line, as on LangGraph's servers."""

log = logging.getLogger("hopgate")


def to_stderr() -> None:
    """Log to stderr, as JSON if `LOG_JSON` is `true`."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    if os.environ.get("LOG_JSON", "").lower() == "true":
        from pythonjsonlogger.json import JsonFormatter

        handler.setFormatter(
            JsonFormatter("%(asctime)s%(levelname)s%(name)s%(message)s", rename_fields=NAMES)
        )
    logging.disable(logging.NOTSET)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    log.setLevel(logging.INFO)


def facts(turn: Turn) -> dict[str, Any]:
    """Return the decisions and the cost of a run, as far as it went; none of them is a text."""
    decision, usage = turn.decision, turn.usage
    return {
        "outcome": turn.outcome,
        "run_id": str(turn.run_id),
        "model": decision.get("model"),
        "alpha": turn.alpha,
        "strategy": decision.get("strategy"),
        "stop_reason": decision.get("stop_reason"),
        "escalations": len(decision.get("escalated", [])),
        "retrieval_steps": usage["retrieval_steps"],
        "llm_calls": usage["llm_calls"],
        "prompt_tokens": usage["prompt_tokens"],
        "completion_tokens": usage["completion_tokens"],
    }


def write(turn: Turn) -> None:
    """Log a run as one line of text, with fields for structured logs (`extra`)."""
    fields = facts(turn) | {
        "user": turn.user,
        "thread_id": turn.thread_id,
        "gate": turn.part("gate").get("answer"),
        "label": turn.part("route").get("label"),
        "ms": turn.ms,
        "cause": turn.cause,
        "error": turn.error,
        "failed_in": turn.failed_in,
        "error_message": turn.message,
    }
    shown = " ".join(f"{name}={_word(each)}" for name, each in fields.items() if each is not None)
    level = logging.WARNING if turn.outcome == "error" else logging.INFO
    log.log(level, "turn %s", shown, extra=fields)


def _word(value: object) -> str:
    """Quote a value that would break the line: edits can write anything into the state."""
    text = str(value)
    return text if text.isprintable() and " " not in text else repr(text)
