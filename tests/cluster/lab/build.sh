#!/usr/bin/env bash
# Makes everything that up.sh starts: Debian's packages and bin/. Needs root; kubectl is expected in bin/.
set -euo pipefail
. "$(dirname "$0")/lab.env"
mkdir -p "$BIN"
for package in buildah conntrack containerd containernetworking-plugins iproute2 mmdebstrap nftables openssl procps runc; do
  dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
done
if [ -n "${missing-}" ]; then
  echo "==> install ${missing[*]}"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -qqy --no-install-recommends -o DPkg::Lock::Timeout=300 "${missing[@]}" </dev/null >/dev/null
fi
of=$(cat "$HERE"/{build.sh,go.mod,go.sum,main.go,pause/*} | sha256sum)
[ "$(cat "$BIN/made-of" 2>/dev/null)" != "$of" ] || exit 0
with_go
go mod download
of_packages=$(go list -deps . | wc -l)
V=k8s.io/component-base/version
go build -v -trimpath -o "$BIN/kube" \
  -ldflags "-s -w -X $V.gitVersion=v1.36.3 -X $V.gitMajor=1 -X $V.gitMinor=36" . 2>&1 | compiled "$of_packages"
mkdir -p "$BIN/pause"; cp pause/Dockerfile "$BIN/pause/"
(cd pause && go build -trimpath -ldflags '-s -w' -o "$BIN/pause/pause" pause.go)
images bud -q --isolation chroot -t localhost/pause:1 "$BIN/pause"
rm -f "$BIN/pause.tar"
images push -q localhost/pause:1 "docker-archive:$BIN/pause.tar:localhost/pause:1"
echo "$of" >"$BIN/made-of"
