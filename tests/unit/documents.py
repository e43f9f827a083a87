"""Documents of every kind, with one text in all places where a text can stand."""

from tests.unit.test_records import spanned, step
from vlmprof.advice import advise
from vlmprof.records.assemble import assemble
from vlmprof.records.bisect import Answer, Bisect, CommitRecord, Confirmation, Observation, Plan, Probe
from vlmprof.records.comparison import Comparison, Difference, Losses, MemoryChange, Metric, Side, StageChange
from vlmprof.records.figures import Absent, Figure
from vlmprof.records.history import ChangePoint, History, HistoryRun, MetricHistory, Series
from vlmprof.records.journal import Event
from vlmprof.records.night import Good, Matter, Night, NightTarget, WorkloadNight
from vlmprof.records.run import Finding, Outcome, Run

MEMORY = {
    "peak": 3_000_000,
    "peak_where": ["decoder.experts", "forward"],
    "held_at_peak": {"decoder.experts": {"parameters": 1_000_000, "tensors": 2_000_000}},
    "held_after": {"decoder.experts": {"parameters": 1_000_000}},
    "stage_peaks": [["decoder.experts", "forward", 3_000_000]],
    "saved": [["decoder.experts", "forward", 500_000]],
    "tokens_per_expert": [[0, [10, 30]], [1, [20, 20]]],
    "expert_tokens": 80,
    "dropped": 0,
    "sent": {},
    "rss": 100_000_000,
}


def a_run(text: str = "tiny", ranks: int = 1, outcome: Outcome | None = None) -> Run:
    """A whole record made of events, with spanned and counted steps."""
    start = {"event": "start", "workload": {"name": text, "hash": "0" * 8, "deviations": [text]}, "command": [text]}
    environment = {
        "platform": text,
        "device": text,
        "precision": "fp32",
        "ranks": ranks,
        "threads": 1,
        "packages": {"torch": {"version": text}, "megatron-core": {"version": text, "commit": text}},
        "host": {text: text},
        "variables": {text: text},
    }

    def rank(number: int) -> list[Event]:
        events: list[Event] = [{"event": "environment", "environment": environment}]
        events.append({"event": "worker", "host": text, "rank": number})
        events.append({"event": "model", "missing": {"decoder.mlp": text}, "parameters": {"total": 5}})
        for index in range(0, 9, 3):
            events.append(step(index, "plain", 98.0 + index))
            events.append(spanned(index + 1, 10.0, 20.0 + number, 30.0 + index, 20.0))
            events.append(step(index + 2, "counted", 150.0, memory=MEMORY))
        return [*events, {"event": "done"}]

    others = {number: rank(number) for number in range(1, ranks)}
    run = advise(assemble([start, *rank(0)], outcome, others))
    finding = Finding(rule="told", level="warning", text=text)
    return run.model_copy(update={"findings": (*run.findings, finding), "notes": (text,)})


def a_failed_run(text: str = "tiny") -> Run:
    """One that ran out of memory in its first step."""
    outcome = Outcome(
        status="failed",
        failure_class="oom",
        signature=text,
        reading=text,
        message=text,
        step=0,
        stage="decoder.experts",
        layer=1,
        phase="backward",
        micro_batch=2,
        shapes={"images": [1], "patches": [2], text: text},
        held={"decoder.experts": {"parameters": 5, "tensors": 7}, text: {"tensors": 1}},
        saved={"decoder.experts": 6},
        evidence=(text,),
    )
    return assemble([{"event": "start", "workload": {"name": text}}], outcome)


def a_commit(number: int, text: str = "a change") -> CommitRecord:
    return CommitRecord(sha=f"{number:040x}", author=text, date=f"2026-01-{number + 1:02}T00:00:00Z", subject=text)


def a_bisect(text: str = "a change") -> Bisect:
    tried = ((9, "bad end", "bad"), (0, "good end", "good"), (4, "search", "skip"), (6, "search", "bad"))
    probes = tuple(
        Probe(
            commit=a_commit(number, text),
            role=role,
            verdict=verdict,
            reason=text,
            warning=text,
            observation=Observation(seconds=3.0),
        )
        for number, role, verdict in tried
    )
    inside = Answer(kind="found", text=text, commits=(a_commit(3, text),))
    answer = Answer(
        kind="found",
        text=text,
        commits=(a_commit(6, text),),
        files=(text,),
        merge=a_commit(7, text),
        landed_before=(a_commit(2, text),),
        notes=(text,),
        evidence={"bad": (text,), "good": (text,)},
        logs={"bad": text},
        confirmation=Confirmation(parent=a_commit(5, text), culprit_verdicts=("bad",), parent_verdicts=("good",)),
        inside=inside,
    )
    plan = Plan(repository=text, range=text, old="a", new="b", command=(text,), recipe=text)
    return Bisect(created="2026-01-20T00:00:00Z", plan=plan, probes=probes, answer=answer)


def a_side(label: str, text: str) -> Side:
    created = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z")
    return Side(
        label=label, runs=3, created=created, workload=text, platform=text, megatron=text, commit=text, sources=(text,)
    )


def a_comparison(text: str = "told") -> Comparison:
    """Experts grew by 30 ms and 16 MiB, the router became a little faster."""
    step_time = Metric(
        name="step_ms",
        title="step time",
        unit="ms",
        source="wall-clock",
        direction="lower-better",
        a=100.0,
        b=128.0,
        change=0.28,
        interval=(0.25, 0.31),
        samples=(3, 3),
        p_adjusted=0.004,
        threshold=0.03,
        verdict="worse",
        reason=text,
    )
    peak = step_time.model_copy(
        update={"name": "memory_peak", "title": "peak memory", "unit": "bytes", "a": 2.0**27, "b": 2.0**27}
        | {"change": 0.0, "interval": None, "verdict": "same", "exact": True}
    )
    stages = (("decoder.experts", 40.0, 70.0), ("decoder.router", 10.0, 8.0), ("other", 50.0, 50.0))
    return Comparison(
        created="2026-01-03T00:00:00Z",
        command=(text,),
        a=a_side("A", text),
        b=a_side("B", text),
        verdict="worse",
        summary=text,
        allowed=(Difference(name=text, a=text, b=text),),
        caveats=(text,),
        method=text,
        metrics=(peak, step_time),
        stages=tuple(
            StageChange(name=name, phase="forward", a_ms=a, b_ms=b, change_ms=b - a, moved=a != b)
            for name, a, b in stages
        ),
        attribution=text,
        memory=(
            MemoryChange(
                stage="decoder.experts",
                category="held_at_peak",
                a_bytes=2**24,
                b_bytes=2**24 + 2**23,
                change_bytes=2**23,
            ),
        ),
        losses=Losses(steps=5, reading="diverged", text=text),
    )


def a_night(text: str = "told") -> Night:
    good = Good(commit=a_commit(1, text), date="2026-01-01T00:00:00Z")
    matter = Matter(id="m", title=text, kind="failure", symptom=text, since=a_commit(3, text), since_date="2026-01-03")
    failed = WorkloadNight(
        name=text,
        platform=text,
        status="failed",
        reason=text,
        good=good,
        outcome=Outcome(status="failed", failure_class="oom", evidence=(text,)),
        run="one/run",
        comparison="one/comparison.json",
        bisect="one/bisect",
        answer=a_bisect(text).answer,
        matter=matter,
        not_done=("times",),
        notes=(text,),
        seconds=100.0,
    )
    well = WorkloadNight(name="well", status="good", reason=text, run="../../outside")
    return Night(
        created="2026-01-05T00:00:00Z",
        finished="2026-01-05T01:00:00Z",
        suite=text,
        suite_digest="0",
        target=NightTarget(repository=text, ref=text, commit=a_commit(8, text)),
        workloads=(failed, well),
        notes=(text,),
    )


def unmeasured() -> Run:
    """A run that ended before anything was measured: every figure of it is absent."""
    return assemble([{"event": "start", "workload": {"name": "none"}}], Outcome(status="failed"))


def with_device(run: Run) -> Run:
    """The same with what a GPU's traced steps tell."""
    from vlmprof.records.run import Device

    ms = Figure(value=40.0, unit="ms", source="kernel")
    device = Device(
        step_ms=ms,
        busy_ms=ms,
        exposed_ms=Absent(absent="one rank exposes nothing"),
        launch_bound_ms=ms,
        syncs=Figure(value=3, unit="calls", source="counted"),
        kernels=500,
        hidden=("decoder.experts: in a CUDA graph",),
    )
    stages = tuple(row.model_copy(update={"busy_ms": ms}) for row in run.stages)
    return run.model_copy(update={"device": device, "stages": stages})


def a_history() -> History:
    """Twelve runs that became slower with the seventh; the third failed."""
    runs = tuple(
        HistoryRun(record=f"run{number}", created=f"2026-01-{number + 1:02}", status="failed" if number == 2 else "ok")
        for number in range(12)
    )
    change = ChangePoint(
        run=6, last_before=5, before=100, after=120, change=0.2, p=1e-4, verdict="worse", runs_before=5, runs_after=6
    )
    times = tuple(None if number == 2 else 100.0 + 20 * (number > 5) for number in range(12))
    steps = MetricHistory(name="step_ms", unit="ms", values=times, changes=(change,), latest=120.0, worse_now=True)
    peak = MetricHistory(name="memory_peak", unit="bytes", values=(2.0**30,) * 12, latest=2.0**30)
    series = Series(platform="cpu-x1", workload="tiny", hash="0", runs=runs, metrics=(peak, steps))
    return History(folder="runs", method="told", series=(series,))
