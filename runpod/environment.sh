# shellcheck shell=bash
# Sourced by the other scripts: everything that is worth keeping lies in /workspace, where RunPod mounts the volume.
# Paths are absolute, because start.sh enters the workspace.
WORKSPACE=$(realpath -m -- "${WORKSPACE:-/workspace}")
KIT_HOME=$(realpath -m -- "${KIT_HOME:-$(dirname "${BASH_SOURCE[0]}")/..}")
export KIT_RESULTS=$WORKSPACE/results KIT_MODELS=$WORKSPACE/models
export HF_HOME=$WORKSPACE/cache/huggingface PIP_CACHE_DIR=$WORKSPACE/cache/pip
export NUMBA_CACHE_DIR=$WORKSPACE/cache/numba TRITON_CACHE_DIR=$WORKSPACE/cache/triton

die() {
    echo "$(basename "$0"): error: $*" >&2
    exit 2
}

if ! mkdir -p "$KIT_RESULTS" "$KIT_MODELS" "$WORKSPACE/cache" 2>/dev/null; then
    die "cannot write to $WORKSPACE: attach a volume there, or set WORKSPACE to a folder that survives"
fi
[[ -f $KIT_HOME/pyproject.toml ]] || die "$KIT_HOME is not a checkout of kit: set KIT_HOME"

# The kit's own environment; made on the first start of a stock template, kept on the volume, updated with pyproject.toml.
prepare() {
    local venv=$KIT_HOME/.venv
    if [[ ! -x $venv/bin/kit || $KIT_HOME/pyproject.toml -nt $venv/.pod ]]; then
        "${PYTHON:-python3}" -m venv --system-site-packages "$venv" || die "python3 -m venv failed: apt-get install python3-venv"
        "$venv/bin/pip" install --quiet --disable-pip-version-check --editable "${KIT_HOME}[gpu,s3,sweep]" || die "pip failed, see above"
        touch "$venv/.pod"
    fi
    export PATH=$venv/bin:$PATH
}
