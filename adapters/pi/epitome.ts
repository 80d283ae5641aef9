// An extension for pi: Epitome's message takes the place of the summary that pi asks its model for.
import { spawn } from "node:child_process";

const PROGRAM = process.env.EPITOME_COMPACT ?? "epitome-compact";

/** Runs the program. Exit status 3 means that the conversation should stay as it is. */
function compacted(args: string[], input: string, signal?: AbortSignal): Promise<string> {
  return new Promise((resolve, reject) => {
    const child = spawn(PROGRAM, args, { signal, stdio: ["pipe", "pipe", "pipe"] });
    let [out, error] = ["", ""];
    child.stdout.setEncoding("utf8").on("data", (text) => (out += text));
    child.stderr.setEncoding("utf8").on("data", (text) => (error += text));
    // The program may end before it has read everything; its exit status says why.
    child.stdin.on("error", () => {});
    child.on("error", reject);
    child.on("close", (code) => (code === 0 ? resolve(out) : reject(new Error(error.trim() || `exit status ${code}`))));
    child.stdin.end(input);
  });
}

export default function epitome(pi: any) {
  pi.on("session_before_compact", async (event: any, ctx: any) => {
    const { preparation, branchEntries, customInstructions, signal } = event;
    const cwd = ctx.cwd ?? process.cwd();
    const header = {
      type: "session",
      version: 3,
      id: ctx.sessionManager?.getSessionId?.() ?? "session",
      timestamp: new Date().toISOString(),
      cwd,
    };
    const session = [header, ...branchEntries].map((entry) => JSON.stringify(entry)).join("\n");
    const args = ["--from", "pi", "--to", "pi", "--cwd", cwd, "--before", preparation.firstKeptEntryId];
    if (customInstructions) args.push("--focus", customInstructions);
    try {
      const { summary, details } = JSON.parse(await compacted(args, session, signal));
      const { firstKeptEntryId, tokensBefore } = preparation;
      return { compaction: { summary, firstKeptEntryId, tokensBefore, details } };
    } catch (error: any) {
      // Without a result, pi asks its model for a summary.
      ctx.ui?.notify?.(`Epitome made no summary: ${error.message}`, "info");
      return undefined;
    }
  });
}
