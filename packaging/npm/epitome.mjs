#!/usr/bin/env node
// Starts the program of the package for this machine, with the same arguments and streams, and ends as it does.
import { spawn } from "node:child_process";
import { constants } from "node:os";
import { createRequire } from "node:module";

const name = `epitome-${process.platform}-${process.arch}`;

function program() {
  try {
    return createRequire(import.meta.url).resolve(`${name}/bin/epitome`);
  } catch {
    process.stderr.write(
      `epitome: the package ${name} is not installed. Either Epitome does not run on ${process.platform} (${process.arch}), ` +
        "or npm was told to omit optional dependencies: install again without `--omit=optional`.\n",
    );
    process.exit(1);
  }
}

const child = spawn(program(), process.argv.slice(2), { stdio: "inherit" });
// A terminal sends these to the program, too; this process waits for what it makes of them.
for (const signal of ["SIGINT", "SIGQUIT"]) process.on(signal, () => {});
for (const signal of ["SIGTERM", "SIGHUP"]) process.on(signal, () => child.kill(signal));
child.on("error", (error) => {
  process.stderr.write(`epitome: the program could not be started: ${error.message}\n`);
  process.exit(1);
});
child.on("exit", (code, signal) => process.exit(code ?? 128 + constants.signals[signal]));
