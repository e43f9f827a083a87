"""The `vlmprof` program: its commands, and the one place where an error becomes a sentence and an exit code."""

import sys
import traceback
from collections.abc import Sequence

import typer

from vlmprof.commands import (
    baseline,
    bisect,
    compare,
    diagnose,
    doctor,
    export,
    history,
    import_,
    nightly,
    report,
    run,
    schema,
    show,
)
from vlmprof.errors import Exit, UserError

__all__ = ["app", "main"]

app = typer.Typer(
    name="vlmprof",
    help="Where a step's time and memory go when training MoE vision-language models on Megatron, "
    "whether it is worse than it was, and which commit did it.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
COMMANDS = (
    run.run,
    compare.compare,
    history.history,
    bisect.bisect,
    nightly.nightly,
    show.show,
    report.report,
    export.export,
    diagnose.diagnose,
    doctor.doctor,
    schema.schema,
)
for command in COMMANDS:
    app.command()(command)
app.add_typer(baseline.baseline)
app.add_typer(import_.import_)


@app.callback(invoke_without_command=True)
def _program(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        from importlib import metadata

        print(metadata.version("vlmprof"))
        raise typer.Exit


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code."""
    try:
        code = app(args=list(sys.argv[1:] if arguments is None else arguments), standalone_mode=False)
        sys.stdout.flush()
        return int(code or 0)
    except UserError as error:
        print(f"vlmprof: {error}", file=sys.stderr)
        return int(error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        print("vlmprof: interrupted", file=sys.stderr)
        return int(Exit.INTERRUPTED)
    except (BrokenPipeError, SystemExit):  # the reader of our output has gone: `vlmprof show RUN | head`
        sys.stderr.close()  # SystemExit is rich's answer to that
        return int(Exit.FINE)
    except Exception as error:
        message = getattr(error, "format_message", None)  # a usage error of typer's, whichever click it carries
        if message is None:  # Python's own code for it would be 1, which is that of a regression
            traceback.print_exc()
            print("vlmprof: that is a fault of vlmprof's own: please report it with the lines above", file=sys.stderr)
            return int(Exit.NO_ANSWER)
        if type(error).__name__ == "NoArgsIsHelpError":  # bare `vlmprof`
            print(message())
        else:
            print(f"vlmprof: {message()} (see vlmprof --help)".replace("\n", " "), file=sys.stderr)
        return int(Exit.INPUT)
