#!/usr/bin/env bash
# sbom.sh NAME:TAG FILE: writes what a built image holds as CycloneDX JSON, by Syft.
set -euo pipefail
. "$(dirname "$0")/lab.env"
T=$(mktemp -d "$HOME_DIR/sbom.XXXX"); trap 'rm -rf "$T"' EXIT
images push -q "localhost/$1" "docker-archive:$T/image.tar:localhost/$1"
SYFT_CHECK_FOR_APP_UPDATE=false "$HERE/../../../.venv/bin/syft" scan --quiet --source-name "${1%:*}" --source-version "${1##*:}" \
  --output "cyclonedx-json=$2" "docker-archive:$T/image.tar"
