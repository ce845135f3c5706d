#!/usr/bin/env bash
# Starts the one-node cluster in network, mount and PID namespaces of its own, and waits till its node is Ready.
set -euo pipefail
. "$(dirname "$0")/lab.env"
"$HERE/down.sh"
mkdir -p "$S"/{log,root} "${CGROUPS[@]/%//lab}"
[ -n "${LAB_DISK-}" ] || mount -t tmpfs tmpfs "$S/root" # images and pods live in memory: quick; LAB_DISK=1 keeps them on disk, for big images
"$HERE/pki.sh"
setsid unshare --net --mount --pid --fork --kill-child --mount-proc "$HERE/init.sh" </dev/null >"$S/log/init" 2>&1 &
echo $! >"$S/pid"
for _ in {1..240}; do
  [ "$("$HERE/lab" kubectl get node node -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}' 2>/dev/null)" != True ] || exit 0
  sleep 0.5
done
echo "no Ready node; see $S/log" >&2; exit 1
