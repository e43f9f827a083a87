"""Issues of this repository for what nights found: NIGHT... are folders or result.json files.

    python scripts/nightly_issues.py NIGHT...            # opens, updates and closes, with gh and its GH_TOKEN
    python scripts/nightly_issues.py --dry-run NIGHT...  # prints what it would do, as JSON

Text of commits and logs reaches gh in files and as single arguments, and never a shell.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from vlmprof.errors import UserError
from vlmprof.nightly.issues import LABEL, Action, Issue, plan_issues
from vlmprof.records.night import NIGHT_SCHEMA, Night
from vlmprof.records.store import read_document


def gh(*arguments: str) -> str:
    """What GitHub's command says."""
    return subprocess.run(["gh", *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout


def existing() -> list[Issue]:
    """Issues that carry the label: only who may label issues here can make one count."""
    listed: list[dict[str, Any]] = json.loads(
        gh("issue", "list", "--state=all", f"--label={LABEL}", "--limit=1000", "--json=number,body,state")
    )
    return [Issue(entry["number"], entry["body"], entry["state"] == "OPEN") for entry in listed]


def do(action: Action) -> None:
    """Carry it out."""
    with tempfile.NamedTemporaryFile("w", suffix=".md", encoding="utf-8") as file:
        file.write(action.body)
        file.flush()
        body, title = f"--body-file={file.name}", f"--title={action.title}"
        if action.kind == "open":
            gh("label", "create", LABEL, "--force", "--description=Found by vlmprof nightly", "--color=D93F0B")
            gh("issue", "create", title, body, f"--label={LABEL}")
        elif action.kind == "update":
            gh("issue", "edit", str(action.number), title, body)
        else:
            gh("issue", "comment", str(action.number), body)
            gh("issue", "close", str(action.number))


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nights", nargs="+", type=Path, metavar="NIGHT")
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args()
    files = [path / "result.json" if path.is_dir() else path for path in options.nights]
    try:
        nights = [read_document(file, Night, NIGHT_SCHEMA, "night") for file in files]
    except UserError as error:
        print(f"nightly_issues: {error}", file=sys.stderr)
        return int(error.exit_code)
    actions = plan_issues(nights, [] if options.dry_run else existing())
    if options.dry_run:
        print(json.dumps([action.as_dict() for action in actions], indent=1))
        return 0
    for action in actions:
        print(action.kind, action.number or action.title, flush=True)
        do(action)
    return 0


if __name__ == "__main__":
    sys.exit(main())
