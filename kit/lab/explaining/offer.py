"""What rounded activations would give a file: said where speed and loss were measured, and llama.cpp loses about as much."""

from kit.errors import KitError
from kit.lab.engines.processes import PEER
from kit.lab.measuring.measurements import Readings, digest_of, settings, shared
from kit.lab.predicting import quality
from kit.lab.predicting.losses import format_kl
from kit.lab.predicting.ways import BLOCKS, BLOCKS_INT8, BLOCKS_INT16

_PEER = PEER.partition(",")[0]  # read or mapped, it computes the same
_NEAR, _WORTH = 1.1, 1.05  # times llama.cpp's KL at most, besides the errors of both; times as fast at least


def faster(file, store: Readings | None = None) -> str:
    """A sentence about ``--linear fused-int8`` for an open file, or else about ``fused-int16``, from the store of measurements
    and the qualities that were kept; "" where `kit explain` or page 07 did not measure them all, or nothing gains."""
    try:
        losses = quality.kept(file)
    except KitError:  # no tokenizer or pass of the kit: no quality either
        return ""
    theirs = next((row for name, row in losses.items() if name.startswith(_PEER)), None)
    digest, store = digest_of(file), shared() if store is None else store
    exact = store.known(BLOCKS.label, digest, settings())
    for way in (BLOCKS_INT8, BLOCKS_INT16):
        ours, taken = losses.get(way.precision), store.known(way.label, digest, settings())
        if not exact or not taken or not ours or exact.median < _WORTH * taken.median:
            continue
        if theirs and ours["kl"] <= _NEAR * theirs["kl"] + ours["kl_error"] + theirs["kl_error"]:
            kl, peer = (format_kl(row["kl"], row["kl_error"]) for row in (ours, theirs))
            return (
                f"--linear {way.linear} decodes {exact.median / taken.median:.2f} times as fast here (measured on "
                f"{taken.at[:10]}), with KL {kl} nats from exact; llama.cpp has {peer}"
            )
    return ""
