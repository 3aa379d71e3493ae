"""Errors that end a command, and their exit codes.

0 is success. 1 is a negative result: an invalid job, two plans that differ, a failed run. 2 is no result: the command
line is wrong, or a file, the job or the cluster cannot be read.
"""

EXIT_NEGATIVE = 1
EXIT_NO_RESULT = 2


class CommandError(Exception):
    """Ends the command with exit code 1. The text gives the user the cause and the remedy."""

    code = EXIT_NEGATIVE


class UsageError(CommandError):
    """The command cannot be carried out as written."""

    code = EXIT_NO_RESULT


class NoResultError(CommandError):
    """The state is unknown: the cluster or the compiler does not answer, or the cluster has no such job."""

    code = EXIT_NO_RESULT
