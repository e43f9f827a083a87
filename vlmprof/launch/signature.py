"""What the logs of a failed run add to its outcome: a surer class, a signature, a reading."""

from collections.abc import Sequence
from pathlib import Path

from vlmprof.failures import diagnose
from vlmprof.records.run import Outcome

__all__ = ["with_diagnosis"]

VAGUE = ("crash", None)
"""Classes that a log may know better: it can tell an import error or a device fault from a plain crash."""


def with_diagnosis(outcome: Outcome, logs: Sequence[Path]) -> Outcome:
    """`outcome` with signature and reading; where the logs tell of something else, of the outcome's own facts.

    The signature is the same for the same failure on every run and machine: what a bisect hunts.
    """
    if outcome.status != "failed":
        return outcome
    told = diagnose([log for log in logs if log.exists()])
    if outcome.failure_class in VAGUE and told.failure_class is not None:
        outcome = outcome.model_copy(update={"failure_class": told.failure_class})
    if told.failure_class == outcome.failure_class and told.signature:
        return outcome.model_copy(update={"signature": told.signature, "reading": told.reading})
    place = f" @ {outcome.stage} ({outcome.phase})" if outcome.stage else ""
    return outcome.model_copy(update={"signature": f"{outcome.failure_class}{place}"})
