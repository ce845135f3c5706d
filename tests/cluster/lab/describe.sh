#!/usr/bin/env bash
# describe.sh NAME:TAG: the bytes of an image unpacked, its user, and how many folders called torch it holds.
set -euo pipefail
. "$(dirname "$0")/lab.env"
mount_image "$1"
du --summarize --bytes --one-file-system "$root" | cut -f1
images inspect --type image --format '{{.OCIv1.Config.User}}' "localhost/$1"; echo
find "$root" -type d -name torch | wc -l
