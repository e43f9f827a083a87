"""`vlmprof schema`: the JSON Schema of a document."""

import json
from typing import Annotated

import typer

__all__ = ["schema"]


def schema(
    document: Annotated[
        str, typer.Argument(help="run, comparison, baseline, history, bisect, diagnosis, night or workload")
    ],
) -> None:
    """Print the JSON Schema of a document."""
    from pydantic import BaseModel

    from vlmprof.errors import UserError
    from vlmprof.records.baseline import Baseline
    from vlmprof.records.bisect import Bisect
    from vlmprof.records.comparison import Comparison
    from vlmprof.records.diagnosis import Diagnosis
    from vlmprof.records.history import History
    from vlmprof.records.night import Night
    from vlmprof.records.run import Run
    from vlmprof.workload.spec import Workload

    documents: dict[str, type[BaseModel]] = {
        "run": Run,
        "comparison": Comparison,
        "baseline": Baseline,
        "history": History,
        "bisect": Bisect,
        "diagnosis": Diagnosis,
        "night": Night,
        "workload": Workload,
    }
    if document not in documents:
        raise UserError(f"there is no document '{document}': the documents are {', '.join(documents)}")
    print(json.dumps(documents[document].model_json_schema(by_alias=True), indent=1))
