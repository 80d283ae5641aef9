// An extension for pi: Epitome's message takes the place of the summary that pi asks its model for.
import { spawn } from "node:child_process";

const PROGRAM = process.env.EPITOME_COMPACT ?? "epitome-compact";
/** Nobody waits longer for the program: it is ended. */
const TIME_MAX_MS = 60_000;

/** Runs the program. Exit status 3 means that the conversation should stay as it is. */
function compacted(args: string[], input: string, signal?: AbortSignal): Promise<string> {
  return new Promise((resolve, reject) => {
    const child = spawn(PROGRAM, args, { signal, timeout: TIME_MAX_MS, stdio: ["pipe", "pipe", "pipe"] });
    let [out, error] = ["", ""];
    child.stdout.setEncoding("utf8").on("data", (text) => (out += text));
    child.stderr.setEncoding("utf8").on("data", (text) => (error += text));
    // The program may end before it has read everything; its exit status says why.
    child.stdin.on("error", () => {});
    child.on("error", reject);
    child.on("close", (code) => {
      const why = code === null ? "it took too long" : `exit status ${code}`;
      if (code === 0) resolve(out);
      else reject(new Error(error.trim() || why));
    });
    child.stdin.end(input);
  });
}

/** Takes the place of the messages before a compaction that was undone: they follow. */
const UNDONE = "A compaction of this conversation was undone. The whole conversation follows.";

export default function epitome(pi: any) {
  let isUndo = false;

  pi.registerCommand("undo-compaction", {
    description: "Show the model the conversation as it was before the last compaction",
    handler: async (_args: string, ctx: any) => {
      const branch = ctx.sessionManager.getBranch();
      const at = branch.findLastIndex((entry: any) => entry.type === "compaction" && entry.summary !== UNDONE);
      if (at < 0) return ctx.ui?.notify?.("There is no compaction to undo.", "info");
      if (branch.slice(at + 1).every((entry: any) => entry.type !== "message")) {
        return void (await ctx.navigateTree(branch[at - 1].id));
      }
      // pi's session is only appended to, so what was said since stays behind a compaction that leaves nothing out.
      isUndo = true;
      await new Promise<void>((resolve) => {
        const onError = (error: Error) => {
          ctx.ui?.notify?.(`Not undone: ${error.message}. /tree goes back to before the compaction.`, "warning");
          resolve();
        };
        ctx.compact({ onComplete: () => resolve(), onError });
      });
      isUndo = false;
    },
  });

  pi.on("session_before_compact", async (event: any, ctx: any) => {
    const { preparation, branchEntries, customInstructions, reason, signal } = event;
    if (isUndo) {
      const { tokensBefore } = preparation;
      return { compaction: { summary: UNDONE, firstKeptEntryId: branchEntries[0].id, tokensBefore } };
    }
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
    // What the user asks for is made even if little is gained.
    if (reason === "manual") args.push("--max-tokens", "20000");
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
