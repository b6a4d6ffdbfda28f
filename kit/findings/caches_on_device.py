"""Caches of blocks in device memory: the same policies and counts; behind them pinned host memory and a second stream."""

import pandas as pd

import kit
from kit.cache import POLICIES
from kit.findings import live
from kit.findings.live import Live, relative_rms
from kit.findings.model_on_device import blocks_read, check_room
from kit.lab import tables
from kit.lab.device import Limits

# Of kit.cache.POLICIES: those at the bounds and some between.
SHOWN = ("LRU", "MRU", "SIEVE", "Random", "CyclicAware", "Pinned")


def matrices(file) -> dict[str, int]:
    """Bytes of the blocks of every matrix: what a decode asks the cache for, again and again."""
    return {name: tensor.nbytes for name, tensor in file.tensors.items() if len(tensor.shape) == 2}


def every_policy(file, fraction: float, passes: int, names=SHOWN) -> list[Live]:
    """A decode through each policy at ``fraction`` of the matrices' bytes, with prefetch; first without a cache, and with
    neither; last with everything kept."""
    check_room(file)
    capacity = max(1, round(fraction * sum(matrices(file).values())))
    ways = {"no cache": kit.NoCache()} | {name: POLICIES[name](capacity) for name in names} | {"all kept": kit.HashMap()}
    alone = live.decode(file, kit.NoCache(), "no cache, no prefetch", passes, device="cuda")
    return [alone, *(live.decode(file, policy, way, passes, device="cuda", ahead=True) for way, policy in ways.items())]


def same_as_the_cpu(runs: list[Live], file, passes: int) -> pd.DataFrame:
    """Each run's last logits against the CPU's products from the same blocks: RMS difference over their spread."""
    right = live.decode(file, kit.HashMap(), passes=passes, linear="fused").logits
    return tables.frame([(run.label, relative_rms(run.logits, right)) for run in runs], "run", "rms / std")


def bounds(gpu: Limits, read: int, missed: float) -> tuple[float, float]:
    """(least seconds a token with prefetch, without): ``read`` bytes from device memory, ``missed`` of them over the bus."""
    reading, copying = gpu.seconds_to_read(read), gpu.seconds_from_host(missed)
    return max(reading, copying), reading + copying


def frontier(lab, file, tokens: int, shares=(0.0, 0.25, 0.5, 0.75, 1.0)) -> pd.DataFrame:
    """A decode through a pinned set of each share of the matrices' blocks, the next tensor prefetched, a record and a row for
    each: MiB held, seconds a token predicted by what that set missed, and measured, the median after the first."""
    check_room(file)
    total, read, rows = sum(matrices(file).values()), blocks_read(file), []
    for share in shares:
        policy = kit.Pinned(round(share * total)) if 0 < share < 1 else kit.HashMap() if share else kit.NoCache()
        run = live.decode(file, policy, passes=tokens + 1, device="cuda", ahead=True)
        held, least = f"{share:.0%} of the blocks", bounds(lab.gpu, read, missed(run))[0]
        found = lab.record(
            quantity=f"a token on the device, {held} in its memory", unit="s", samples=list(run.seconds[1:]), lower=least,
            device=lab.device, lower_source="the longer of device memory and bus, at measured bandwidths",
        )  # fmt: skip
        rows.append((held, run.held_bytes / 2**20, least, found.median))
    return tables.frame(rows, "in device memory", "MiB held", "predicted, s", "measured, s")


def missed(run: Live) -> float:
    """Bytes a token that were not resident when asked for, after the first pass."""
    warm = run.accesses[run.accesses["token"] > 0]
    return float(warm.loc[warm["outcome"] != "hit", "nbytes"].sum() / warm["token"].nunique())


def most(run: Live, file, gpu: Limits) -> float:
    """Tokens a second that the run cannot pass: copies beside reading where it prefetched, else before it."""
    return 1 / bounds(gpu, blocks_read(file), missed(run))[0 if run.stats.prefetched else 1]


def table(runs: list[Live], file, gpu: Limits) -> pd.DataFrame:
    """One row a run: tokens a second after the first pass, its bound, byte hit rate, GB/s over the bus, bytes resident."""
    rows = []
    for run in runs:
        speed, bound, held = run.tokens_per_second, most(run, file, gpu), run.held_bytes / 2**20
        crossing, ahead = speed * missed(run) / 1e9, run.stats.prefetched / run.stats.gets
        rows.append((run.label, speed, bound, speed / bound, run.warm_byte_hit_rate, crossing, ahead, held))
    return tables.frame(
        rows, "run", "tok/s", "bound tok/s", "of the bound", "byte hit rate", "GB/s over the bus", "prefetched", "MiB held"
    )


def run(lab, file, fraction: float, passes: int, names=SHOWN) -> pd.DataFrame:
    """What a GPU adds to the notebook, its records and its table. Gates: logits as on the CPU, counts as in a replay."""
    runs = every_policy(file, fraction, passes, names)
    worst = same_as_the_cpu(runs, file, passes)["rms / std"].max()
    lab.gate(worst < 1e-4, f"on the device logits differ from the CPU's by up to {worst:.1e} of their spread")
    lab.gate(live.replay_agrees(runs)["all counts agree"].all(), "on the device a policy counts otherwise than its replay")
    record(lab, runs, file, fraction)
    return table(runs, file, lab.gpu)


def record(lab, runs: list[Live], file, fraction: float) -> None:
    """A record of every run."""
    for run in runs:
        lab.record(
            quantity=f"decode on the device, {run.label}, {fraction:.0%} of the blocks in its memory", unit="tok/s",
            samples=[1 / seconds for seconds in run.seconds[1:]], device=lab.device, upper=most(run, file, lab.gpu),
            upper_source="blocks read once from device memory, missed ones over the bus, at measured bandwidths",
        )  # fmt: skip
