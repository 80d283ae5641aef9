#!/usr/bin/env bash
# Packages the crates as `cargo publish` uploads them, and unpacks them, without the network:
#
#   packaging/crates.sh DIRECTORY [OPTION...]
#
# With options of `cargo install`, such as `--root DIR` and `--debug`, it then installs the program from the unpacked crates
# alone. What a package leaves out, or only finds in this repository, fails here.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 2; }
mkdir -p "$1"
out=$(realpath "$1")
shift
cd "$(dirname "$0")/.."
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
excluded=$(grep -l '^publish = false' tests/*/Cargo.toml | xargs sed -n 's/^name = "\(epitome-.*\)"$/--exclude \1/p')
# shellcheck disable=SC2086
CARGO_TARGET_DIR=$out/target cargo package --workspace $excluded --locked --offline --no-verify --allow-dirty
patches=()
for crate in "$out"/target/package/*-"$version".crate; do
  name=$(basename "$crate" "-$version.crate")
  rm -rf "${out:?}/$name-$version"
  tar -xzf "$crate" -C "$out"
  [ "$name" = epitome ] || patches+=(--config "patch.crates-io.$name.path='$out/$name-$version'")
done
# crates.io refuses larger ones.
large=$(find "$out/target/package" -maxdepth 1 -name '*.crate' -size +10M)
[ -z "$large" ] || { echo "larger than 10 MB: $large" >&2; exit 1; }
echo "$out: $((${#patches[@]} / 2 + 1)) crates of version $version"
[ $# -gt 0 ] || exit 0
# Our crates are not in the registry yet, so the lock file must not say that they come from there.
awk '/^name = /{own = /"epitome-/} !(own && /^(source|checksum) = /)' "$out/epitome-$version/Cargo.lock" >"$out/Cargo.lock"
mv "$out/Cargo.lock" "$out/epitome-$version/Cargo.lock"
cargo install --path "$out/epitome-$version" --locked --offline --no-track "${patches[@]}" "$@"
