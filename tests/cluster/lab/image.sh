#!/usr/bin/env bash
# image.sh NAME:TAG FOLDER [buildah options]: builds a Dockerfile as localhost/NAME:TAG; load.sh gives it to a cluster.
set -euo pipefail
. "$(dirname "$0")/lab.env"
name=localhost/$1 dir=$2; shift 2
# lets RUN steps reach the package registry as this machine does, with no word of it in the Dockerfile
for f in /etc/pip.conf /etc/ssl/certs/ca-certificates.crt /etc/apt/apt.conf.d/99*; do
  [ ! -e "$f" ] || set -- --volume "$f:$f:ro" "$@"
done
sources=/etc/apt/sources.list.d/debian.sources # this machine's mirrors, of the image's release
if [ -e "$sources" ]; then
  sed "s/$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)/$DEBIAN/" "$sources" >"$HOME_DIR/debian.sources"
  set -- --volume "$HOME_DIR/debian.sources:$sources:ro" "$@"
fi
images bud --layers --isolation chroot -t "$name" "$@" "$dir"
