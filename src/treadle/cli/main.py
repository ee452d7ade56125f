"""The command `treadle`: makes commands of the classes in `options.py`. Each command runs in a file of its own. No
other file imports typer.

Exit codes: 0 all went well; 1 the run failed; 2 the command was wrong (nothing was done); 130 Ctrl-C or SIGTERM.
"""

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, fields
from importlib import import_module
from itertools import chain, groupby
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

try:  # the half second of imports in which nobody else could tell of a Ctrl-C
    from treadle.cli import dataset_options, failures, options, report, tune
    from treadle.cli.process import names_code, search_here, traced
    from treadle.gone import refusal
except KeyboardInterrupt:
    sys.stderr.write("treadle: interrupted\n")
    raise SystemExit(130) from None

# what is typed -> its options, and the module and the function that run it
COMMANDS = {
    "collect": (options.Collect, "collect", "run"),
    "eval": (options.Eval, "eval", "run"),
    "replay": (options.Replay, "replay", "run"),
    "check": (options.Check, "check", "run"),
    "tune": (tune.Tune, "tune", "run"),
    "info": (options.Info, "info", "run"),
    "report": (report.Report, "report", "run"),
    "dataset merge": (dataset_options.Merge, "dataset", "merge"),
    "dataset info": (dataset_options.Info, "dataset", "info"),
    "dataset verify": (dataset_options.Verify, "dataset", "verify"),
    "dataset export": (dataset_options.Export, "dataset", "export"),
}


HELP = "Options"  # the title of those that have no other


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and end the process with its exit code. `arguments`: None for those of the process."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(failures.guarded(lambda: _run(given), debug="--debug" in given))


def _run(given: list[str]) -> int:
    if not given or given == ["dataset"]:
        given = [*given, "--help"]
    app = _app(given)
    import typer

    click_error: Any = typer.BadParameter.__mro__[2]  # click's own base of errors, wherever typer keeps click
    try:
        chosen = app(given, standalone_mode=False)
    except click_error as error:
        known = [words for words in COMMANDS if given[: words.count(" ") + 1] == words.split()]
        command = f"{known[0]} " if known else "dataset " if given[0] == "dataset" else ""
        own = {options.option_name(each.name) for each in fields(COMMANDS[known[0]][0])} if known else ()
        if text := refusal([word for word in given if word.partition("=")[0] not in own]):
            failures.say(text)
            return 2
        message = error.format_message().rstrip(".")
        failures.say(f"{message}{'' if message.endswith('?') else '.'} Try: treadle {command}--help")
        return 2
    except typer.Abort:
        return failures.CTRL_C
    if chosen == failures.CTRL_C:  # so typer says that it was interrupted
        raise KeyboardInterrupt
    return chosen() if callable(chosen) else 0


def _app(given: list[str]) -> Callable[..., Any]:
    """Takes the words and gives the chosen command, to be called where click does not see its errors."""
    from treadle.errors import needed

    with needed("the command line needs typer", "cli"):
        import typer

    app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
    dataset = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

    @app.callback(invoke_without_command=True)
    def root(version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False) -> None:
        """Step many environments at once."""
        if version:
            from treadle import __version__

            print(__version__)
            raise typer.Exit(0)

    for words, (kind, module, function) in COMMANDS.items():
        group, _, name = words.rpartition(" ")
        command = _command(typer, kind, module, function, given)
        first = " ".join((command.__doc__ or "").partition("\n\n")[0].split())
        (dataset if group else app).command(name=name, cls=_with_panels(typer), short_help=first)(command)
    app.add_typer(dataset, name="dataset", help="Merge, show, verify or export datasets.")
    return app


def _command(typer: Any, kind: Any, module: str, function: str, given: list[str]) -> Callable[..., Any]:
    """A function whose parameters are a command's own options, then those that it has in common with others."""

    def command(**typed: Any) -> Callable[[], int]:
        chosen = kind(words=given, **typed)

        def run() -> int:
            if isinstance(chosen, options.EnvCommand) and getattr(chosen, "nodes", None) is None:
                from treadle.worker import forkserver

                forkserver.begin()  # beside the imports of the command, which take as long
            work = getattr(import_module(f"treadle.cli.{module}"), function)
            if module not in ("dataset", "replay", "report") and names_code(given):  # a replay looks at its file first
                search_here()
            with traced(getattr(chosen, "trace", None)):
                return int(work(chosen))

        return run

    own, hints, (command.__doc__, said) = inspect.get_annotations(kind), get_type_hints(kind), options.help_of(kind)
    common, shown = inspect.get_annotations(options.Command), list(chain.from_iterable(options.PANELS.values()))

    def place(each: Field[Any]) -> int:
        if issubclass(kind, options.PlayCommand):
            return (*shown, each.name).index(each.name)
        return (each.name not in own) + (each.name in common)

    found = sorted((each for each in fields(kind) if each.metadata), key=place)
    parameters = [
        inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if each.default is MISSING else each.default,
            annotation=Annotated[hints[each.name], _parameter(typer, each, hints[each.name], said.get(each.name, ""))],
        )
        for each in found
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def _with_panels(typer: Any) -> Any:
    """The class of commands, whose help shows options that belong together under a title of their own."""

    class Panels(typer.core.TyperCommand):  # type: ignore[misc]
        def format_options(self, ctx: Any, formatter: Any) -> None:
            plays = any(each.name == "inference" for each in self.params)
            panels = options.PANELS.items() if plays else ()
            titles = {name: title for title, names in panels for name in names}
            for title, rows in groupby(self.get_params(ctx), lambda each: titles.get(each.name, HELP)):
                told = [row for each in rows if (row := each.get_help_record(ctx)) is not None]
                if told:
                    with formatter.section(title):
                        formatter.write_dl(told)

    return Panels


def _parameter(typer: Any, each: Field[Any], hint: Any, said: str) -> Any:
    """Return typer's parameter of a field, whose type is `hint`."""
    about = each.metadata

    def path(text: str) -> Path:
        if not text:  # which would be the current directory
            raise typer.BadParameter("a path is expected, got ''")
        return Path(text)

    told = {"metavar": about["metavar"], "help": said, "show_default": about.get("shown", True)}
    if Path in (hint, *get_args(hint)):
        told["parser"] = path
    if about.get("position"):
        return typer.Argument(**told)
    return typer.Option(options.option_name(each.name), min=about.get("least"), **told)
