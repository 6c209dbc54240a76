"""Logs: one line for every run of the graph, without questions or answers."""

import logging

from hopgate.server.turns import Turn

log = logging.getLogger("hopgate")


def write(turn: Turn) -> None:
    """Log a run as one line of text, with fields for structured logs (`extra`)."""
    fields = {
        "outcome": turn.outcome,
        "run_id": str(turn.run_id),
        "thread_id": turn.thread_id,
        "model": turn.decision.get("model"),
        "alpha": turn.alpha,
        "gate": turn.part("gate").get("answer"),
        "label": turn.part("route").get("label"),
        "strategy": turn.decision.get("strategy"),
        "stop_reason": turn.decision.get("stop_reason"),
        "escalations": len(turn.decision.get("escalated", [])),
        "retrieval_steps": turn.usage["retrieval_steps"],
        "llm_calls": turn.usage["llm_calls"],
        "prompt_tokens": turn.usage["prompt_tokens"],
        "completion_tokens": turn.usage["completion_tokens"],
        "ms": turn.ms,
        "error": turn.error,
        "failed_in": turn.failed_in,
    }
    shown = " ".join(f"{name}={_word(each)}" for name, each in fields.items() if each is not None)
    level = logging.WARNING if turn.outcome == "error" else logging.INFO
    log.log(level, "turn %s", shown, extra=fields)


def _word(value: object) -> str:
    """Quote a value that would break the line: edits can write anything into the state."""
    text = str(value)
    return text if text.isprintable() and " " not in text else repr(text)
