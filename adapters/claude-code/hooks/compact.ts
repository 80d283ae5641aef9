// A module for Claude Code: Epitome's message becomes the conversation after a compaction.
import type { Register } from 'claude-code'

// A module sees no environment; a shell does.
const PROGRAM = ['sh', '-c', 'exec "${EPITOME_COMPACT:-epitome-compact}" "$@"', 'sh']
const TIMEOUT_MS = 60_000

export const register: Register = (on) => {
  on('session.compact', async ($, event, next) => {
    // The conversations of subagents are short, and their transcripts are files of their own.
    if (event.agentId !== undefined) return next(event)
    const { transcriptPath } = await $.session.info()
    if (!transcriptPath) return next(event)
    const args = [...PROGRAM, '--from', 'claude-code', '--to', 'claude-code']
    // What the user asks for is made even if little is gained.
    if (event.trigger === 'manual') args.push('--max-tokens', '20000')
    if (event.instructions) args.push('--focus', event.instructions)
    try {
      const run = await $.process.run([...args, transcriptPath], { timeoutMs: TIMEOUT_MS })
      if (run.exitCode === 0) return JSON.parse(run.stdout)
      $.ui.log(`Epitome made no summary: ${run.stderr.trim()}`)
    } catch (error) {
      $.ui.log(`Epitome made no summary: ${error}`)
    }
    return next(event)
  })
}
