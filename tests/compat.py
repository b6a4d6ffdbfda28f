"""The oldest and the newest torch, numba and numpy that pyproject.toml allows, and some tests with each.

    python tests/compat.py                               # both ends, each in an environment of its own under build/compat/
    python tests/compat.py newest                        # one end, as a job of CI's matrix
    python tests/compat.py torch==2.12.1 numba==0.67.0   # versions outside of the ranges, before these are widened

On Linux, torch comes with CUDA unless the index or PIP_FIND_LINKS offers a build without: 3 GB an environment.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
RANGED = "torch", "numba", "numpy"
TESTS = "simd threads plan attention norm quants_formats cache_policies transformer".split()


def oldest(dependencies: list[str]) -> list[str]:
    """The lowest version of each package in RANGED: what its range begins with, ``name==version``."""
    ranges = {name: text for text in dependencies if (name := re.match(r"\w+", text)[0]) in RANGED}
    return [f"{name}==" + re.search(r"(?:>=|~=|==)([\d.]+)", ranges[name])[1] for name in RANGED]


def passes(name: str, versions: list[str], dependencies: list[str]) -> bool:
    """Make the environment ``name`` with these versions and what else the kit needs, and run the tests in it."""
    python = ROOT / "build/compat" / name / "bin/python"
    subprocess.run([sys.executable, "-m", "venv", "--clear", python.parents[1]], check=True)
    others = [text for text in dependencies if re.match(r"\w+", text)[0] not in {pin.split("=")[0] for pin in versions}]
    tools = ["pandas", "pytest", "pytest-timeout", "hypothesis", "hatchling", "editables"]
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, *versions, *others, *tools], check=True)
    subprocess.run([*install, "--no-deps", "--no-build-isolation", "--editable", ROOT], check=True)
    subprocess.run([*install[:3], "list", "--format=freeze", "--disable-pip-version-check"], check=True)
    tests = [ROOT / f"tests/test_{test}.py" for test in TESTS]
    return not subprocess.run([python, "-m", "pytest", "-m", "not slow", "--durations=0", *tests], cwd=ROOT).returncode


def main(wanted: list[str]) -> int:
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    ends = {"oldest": oldest(dependencies), "newest": []}
    runs = {"asked": wanted} if any("==" in text for text in wanted) else {name: ends[name] for name in wanted or ends}
    failed = [name for name, versions in runs.items() if not passes(name, versions, dependencies)]
    print(f"failed: {', '.join(failed)}" if failed else "all passed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
