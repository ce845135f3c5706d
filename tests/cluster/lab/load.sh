#!/usr/bin/env bash
# load.sh NAME:TAG ...: imports built images into the running cluster.
set -euo pipefail
. "$(dirname "$0")/lab.env"
for name; do
  rm -f "$S/image.tar"
  images push -q "localhost/$name" "docker-archive:$S/image.tar:localhost/$name"
  "$HERE/lab" ctr -n k8s.io images import "$S/image.tar" >/dev/null
done
rm -f "$S/image.tar"
