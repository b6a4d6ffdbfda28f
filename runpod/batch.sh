#!/usr/bin/env bash
# Runs a profile on a pod, keeps the results on the volume, and ends the pod when asked.
set -euo pipefail

usage() {
    cat <<'TEXT'
Usage: batch.sh [--profile smoke|quick|full] [--name NAME] [--end remove|stop] [--upload s3://BUCKET/PREFIX] [--dry-run]
                [-- OPTION...]

Runs `kit reproduce --profile PROFILE OPTION...` into /workspace/results/NAME, packs the report beside it as NAME.zip
and, when asked, ends its own pod, whether the run went well or not. Started again with the same NAME it goes on.

  batch.sh --profile full --end remove
  batch.sh --profile quick --end stop -- --model hf://owner/repo/file.gguf --only 01

  --profile PROFILE   how much to run (default: quick)
  --name NAME         of the run's folder (default: PROFILE and the pod's id)
  --end remove        delete the pod at the end: only a network volume survives that
  --end stop          stop it: its volume survives (and costs)
  --dry-run           check all this (and OPTIONs where kit is installed), print what would be done, and stop
  --upload URL        also copy NAME.zip there, with boto3 and the AWS_... variables

Exit code: that of kit (0 all ran, 1 a notebook failed, 2 it could not start, 130 interrupted); 3 packing or upload
failed: the pod is then kept.
TEXT
}

profile=quick name="" end="" upload="" dry="" options=()
while (($#)); do
    case $1 in
        --profile | --name | --end | --upload)
            (($# > 1)) || { usage >&2 && exit 2; }
            [[ -n ${2//[[:space:]]/} ]] || { echo "batch.sh: error: $1 is empty: give a value, or leave it out" >&2 && exit 2; }
            declare "${1#--}=$2"
            shift 2
            ;;
        --dry-run) dry=yes && shift ;;
        --) shift && options=("$@") && break ;;
        -h | --help) usage && exit 0 ;;
        *) echo "batch.sh: error: unknown: $1" >&2 && usage >&2 && exit 2 ;;
    esac
done

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=runpod/environment.sh
source "$here/environment.sh"

[[ $profile == smoke || $profile == quick || $profile == full ]] || die "--profile $profile: give smoke, quick or full"
[[ $end == "" || $end == remove || $end == stop ]] || die "--end $end: give remove or stop"
if [[ -n $end ]]; then # now, not after an hour
    [[ -n ${RUNPOD_POD_ID:-} ]] || die "--end $end: RUNPOD_POD_ID is not set, so this is not a pod that can end itself"
    command -v runpodctl >/dev/null || die "--end $end: runpodctl is not on the PATH"
fi
[[ $upload == "" || $upload =~ ^s3://[^/[:space:]]+/[^[:space:]]+$ ]] || die "--upload $upload: give s3://BUCKET/PREFIX"
name=${name:-$profile-${RUNPOD_POD_ID:-here}}
[[ $name =~ ^[[:alnum:]][[:alnum:]._-]{0,99}$ ]] ||
    die "--name $name: give up to 100 letters, numbers, dots, hyphens and underscores, a letter or a number first"
for option in "${options[@]}"; do
    case ${option%%=*} in
        --out) die "$option: --name says where the results are, in $KIT_RESULTS" ;;
        --profile) die "$option: give --profile before the --" ;;
        --list | --help | -h) die "$option: it runs nothing; batch.sh --dry-run checks the options" ;;
        --serve) die "$option: the run would never end, and so would the pod" ;;
    esac
done
out=$KIT_RESULTS/$name

resume=()
[[ ! -f $out/run.json ]] || resume=(--resume)
command=(kit reproduce --profile "$profile" --out "$out" --no-progress "${resume[@]}" "${options[@]}")
if [[ -n $dry ]]; then
    kit=$KIT_HOME/.venv/bin/kit
    if [[ ! -x $kit ]]; then
        echo "not checked, because kit is not installed yet: ${options[*]:-no options}"
    elif ! told=$("$kit" "${command[@]:1}" --list 2>&1); then # its reason, and nothing is listed
        die "${told##*kit: error: }"
    fi
    echo "would run: ${command[*]}"
    echo "would write: $out, $out.zip${upload:+, and copy the zip to ${upload%/}/$name.zip}"
    echo "would then ${end:-keep} the pod${end:+ $RUNPOD_POD_ID}"
    exit 0
fi

# An hour that is paid for after a failure helps nobody: the pod ends however this script does. `remove pod` is what
# runpodctl 1 calls it, `pod delete` what runpodctl 2 does.
# shellcheck disable=SC2329 # called by the trap
end_pod() {
    [[ -n $end ]] || return 0
    runpodctl "$end" pod "$RUNPOD_POD_ID" || runpodctl pod "${end/remove/delete}" "$RUNPOD_POD_ID"
}
trap end_pod EXIT
trap 'exit 130' INT TERM

upload() {
    python - "$out.zip" "$upload" "$name.zip" <<'PYTHON'
import sys

import boto3

file, url, name = sys.argv[1:]
bucket, _, prefix = url.removeprefix("s3://").partition("/")
boto3.client("s3").upload_file(file, bucket, f"{prefix.rstrip('/')}/{name}")
PYTHON
}

prepare
code=0
"${command[@]}" 2>&1 | tee -a "$out.log" || code=$?
if [[ -f $out/run.json ]]; then
    if ! kit report pack "$out" --out "$out.zip" || { sync && [[ -n $upload ]] && ! upload; }; then
        end="" # the only copy is on this pod's volume
        echo "batch.sh: error: could not pack or upload; the results are in $out, and the pod is kept" >&2
        exit 3
    fi
fi
echo "batch.sh: kit ended with exit code $code; results: $out, $out.zip"
exit "$code"
