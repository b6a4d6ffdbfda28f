"""Caches of blocks in GPU memory: the same policies and counts as on the CPU, with pinned host memory and a second stream
behind them."""

import pandas as pd

import kit
from kit.cache import POLICIES
from kit.lab import tables
from kit.lab.findings import live
from kit.lab.findings.live import Live, relative_rms
from kit.lab.findings.model_on_device import blocks_read, check_room
from kit.lab.measuring.gpu import Limits

# Of kit.cache.POLICIES: those at the bounds and some between.
SHOWN = ("LRU", "MRU", "SIEVE", "Random", "CyclicAware", "Pinned")


def matrices(file) -> dict[str, int]:
    """Bytes of the blocks of every matrix: what each token of a decode gets from the cache."""
    return {name: tensor.nbytes for name, tensor in file.tensors.items() if len(tensor.shape) == 2}


def bounds(gpu: Limits, read: int, missed: float) -> tuple[float, float]:
    """(least seconds per token with prefetch, without): ``read`` bytes from GPU memory, ``missed`` of them over the bus."""
    reading, copying = gpu.seconds_to_read(read), gpu.seconds_from_host(missed)
    return max(reading, copying), reading + copying


def frontier(lab, file, tokens: int, shares=(0.0, 0.25, 0.5, 0.75, 1.0)) -> pd.DataFrame:
    """Decode through a pinned set of each share of the matrices' blocks, and prefetch the next tensor. A record and a row per
    share: MiB held, seconds per token as predicted from what that set missed, and as measured (the median after the first)."""
    check_room(file)
    total, read, rows = sum(matrices(file).values()), blocks_read(file), []
    for share in shares:
        policy = kit.Pinned(round(share * total)) if 0 < share < 1 else kit.HashMap() if share else kit.NoCache()
        run = live.decode(file, policy, passes=tokens + 1, device="cuda", ahead=True)
        held, least = f"{share:.0%} of the blocks", bounds(lab.gpu, read, missed(run))[0]
        record = lab.record(
            quantity=f"a token on the device, {held} in its memory", unit="s", samples=list(run.seconds[1:]), lower=least,
            device=lab.device, lower_source="the longer of device memory and bus, at measured bandwidths",
        )  # fmt: skip
        rows.append((held, run.held_bytes / 2**20, least, record.median))
    return tables.frame(rows, "in device memory", "MiB held", "predicted, s", "measured, s")


def missed(run: Live) -> float:
    """Bytes per token that were not resident when they were needed, after the first pass."""
    warm = run.accesses[run.accesses["token"] > 0]
    return float(warm.loc[warm["outcome"] != "hit", "nbytes"].sum() / warm["token"].nunique())


def run(lab, file, fraction: float, passes: int, names=SHOWN) -> pd.DataFrame:
    """What a GPU adds to the notebook: a decode through each policy at ``fraction`` of the matrices' bytes, with prefetch;
    first without a cache, and with neither; last with everything kept. A record and a row each: tokens per second after the
    first pass, the most possible (copies run while it reads if it prefetches, else before), byte hit rate, GB/s over the bus,
    MiB held. Gates: logits as on the CPU, counts as in a replay."""
    check_room(file)
    capacity = max(1, round(fraction * sum(matrices(file).values())))
    ways = {"no cache": kit.NoCache()} | {name: POLICIES[name](capacity) for name in names} | {"all kept": kit.HashMap()}
    runs = [live.decode(file, kit.NoCache(), "no cache, no prefetch", passes, device="cuda")]
    runs += [live.decode(file, policy, way, passes, device="cuda", ahead=True) for way, policy in ways.items()]
    right = live.decode(file, kit.HashMap(), passes=passes, linear="fused").logits  # the CPU's, from the same blocks
    worst = max(relative_rms(run.logits, right) for run in runs)
    lab.gate(worst < 1e-4, f"on the device logits differ from the CPU's by up to {worst:.1e} of their spread")
    lab.gate(
        live.replay_agrees(runs)["all counts agree"].all(),
        "on the device the counts of a policy differ from those of its replay",
    )
    rows, read = [], blocks_read(file)
    for run in runs:
        speed, ahead = run.tokens_per_second, run.stats.prefetched / run.stats.gets
        most = 1 / bounds(lab.gpu, read, missed(run))[0 if ahead else 1]
        lab.record(
            quantity=f"decode on the device, {run.label}, {fraction:.0%} of the blocks in its memory", unit="tok/s",
            samples=[1 / seconds for seconds in run.seconds[1:]], device=lab.device, upper=most,
            upper_source="blocks read once from device memory, missed ones over the bus, at measured bandwidths",
        )  # fmt: skip
        crossing, held = speed * missed(run) / 1e9, run.held_bytes / 2**20
        rows.append((run.label, speed, most, speed / most, run.warm_byte_hit_rate, crossing, ahead, held))
    return tables.frame(
        rows, "run", "tok/s", "limit tok/s", "of the limit", "byte hit rate", "GB/s over the bus", "prefetched", "MiB held"
    )
