"""Weighing suspects: how much a commit tells, how far it lies from what could not be tested.

The weights are those of `git rev-list --bisect`: of n suspects, a commit with w ancestors among them (itself included)
tells min(w, n - w) of them apart, whichever way it turns out.
"""

from collections import deque
from collections.abc import Mapping, Sequence

__all__ = ["ancestors", "bisection_weights", "choose", "parents_first"]


def bisection_weights(suspects: Sequence[str], parents: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """min(ancestors among the suspects, the rest) of each suspect; `suspects` has parents before children.

    Ancestors are bits of an integer, dropped with the last child: 10,000 commits take a few hundredths of a second.
    """
    position = {commit: number for number, commit in enumerate(suspects)}
    children = dict.fromkeys(suspects, 0)
    for commit in suspects:
        for parent in parents[commit]:
            if parent in children:
                children[parent] += 1
    ancestors: dict[str, int] = {}
    weights: dict[str, int] = {}
    for commit in suspects:
        mask = 1 << position[commit]
        for parent in parents[commit]:
            if parent in position:
                mask |= ancestors[parent]
                children[parent] -= 1
                if not children[parent]:
                    del ancestors[parent]
        if children[commit]:
            ancestors[commit] = mask
        count = mask.bit_count()
        weights[commit] = min(count, len(suspects) - count)
    return weights


def choose(suspects: Sequence[str], parents: Mapping[str, Sequence[str]], skipped: set[str], streak: int) -> str:
    """The untested suspect that tells most; where the best was skipped, only those some way off from any of them.

    The way doubles with each skip in a row (with every other one met before), so that a stretch that cannot be tested
    is crossed in a logarithm of its length.
    """
    weights = bisection_weights(suspects, parents)
    untested = [commit for commit in suspects[:-1] if commit not in skipped]
    best = max(weights[commit] for commit in suspects)
    if not skipped or max(weights[commit] for commit in untested) >= best:
        return max(untested, key=weights.__getitem__)
    distance = _distances(skipped, suspects, parents)
    gap = 1 << max(streak - 1, len(skipped) // 2 - 1, 0)
    while gap > 1 and not any(distance.get(commit, gap) >= gap for commit in untested):
        gap //= 2
    eligible = [commit for commit in untested if distance.get(commit, gap) >= gap]
    return max(eligible, key=weights.__getitem__)


def _distances(origins: set[str], suspects: Sequence[str], parents: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Edges from each suspect to the nearest of `origins`, up or down the history; absent where no path leads there."""
    neighbours: dict[str, list[str]] = {commit: [] for commit in suspects}
    for commit in suspects:
        for parent in parents[commit]:
            if parent in neighbours:
                neighbours[commit].append(parent)
                neighbours[parent].append(commit)
    distance = dict.fromkeys(origins, 0)
    queue = deque(origins)
    while queue:
        commit = queue.popleft()
        for other in neighbours[commit]:
            if other not in distance:
                distance[other] = distance[commit] + 1
                queue.append(other)
    return distance


def ancestors(commit: str, parents: Mapping[str, Sequence[str]]) -> set[str]:
    """The commit and all before it."""
    seen = {commit}
    waiting = [commit]
    while waiting:
        for parent in parents[waiting.pop()]:
            if parent not in seen:
                seen.add(parent)
                waiting.append(parent)
    return seen


def parents_first(tip: str, parents: Mapping[str, Sequence[str]]) -> list[str]:
    """The commits reachable from `tip`, parents before children.

    Raises:
        ValueError: the graph has a cycle.
    """
    reachable = ancestors(tip, parents)
    waiting_for = {commit: len(set(parents[commit])) for commit in reachable}
    children: dict[str, list[str]] = {commit: [] for commit in reachable}
    for commit in reachable:
        for parent in set(parents[commit]):
            children[parent].append(commit)
    ready = deque(sorted(commit for commit, count in waiting_for.items() if not count))
    order: list[str] = []
    while ready:
        commit = ready.popleft()
        order.append(commit)
        for child in sorted(children[commit]):
            waiting_for[child] -= 1
            if not waiting_for[child]:
                ready.append(child)
    if len(order) != len(reachable):
        raise ValueError("the history has a cycle")
    return order
