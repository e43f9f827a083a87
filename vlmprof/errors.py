"""Errors that are told to a person: one sentence and an exit code. Any room raises them, `commands` prints them."""

from enum import IntEnum

__all__ = ["Exit", "MachineError", "NoAnswerError", "UserError"]


class Exit(IntEnum):
    """The exit codes of every command."""

    FINE = 0
    FOUND = 1
    INPUT = 2
    RUN_FAILED = 3
    NO_ANSWER = 4
    ENVIRONMENT = 5
    INTERRUPTED = 130


class UserError(Exception):
    """Bad input from the caller: the message is one sentence that says what to do. Exit code 2."""

    exit_code = Exit.INPUT


class MachineError(UserError):
    """The machine lacks what the command needs (a package, a device, a port, disk space). Exit code 5."""

    exit_code = Exit.ENVIRONMENT


class NoAnswerError(UserError):
    """The input is in order but does not tell: too few runs, nothing to compare with. Exit code 4."""

    exit_code = Exit.NO_ANSWER
