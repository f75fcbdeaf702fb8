"""Train a DLRM on preprocessed Criteo data, keep the best epoch, and say how good it is on rows it has not seen.

    python -m model.train --preset small --data DIR [--hash sorted] [--interaction dot] [--compile] [--resume]
                          [--kernels fused [--cuda-graph]] [--overwrite | --init-from CHECKPOINT]
    torchrun --nproc-per-node N -m model.train --preset main --data DIR --kernels fused …

DIR is what data.preprocess and data.synthetic write. At the end two lines go to stdout: `validation`, whose rows chose
the epoch, and `test`, which is the result. The log, progress bars and errors go to stderr. Under torchrun the tables
lie on all its processes, in pieces, and each trains on its rows of a step: see model.sharding.
"""

if __name__ == "__main__":
    from data.cli import run

    run("model.train")

import argparse
import hashlib
import resource
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.dataset
import torch
from loguru import logger
from tqdm import tqdm

from data.cli import Parser, UserError, is_first, user_errors
from data.criteo import CRITEO, LABEL, SPLITS, CriteoBatches
from data.metadata import read_hash_size, read_metadata, read_own_schema
from data.schema import Schema
from kernels import machine, runtime
from model.checkpoints import first_line, plain
from model.config import PRESETS, DLRMConfig, Kernels, Preset, TrainConfig, add_arguments, from_arguments
from model.device import check_precision, choose, settings
from model.dlrm import DLRM, SparseArch
from model.evaluation import Metrics, Stopped, columns_used, evaluate
from model.hashing import Hash
from model.interrupts import Interrupted, Signals
from model.optimizers import make_optimizer
from model.profiling.trace_file import export
from model.progress import Progress, Scalars
from model.run import CHANGEABLE, CHANGEABLE_IF_SAID, Run
from model.run_folders import RunFolders, run_folders
from model.sharding import evaluation as sharded_evaluation
from model.sharding import options
from model.sharding.batches import ShardedBatches
from model.sharding.exchange import Exchange
from model.sharding.pieces import WHOLE, Sharding
from model.sharding.ranks import Ranks, SharedSignals
from model.sharding.run import ShardedRun, shards_of, shared_folders, write_best
from model.sharding.sparse_arch import ShardedSparseArch
from model.sharding.step import WARM_UP as GRAPH_WARM_UP
from model.sharding.step import ShardedStep
from model.step import make_step, rows_ahead, why_not_compiled
from model.tables import BatchedTables

# The first steps warm caches and allocators up; three recorded ones show whether they are alike.
PROFILE = {"wait": 5, "warmup": 3, "active": 3}
LONGEST_NAME = 100  # that settings make; a file system takes 255 bytes
# `index` compares [B, cardinality] ids, one byte each: beyond this nobody waits for it, if memory suffices at all.
MAX_COMPARISONS = 1 << 31


@dataclass(frozen=True)
class Result:
    """A finished training run.

    model: with the parameters of the best epoch.
    metrics: of that model, by "validation" (whose rows chose the epoch) and "test" (the result).
    losses: float32 [steps], the training loss of each step.
    history: the validation metrics after each epoch.
    checkpoints: the folder with best.pt and last.pt, or of several ranks with best and last.
    """

    model: DLRM
    metrics: dict[str, Metrics]
    losses: np.ndarray
    history: list[Metrics]
    checkpoints: Path


def train(
    preset: Preset,
    data: str | Path,
    *,
    name: str = "run",
    device: str | torch.device | None = None,
    compile: bool = False,
    cuda_graph: bool = False,
    sync_metrics: bool = False,
    profile: str | Path | None = None,
    resume: bool | str | Path = False,
    resume_changed: Collection[str] = (),
    init_from: str | Path | None = None,
    overwrite: bool = False,
    checkpoints: str | Path | None = None,
    logs: str | Path | None = None,
    ranks: Ranks | None = None,
    sharding: Sharding = WHOLE,
) -> Result:
    """Train the preset's model on DIR/train, choose the epoch by DIR/validation, evaluate it on DIR/test.

    Args:
        data: DIR, with train, validation and test (Parquet) and metadata.json.
        name: of the run; names its folders where the following two are not given.
        checkpoints, logs: folders for best.pt and last.pt, and for TensorBoard
            (default: build/checkpoints/NAME and traces/local/NAME).
        device: default: a GPU if there is one.
        compile: train through torch.compile; evaluation and checkpoints are those of the plain model.
        cuda_graph: capture the step of a full batch once, and replay it (fused kernels on a GPU).
        sync_metrics: read the loss in every step, which makes the host wait for the device.
        profile: a folder for a torch.profiler trace of a few steps, for TensorBoard.
        resume: go on from last.pt in the run's folder (True), or from this checkpoint, in its folder. On the CPU the
            end is bit-identical to that of a run that was never interrupted.
        resume_changed: settings (model.run.CHANGEABLE_IF_SAID) that are the preset's from here on, not the
            checkpoint's; "data" for other rows.
        init_from: a checkpoint whose parameters the run begins with, instead of random ones; not with resume.
        overwrite: the folders may hold an earlier run: its logs are removed, its checkpoints replaced by the first one.
        ranks: of whom this process is one, and each of them calls this; the result's model has this rank's pieces of
            the tables. What torchrun restarted goes on from the run's own checkpoint, if there is one by then.
        sharding: how they cut tables and rows.

    Raises UserError for mistakes, in one line, for a loss that is not finite, for a folder that another run is writing
    in, and for one that holds an earlier run unless resume or overwrite say what is to become of it; Interrupted after
    SIGINT or SIGTERM, when last.pt is written (main thread only; a second signal acts as it did before).
    """
    config, device = preset.train, ranks.device if ranks else choose(device)
    check_precision(device, config.precision)
    if compile and (missing := machine.why_no_compiler(runtime.path_with_python())):
        raise UserError(f"--compile: {missing}")
    if init_from and resume:
        raise UserError("--init-from begins a run, and --resume goes on with one: leave one of them out")
    if resume_changed and not resume:
        raise UserError("--resume-changed: only with --resume")
    if ranks:
        sharding.check(preset)
        if compile:
            raise UserError("--compile: not under torchrun")
        open_folders = partial(shared_folders, ranks)
    else:
        open_folders = run_folders
    restarted = ranks is not None and ranks.restarts > 0
    with open_folders(name, checkpoints, logs, resume=resume, overwrite=overwrite or restarted) as folders:
        if restarted:
            resume, resume_changed = folders.last.exists(), () if folders.last.exists() else resume_changed
        if cuda_graph:
            _check_graph(preset.model, device)
        if ranks:
            sharding = _resolved(sharding, config.batch_size, ranks, folders.last, resume)
        batches, run = _prepare(preset, Path(data), device, name, cuda_graph, ranks, sharding)
        if resume:
            run.restore(folders.last if resume is True else Path(resume), resume_changed)
            if run.epoch:  # before training on: without the best epoch there would be no end
                run.check_best(folders.best, folders.last)
            logger.info(f"resumed at epoch {run.epoch + 1}, step {run.step}")
        elif init_from:
            run.begin_with(Path(init_from))
        run.check_room(folders.last.parent)
        if overwrite and not resume:
            if ranks:
                ranks.of_first(folders.remove_names)
            if ranks is None or ranks.is_first:
                folders.remove_events()
        return _train(
            run, batches, config, folders, name=name, compile=compile, cuda_graph=cuda_graph,
            sync_metrics=sync_metrics, profile=profile, ranks=ranks,
        )


def _resolved(sharding: Sharding, batch_size: int, ranks: Ranks, last: Path, resume: bool | str | Path) -> Sharding:
    """With a number of data_shards: that of the run that is gone on with, where none was asked for."""
    shards = sharding.shards(batch_size, ranks.world)
    if resume and not sharding.data_shards:
        shards = ranks.of_first(lambda: shards_of(last if resume is True else Path(resume)))
    return replace(sharding, data_shards=shards)


def _train(
    run: Run,
    batches: Mapping[str, CriteoBatches],
    config: TrainConfig,
    folders: RunFolders,
    *,
    name: str,
    compile: bool,
    cuda_graph: bool,
    sync_metrics: bool,
    profile: str | Path | None,
    ranks: Ranks | None,
) -> Result:
    """Train from where the run is to its end; arguments as `train` has them."""
    device = run.device
    is_first = ranks is None or ranks.is_first

    def save(path: Path) -> None:
        folders.check()
        run.save(path)

    model, optimizer = run.model, run.optimizer
    compiles = compile or (cuda_graph and not why_not_compiled())
    with (
        settings(config.threads, config.precision),
        Scalars(folders.logs if is_first else None, run.done + 1) as scalars,
        _profiler(
            profile, f"{name}.rank{ranks.rank}" if ranks else name, config.epochs * run.steps - run.done,
            later=GRAPH_WARM_UP if ranks and cuda_graph else 0,
        ) as profiler,
        SharedSignals(ranks) if ranks else Signals() as signals,
        _inductor() if compiles else nullcontext(),
    ):
        # Not with a profile, which is to show the whole step, nor within a graph, of which the hashes are a part.
        ahead = device.type == "cpu" and not (profile or compile or ranks or batches["train"].schema.lists)
        ahead = ahead and isinstance(model.sparse_arch.tables, BatchedTables)
        if ranks:
            step = ShardedStep(model, optimizer, signals, batches["train"].full, config.precision, cuda_graph)
        else:
            forward = torch.compile(model) if compile else model.of_rows if ahead else model
            step = make_step(forward, optimizer, config.batch_size, device, config.precision, cuda_graph)

        def validate() -> Metrics:
            return _evaluate(run, batches["validation"], "validation", config, scalars, signals)

        signals.waiting_for = "the running step" + " and torch.compile, up to a minute" * compiles
        while run.epoch < config.epochs and not (config.patience and run.stale >= config.patience):
            with Progress(run, scalars, config.batch_size, sync_metrics, quiet=not is_first) as progress:
                rest = _rest_of_epoch(run, batches["train"])
                for batch in rows_ahead(rest, model) if ahead else rest:
                    loss = step(*batch)
                    signals.waiting_for = "the running step"
                    run.note(loss)
                    progress.step(loss)
                    if profiler:
                        profiler.step()
                    ends = run.step == run.steps
                    if signals.number or (not ends and _is_due(run.step, config.checkpoint_every)):
                        save(folders.last)
                    signals.check(f"in epoch {run.epoch + 1}, after step {run.step} of {run.steps}")
                    if not ends and _is_due(run.step, config.eval_every):
                        with progress.paused():
                            try:
                                logger.info(f"epoch {run.epoch + 1}, step {run.step}: validation {validate()}")
                            except Stopped:
                                save(folders.last)
                                signals.check(f"in epoch {run.epoch + 1}, after step {run.step} of {run.steps}")
            try:
                validation = validate()
            except Stopped:
                save(folders.last)
                signals.check(f"in epoch {run.epoch + 1}, before its validation")
            is_best = run.end_epoch(validation)
            logger.info(
                f"epoch {run.epoch}: training loss {run.losses[run.done - run.steps : run.done].mean().item():.4f}, "
                f"{progress.rate}, validation {validation}{' (best)' if is_best else ''}"
            )
            if is_best:
                save(folders.best)
            save(folders.last)
            signals.check(f"after epoch {run.epoch}")
        if run.epoch < config.epochs:
            epochs = "1 epoch" if run.stale == 1 else f"{run.stale} epochs"
            logger.info(
                f"stopped after epoch {run.epoch} of {config.epochs}: {epochs} without a better validation "
                f"(--patience {config.patience})"
            )

        run.load_best(folders.best)
        try:
            metrics = {
                split: _evaluate(run, batches[split], split, config, scalars if split == "test" else None, signals)
                for split in ("validation", "test")
            }
        except Stopped:
            signals.check("in the evaluation after the last epoch")
        if ranks:
            step.close()
    logger.info(f"peak memory: {_peak_memory(device)}")
    return Result(model, metrics, run.losses[: run.done].cpu().numpy(), run.history, folders.last.parent)


def _inductor():
    """Within the block Inductor calls the C++ compiler as one program, the only way it knows."""
    return torch._inductor.config.patch({"cpp.cxx": (None, runtime.compiler_program())})


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _rest_of_epoch(run: Run, batches: CriteoBatches):
    """The epoch's batches that are left; their order depends on (seed, epoch) alone, so those before can be skipped."""
    batches.set_epoch(run.epoch)
    return batches.batches_from(run.step) if run.step < run.steps else ()


def _evaluate(
    run: Run, batches: CriteoBatches, split: str, config: TrainConfig, scalars: Scalars | None, signals: Signals
) -> Metrics:
    """The metrics of the run's model; Stopped if a signal came meanwhile."""
    before, signals.waiting_for = signals.waiting_for, "the batch that is being evaluated"
    score = evaluate
    if isinstance(run, ShardedRun):
        score = partial(sharded_evaluation.evaluate, run.ranks)
    try:
        metrics = score(run.model, batches, run.device, precision=config.precision, name=split, stop=signals.ask)
    finally:
        signals.waiting_for = before
    if scalars:
        scalars.add_metrics(split, metrics, run.done)
    return metrics


def _check_graph(config: DLRMConfig, device: torch.device) -> None:
    """Raise UserError if a step of this model on this device cannot be a CUDA graph."""
    if config.kernels is not Kernels.FUSED:
        raise UserError("--cuda-graph: a sparse gradient's size is not known beforehand; add --kernels fused")
    if config.hash is Hash.INDEX_NAIVE:
        raise UserError("--cuda-graph: --hash index_naive copies from the host in every step; use index")
    if device.type != "cuda":
        raise UserError(f"--cuda-graph: needs an NVIDIA GPU, this is the {device}")


def _prepare(
    preset: Preset, data: Path, device: torch.device, name: str, capturable: bool, ranks: Ranks | None,
    sharding: Sharding,
) -> tuple[dict[str, CriteoBatches | ShardedBatches], Run]:
    """The splits' batches, and a run at its beginning."""
    if data.name == "metadata.json":
        raise UserError(f"--data {data}: expected the directory that holds it, {data.parent}")
    features, schema = read_metadata(data), read_own_schema(data)
    config, settings = _model_config(preset.model, features, schema), preset.train
    check_comparisons(config, settings, schema.sparse)
    if schema.lists and capturable:
        raise UserError(f"--cuda-graph: {schema.lists[0]} has lists, and batches have different numbers of their ids")
    batches = {}
    for split in SPLITS:
        trains, size = split == "train", settings.batch_size if split == "train" else settings.eval_batch_size
        how = {"shuffle": trains, "seed": settings.seed, "schema": columns_used(schema, config)}
        if ranks:  # in evaluation each reads its own rows, in the order of the files
            shards = sharding.data_shards if trains else ranks.world
            size = -(-size // shards) * shards
            batches[split] = ShardedBatches(
                data / split, size, shards=shards, rank=ranks.rank, world=ranks.world, **how
            )
        else:
            batches[split] = CriteoBatches(data / split, size, **how)
    check_labels = partial(_check_train_labels, data / "train", batches["train"])
    ranks.of_first(check_labels) if ranks else check_labels()
    torch.manual_seed(settings.seed)
    vocabularies = None if config.hash is Hash.MODULUS else config.vocabularies(features)
    sparse_arch = SparseArch
    if ranks:
        exchange = Exchange(ranks.rank, ranks.world, sharding.exchange)
        how = {"sharding": sharding, "exchange": exchange, "seed": settings.seed, "device": device}
        sparse_arch = partial(ShardedSparseArch, **how)
    model = DLRM(config, vocabularies, sparse_arch).to(device)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    rows, steps = batches["train"].num_rows, batches["train"].num_batches
    where = f"the first of {ranks.world} ranks, {device}" if ranks else device
    logger.info(f"{name}: {parameters:,} parameters on {where}, {rows:,} rows, {steps:,} steps an epoch")
    if (used := len(config.cardinalities)) < len(features):
        logger.info(f"cardinalities: the model has tables for the first {used} of {len(features)} sparse features")
    if rows <= settings.batch_size:
        logger.warning(f"batch_size {settings.batch_size:,}: all {rows:,} rows are one batch, so an epoch is one step")
    identity = {"model": plain(config), "train": plain(settings), "train rows": rows, "data": _digest(data, batches)}
    if hash_size := read_hash_size(data):  # who serves the model takes raw ids modulo this, too
        identity["hash_size"] = hash_size
    if schema.content is not None:  # and whoever has text
        identity["schema"] = schema.content
    if ranks:
        identity["sharding"] = plain(sharding)
        own = max(batches["train"].full[ranks.rank], 1)  # of which kernels are chosen
        optimizer = make_optimizer(model, replace(preset, train=replace(settings, batch_size=own)), capturable)
        return batches, ShardedRun(identity, model, optimizer, device, rows, steps, ranks=ranks)
    optimizer = make_optimizer(model, preset, capturable)
    return batches, Run(identity, model, optimizer, device, rows, steps)


def _digest(data: Path, batches: Mapping[str, CriteoBatches | ShardedBatches]) -> str:
    of_parts = [batches[split].digest() for split in SPLITS]
    return hashlib.sha256("".join([(data / "metadata.json").read_text(), *of_parts]).encode()).hexdigest()


def _peak_memory(device: torch.device) -> str:
    host = f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB of this process"  # given in KiB
    if device.type != "cuda":
        return host
    return f"{host}, {torch.cuda.max_memory_allocated(device) / 2**30:.2f} GiB of {device}"


def _model_config(config: DLRMConfig, features: dict, schema: Schema) -> DLRMConfig:
    width = config.bottom[0]
    if schema.content is not None and width == CRITEO.width:  # the presets are of Criteo's rows
        config = replace(config, bottom=(schema.width, *config.bottom[1:]))
    elif width != schema.width:
        raise UserError(f"bottom: expected to begin with {schema.width}, the dense features, got {width}")
    return config.with_metadata(features)


def check_comparisons(config: DLRMConfig, settings: TrainConfig, names: Sequence[str] = CRITEO.sparse) -> None:
    """Raise UserError if a batch's ids would have to be compared with too many known ones."""
    largest, rows = max(config.cardinalities), max(settings.batch_size, settings.eval_batch_size)
    if config.hash in (Hash.INDEX, Hash.INDEX_NAIVE) and rows * (largest + 1) > MAX_COMPARISONS:
        raise UserError(
            f"--hash {config.hash} compares each id with all known ones: {rows:,} rows at a time × {largest:,} ids of "
            f"{names[config.cardinalities.index(largest)]} is too much; use --hash sorted, which gives exact rows too"
        )


def _check_train_labels(path: Path, batches: CriteoBatches | ShardedBatches) -> None:
    """One class teaches nothing: say so before training, not after."""
    if not batches.num_rows:
        raise UserError(f"{path}: no rows to train on")
    labels = pyarrow.dataset.dataset(batches.files, format="parquet").scanner(columns=[LABEL])
    seen = {value for batch in labels.to_batches() for value in pc.unique(batch.column(0)).to_pylist()}
    if len(seen) == 1 and None not in seen:  # the reader names a null's row
        raise UserError(f"{path}: column {LABEL}: expected both 0 and 1, found only {int(seen.pop())}")


def _profiler(folder: str | Path | None, name: str, steps: int, later: int = 0):
    """A profile of a few steps, after some that warm up, and `later` more."""
    if folder is None:
        return nullcontext()
    phases = PROFILE | {"wait": PROFILE["wait"] + later}
    needed = sum(phases.values())
    if steps < needed:
        raise UserError(f"--profile: needs {needed} steps, this run has only {steps}; use a smaller --batch-size")
    Path(folder).mkdir(parents=True, exist_ok=True)
    file = Path(folder) / f"{name}.{time.time_ns()}.pt.trace.json.gz"
    schedule = torch.profiler.schedule(**phases, repeat=1)
    # acc_events: or torch warns that it drops the events of earlier cycles, of which there are none.
    options = {"record_shapes": True, "profile_memory": True, "acc_events": True}
    return torch.profiler.profile(schedule=schedule, on_trace_ready=partial(export, path=file), **options)


def _parser() -> Parser:
    parser = Parser(
        prog="python -m model.train", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, type=Path, metavar="DIR", help="what data.preprocess wrote")
    parser.add_argument("--name", help="of the run's folders (default: PRESET-HASH-INTERACTION, and what else differs)")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="TensorBoard logs (default: traces/local/NAME)")
    parser.add_argument("--checkpoints", type=Path, metavar="DIR", help="default: build/checkpoints/NAME")
    parser.add_argument(
        "--resume", nargs="?", const=True, default=False, type=Path, metavar="PATH",
        help="go on from a checkpoint (default: the run's last.pt)",
    )
    parser.add_argument(
        "--resume-changed", type=lambda text: text.split(","), default=(), metavar="NAME,…",
        help="go on although these settings differ: " + ", ".join(CHANGEABLE_IF_SAID),
    )
    parser.add_argument("--init-from", type=Path, metavar="PATH", help="begin with this checkpoint's parameters")
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier run of this name")
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: a GPU if there is one)")
    parser.add_argument("--compile", action="store_true", help="train through torch.compile")
    parser.add_argument(
        "--cuda-graph", action="store_true", help="capture the step once and replay it (--kernels fused, on a GPU)"
    )
    parser.add_argument("--profile", type=Path, metavar="DIR", help="write a torch.profiler trace of a few steps there")
    parser.add_argument("--sync-metrics", action="store_true", help="read the loss in every step, as the lecture did")
    add_arguments(parser)
    options.add_arguments(parser)
    return parser


def _default_name(base: str, preset: Preset) -> str:
    """PRESET-HASH-INTERACTION, and each further setting that is not the preset's and changes what is learned."""
    named = ("hash", "interaction", "threads", *CHANGEABLE)
    of_base, parts = PRESETS[base], [base, preset.model.hash, preset.model.interaction]
    for ours, theirs in ((preset.model, of_base.model), (preset.train, of_base.train)):
        for name, value in plain(ours).items():
            if name not in named and value != plain(theirs)[name]:
                parts.append(f"{name}={'-'.join(map(str, value)) if isinstance(value, tuple) else value}")
    name = "-".join(parts)
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[:LONGEST_NAME]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def main(arguments: list[str] | None = None) -> int:
    """The command; its exit status: 0, 2 for a mistake of the user's, 130 if interrupted, 143 if terminated."""
    parser = _parser()
    with options.said_once():
        args = parser.parse_args(arguments)
        preset = from_arguments(args, parser)
        sharding = options.sharding_of(args, preset, parser)
    speaks = is_first()
    logger.remove()
    tqdm.get_lock()  # now: of a signal that comes while the first message makes it, nothing would be left
    if speaks:
        logger.add(lambda line: tqdm.write(line, end="", file=sys.stderr), format="{time:HH:mm:ss} {message}")
    with user_errors(parser.prog):
        ranks = options.joined(args)
        try:
            with ranks.one_message() if ranks else nullcontext():
                result = train(
                    preset,
                    args.data,
                    name=args.name or _default_name(args.preset, preset),
                    device=args.device,
                    compile=args.compile,
                    cuda_graph=args.cuda_graph,
                    sync_metrics=args.sync_metrics,
                    profile=args.profile,
                    resume=args.resume,
                    resume_changed=args.resume_changed,
                    init_from=args.init_from,
                    overwrite=args.overwrite,
                    checkpoints=args.checkpoints,
                    logs=args.logs,
                    ranks=ranks,
                    sharding=sharding,
                )
        except RuntimeError as error:  # on the CPU it has no kind of its own
            too_large = ("DefaultCPUAllocator", "Storage size calculation overflowed")
            if not isinstance(error, torch.OutOfMemoryError) and not any(text in str(error) for text in too_large):
                raise
            raise UserError(first_line(error)) from None
        except Interrupted as error:
            print(f"{parser.prog}: interrupted {error}; add --resume to the same command to go on", file=sys.stderr)
            return 128 + error.number
        if ranks and speaks:
            write_best(result.checkpoints)
        for split, metrics in result.metrics.items() if speaks else ():
            print(f"{split}: {metrics}")
    return 0
