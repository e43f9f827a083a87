"""From what a probe showed to good, bad or skip, always with the reason: keyed on the symptom that is hunted."""

from dataclasses import dataclass

from vlmprof.records.bisect import Held, Observation, VerdictName

__all__ = ["Judgement", "judge", "judge_metric", "shows_a_failure"]

SKIP_CODE = 125
HUNTED: dict[str, tuple[str, ...]] = {
    "oom": ("oom",),
    "nan": ("nan",),
    "hang": ("hang",),
    "crash": ("crash", "cuda-fault"),
}
"""Symptom -> the failure classes that show it."""
UNTESTABLE = ("setup", "hardware", "host-oom")
"""Classes that say nothing of the commit unless the very same one is hunted."""
MOVABLE = ("oom", "nan", "hang")
"""Classes that strike wherever the straw breaks: the class is the symptom, the place may move."""
SILENT = ("nan",)
"""Classes that are failures although the command ends with 0."""


@dataclass(frozen=True)
class Judgement:
    verdict: VerdictName
    reason: str
    warning: str = ""


def judge_metric(seen: Observation, symptom: str, held: Held | None) -> Judgement:
    """The verdict on `seen` where a metric is hunted. `held`: how it compares with the end without the symptom."""
    if untested := _untested(seen):
        return untested
    if shows_a_failure(seen):
        return Judgement("skip", f"it fails, so nothing is known of {symptom}: {describe(seen)}")
    if held is None:
        return Judgement("skip", f"it left no record in $VLMPROF_OUT, so nothing is known of {symptom}")
    return Judgement({"worse": "bad", "undecided": "skip"}.get(held.verdict, "good"), held.text)  # type: ignore[arg-type]


def judge(seen: Observation, symptom: str, reference: Observation | None = None) -> Judgement:
    """The verdict on `seen` where the failure `symptom` is hunted. `reference`: what the end with it showed; None while
    that end is tried."""
    if untested := _untested(seen):
        return untested
    if not shows_a_failure(seen):
        return Judgement("good", "no failure")
    if symptom == "same":
        return _same(seen, reference)
    if symptom == "any":
        return Judgement("skip" if seen.failure_class in UNTESTABLE else "bad", describe(seen))
    if seen.failure_class in HUNTED[symptom]:
        return Judgement("bad", describe(seen), _changed(seen, reference))
    return Judgement("skip", f"another failure than {symptom}: {describe(seen)}")


def _untested(seen: Observation) -> Judgement | None:
    """The skip of what could not be tried at all, whatever is hunted."""
    if seen.blocked:
        return Judgement("skip", seen.blocked)
    if seen.exit_code == SKIP_CODE:
        return Judgement("skip", f"the command says that it cannot be tested (code {SKIP_CODE})")
    return None


def shows_a_failure(seen: Observation) -> bool:
    """Whether anything went wrong."""
    return seen.exit_code != 0 or seen.failure_class in SILENT


def describe(seen: Observation) -> str:
    """A failure in a few words."""
    told = seen.message or (seen.evidence[-1] if seen.evidence else "")
    head = seen.failure_class or f"code {seen.exit_code}"
    return f"{head}: {told}" if told else head


def _same(seen: Observation, reference: Observation | None) -> Judgement:
    if reference is None:
        return Judgement("bad", describe(seen))
    if not reference.failure_class:  # as git bisect run: a plain code is a plain failure
        alike = not seen.failure_class and _by_signal(seen) == _by_signal(reference)
        return Judgement("bad", describe(seen)) if alike else _other(seen)
    if seen.failure_class != reference.failure_class:
        return _other(seen)
    if seen.signature == reference.signature:
        return Judgement("bad", describe(seen), _changed(seen, reference))
    if seen.failure_class in MOVABLE or _place(seen) == _place(reference) != "":
        return Judgement("bad", describe(seen), _changed(seen, reference))
    return _other(seen)


def _other(seen: Observation) -> Judgement:
    return Judgement("skip", f"another failure than at the end: {describe(seen)}")


def _by_signal(seen: Observation) -> int:
    """The code of one ended by a signal; 0 for every plain failure, which are all alike."""
    return seen.exit_code if seen.exit_code is not None and not 0 < seen.exit_code < 128 else 0


def _place(seen: Observation) -> str:
    """Exception type and innermost frame of a signature `Type: message @ frame`; empty when it has none."""
    head, _, frame = seen.signature.rpartition(" @ ")
    return f"{head.partition(':')[0]} @ {frame}" if head else ""


def _changed(seen: Observation, reference: Observation | None) -> str:
    if reference is None or seen.signature == reference.signature:
        return ""
    return f"the failure reads differently here: {seen.message or seen.signature or 'without a message'}"
