#!/usr/bin/env bash
# Prints the Homebrew formula for release archives:
#
#   packaging/homebrew/build.sh DIRECTORY > Formula/epitome.rb
#
# DIRECTORY has the archives of both Linux targets and their .sha256 files, as packaging/archive.sh makes them.
set -euo pipefail
[ $# -eq 1 ] || { sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 2; }
directory=$(realpath "$1")
cd "$(dirname "$0")/../.."
value() { sed -n "s/^$1 = \"\(.*\)\"\$/\1/p" Cargo.toml | head -n 1; }
version=$(value version) repository=$(value repository)
checksum() { cut -d' ' -f1 "$directory/epitome-$version-$1.tar.gz.sha256"; }
address() { echo "$repository/releases/download/v$version/epitome-$version-$1.tar.gz"; }
cat <<FORMULA
class Epitome < Formula
  desc "Coding agent for editors with compaction that you can preview and undo"
  homepage "$repository"
  version "$version"
  license any_of: ["MIT", "Apache-2.0"]
  depends_on :linux

  on_intel do
    url "$(address x86_64-unknown-linux-gnu)"
    sha256 "$(checksum x86_64-unknown-linux-gnu)"
  end
  on_arm do
    url "$(address aarch64-unknown-linux-gnu)"
    sha256 "$(checksum aarch64-unknown-linux-gnu)"
  end

  def install
    bin.install "epitome", "epitome-import", "epitome-compact", "epitome-ahp", "acp-check"
    man1.install "man/epitome.1"
    bash_completion.install "completions/epitome.bash" => "epitome"
    zsh_completion.install "completions/epitome.zsh" => "_epitome"
    fish_completion.install "completions/epitome.fish"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/epitome --version")
  end
end
FORMULA
