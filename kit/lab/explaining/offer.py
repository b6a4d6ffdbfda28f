"""What rounded activations would give a file: said where speed and loss were measured, and llama.cpp loses about as much."""

from kit.errors import KitError
from kit.lab.engines.table import PROGRAM
from kit.lab.measuring.busy import WORTH, apart
from kit.lab.measuring.measurements import digest_of, shared
from kit.lab.predicting import quality
from kit.lab.predicting.losses import format_kl
from kit.lab.predicting.losses import of as losses_of
from kit.lab.predicting.ways import BLOCK_WAYS, BLOCKS

_NEAR = 1.1  # times llama.cpp's KL at most, besides the errors of both


def faster(file) -> str:
    """A sentence about the way that rounds most for an open file, or else about the next one, from the store of measurements
    and the qualities that were kept; "" where `kit explain` or page 07 did not measure them all, or nothing gains."""
    try:
        losses = quality.kept(file)
    except KitError:  # no tokenizer or pass of the kit: no quality either
        return ""
    theirs = losses_of(losses, PROGRAM)
    digest, store = digest_of(file), shared()
    exact = store.known(BLOCKS.label, digest)
    for way in BLOCK_WAYS[:0:-1]:  # the one that rounds most first
        ours, taken = losses.get(way.precision), store.known(way.label, digest)
        if not exact or not taken or not ours or exact.median < WORTH * taken.median or not apart(taken.spread, exact.spread):
            continue
        if theirs and ours["kl"] <= _NEAR * theirs["kl"] + ours["kl_error"] + theirs["kl_error"]:
            kl, peer = (format_kl(row["kl"], row["kl_error"]) for row in (ours, theirs))
            return (
                f"--linear {way.linear} decodes {exact.median / taken.median:.2f} times as fast here (measured on "
                f"{taken.at[:10]}), with KL {kl} nats from exact; llama.cpp has {peer}"
            )
    return ""
