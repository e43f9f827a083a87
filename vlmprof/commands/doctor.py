"""`vlmprof doctor`: what this machine can do."""

__all__ = ["doctor"]


def doctor() -> int:
    """Say what this machine can do, and how to get what is missing."""
    from vlmprof.errors import Exit
    from vlmprof.launch.doctor import examine
    from vlmprof.report.terminal import print_checks

    checks = examine()
    print_checks(checks)
    return int(Exit.FINE if all(check.ok or check.optional for check in checks) else Exit.ENVIRONMENT)
