#!/usr/bin/env bash
# try.sh NAME:TAG COMMAND ...: runs a command in a built image as a pod would: its user and environment, a read-only root, no network.
set -euo pipefail
. "$(dirname "$0")/lab.env"
mount_image "$1"
mapfile -t environment < <(images inspect --type image --format '{{range .OCIv1.Config.Env}}{{println .}}{{end}}' "localhost/$1" | sed '/^$/d')
user=$(images inspect --type image --format '{{.OCIv1.Config.User}}' "localhost/$1")
shift
unshare --mount --net --pid --fork --kill-child bash -euc '
  root=$1 user=$2; shift 2
  mount --bind "$root" "$root"; mount --options remount,bind,ro "$root"
  mount --types proc proc "$root/proc"; mount --rbind /dev "$root/dev"; mount --types tmpfs tmpfs "$root/tmp"
  exec chroot --userspec="$user" "$root" "$@"' try "$root" "$user" env --ignore-environment "${environment[@]}" "$@"
