#!/bin/sh
# Installs Epitome for the current user, without sudo:
#
#   curl -fsSL https://github.com/OWNER/epitome/releases/latest/download/install.sh | sh
#
# EPITOME_INSTALL_DIR   where the program goes (default: ~/.local/bin)
# EPITOME_DOWNLOAD_URL  where the archives are (default: the release that this script belongs to)
#
# To uninstall, delete the program; README.md names the directories with your settings and sessions.
set -eu

# The installer of a release names its version here.
version=unreleased

fail() { printf 'install.sh: %s\n' "$1" >&2; exit 1; }

# All of it is read before any of it runs, also if the download of this script breaks off.
main() {
  directory=${EPITOME_INSTALL_DIR:-${HOME:?is not set, so there is no place to install to}/.local/bin}
  if [ "$version" = unreleased ]; then
    fail "this copy belongs to no release; in a clone, use \`cargo install --path . --locked\`"
  fi
  url=${EPITOME_DOWNLOAD_URL:-https://github.com/OWNER/epitome/releases/download/v$version}

  [ "$(uname -s)" = Linux ] || fail "Epitome runs on Linux only so far, and this is $(uname -s)"
  case $(uname -m) in
    x86_64 | amd64) target=x86_64-unknown-linux-gnu ;;
    aarch64 | arm64) target=aarch64-unknown-linux-gnu ;;
    *) fail "there is no build for $(uname -m); build it from source as README.md describes" ;;
  esac
  for command in tar gzip sha256sum mktemp; do
    command -v "$command" >/dev/null || fail "\`$command\` is needed and not installed"
  done

  temporary=$(mktemp -d)
  trap 'rm -rf "$temporary"' EXIT
  trap 'exit 1' HUP INT TERM
  archive=epitome-$version-$target.tar.gz
  printf 'Downloading %s\n' "$url/$archive"
  download "$url/$archive" "$temporary/$archive"
  download "$url/$archive.sha256" "$temporary/$archive.sha256"
  (cd "$temporary" && sha256sum -c "$archive.sha256" >/dev/null 2>&1) ||
    fail "the checksum of $archive is wrong: the download is damaged or was changed; nothing was installed"
  programs="epitome epitome-import epitome-compact epitome-ahp acp-check"
  for program in $programs; do
    tar -xzf "$temporary/$archive" -C "$temporary" "./$program" || fail "$archive does not contain $program"
  done
  "$temporary/epitome" --version >/dev/null ||
    fail "the program does not run on this system (it needs glibc 2.28 or newer); nothing was installed"

  mkdir -p "$directory"
  for program in $programs; do
    # In one step, so that a running program is not overwritten.
    mv "$temporary/$program" "$directory/.$program.new" && mv "$directory/.$program.new" "$directory/$program"
  done
  printf 'Installed %s as %s\n' "$("$directory/epitome" --version)" "$directory/epitome"
  case :$PATH: in
    *:"$directory":*) ;;
    *) printf '%s is not in your PATH: add it, or give your editor the full path.\n' "$directory" ;;
  esac
  printf 'Next: `epitome login`, then `epitome doctor`.\n'
}

download() {
  if command -v curl >/dev/null; then
    curl -fsSL --retry 2 -o "$2" "$1" || fail "$1 could not be downloaded"
  elif command -v wget >/dev/null; then
    wget -q -O "$2" "$1" || fail "$1 could not be downloaded"
  else
    fail "\`curl\` or \`wget\` is needed and neither is installed"
  fi
}

main
