"""What int8 activations would give a file: said where speed and loss were measured, and the loss is about llama.cpp's."""

from kit.errors import KitError
from kit.lab.costs import quality
from kit.lab.costs.engines import PEER
from kit.lab.costs.losses import format_kl
from kit.lab.costs.ways import BLOCKS, BLOCKS_INT8
from kit.lab.measurements import Readings, digest_of, settings, shared

_PEER = PEER.partition(",")[0]  # read or mapped, it computes the same
_NEAR, _WORTH = 1.1, 1.05  # times llama.cpp's KL at most, besides the errors of both; times as fast at least


def int8(file, store: Readings | None = None) -> str:
    """A sentence about ``--linear fused-int8`` for an open file, from the store of measurements and the qualities that were
    kept; "" where one of the four was not measured (by `kit explain` and page 07), or where it does not gain or loses more."""
    try:
        losses = quality.kept(file)
    except KitError:  # no tokenizer or pass of the kit: no quality either
        return ""
    ours = losses.get("int8 activations")
    theirs = next((row for name, row in losses.items() if name.startswith(_PEER)), None)
    if not ours or not theirs or ours["kl"] > _NEAR * theirs["kl"] + ours["kl_error"] + theirs["kl_error"]:
        return ""
    digest, store = digest_of(file), shared() if store is None else store
    exact, rounded = (store.known(way.label, digest, settings()) for way in (BLOCKS, BLOCKS_INT8))
    if not exact or not rounded or exact.median < _WORTH * rounded.median:
        return ""
    kl, peer = (format_kl(row["kl"], row["kl_error"]) for row in (ours, theirs))
    return (
        f"--linear fused-int8 decodes {exact.median / rounded.median:.2f} times as fast here (measured on {rounded.at[:10]}), "
        f"with KL {kl} nats from exact; llama.cpp has {peer}"
    )
