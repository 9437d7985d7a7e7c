"""The command line. Heavy modules are imported by the commands that need them, so that `--help` is quick."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class

from forge_pipeline.errors import ForgeError, UsageError, did_you_mean
from forge_pipeline.exits import guarded
from forge_runtime.text import shown


class Commands(click.Group):
    """A group that knows what was probably meant."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or refuse with the nearest spelling."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            raise UsageError(
                where="forge-pipeline",
                expected="a command: " + ", ".join(self.list_commands(ctx)),
                found=repr(name),
                fix=f"{did_you_mean(name, self.list_commands(ctx))}see `forge-pipeline --help`",
            )
        return super().resolve_command(ctx, args)


@add_completion_class
class Bash(BashComplete):
    """Click's completion for bash, which takes ``target=ho`` for three words.

    There is no space behind what goes on: ``target=``, ``quantize.``, ``folder/``.
    """

    source_template = BashComplete.source_template.replace(
        "COMPREPLY+=($value)", "COMPREPLY+=($value)\n            [[ $value == *[=./] ]] && compopt -o nospace"
    )
    _before = 0
    """Characters of the override that are words of their own to bash, and so no part of what it is told."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the cursor, and the whole override that it is in."""
        words, last = super().get_completion_args()
        if last == "=" and words:
            last = ""
        elif len(words) > 1 and words[-1] == "=":
            words.pop()
        else:
            return words, last
        head = f"{words.pop()}="
        self._before = len(head)
        return words, head + last

    def format_completion(self, item: CompletionItem[str]) -> str:
        """Return the line that the shell function reads."""
        return f"{item.type},{item.value[self._before :]}"


def _complete_run(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    from forge_pipeline.pipeline.completion import offers

    before = [*(context.params.get(parameter.name or "") or ()), *context.args]
    try:
        return [CompletionItem(item) for item in sorted(set(offers(before, incomplete)))]
    except (ForgeError, OSError):  # what is wrong is said when it is run
        return []


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="forge-pipeline", prog_name="forge-pipeline")
def commands() -> None:
    """Build machine-learning models for devices: load, fold, calibrate, quantize, compile, encrypt."""


@commands.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    short_help="Build one model for one target, or a sweep with -m.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, shell_complete=_complete_run)
def run(arguments: tuple[str, ...]) -> None:
    """Build what the configuration and the overrides describe."""
    if any(argument in ("-h", "--help") for argument in arguments):
        click.echo(RUN_HELP)
        return
    from forge_pipeline.pipeline.build import build
    from forge_pipeline.pipeline.hydra_app import SEARCH, launch

    if DRY not in arguments:
        launch(arguments, build)
        return
    if SEARCH in arguments:
        found = "a search, in which a trial depends on the results of those before"
        raise UsageError(DRY, "a run, or a sweep of all jobs", found, f"leave out {DRY} or {SEARCH}")
    from forge_pipeline.pipeline.explain import preview

    only_look = [argument for argument in arguments if argument != DRY]
    sweeps = any(argument in ("-m", "--multirun") for argument in only_look)
    launch([*only_look, "jobs=1"] if sweeps else only_look, preview)


DRY = "--dry-run"


RUN_HELP = """\
Usage: forge-pipeline run [OVERRIDE]... [-m] [HYDRA FLAG]...

  Build a model for a target. Everything is a Hydra override:

  model.path=FILE             the model; or model=digits, the bundled example
  data.path=FILE              samples: an npz with the input's name, or x, and optionally y
  target=raspberry-pi/5       the hardware; `forge-pipeline targets` lists them; auto: that of the device, or this
  'target=[A,B]'              one library for several CPUs of a family; x86-64/any and arm/any list some
  device=NAME                 the board of conf/device that runs what is built
  quantize=none|static|dynamic|weights|float16    and its options: quantize.per_channel=false
  encrypt=none|password
  sign=none|key               sign what is delivered; sign.key=[file:PATH]
  out=FOLDER                  where the deliverables go
  fold=..., compile=..., store.remote=URL, experiment=digits ...

  -m                          sweep: target=host,raspberry-pi/5 quantize=none,static
  jobs=N                      of a sweep, at once; else as many as there are cores, and memory for
  --dry-run                   say what would run, and why, and stop
  --cfg job                   print the composed configuration and stop
  --config-dir FOLDER         a folder with your own groups, searched first

  Example: forge-pipeline run experiment=digits target=x86-64/v3 encrypt=none out=build"""


@commands.command(short_help="Say which stages would run, and why; and where the others' results are from.")
@click.argument("words", metavar="[STAGE] [TARGET] [OVERRIDE]...", nargs=-1)
def explain(words: tuple[str, ...]) -> None:
    """Compare what a build is made of with what the store has.

    With OVERRIDEs, for the build that `forge-pipeline run` would make; else for what `dvc repro` builds.
    """
    from forge_pipeline.pipeline.explain import explain as explained

    click.echo(explained(words))


@commands.command(short_help="Run one stage for `dvc repro`, in the folder of its dvc.yaml.")
@click.argument("name")
@click.argument("target", required=False)
def stage(name: str, target: str | None) -> None:
    """Run the stage NAME as dvc.yaml does: `resolve`, a stage of the build (some for one TARGET), or `report`.

    `ahead` builds all that they will ask for, several targets at once.
    """
    from forge_pipeline.pipeline.dvc.stages import run as run_stage

    run_stage(name, target)


@commands.command(short_help="Start a repository that builds a model with DVC.")
@click.argument("folder", type=click.Path(path_type=Path), default=Path())
@click.option("--model", type=click.Path(path_type=Path), help="The model's file; else the bundled example.")
@click.option("--data", type=click.Path(path_type=Path), help="Samples, an npz; without them nothing is quantized.")
@click.option("--target", "targets", multiple=True, help="A tag of `forge-pipeline targets`, once for each; else host.")
@click.option("--encrypt/--plain", default=True, show_default=True, help="Seal what is delivered, or not.")
@click.option("--update", is_flag=True, help="Show what this version would write otherwise, and change nothing.")
@click.option("--write", is_flag=True, help="With --update: write it.")
def init(folder: Path, **options: Any) -> None:
    """Write into FOLDER what `dvc repro` needs, with a password: a second model goes into a folder of its own."""
    from forge_pipeline.pipeline.dvc.new_repository import Wish, init, update

    wish = Wish(**{name: value for name, value in options.items() if name not in ("update", "write")})
    click.echo(update(folder, write=options["write"]) if options["update"] else init(folder, wish))


@commands.command(short_help="Make a password file, readable by you alone.")
@click.argument("path", type=click.Path(path_type=Path))
def password(path: Path) -> None:
    """Write a new random password to PATH (mode 0600); refuse where the file exists."""
    from forge_pipeline.crypto.keys import generate_password_file

    generate_password_file(path)
    click.echo(f"wrote {shown(str(path))}: keep it, it opens what is encrypted with it")


@commands.command(short_help="Make a key pair to sign with.")
@click.argument("place", metavar="PATH")
@click.option("--comment", default="", help="Whose it is: stands behind the public key.")
def keygen(place: str, comment: str) -> None:
    """Write a new Ed25519 key to PATH (mode 0600), and the public one, which others are to trust, to PATH.pub.

    Or make it on a token, PATH being `pkcs11:token=NAME;object=NAME`, and print the public one.
    """
    from forge_pipeline.pipeline.trust.delivery import keygen as make

    click.echo(shown(make(place, comment), 1000))


@commands.command(short_help="Sign a file, or what was delivered into a folder.")
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--key", "places", multiple=True, required=True, help="Where: file:PATH, env:NAME, fd:N, keyring:..., pkcs11:..."
)
@click.option(
    "--model-signing-key",
    "pem_places",
    multiple=True,
    help="Write an OpenSSF model signature of the folder as well: where its key is, on P-256 (a PEM file, pkcs11:...).",
)
def sign(path: Path, places: tuple[str, ...], pem_places: tuple[str, ...]) -> None:
    """Write PATH.sig; in a folder, one for the manifest and for each model, and the provenance in an envelope.

    `ssh-keygen -Y sign -n forge-release -O hashalg=sha256 -f KEY PATH` writes the same, with keys in agents and tokens.
    """
    from forge_pipeline.crypto.signing import read_key
    from forge_pipeline.pipeline.trust.delivery import sign as write

    if pem_places and not path.is_dir():
        raise UsageError("sign --model-signing-key", "a folder that was delivered to", "a file", "name the folder")
    click.echo(write(path, read_key(places)))
    if pem_places:
        from forge_pipeline.pipeline.trust.model_signing import sign_folder

        click.echo(shown(f"signed    {sign_folder(path, pem_places)}"))


TRUSTED = click.option(
    "--trusted", type=click.Path(path_type=Path), multiple=True, help="A file of public keys: take what one signed."
)


@commands.command(short_help="Check who built a file or a folder, that it is whole, and that it builds again.")
@click.argument("path", type=click.Path(path_type=Path))
@TRUSTED
@click.option("--policy", type=click.Path(path_type=Path), help="A file of rules that it must obey, keys among them.")
@click.option("--rebuild", is_flag=True, help="Build it anew from its provenance, and compare.")
@click.option("--model", type=click.Path(path_type=Path), help="For --rebuild: the model that it was built from.")
@click.option("--data", help="For --rebuild: the samples, if it was built with some.")
@click.option("--eval-data", help="For --rebuild: the samples that it was evaluated on, if those were others.")
@click.option("--password", multiple=True, help="Look into what is sealed: where the password is, file:PATH, env:NAME.")
@click.option("--against", type=click.Path(path_type=Path), help="Another builder's delivery, which must be the same.")
def verify(
    path: Path,
    trusted: tuple[Path, ...],
    policy: Path | None,
    rebuild: bool,
    model: Path | None,
    data: str | None,
    eval_data: str | None,
    against: Path | None,
    password: tuple[str, ...],
) -> None:
    """Print each file with its digest and who signed it; exit 1 where one is not what a trusted key signed."""
    from forge_pipeline.pipeline.verify.checks import Checks
    from forge_pipeline.pipeline.verify.checks import verify as check
    from forge_pipeline.pipeline.verify.rebuild import Materials

    if rebuild and model is None:
        raise UsageError("verify --rebuild", "the model that it was built from", "no --model", "give --model FILE")
    materials = Materials(model=model, data=data, eval_data=eval_data) if rebuild and model is not None else None
    click.echo(check(path, trusted, Checks(rebuild=materials, against=against, policy=policy, password=password)))


@commands.command(short_help="Join the libraries of several CPUs of a family into one.")
@click.argument("sources", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The folder that it is delivered to.")
@click.option("--password", multiple=True, help="Encrypt it: where the password is, file:PATH, env:NAME.")
@TRUSTED
def combine(sources: tuple[Path, ...], out: Path, password: tuple[str, ...], trusted: tuple[Path, ...]) -> None:
    """Join plain libraries of one model, files or the folders they were delivered to, into one for all their CPUs.

    A device opens the best variant that its CPU runs. Weights that several pack alike are in it once.
    """
    from forge_pipeline.pipeline.combine import combine as join

    click.echo(join(sources, out, password, trusted))


@commands.command(short_help="Print the model card of a delivery, as Markdown or HTML.")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--html", "as_html", is_flag=True, help="As a page of HTML.")
def card(path: Path, as_html: bool) -> None:
    """Print what the bill of materials of the delivery in folder PATH says: interface, metrics, data, tools."""
    from forge_pipeline.pipeline.cards.card import card as page

    click.echo(page(path, as_html=as_html))


@commands.group(cls=Commands, short_help="Look at, check and tidy the store of build results.")
@click.option("--path", type=click.Path(path_type=Path), help="Its folder; else FORGE_STORE, else .forge/store.")
@click.pass_context
def store(context: click.Context, path: Path | None) -> None:
    """Look at, check and tidy the store of build results."""
    context.obj = path


URL = click.option("--url", help="The remote; else FORGE_STORE_REMOTE. Its options: FORGE_STORE_REMOTE_OPTIONS (JSON).")
REMOTE = click.option("--remote", is_flag=True, help="Of the remote store, not of the folder.")


@store.command("ls")
@REMOTE
@URL
@click.pass_obj
def store_ls(path: Path | None, remote: bool, url: str | None) -> None:
    """List the kept actions, the most recently used first; of a remote, the newest first."""
    from forge_pipeline.pipeline.store_commands import list_actions, list_remote

    click.echo(list_remote(url) if remote or url else list_actions(path))


@store.command("push")
@URL
@click.option("--sign", multiple=True, help="A place of the key to sign records with; else store.sign of conf, if any.")
@click.pass_obj
def store_push(path: Path | None, url: str | None, sign: tuple[str, ...]) -> None:
    """Send to the remote what it lacks, in parallel; nothing of encrypted builds but what is sealed."""
    from forge_pipeline.pipeline.store_commands import push_store

    click.echo(push_store(path, url, sign))


@store.command("pull")
@URL
@click.option("--trusted", multiple=True, help="Public keys: take only what one signed; else store.trusted of conf.")
@click.pass_obj
def store_pull(path: Path | None, url: str | None, trusted: tuple[str, ...]) -> None:
    """Fetch from the remote what is not here, in parallel; each file's digest is checked."""
    from forge_pipeline.pipeline.store_commands import pull_store

    click.echo(pull_store(path, url, trusted))


@store.command("verify")
@click.pass_obj
def store_verify(path: Path | None) -> None:
    """Read everything through; exit 1 where something is damaged (it is moved aside, and built again when needed)."""
    from forge_pipeline.pipeline.store_commands import verify_store

    click.echo(verify_store(path))


@store.command("gc")
@click.option("--keep-mb", type=click.IntRange(min=0), help="Keep the most recently used, up to so many megabytes.")
@click.option("--keep-days", type=click.FloatRange(min=0), help="Keep what was used within so many days.")
@click.option("--plaintext", is_flag=True, help="Remove also what shows a model or samples: all but what is sealed.")
@REMOTE
@URL
@click.pass_obj
def store_gc(
    path: Path | None, keep_mb: int | None, keep_days: float | None, plaintext: bool, remote: bool, url: str | None
) -> None:
    """Remove what was not used lately (of a remote: not written lately), and objects that nothing refers to."""
    from forge_pipeline.pipeline.store_commands import collect_garbage, collect_remote

    if remote or url:
        if plaintext:
            raise UsageError("store gc", "--plaintext of the folder", "that of a remote", "none of it goes there")
        click.echo(collect_remote(url, keep_mb=keep_mb, keep_days=keep_days))
    else:
        click.echo(collect_garbage(path, keep_mb=keep_mb, keep_days=keep_days, plaintext=plaintext))


@commands.group(cls=Commands, short_help="Look at what a sweep has built.")
def sweep() -> None:
    """Look at what a sweep has built."""


@sweep.command("show")
@click.argument("folder", type=click.Path(path_type=Path), default=Path("runs"))
@click.option("--format", "form", type=click.Choice(["table", "csv", "json", "html"]), default="table")
def sweep_show(folder: Path, form: str) -> None:
    """Compare the deliveries below FOLDER: accuracy, latency, size, what differs, and what failed."""
    from forge_pipeline.pipeline.sweep.results import show

    click.echo(show(folder, form))


@commands.command(short_help="Describe a model: interface, fingerprint, operators; as a table, JSON or a drawing.")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option("--svg", type=click.Path(path_type=Path), help="Draw the graph into this file.")
def inspect(model: Path, as_json: bool, svg: Path | None) -> None:
    """Describe MODEL without running anything in it."""
    from forge_pipeline.pipeline.model_commands import inspect_model

    click.echo(inspect_model(model, as_json=as_json, svg=svg))


@commands.group(cls=Commands, short_help="List, apply and bisect verified graph passes.")
def passes() -> None:
    """List, apply and bisect verified graph passes."""


CONFIG = click.option(
    "-c", "--config", type=click.Path(path_type=Path), help="Sections as in conf/fold/*.yaml; else those of `full`."
)


@passes.command("list")
@click.option("-c", "--config", type=click.Path(path_type=Path), help="Passes of the modules that it imports, too.")
@click.argument("group", required=False)
def passes_list(group: str | None, config: Path | None) -> None:
    """List all passes, or those of GROUP."""
    from forge_pipeline.pipeline.model_commands import list_passes

    click.echo(list_passes(group, config=config))


@passes.command("apply")
@CONFIG
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="Where the new model goes.")
@click.option("--checkpoints", is_flag=True, help="Keep the model after each pass, beside the output.")
@click.option("--resume", is_flag=True, help="Go on from the last checkpoint.")
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("names", nargs=-1, metavar="[PASS]...")
def passes_apply(
    model: Path, names: tuple[str, ...], config: Path | None, output: Path, checkpoints: bool, resume: bool
) -> None:
    """Apply PASSes (or the configuration's list) to MODEL, each verified as the configuration says."""
    from forge_pipeline.pipeline.model_commands import apply_passes

    click.echo(apply_passes(model, output, names, config=config, checkpoints=checkpoints, resume=resume))


@passes.command("bisect")
@CONFIG
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("names", nargs=-1, metavar="[PASS]...")
def passes_bisect(model: Path, names: tuple[str, ...], config: Path | None) -> None:
    """Find the first application of a pass that changes what MODEL computes."""
    from forge_pipeline.pipeline.model_commands import bisect_passes

    click.echo(bisect_passes(model, names, config=config))


@commands.command(short_help="List the hardware targets by family.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of records.")
@click.option("--config-dir", type=click.Path(path_type=Path), help="Your own conf folder; else conf, if it is here.")
def targets(as_json: bool, config_dir: Path | None) -> None:
    """List every target tag with its description and what the compiler is told; those of your own, too."""
    from forge_pipeline.pipeline.hydra_app import own_targets
    from forge_pipeline.target import describe_targets

    click.echo(describe_targets(own_targets(config_dir), as_json=as_json))


@commands.command(short_help="Time libraries in turn: latency, throughput, memory, start, kernels.")
@click.argument("artifacts", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--device", help="Run them on this board of conf/device, not on this machine.")
@click.option("--config-dir", type=click.Path(path_type=Path), help="Your own conf folder, with device/NAME.yaml.")
@click.option("--against", type=click.Path(path_type=Path), help="An ONNX model, for ONNX Runtime to run in turn.")
@click.option("--runs", type=click.IntRange(min=1), default=200, show_default=True, help="Timed runs in each round.")
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="How often each has its turn.")
@click.option("--threads", type=click.IntRange(min=1), help="For throughput; else all of this machine's cores.")
@click.option("--size", multiple=True, metavar="NAME=N", help="The size of an open extent; else 1.")
@click.option("--prompt", type=click.IntRange(min=1), help="Tokens of a prompt, where a library keeps states; else 64.")
@click.option("--password", multiple=True, help="Of what is encrypted, its key beside it: file:PATH, env:NAME.")
@click.option("--profile", is_flag=True, help="Show what each kernel takes.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option("--svg", type=click.Path(path_type=Path), help="Draw the latencies into this file.")
def bench(artifacts: tuple[Path, ...], **options: Any) -> None:
    """Time ARTIFACTs (libraries) with random inputs, taking turns, on this machine or on a board."""
    from forge_pipeline.pipeline.bench import Bench, bench

    click.echo(bench(artifacts, Bench(**options)))


@commands.command(short_help="Say what this machine has for builds, and how to get the rest.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def doctor(as_json: bool) -> None:
    """Look at instructions, memory, store, remote, emulators, nvcc and extras; exit 1 where builds would fail."""
    from forge_pipeline.pipeline.doctor import examine, refuse, report, wrong

    findings = list(examine())
    click.echo(report(findings, as_json=as_json))
    refuse(wrong(findings))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with the code that `exits.guarded` gives."""
    sys.exit(guarded(lambda: _command(arguments)))


def _command(arguments: Sequence[str] | None) -> None:
    try:
        commands.main(arguments, "forge-pipeline", standalone_mode=False)
    except click.Abort as stop:
        raise KeyboardInterrupt from stop
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(UsageError.exit_code)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "forge-pipeline"
        raise UsageError(
            command, "options as `--help` lists them", error.format_message(), f"see `{command} --help`"
        ) from error
