"""`python -m hopgate`: the command line."""

from hopgate.cli import main

main()
