"""The command line.

Rules for every command:

`--json` prints one JSON document on stdout and nothing else there; progress goes to
stderr. Exit code 0 done, 2 wrong usage or input, 130 interrupted (Ctrl-C), 1 anything else;
errors are one line, without a traceback unless `--debug` is given. Control characters are shown,
not sent to the terminal (`hopgate.terminal.guard`).
"""

import io
import logging
import os
import sys
import traceback
import warnings
from importlib import import_module

import click

from hopgate.common.threads import end_process
from hopgate.terminal.errors import INTERRUPTED, explain_error
from hopgate.terminal.guard import harmless

COMMANDS = {
    "ask": ("ask", "Answer a question, with sources and the reason for every decision."),
    "calibrate": ("calibrate", "Choose the α that meets a goal, or a gate's threshold."),
    "doctor": ("doctor", "Show which parts are usable, and how to get those that are missing."),
    "eval": ("eval", "Measure gates and strategies with a real model."),
    "harvest": ("harvest", "Draw questions that users asked."),
    "improve": ("improve", "Train a candidate on your questions and compare it with the router."),
    "index": ("index", "Build, change, describe and check indexes."),
    "label": ("label", "Find out which strategies answer each question."),
    "mcp": ("serve", "Serve the tools ask, search and route to an MCP client."),
    "new": ("new", "Write a small project of your own."),
    "promote": ("improve", "Put a candidate in use in place of your router."),
    "route": ("route", "Show the router's decision for a question, or for every row of a file."),
    "search": ("search", "Search an index, without asking a model."),
    "serve": ("serve", "Serve OpenAI's API at /v1, and MCP."),
    "sweep": ("sweep", "Replay routers on recorded outcomes at every α."),
    "train-router": ("train_router", "Train a router on your own LLM's outcomes."),
}
"""The module of each command in `hopgate.commands`, and its help in the list of commands."""


class _Commands(click.Group):
    """A group that imports a command when it runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None if there is none of this name."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"hopgate.commands.{COMMANDS[cmd_name][0]}")
        found: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="hopgate")
@click.option("--debug", is_flag=True, help="Show tracebacks and logs; allowed anywhere.")
def cli(debug: bool) -> None:
    """Adaptive retrieval: decide whether to retrieve, how deep, and show why."""


def main() -> None:
    """Run the command line under the module's rules."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    arguments = [each for each in sys.argv[1:] if each != "--debug"]
    debug = len(arguments) < len(sys.argv[1:])
    if not debug:
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    end_process(run(arguments, debug))


def run(arguments: list[str], debug: bool = False) -> int:
    """Run a command and return its exit code; an error becomes a line on stderr."""
    try:
        return cli.main(arguments, prog_name="hopgate", standalone_mode=False) or 0
    except click.exceptions.NoArgsIsHelpError as error:
        return _fail(f"{error.ctx.command_path}: name a command: {_commands(error.ctx)}", 2)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "hopgate"
        message = error.format_message()
        end = "" if message.endswith((".", "?")) else "."
        return _fail(f"{command}: {message}{end} See `{command} --help`.", 2)
    except (click.Abort, KeyboardInterrupt) as error:
        return _fail(str(error.__cause__ or error) or "interrupted", INTERRUPTED)
    except Exception as error:
        if debug:
            click.echo(harmless(traceback.format_exc()), err=True)
            return 1
        return _fail(*explain_error(error))


def _commands(context: click.Context) -> str:
    group = context.command
    names = group.list_commands(context) if isinstance(group, click.Group) else []
    return f"{', '.join(names)}. See `{context.command_path} --help`."


def _fail(message: str, code: int) -> int:
    line = harmless(f"hopgate: {message}".replace("hopgate: hopgate", "hopgate"), lines=False)
    click.echo(line, err=True)
    return code
