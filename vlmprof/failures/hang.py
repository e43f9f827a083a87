"""A hang: which collective, and which ranks did not come to it."""

from collections.abc import Iterable, Sequence

from vlmprof.failures.scan import Scan
from vlmprof.failures.sighting import Sighting
from vlmprof.records.diagnosis import Collective

__all__ = ["collective_of"]

_MOST_RANKS = 1 << 20
"""A world size above this is not believed."""
_GATHERS = {"_ALLGATHER_BASE": (1, 0), "ALLGATHER": (1, 0), "_REDUCE_SCATTER_BASE": (0, 1), "REDUCE_SCATTER": (0, 1)}
"""Operations whose sizes tell the group's: which of (in, out) is the larger, which the smaller."""


def collective_of(root: Sighting, scans: Sequence[Scan]) -> Collective:
    """What is known of the collective that `root` speaks of, from all logs together."""
    seen = [(scan, sighting) for scan in scans for sighting in scan.sightings]
    reports = [(scan.rank_of(one), one) for scan, one in seen if one.sign.name == root.sign.name]
    fields = root.fields
    waiting = sorted({rank for rank, one in reports if rank is not None and _same(one, root)})
    sizes = (_int(fields.get("numel_in")), _int(fields.get("numel_out")))
    size = _group_size(fields.get("op"), sizes)
    missing, told_by = _missing(root, seen, reports, waiting, size, scans)
    return Collective(
        op=fields.get("op"),
        sequence=_int(fields.get("sequence")),
        numel_in=sizes[0],
        numel_out=sizes[1],
        timeout_ms=_int(fields.get("timeout_ms")),
        group=next((one.fields["group"] for _, one in seen if "group" in one.fields), None),
        group_size=size,
        waiting=tuple(rank for rank in waiting if rank not in missing),
        missing=tuple(missing),
        told_by=told_by,
    )


def _same(one: Sighting, root: Sighting) -> bool:
    return all(one.fields.get(name) == root.fields.get(name) for name in ("sequence", "op"))


def _group_size(op: str | None, sizes: tuple[int | None, int | None]) -> int | None:
    order = _GATHERS.get(op or "")
    if order is None:
        return None
    large, small = sizes[order[0]], sizes[order[1]]
    return large // small if large and small and large % small == 0 else None


def _missing(
    root: Sighting,
    seen: Iterable[tuple[Scan, Sighting]],
    reports: Sequence[tuple[int | None, Sighting]],
    waiting: Sequence[int],
    size: int | None,
    scans: Sequence[Scan],
) -> tuple[list[int], str | None]:
    """The ranks that did not arrive, by the best evidence there is: said, behind in the count, or silent."""
    seen = list(seen)
    said = {rank for _, one in seen for name in ("missing", "never", "absent") for rank in _ranks(one.fields.get(name))}
    if said:
        return sorted(said), "the log names them"
    behind = _behind(root, reports, seen)
    if behind:
        return sorted(behind), "they stood in an earlier or another collective"
    world = max((_int(one.fields.get("world_size")) or 0 for _, one in seen), default=0)
    known = {rank for scan in scans for rank in scan.ranks}
    if 0 < world <= _MOST_RANKS:
        known |= set(range(world))
    silent = known - set(waiting)
    if waiting and silent and (size is None or size == len(known)) and len(silent) < len(known) // 2 + 1:
        return sorted(silent), "every other rank reported that it waited"
    return [], None


def _behind(
    root: Sighting, reports: Sequence[tuple[int | None, Sighting]], seen: Sequence[tuple[Scan, Sighting]]
) -> set[int]:
    """Ranks that never enqueued the collective that most wait in, or wait in an earlier one."""
    numbers = [
        (rank, number)
        for rank, one in reports
        if rank is not None and (number := _int(one.fields.get("sequence"))) is not None
    ]
    last = {
        rank: number
        for scan, one in seen
        if (rank := scan.rank_of(one)) is not None and (number := _signed(one.fields.get("enqueued"))) is not None
    }
    wanted = _int(root.fields.get("sequence"))
    if wanted is None:
        return set()
    most = max(
        {number for _, number in numbers} or {wanted}, key=lambda each: sum(number == each for _, number in numbers)
    )
    behind = {rank for rank, number in numbers if number < most}
    behind |= {rank for rank, number in last.items() if number < most}
    return behind if len(behind) <= sum(number == most for _, number in numbers) else set()


def _ranks(text: str | None) -> list[int]:
    return [int(part) for part in (text or "").replace(" ", "").split(",") if part.isdecimal() and len(part) < 7]


def _int(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) < 19 else None


def _signed(text: str | None) -> int | None:
    return -1 if text == "-1" else _int(text)
