#!/usr/bin/env bash
# sbom.sh NAME:TAG FILE: writes what a built image holds as CycloneDX JSON, by Syft; read in place, as a copy can be gigabytes.
set -euo pipefail
. "$(dirname "$0")/lab.env"
mount_image "$1"
SYFT_CHECK_FOR_APP_UPDATE=false "$HERE/../../../.venv/bin/syft" scan --quiet --source-name "${1%:*}" --source-version "${1##*:}" \
  --override-default-catalogers image --output "cyclonedx-json=$2" "dir:$root"
