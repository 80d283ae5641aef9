#!/usr/bin/env bash
# Names the owner of the repository on GitHub:
#
#   packaging/owner.sh OWNER
#
# Until somebody does, addresses have the placeholder OWNER. Manifests, scripts and pages that are read without this repository
# need the whole address, so this script is the one place that knows how to change it: in every file, and nowhere else.
set -euo pipefail
[[ ${1-} =~ ^[A-Za-z0-9-]+$ ]] || { sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 2; }
cd "$(dirname "$0")/.."
grep -rlZ --exclude-dir=target --exclude-dir=.git --exclude=owner.sh 'OWNER/epitome' . | xargs -0 sed -i "s|OWNER/epitome|$1/epitome|g"
