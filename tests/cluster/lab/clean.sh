#!/usr/bin/env bash
# Ends the cluster and removes the built images' layers; keeps bin/.
set -euo pipefail
. "$(dirname "$0")/lab.env"
"$HERE/down.sh"
umount "$IMAGES/root/overlay" 2>/dev/null || true
rm -rf "$IMAGES"
