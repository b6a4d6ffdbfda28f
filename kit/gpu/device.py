"""Which device a run is on: the one that the caller named, or one error that says what is missing and what to do."""

from kit import doctor
from kit.errors import ReportError

DEVICES = ("cpu", "cuda")


def check_device(name: str) -> str:
    """``name`` again, when this machine can use it. ReportError names what `kit doctor` finds missing, and its remedy."""
    if name not in DEVICES:
        raise ReportError(f"no device {name!r}; there are: {', '.join(DEVICES)}")
    rows = (doctor.gpu(), doctor.triton()) if name == "cuda" else ()
    missing = next((row for row in rows if row.state != "ok"), None)
    if missing:
        raise ReportError(f"device {name!r} cannot be used: {missing.subject}: {missing.finding}; {missing.remedy}")
    return name
