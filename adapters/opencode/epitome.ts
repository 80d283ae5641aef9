// A plugin for opencode 1. No hook of it takes a summary, so three together replace one: the request for the summary is cut to a
// request for one word, and the word is replaced by Epitome's message.
import { spawn } from "node:child_process"

const PROGRAM = process.env.EPITOME_COMPACT ?? "epitome-compact"
/** Nobody waits longer for the program: it is ended. */
const TIME_MAX_MS = 60_000
const WORD = "Reply with the single word OK."

function compacted(args: string[], input: string): Promise<string> {
  return new Promise((resolve, reject) => {
    const child = spawn(PROGRAM, args, { timeout: TIME_MAX_MS, stdio: ["pipe", "pipe", "pipe"] })
    let [out, error] = ["", ""]
    child.stdout.setEncoding("utf8").on("data", (text) => (out += text))
    child.stderr.setEncoding("utf8").on("data", (text) => (error += text))
    child.stdin.on("error", () => {})
    child.on("error", reject)
    child.on("close", (code) => {
      const why = code === null ? "it took too long" : `exit status ${code}`
      if (code === 0) resolve(out)
      else reject(new Error(error.trim() || why))
    })
    child.stdin.end(input)
  })
}

export const Epitome = async ({ client, directory }: any) => {
  /** The message for each session that is being compacted. */
  const pending = new Map<string, string>()
  return {
    "experimental.session.compacting": async (input: any, output: any) => {
      try {
        const id = { path: { id: input.sessionID } }
        const info = (await client.session.get(id)).data
        const messages = (await client.session.messages(id)).data
        const args = ["--from", "opencode", "--cwd", directory]
        pending.set(input.sessionID, (await compacted(args, JSON.stringify({ info, messages }))).trimEnd())
        output.prompt = WORD
      } catch (error: any) {
        await client.app?.log?.({
          body: { service: "epitome", level: "info", message: `Epitome made no summary: ${error.message}` },
        })
      }
    },
    "experimental.chat.messages.transform": async (_: any, output: any) => {
      const last = output.messages.at(-1)
      const asksForWord = last?.parts?.some((part: any) => part.type === "text" && part.text?.includes(WORD))
      if (asksForWord && pending.size > 0) output.messages.splice(0, output.messages.length - 1)
    },
    "experimental.text.complete": async (input: any, output: any) => {
      const message = pending.get(input.sessionID)
      if (message === undefined) return
      pending.delete(input.sessionID)
      output.text = message
    },
  }
}
