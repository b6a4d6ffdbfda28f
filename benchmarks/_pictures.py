"""The pictures of README and docs, drawn from committed records."""

from benchmarks import _speeds
from benchmarks._records import cores_of, cpu_name, explanation, row, rows
from kit.lab import figures
from kit.lab.claims import table as claims
from kit.lab.explaining import answer_table
from kit.lab.explaining.answer_table import Row
from kit.units import format_seconds

WAYS = {"fused": "exact", "fused-int16": "int16", "fused-int8": "int8"}
SHARES = (100, 75, 53)  # percent of the float32 weights that memory holds, on page 01


def pictures() -> dict[str, tuple]:
    """Name of a PNG of docs/images -> (what it shows, a function that draws it). The PNG's description is the former."""
    tiles = "a tile, "
    ladder = {row["quantity"].removeprefix(tiles): row["median"] for row in rows("05_tile_decode")
              if row["quantity"].startswith(tiles)}  # fmt: skip
    ladder = {step: seconds for step, seconds in ladder.items() if step not in ("reported, interpreted", "two threads")}
    said = claims.load()
    reported = [said["variance-45-1100"].before, said["variance-45-1100"].after]
    fastest = row("02_cache_mystery", "tokens a second of granite-3.3-8b from float32")["upper"]
    story = {"reported": reported, "bound": fastest, "kept": by_memory(), "tiles": ladder}
    lines = [[line.cpu, *line.row["what"].split(", "), line.row["ratio"], *line.interval] for line in _speeds.newest()
             if line.benchmark == "decode" and line.row["what"].split(", ")[0] in ("decode", "prefill of 512")]  # fmt: skip
    return {
        "explain": (answered(), _draw_answer),
        "findings": (story, _draw_story),
        "speeds_cpus": ([line for line in lines if line[2] in WAYS], _draw_cpus),
    }


def by_memory() -> dict[str, list[float]]:
    """Way -> seconds per token with memory for SHARES of the float32 weights."""
    quantity = "inference by inference, {}: memory for {}%"
    return {way: [row("01_first_token", quantity.format(way, share))["median"] for share in SHARES]
            for way in ("kept", "each time", "blocks")}  # fmt: skip


def answered() -> dict:
    """The table of README's block, as the record of `kit explain` has it."""
    run, machine = explanation()
    about = f"{run['command'].split()[-1]} on {cpu_name(run | {'machine_id': machine})}, {cores_of(machine)}"
    return {"about": about, "rows": run["table"]}


def _draw_answer(data):
    """The answer's picture."""
    return answer_table.picture([Row(**row) for row in data["rows"]], data["about"])


def _draw_story(data):
    """Reported speeds and their limit; keeping float32 in too little memory; the ladder of the tile decoder."""
    figure, (top, middle, bottom) = figures.new(3, height=8.2)
    claimed = {f"reported: {number:,}": number for number in data["reported"]}
    figures.rows(top)
    top.bar_label(top.barh([*claimed], [*claimed.values()], color=figures.VERMILION), padding=3)
    figures.bound(top, data["bound"], f"limit of that machine: {data['bound']:.1f}", vertical=True)
    top.set_xlim(0, 1.1 * max(data["reported"]))
    top.set(xlabel="tokens per second from float32", title="1. The reported speeds are above the limit")
    top.legend(loc="upper right")
    for place, (way, color) in enumerate(zip(data["kept"], figures.PALETTE, strict=False)):
        bars = middle.bar([n + 0.27 * (place - 1) for n in range(3)], data["kept"][way], 0.25, color=color, label=way)
        middle.bar_label(bars, [format_seconds(seconds) for seconds in data["kept"][way]], fontsize=8)
    middle.set_xticks(range(3), [f"{share}%" for share in SHARES])
    middle.set_ylim(top=1.25 * max(map(max, data["kept"].values())))
    middle.set(
        xlabel="memory, in shares of what float32 needs",
        ylabel="seconds per token",
        title="2. float32 copies that do not fit take seconds per token",
    )
    middle.legend(ncols=3, loc="upper right")
    figures.rows(bottom)
    bars = bottom.barh([*data["tiles"]], [1e3 * seconds for seconds in data["tiles"].values()], color=figures.GREEN)
    bottom.bar_label(bars, [format_seconds(seconds) for seconds in data["tiles"].values()], padding=3, fontsize=9)
    bottom.set_xlim(0, 1.15e3 * max(data["tiles"].values()))
    bottom.set(xlabel="ms per tile", title="3. A table and parallel states, not another processor")
    return figure


def _draw_cpus(data):
    """An interval per CPU, case and way, from the slowest to the fastest model, with a point for each model."""
    cases = (("decode", "decode"), ("prefill of 512", "a prompt of 512 tokens"))
    cpus = sorted({line[0] for line in data})
    figure, grid = figures.new(1, 2, height=3.6, sharey=True)
    for axes, (case, title) in zip(grid, cases, strict=True):
        for shift, (way, name) in enumerate(WAYS.items()):
            color = figures.PALETTE[shift]
            axes.plot([], [], "o", color=color, markersize=4, label=name)
            for place, cpu in enumerate(cpus):
                found = [line for line in data if line[:3] == [cpu, case, way]]
                for n, (*_, ratio, low, high) in enumerate(found):
                    height = place + 0.27 * (shift - 1) + 0.04 * n
                    axes.plot([low, high], [height] * 2, color=color, linewidth=4, alpha=0.35)
                    axes.plot(ratio, height, "o", color=color, markersize=4)
        figures.bound(axes, 1, "llama.cpp", vertical=True)
        axes.set(title=title, xlabel="times llama.cpp's speed", yticks=range(len(cpus)))
        axes.set_yticklabels(cpus)
    figures.rows(grid[0])
    figure.legend(*grid[0].get_legend_handles_labels(), ncols=3, loc="outside upper center")
    return figure
