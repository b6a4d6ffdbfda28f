#!/usr/bin/env bash
# What a pod does when it starts. As the image's command it serves JupyterLab and stays; as the start command of the
# stock PyTorch template (bash /workspace/kit/runpod/start.sh) it first installs the kit on the volume.
set -euo pipefail

usage() {
    cat <<'TEXT'
Usage: start.sh [--help]

JupyterLab on port 8888 in /workspace, with the password in JUPYTER_PASSWORD; without one it does not start.
It works on copies of the notebooks in /workspace/notebooks, which it makes once, so that your changes survive.
A pod that is to run a batch and end takes batch.sh as its command instead.

  JUPYTER_PASSWORD=... start.sh

Environment: JUPYTER_PASSWORD (needed), PUBLIC_KEY (an SSH key: starts sshd where there is one),
JUPYTER_PORT (8888), WORKSPACE (/workspace), KIT_HOME (the checkout).
Exit code: that of JupyterLab; 2 it could not start.
TEXT
}

case ${1-} in
    "") ;;
    -h | --help) usage && exit 0 ;;
    *) usage >&2 && exit 2 ;;
esac

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=runpod/environment.sh
source "$here/environment.sh"

password=${JUPYTER_PASSWORD:-} port=${JUPYTER_PORT:-8888}
[[ -n ${password//[[:space:]]/} ]] || die "JUPYTER_PASSWORD is not set: a pod's port is public, so JupyterLab needs a password"
[[ $port =~ ^[1-9][0-9]{0,4}$ && $port -lt 65536 ]] || die "JUPYTER_PORT=$port: give a port from 1 to 65535"
prepare

if [[ -n ${PUBLIC_KEY:-} ]] && command -v sshd >/dev/null; then
    mkdir -p ~/.ssh && chmod 700 ~/.ssh
    grep -qxF "$PUBLIC_KEY" ~/.ssh/authorized_keys 2>/dev/null || echo "$PUBLIC_KEY" >>~/.ssh/authorized_keys
    chmod 600 ~/.ssh/authorized_keys
    service ssh start
fi

# On the volume, where the server can see them: an image has the kit in /opt/kit, and a checkout should stay as it is.
copies=$WORKSPACE/notebooks
mkdir -p "$copies" || die "cannot make the folder $copies"
for each in "$KIT_HOME"/notebooks/*.ipynb; do
    copy=$copies/${each##*/}
    [[ -e $each ]] || die "$KIT_HOME/notebooks has no notebooks: is the checkout whole?"
    [[ -e $copy || -L $copy ]] || cp "$each" "$copy" || die "cannot copy to $copy"
    [[ ! $each -nt $copy ]] || echo "start.sh: $copy is older than the kit's notebook: remove it to get the new one"
done

# Only its hash reaches JupyterLab, through the environment: a command line can be read by every process of the pod.
hash=$(python -c 'import os; from jupyter_server.auth import passwd; print(passwd(os.environ["JUPYTER_PASSWORD"]))')
config=$(mktemp -d)/jupyter_server_config.json
HASH=$hash python -c 'import json, os
print(json.dumps({"IdentityProvider": {"token": ""}, "PasswordIdentityProvider": {"hashed_password": os.environ["HASH"], "password_required": True}}))' >"$config"
chmod 600 "$config"
unset JUPYTER_PASSWORD password
cd "$WORKSPACE"
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}" THP_MEM_ALLOC_ENABLE="${THP_MEM_ALLOC_ENABLE:-1}" # docs/environment.md
exec jupyter lab --config="$config" --ip=0.0.0.0 --port="$port" --no-browser --allow-root \
    --ServerApp.root_dir="$WORKSPACE" --ServerApp.allow_remote_access=True
