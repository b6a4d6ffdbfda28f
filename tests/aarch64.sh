#!/usr/bin/env bash
# A Python of aarch64 under QEMU from Debian's packages and the index's wheels, without root: `tests/aarch64.sh FOLDER PYTHON`
# makes FOLDER/python, and with `notebooks` behind it one that has what notebooks need. Packages without compiled parts are
# those of PYTHON, a Python 3.11 with the kit's tests installed. Without PYTHON it fetches what does not hang on that one.
set -euo pipefail
script=$(realpath "$0")
host=$(realpath -s "${2:-$(command -v python3)}")
compiled='numpy|numba|llvmlite|psutil|tokenizers|pyyaml|markupsafe|pandas'
[ "${3:-}" != notebooks ] || compiled+='|pyzmq|tornado|rpds-py|nh3|pyarrow|matplotlib|contourpy|kiwisolver|pillow'
mkdir -p "$1/apt/lists/partial" "$1/apt/cache/archives/partial" "$1/debs" "$1/wheels" "$1/site"
cd "$1"
platforms=$(printf -- '--platform %s_aarch64 ' manylinux2014 manylinux_2_{17,24,27,28})
fetch() { # wheels of aarch64, unpacked
    # shellcheck disable=SC2086
    "$host" -m pip -q --disable-pip-version-check download --dest "$1" --no-deps --only-binary=:all: --python-version 3.11 \
        $platforms "${@:2}"
    for wheel in "$1"/*.whl; do "$host" -m zipfile -e "$wheel" site; done
}

debian_and_torch() { # torch is the last whose wheel for aarch64 asks for no CUDA
    touch apt/status
    arm=(-o "Dir::State::lists=$PWD/apt/lists" -o "Dir::State::status=$PWD/apt/status" -o "Dir::Cache=$PWD/apt/cache"
        -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o "APT::Architectures::=$(dpkg --print-architecture)")
    (
        cd debs
        apt-get "${arm[@]}" -qq update
        apt-get "${arm[@]}" -qq download libc6 libgcc-s1 libstdc++6 libexpat1 zlib1g libssl3 libffi8 libbz2-1.0 liblzma5 \
            libsqlite3-0 libcrypt1 libuuid1 libgomp1 python3.11-minimal libpython3.11-minimal libpython3.11-stdlib \
            "qemu-user-static:$(dpkg --print-architecture)"
    ) 2>/dev/null
    for package in debs/*_arm64.deb; do dpkg-deb -x "$package" system; done
    dpkg-deb -x debs/qemu-user-static_*.deb emulator
    fetch torch torch==2.10.0
    touch fetched
}
if [ ! fetched -nt "$script" ]; then debian_and_torch; fi
[ -n "${2:-}" ] || exit 0

# shellcheck disable=SC2046
fetch wheels $("$host" -m pip freeze | grep -iE "^($compiled)==") # compiled packages, of the host's versions
"$host" - site system/usr/lib/python3.11 <<'END' # bytecode of what kit imports, for which QEMU takes seven times as long
import py_compile, sys, sysconfig
from pathlib import Path
import numba, torch
roots = dict(zip(map(sysconfig.get_path, ("purelib", "stdlib")), map(Path, sys.argv[1:])))
for module in list(sys.modules.values()):
    for root, copy in roots.items():
        file = Path(getattr(module, "__file__", None) or "none")
        if file.suffix == ".py" and file.is_relative_to(root) and (copy / file.relative_to(root)).exists():
            py_compile.compile(str(copy / file.relative_to(root)), quiet=2)
END

pure=$("$host" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
cat >python.new <<END
#!/bin/sh
export PYTHONHOME='$PWD/system/usr' PYTHONPATH="\${PYTHONPATH:+\$PYTHONPATH:}$PWD/site:$pure"
exec '$PWD/emulator/usr/bin/qemu-aarch64-static' -cpu max -L '$PWD/system' -0 '$PWD/python' \\
    '$PWD/system/usr/bin/python3.11' "\$@"
END
chmod +x python.new
./python.new -c 'import platform, numpy; assert platform.machine() == "aarch64"'
mv python.new python
