#!/usr/bin/env bash
# Installs Epitome on a runner of GitHub Actions. Inputs are in the environment, never in the text of a command.
set -euo pipefail

fail() { printf '::error::%s\n' "$1" >&2; exit 1; }

if [ -n "${INPUT_PROGRAM:-}" ]; then
  "$INPUT_PROGRAM" --version || fail "the input program names no program that runs: $INPUT_PROGRAM"
  printf 'program=%s\n' "$(realpath "$INPUT_PROGRAM")" >>"$GITHUB_OUTPUT"
  exit 0
fi

[[ $INPUT_VERSION =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || fail "the input version must be a version such as 0.1.0, and not a range: $INPUT_VERSION"
[ "$(uname -s)" = Linux ] || fail "Epitome runs on Linux only so far: use a runner such as ubuntu-24.04"
target=$(uname -m)-unknown-linux-gnu
archive=epitome-$INPUT_VERSION-$target.tar.gz
url=${EPITOME_DOWNLOAD_URL:-https://github.com/OWNER/epitome/releases/download/v$INPUT_VERSION}

directory=$(mktemp -d "$RUNNER_TEMP/epitome.XXXXXX")
cd "$directory"
curl --fail --silent --show-error --location --retry 3 --output "$archive" "$url/$archive" || fail "$url/$archive can't be downloaded"
if [ -n "${INPUT_SHA256:-}" ]; then
  printf '%s  %s\n' "$INPUT_SHA256" "$archive" >"$archive.sha256"
else
  curl --fail --silent --show-error --location --retry 3 --output "$archive.sha256" "$url/$archive.sha256" ||
    fail "$url/$archive.sha256 can't be downloaded"
fi
sha256sum --check --status "$archive.sha256" || fail "the checksum of $archive is wrong; nothing was installed"
tar -xzf "$archive" ./epitome
./epitome --version
printf 'program=%s\n' "$directory/epitome" >>"$GITHUB_OUTPUT"
