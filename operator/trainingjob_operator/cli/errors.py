"""What a command says when it cannot go on: one exception, whose text is for the user."""


class CommandError(Exception):
    """The command cannot do what was asked. The text says why and what to do; the program exits with 1."""
