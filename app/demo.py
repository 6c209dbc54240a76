"""`make demo`: three questions of the sample collection, one for each path."""

import asyncio
import logging
import warnings

from rich.console import Console
from rich.markup import escape
from rich.rule import Rule

from hopgate import asking, render

ALPHA = 0.4
QUESTIONS = {
    "What is the capital of Japan?": "Common knowledge: the gate should say No.",
    "In what year was Skerrane Light first lit?": "One passage has it: one retrieval.",
    "Where was the designer of Skerrane Light born?": "Two passages in a chain: several hops.",
}


async def run() -> None:
    """Ask the questions and print every decision."""
    from hopgate.graphs.context import Context
    from hopgate.models import chat

    console = Console(highlight=False)
    context = Context(alpha=ALPHA)
    model = await chat.load(context.model)
    console.print(f"[bold]hopgate[/] at α = {ALPHA}, model {model.name}, the sample collection.")
    if model.tiny:
        console.print(
            "[yellow]This embedded model is tiny (135 million parameters): its decisions are real, "
            "its answers are often wrong.[/] Set OPENAI_API_KEY or OPENAI_BASE_URL for a real one."
        )
    for question, expected in QUESTIONS.items():
        console.print()
        console.print(Rule(escape(question), align="left"))
        console.print(f"[dim]{expected}[/]")
        with render.status("thinking", quiet=False) as update:
            result = await asking.ask(question, context, on_event=update)
        render.answer(result)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    asyncio.run(run())
