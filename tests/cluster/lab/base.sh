#!/usr/bin/env bash
# Makes localhost/python:3.13 from Debian's packages: the base that Dockerfiles get here by --build-arg BASE_IMAGE=.
set -euo pipefail
. "$(dirname "$0")/lab.env"
! images inspect --type image localhost/python:3.13 >/dev/null 2>&1 || exit 0
tar=$BIN/python-3.13/root.tar
if [ ! -e "$tar" ]; then
  mkdir -p "$BIN"; T=$(mktemp -d); trap 'rm -rf "$T"' EXIT
  mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | head -1) # the one this machine is set up with
  apt-config dump | grep -E '^Acquire::(https?::|Check-)' >"$BIN/apt.conf" || true
  mmdebstrap --quiet --variant=minbase --aptopt="$BIN/apt.conf" --include=python3,python3-pip,python3-venv,ca-certificates \
    "$DEBIAN" "$T" "$mirror" 2>"$BIN/mmdebstrap.log"
  rm -rf "$T"/{var/cache/apt,var/lib/apt/lists,var/log,usr/share/doc,usr/share/man,usr/share/locale}/* \
    "$T"/usr/lib/python3*/EXTERNALLY-MANAGED "$T/etc/apt/sources.list"
  ln -s python3 "$T/usr/bin/python"
  mkdir -p "$BIN/python-3.13"; tar -C "$T" -cf "$tar.part" .; mv "$tar.part" "$tar"
  printf 'FROM scratch\nADD root.tar /\nCMD ["python3"]\n' >"$BIN/python-3.13/Dockerfile"
fi
images bud -q --isolation chroot -t localhost/python:3.13 "$BIN/python-3.13"
