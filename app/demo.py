"""`make demo`: three questions about the sample collection, one for each path."""

import asyncio
import logging
import sys
import warnings

from rich.rule import Rule

from hopgate import asking, live, render, terminal
from hopgate.cli import INTERRUPTED, explain_error

ALPHA = 0.7
PROFILE = "flan-t5-xl"
"""The embedded model's own profile hardly ever loops, since the model gains nothing from it; this
one shows all three paths."""
QUESTIONS = {
    "How many legs does a spider have?": "The collection has nothing about it: no retrieval.",
    "In what year was Skerrane Light first lit?": "One passage has it: one retrieval.",
    "Where was the designer of Skerrane Light born?": "Two passages in a chain: several hops.",
}


async def run() -> None:
    """Ask the questions and print every decision."""
    from hopgate import Context
    from hopgate.models import chat

    console = render.SafeConsole()
    model = await chat.load(chat.LOCAL)
    context = Context(alpha=ALPHA, model=model.name, profile=PROFILE)
    console.print(
        f"[bold]hopgate[/] at α = {ALPHA}, model {model.name}, router as for {PROFILE}, the sample "
        "collection."
    )
    console.print(
        "[yellow]This embedded model is tiny (135 million parameters): its decisions are real, "
        "its answers are often wrong.[/]"
    )
    for question, expected in QUESTIONS.items():
        console.print()
        console.print(Rule(question, align="left"))
        console.print(f"[dim]{expected}[/]")
        with live.view(quiet=False) as show:
            result = await asking.ask(question, context, on_event=show)
        render.answer(result)
    console.print(
        '\nNow yours: .venv/bin/hopgate ask "…"; set OPENAI_API_KEY or OPENAI_BASE_URL for a real '
        "model."
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    try:
        with terminal.guarded():
            asyncio.run(run())
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        sys.exit(terminal.harmless(f"hopgate: {explain_error(error)[0]}"))
