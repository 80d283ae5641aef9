#!/usr/bin/env bash
# Makes a release archive, its checksum and the installer that goes with it:
#
#   packaging/archive.sh TARGET BINARY DIRECTORY [RUNNABLE]
#
# BINARY is the program `epitome`; the others (epitome-import, epitome-compact, epitome-ahp, acp-check) are beside it. It writes epitome-VERSION-TARGET.tar.gz, the same name with .sha256, and install.sh into DIRECTORY. RUNNABLE is the program that
# prints completions and the manual page, where BINARY is for another machine.
set -euo pipefail
[ $# -ge 3 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2; }
target=$1 binary=$(realpath "$2") out=$3 runnable=$(realpath "${4:-$2}")
cd "$(dirname "$0")/.."
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
glibc_max=${GLIBC_MAX:-2.28}

programs=(epitome epitome-import epitome-compact epitome-ahp acp-check)
path_of() { if [ "$1" = epitome ]; then echo "$binary"; else echo "$(dirname "$binary")/$1"; fi; }

# A binary that needs a newer system than we say must not be released.
check() {
  local binary=$1 glibc needed unknown
  glibc=$(LC_ALL=C readelf -V "$binary" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -uV | tail -n 1)
  if [ "$(printf '%s\n' "$glibc" "$glibc_max" | sort -V | tail -n 1)" != "$glibc_max" ]; then
    echo "$binary needs glibc $glibc, and releases may need at most $glibc_max: build it with cargo-zigbuild, see packaging/README.md" >&2
    exit 1
  fi
  needed=$(LC_ALL=C readelf -d "$binary" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
  unknown=$(grep -vE '^(libc|libm|libdl|libpthread|librt|libgcc_s|ld-linux.*)\.so\.[0-9]+$' <<<"$needed" || true)
  [ -z "$unknown" ] || { echo "$binary needs libraries that not every system has: $unknown" >&2; exit 1; }
}
case $target in *-linux-gnu) for program in "${programs[@]}"; do check "$(path_of "$program")"; done ;; esac

mkdir -p "$out"
out=$(realpath "$out")
contents=$(mktemp -d)
trap 'rm -rf "$contents"' EXIT
# Who unpacks it gets this directory's mode.
chmod 755 "$contents"
for program in "${programs[@]}"; do install -m 755 "$(path_of "$program")" "$contents/$program"; done
install -m 644 README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE THIRD-PARTY.md "$contents"
mkdir "$contents/completions" "$contents/man"
"$runnable" completions man >"$contents/man/epitome.1"
for shell in bash zsh fish; do "$runnable" completions $shell >"$contents/completions/epitome.$shell"; done

# The same bytes for the same commit.
archive=epitome-$version-$target.tar.gz
when=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
tar --create --sort=name --mtime="@$when" --owner=0 --group=0 --numeric-owner -C "$contents" . | gzip -9n >"$out/$archive"
(cd "$out" && sha256sum "$archive" >"$archive.sha256")
sed "s/^version=.*/version=$version/" packaging/install.sh >"$out/install.sh"
chmod 755 "$out/install.sh"
echo "$out/$archive"
