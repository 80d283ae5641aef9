// Installs an adapter for its test as its README says, in a home of its own and with the program on the PATH.
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";

/** Its home, an empty directory to work in, and the environment of an agent. */
export function install(directory, compact) {
  const scratch = mkdtempSync(join(tmpdir(), "epitome-adapter-"));
  const [home, work, bin] = ["home", "work", "bin"].map((name) => join(scratch, name));
  [home, work, bin].forEach((path) => mkdirSync(path));
  symlinkSync(resolve(compact), join(bin, "epitome-compact"));
  const env = { ...process.env, HOME: home, PATH: `${bin}:${process.env.PATH}` };
  for (const name of Object.keys(env)) if (/^(EPITOME|XDG)_/.test(name)) delete env[name];
  const [, block] = readFileSync(join(directory, "README.md"), "utf8").match(/```sh\n([^]*?)```/);
  // The program is built already, and the test starts the agent.
  const lines = block.split("\n").filter((line) => !/^(cargo|claude) /.test(line));
  execFileSync("sh", ["-ec", lines.join("\n")], { cwd: join(import.meta.dirname, ".."), env });
  return { home, work, env, remove: () => rmSync(scratch, { recursive: true, force: true, maxRetries: 5 }) };
}
