"""What a command says when it cannot go on, and the exit code that goes with it.

0 is success. 1 is an answer that is no success: a job with problems, two plans that differ, a run that failed. 2 is no
answer: the command was not understood, or what it was to read, a file, the job or the cluster, cannot be read.
"""

NO_SUCCESS = 1
NO_ANSWER = 2


class CommandError(Exception):
    """The command ends without success. The text is for the user: why, and what to do."""

    code = NO_SUCCESS


class UsageError(CommandError):
    """The command could not be carried out as it was written."""

    code = NO_ANSWER


class NoAnswerError(CommandError):
    """What was asked does not answer, or the cluster has no such job, so nothing is known of it."""

    code = NO_ANSWER
