"""Which quantization to take: files of one model in one table, with bytes, speed and its bound, loss with its error, memory.

The file with the most bits per weight is the exact one, if none is named. Each file runs by exact products and by those that
round activations to sixteen and to eight bits.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path

import numpy as np
import pandas as pd
from tqdm import tqdm

import kit
from kit.errors import ModelError
from kit.gguf.sources import distinct_names, model_bytes, model_name, models, resolve
from kit.gguf.uses import bytes_used, uses_of
from kit.lab import figures
from kit.lab.engines.processes import Process
from kit.lab.engines.table import OURS
from kit.lab.explaining.peers import prompt_of
from kit.lab.explaining.to_measure import ENGINE_WAYS
from kit.lab.measuring import limits, measurements, slices, state
from kit.lab.measuring.busy import WORTH, Busy
from kit.lab.measuring.measurements import Reading
from kit.lab.predicting import divergence, quality
from kit.lab.predicting.losses import format_kl
from kit.lab.predicting.ways import BY_QUANTS
from kit.lab.progress import say
from kit.units import format_bytes, format_rate, from_json

_MARKS = [(mark, color) for mark in "os^v" for color in (figures.BLUE, figures.ORANGE, figures.GREEN)]
WAYS = {row.short: row for row in OURS.values()}
COLUMNS = [
    "bytes", "bits", "way", "speed", "samples", "bound", "gbps", "kl", "kl_error", "same", "memory", "others", "best",
]  # fmt: skip
KEY = ["digest", "machine", "settings", "at"]  # of a row's speed, as in kit.lab.measuring.measurements; at: the day


def study(
    paths: Sequence[Path], exact: Path | None = None, tokens: int = 0, rounds: int = 3, new: int = 32, progress: bool = False
) -> pd.DataFrame:
    """One row for each model and way of WAYS, indexed by the file's name, with folders where two have one name. A file that is
    named twice counts once.

    bytes: of the file, or of all parts; bits: per weight. speed: tokens per second, the median of ``samples``, one a round, in
    which every file and way decodes ``new`` tokens in turn, each in a process of its own. bound: tokens per second at ``gbps``,
    the most that memory read in any round. kl, kl_error, same: of kit.lab.predicting.divergence, by ``tokens`` of a text (0: as
    many as take seconds), from the exact products of the file ``exact`` (None: the one with the most bits). memory: resident
    bytes of the process, file included. others: cores that other processes used. best: no other row is both faster and closer.
    KEY: what the speed is of. ModelError for files that are not of one model.
    """
    paths = models(paths)
    exact = exact and models([exact])[0]
    with ExitStack() as stack:
        files = {path: stack.enter_context(kit.open(path)) for path in paths}
        _check_alike(list(files.values()))
        bits = {path: 8 * sum(info.nbytes for info in file.tensors.values()) / _elements(file) for path, file in files.items()}
        first = exact or max(files, key=bits.get)
        lost, prompt = _losses(files, first, tokens, progress), prompt_of(files[first])
        used = {path: bytes_used(uses_of(file)) for path, file in files.items()}
        here = measurements.machine_id(), measurements.settings(), datetime.now(UTC).date().isoformat()
        keys = {path: (measurements.digest_of(file), *here) for path, file in files.items()}
    speeds, memory, read, others = _speeds(paths, prompt, rounds, new, progress)
    rows = []
    names = dict(zip(paths, distinct_names(paths), strict=True))
    for path in sorted(paths, key=lambda path: -bits[path]):
        for way in WAYS:
            one, samples = lost[path, way], speeds[path, way]
            rows.append((
                names[path], model_bytes(path), bits[path], way, float(np.median(samples)), samples, read * 1e9 / used[path],
                read, one["kl"], one["kl_error"], one["same"], memory[path, way], others, False, *keys[path],
            ))  # fmt: skip
    return _with_best(pd.DataFrame(rows, columns=["file", *COLUMNS, *KEY]).set_index("file"))


def named(text: str) -> list[Path]:
    """The files of a parameter: several of one model, separated by commas, or one that `kit quants --json` printed. ModelError
    for one file of a model, or a path that does not exist."""
    names = [name for part in text.split(",") if (name := part.strip())]
    if len(names) == 1 and not names[0].endswith(".json"):
        raise ModelError(f"quants: {names[0]} is one file; name several with commas, or the .json of `kit quants --json`")
    for name in names:
        if name.endswith(".json") and not Path(name).is_file():
            raise ModelError(f"quants: {name} does not exist; write it with `kit quants FILE... --json > {name}`")
    if not names or names[0].endswith(".json"):
        return [Path(name) for name in names]
    paths = models(Path(resolve(name)) for name in names)
    if len(paths) < 2:
        raise ModelError(f"quants: {text} is one file; name several with commas, or the .json of `kit quants --json`")
    return paths


def of(paths: Sequence[Path]) -> pd.DataFrame:
    """The table of ``named`` files: measured now, or read from the one .json."""
    return read(paths[0]) if paths[0].suffix == ".json" else study(paths)


def of_run(paths: Sequence[Path], lab, file) -> pd.DataFrame:
    """``of`` on a page of a run about an open ``file``: its rows have the one value that the run's store has of their way, and
    are recorded. "other" says of those that are another measurement, with other code or settings or on another machine, when it
    was. What this machine measured has the bound of the run, which the table's own probes raise: a page has one bound."""
    table, store, digest = of(paths).assign(other=""), measurements.of_run(lab.out), measurements.digest_of(file)
    here = digest, measurements.machine_id(), measurements.settings()
    table = _by_the_run(table, lab, here[1])
    for number, row in enumerate(table.reset_index().itertuples()):
        if row.digest not in (digest, "") or (not row.digest and Path(row.file).name != model_name(file.path)):
            continue
        way, column = ENGINE_WAYS[WAYS[row.way].name], table.columns.get_loc
        samples = tuple(1 / speed for speed in row.samples)
        saved = Reading(way.label, row.digest, samples, settings=row.settings, machine=row.machine)
        if (saved.file, saved.machine, saved.settings) != here:
            table.iloc[number, column("other")] = f"another measurement than this page's{f', of {row.at}' * bool(row.at)}"
            continue
        if known := store.known(way.label, digest, busy=True):
            if saved.disagrees(known):  # its rows are comparable with each other, not with the page's
                times = known.median / saved.median
                table.iloc[number, column("other")] = f"measured at another time, {times:.2f} times as fast as on this page"
                continue
            table.iloc[number, column("speed")] = 1 / known.median
            table.iat[number, column("samples")] = [1 / seconds for seconds in known.samples]
        lab.record(quantity=way.quantity + BY_QUANTS, unit="s", samples=[*(known or saved).samples],
                   lower=1 / table["bound"].iloc[number], lower_source="its bytes at the measured bandwidth")  # fmt: skip
    return _with_best(table)


def _with_best(table: pd.DataFrame) -> pd.DataFrame:
    """The table with ``best`` by its speeds and losses; a busy machine has none."""
    return table.assign(best=front(table["speed"].to_numpy(), table["kl"].to_numpy()) & (not busy_of(table)))


def _by_the_run(table: pd.DataFrame, lab, machine: str) -> pd.DataFrame:
    """The table with the limit of the run as ``gbps`` and ``bound`` of the rows that this machine measured."""
    mine = table["machine"] == machine
    if not mine.any():
        return table
    seen = float(table.loc[mine, "gbps"].max())
    limits.raised(lab.out, "read_gbps", seen, "a probe of kit quants between its files", not busy_of(table))
    limit = max(seen, lab.machine.read_gbps)
    scaled = table["bound"].where(~mine, table["bound"] * limit / table["gbps"])
    return table.assign(bound=scaled, gbps=table["gbps"].where(~mine, limit))


def read(path: Path) -> pd.DataFrame:
    """The table that `kit quants --json` printed to a file; ModelError where it is something else."""
    try:
        table = pd.DataFrame(from_json(path.read_text(encoding="utf-8"))["rows"]).set_index("file")
        return table[COLUMNS + [name for name in KEY if name in table]].reindex(columns=[*COLUMNS, *KEY], fill_value="")
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path}: is not what `kit quants --json` prints ({error}); write it again") from None


def front(speed: np.ndarray, kl: np.ndarray) -> np.ndarray:
    """Whether each point is on the Pareto front: no other is at least as fast and as close, and better in one of the two."""
    faster, closer = speed[None, :] >= speed[:, None], kl[None, :] <= kl[:, None]
    better = (speed[None, :] > speed[:, None]) | (kl[None, :] < kl[:, None])
    return ~(faster & closer & better).any(1)


def busy_of(table: pd.DataFrame) -> Busy:
    """What other processes used while the table was measured."""
    return Busy(float(table["others"].max()))


def advice(table: pd.DataFrame) -> str:
    """The answer in a sentence: the fastest row whose loss is small, and what it gives up."""
    if busy_of(table):
        return f"{busy_of(table).line} Run it again when nothing else runs."
    whole = table[(table["kl"] < SMALL) & table["best"]]
    if whole.empty:
        return f"Take none of them: every file loses more than {SMALL} nats to the exact one."
    row = whole.nlargest(1, "speed").iloc[0]
    linear = WAYS[row["way"]].product.option
    other = f" ({row['other']})" if row.get("other") else ""
    told = "the exact answers" if row["kl"] == 0 else f"KL {format_kl(row['kl'], row['kl_error'])} nats from exact answers"
    return (
        f"Take {row.name}{linear}: {format_rate(row['speed'])} tokens per second{other}, with {told}.{_passed_over(table, row)}"
    )


def _passed_over(table: pd.DataFrame, taken: pd.Series) -> str:
    """The fastest row that is not taken because of its loss, as a sentence; "" where none is faster."""
    faster = table[(table["kl"] >= SMALL) & (table["speed"] > WORTH * taken["speed"])]
    if faster.empty:
        return ""
    row = faster.nlargest(1, "speed").iloc[0]
    kl = format_kl(row["kl"], row["kl_error"])
    return f" {row.name} is {row['speed'] / taken['speed']:.2f} times as fast and loses more: KL {kl} nats."


SMALL = 0.05  # nats: a loss that is called small; llama.cpp's own rounding of activations loses about 0.02


def rows(table: pd.DataFrame) -> pd.DataFrame:
    """The table as a page shows it."""
    columns = {
        "way": table["way"],
        "bytes": table["bytes"].map(format_bytes),
        "bits per weight": table["bits"],
        "tokens per second": table["speed"],
        "limit": table["bound"],
        "KL, nats": [format_kl(*pair) for pair in zip(table["kl"], table["kl_error"], strict=True)],
        "resident": table["memory"].map(format_bytes),
        "on the front": table["best"],
    }
    if table.get("other", pd.Series(dtype=str)).any():
        columns["speed is"] = table["other"]
    return pd.DataFrame(columns, index=table.index)


def figure(table: pd.DataFrame):
    """(figure, axes): speed against loss, a point for each row, the front as a line, each file's bound as a dash."""
    chart, axes = figures.new(height=4.2)
    shown = table.assign(x=table["kl"].clip(lower=table["kl"][table["kl"] > 0].min() / 3 if (table["kl"] > 0).any() else 1e-4))
    limit = f"limit at {table['gbps'].max():.1f} GB/s"
    for way, (mark, color) in zip(WAYS, _MARKS, strict=False):
        part = shown[shown["way"] == way]
        axes.errorbar(part["x"], part["speed"], xerr=part["kl_error"], fmt=mark, color=color, label=f"{way}", capsize=2)
        axes.plot(part["x"], part["bound"], "_", color=figures.BLACK, markersize=14, label=limit if way == "exact" else None)
    names = _short([*dict.fromkeys(map(str, shown.index))])
    faster = shown.sort_values("speed").groupby(level=0).last().sort_values("x")  # way of each file
    for number, (name, row) in enumerate(faster.iterrows()):  # neighbors' names are above and below their points
        place = {"xytext": (0, -16 if number % 2 else 8), "textcoords": "offset points", "ha": "center"}
        axes.annotate(names[name] + ", KL 0" * (row["kl"] == 0), (row["x"], row["speed"]), fontsize=8, **place)
    best = shown[shown["best"]].sort_values("x")
    axes.plot(best["x"], best["speed"], color=figures.GREEN, linewidth=1.2, zorder=0, label="nothing is faster and closer")
    figures.log(axes, "x", write="{:.0e}".format)
    axes.set_ylim(bottom=0)
    axes.set(xlabel="KL divergence from the file with the most bits, nats (left is closer)", ylabel="tokens per second")
    best = table.loc[table["best"]] if table["best"].any() else table  # a busy machine has no best
    quickest = best.nlargest(1, "speed").iloc[0]
    told = f"{format_rate(quickest['speed'])} tokens per second at {quickest['bits']:.1f} bits per weight"
    axes.set_title(f"{told}, with KL {format_kl(quickest['kl'], quickest['kl_error'])} nats")  # no speed without its loss
    axes.legend(fontsize=8.5)
    return chart, axes


def _short(names: list[str]) -> dict[str, str]:
    """File name -> what of it no other name begins with, from a hyphen on."""
    same = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False)) if len(names) > 1 else ()
    alike = "".join(letters[0] for letters in same).rpartition("-")[0]
    short = {name: name.removeprefix(alike).strip("-").removesuffix(".gguf")[:28] for name in names}
    return short if len(set(short.values())) == len(short) else dict(zip(names, names, strict=True))


def _check_alike(files) -> None:
    first = files[0]
    for file in files[1:]:
        other = {name: info.shape for name, info in file.tensors.items()}
        if file.architecture != first.architecture or other != {name: info.shape for name, info in first.tensors.items()}:
            raise ModelError(
                f"{file.path}: is not a quantization of the model in {first.path}, because the tensors have other shapes"
            )


def _losses(files, first, tokens, progress) -> dict:
    tokens = tokens or divergence.tokens_for(_elements(files[first]), thorough=True)
    exact = kit.Transformer(kit.Weights(files[first]))
    window = divergence.window_of(exact.tokenizer, exact.config.context, tokens)
    truth = quality.from_blocks(files[first], len(window))
    ways = {(path, way): (file, row.product.linear) for path, file in files.items() for way, row in WAYS.items()}
    sources = {key: truth if key == (first, "exact") else quality.from_blocks(file, len(window), linear)
               for key, (file, linear) in ways.items()}  # fmt: skip
    return divergence.compare(window, truth, sources, progress)


def _speeds(paths, prompt, rounds, new, progress):
    """({(path, way): tokens per second of each round}, {(path, way): resident bytes}, GB/s, cores of others)."""
    running, read = {}, []
    with ExitStack() as stack:
        for path in paths:
            for way, row in WAYS.items():
                running[path, way] = process = Process(row.name, path, len(prompt) + new)
                stack.callback(process.close)
                process.ask(load=True)
                process.ask(begin=prompt)
                process.ask(steps=2)

        def once(number):
            bar.update()
            if progress:
                say(f"speeds: round {number + 1} of {rounds}")
            speeds = {}
            for key, process in running.items():
                process.ask(begin=prompt)
                speeds[key] = (new - 1) / process.ask(steps=new - 1)[0]
                read.append(slices.now_gbps())
            return speeds

        bar = tqdm(total=rounds, desc="speeds", unit="round", disable=None if progress else True)
        taken, _ = state.quietest(once, rounds, [process.process for process in running.values()])
        bar.close()
        memory = {key: process.memory() for key, process in running.items()}
    return {key: [speeds[key] for _, speeds in taken] for key in running}, memory, max(read), max(others for others, _ in taken)


def _elements(file) -> int:
    return sum(info.elements for info in file.tensors.values())
