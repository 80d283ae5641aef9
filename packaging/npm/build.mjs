#!/usr/bin/env node
// Makes the npm packages from release archives:
//
//   node packaging/npm/build.mjs DIRECTORY ARCHIVE...
//
// writes the package `epitome` and, for each epitome-VERSION-TARGET.tar.gz, the package with its program. `npm publish` takes
// them as they are, those with programs first. There are no install scripts.
import { execFileSync } from "node:child_process";
import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const PLATFORMS = {
  "x86_64-unknown-linux-gnu": { os: "linux", cpu: "x64", libc: "glibc" },
  "aarch64-unknown-linux-gnu": { os: "linux", cpu: "arm64", libc: "glibc" },
};

const LICENSES = ["LICENSE-MIT", "LICENSE-APACHE", "THIRD-PARTY.md"];

const [directory, ...archives] = process.argv.slice(2);
if (!directory || archives.length === 0) {
  console.error("usage: node packaging/npm/build.mjs DIRECTORY ARCHIVE...");
  process.exit(2);
}
const here = dirname(fileURLToPath(import.meta.url));
const root = join(here, "../..");
const manifest = readFileSync(join(root, "Cargo.toml"), "utf8");
const value = (key) => manifest.match(new RegExp(`^${key} = "(.*)"$`, "m"))[1];
const version = value("version");
const common = {
  version,
  license: value("license"),
  repository: { type: "git", url: `git+${value("repository")}.git` },
  homepage: `${value("repository")}#readme`,
};

function write(name, fields, files) {
  const path = join(directory, name);
  mkdirSync(path, { recursive: true });
  writeFileSync(join(path, "package.json"), `${JSON.stringify({ name, ...common, ...fields }, null, 2)}\n`);
  for (const file of [...LICENSES, ...files]) {
    copyFileSync(join(root, file), join(path, basename(file)));
  }
  return path;
}

const dependencies = {};
for (const archive of archives) {
  const target = Object.keys(PLATFORMS).find((target) => basename(archive) === `epitome-${version}-${target}.tar.gz`);
  if (!target) {
    console.error(`${archive} is no archive of version ${version} for a platform of npm (${Object.keys(PLATFORMS).join(", ")})`);
    process.exit(1);
  }
  const { os, cpu, libc } = PLATFORMS[target];
  const name = `epitome-${os}-${cpu}`;
  const description = `The program of the package epitome for ${os} (${cpu})`;
  const path = write(name, { description, os: [os], cpu: [cpu], libc: [libc], files: ["bin", ...LICENSES] }, []);
  mkdirSync(join(path, "bin"), { recursive: true });
  const programs = ["epitome", "epitome-import", "epitome-compact", "epitome-ahp", "acp-check"].map((program) => `./${program}`);
  execFileSync("tar", ["-xzf", archive, "-C", join(path, "bin"), ...programs]);
  dependencies[name] = version;
}
write(
  "epitome",
  {
    description: value("description"),
    keywords: JSON.parse(manifest.match(/^keywords = (\[.*\])$/m)[1]),
    bin: { epitome: "epitome.mjs" },
    files: ["epitome.mjs", ...LICENSES],
    engines: { node: ">=18" },
    optionalDependencies: dependencies,
  },
  ["README.md", "packaging/npm/epitome.mjs"],
);
console.log(`${directory}: epitome, ${Object.keys(dependencies).join(", ")} ${version}`);
