// Sessions of Epitome over the Agent Client Protocol, with the official SDK, and the control API of its daemon.
import { type ChildProcess, spawn } from "node:child_process";
import { Readable, Writable } from "node:stream";
import {
  type ClientConnection,
  type ClientContext,
  type ContentBlock,
  type NewSessionRequest,
  PROTOCOL_VERSION,
  type PromptResponse,
  type RequestPermissionRequest,
  type RequestPermissionResponse,
  type SessionInfo,
  type SessionUpdate,
  client,
  ndJsonStream,
} from "@agentclientprotocol/sdk";
import { Control } from "./control.js";

export { Control } from "./control.js";
export type { ControlSession } from "./control.js";
export type { ContentBlock, RequestPermissionRequest, SessionInfo, SessionUpdate } from "@agentclientprotocol/sdk";

/** The modes of a session: how much runs without a permission request. */
export type Mode = "ask" | "accept_edits" | "auto" | "read_only" | "full";

/** The answer to a permission request. */
export type PermissionAnswer = "allow_once" | "allow_always" | "reject_once" | "reject_always";

export interface StartOptions {
  /** The program; by default `epitome` in the PATH. */
  command?: string;
  /** Options of `epitome acp`, such as `["--standalone"]`. */
  args?: string[];
  /** The program's environment; by default that of this process. */
  env?: NodeJS.ProcessEnv;
  /** Answers permission requests. Without it, or if it throws, the answer is no. */
  onPermission?: (request: RequestPermissionRequest) => PermissionAnswer | Promise<PermissionAnswer>;
  /** Takes what the program writes to stderr; by default it is discarded. */
  onStderr?: (text: string) => void;
}

export interface SessionOptions {
  mode?: Mode;
  /** PROVIDER/NAME */
  model?: string;
  additionalDirectories?: string[];
}

export interface PromptResult {
  /** The text of the replies in this turn. */
  text: string;
  stopReason: PromptResponse["stopReason"];
  /** The tokens of the turn. */
  usage: Record<string, number> | undefined;
  /** The result of a slash command under its name, such as `compaction` or `undo`. */
  outcome: Record<string, unknown>;
}

/** A client of Epitome. `epitome acp` starts the daemon if none is running, and joins it otherwise. */
export class Epitome {
  /** For everything else that the protocol has. */
  readonly agent: ClientContext;
  readonly #process: ChildProcess;
  readonly #connection: ClientConnection;
  readonly #options: StartOptions;
  readonly #turns: Map<string, Turn>;

  private constructor(process: ChildProcess, connection: ClientConnection, turns: Map<string, Turn>, options: StartOptions) {
    this.agent = connection.agent;
    this.#process = process;
    this.#connection = connection;
    this.#turns = turns;
    this.#options = options;
  }

  static async start(options: StartOptions = {}): Promise<Epitome> {
    const command = options.command ?? "epitome";
    const process = spawn(command, ["acp", ...(options.args ?? [])], { stdio: "pipe", env: options.env });
    const failed = new Promise<never>((_, reject) => {
      process.once("error", (error) => reject(new Error(`${command} can't be started: ${error.message}`)));
    });
    process.stderr.setEncoding("utf8").on("data", (text: string) => options.onStderr?.(text));
    const turns = new Map<string, Turn>();
    const input = Readable.toWeb(process.stdout) as unknown as ReadableStream<Uint8Array>;
    const connection = client({ name: "epitome-sdk" })
      .onRequest("session/request_permission", ({ params }) => decide(params, options.onPermission))
      .onNotification("session/update", ({ params }) => turns.get(params.sessionId)?.push(params.update))
      .connect(ndJsonStream(Writable.toWeb(process.stdin), input));
    const epitome = new Epitome(process, connection, turns, options);
    const initialized = epitome.agent.request("initialize", {
      protocolVersion: PROTOCOL_VERSION,
      clientCapabilities: {},
      clientInfo: { name: "epitome-sdk", version: "0.1.0" },
    });
    try {
      await Promise.race([initialized, failed]);
    } catch (error) {
      // Both may fail, and the second one must not be reported as unhandled.
      void initialized.catch(() => {});
      void failed.catch(() => {});
      await epitome.close();
      throw error;
    }
    void failed.catch(() => {});
    return epitome;
  }

  /** Opens a new session. `cwd` must be absolute. */
  async newSession(cwd: string, options: SessionOptions = {}): Promise<Session> {
    const { sessionId } = await this.agent.request("session/new", opening(cwd, options));
    return this.#session(sessionId, options);
  }

  /** Continues a session, without a replay of its messages. */
  async openSession(sessionId: string, cwd: string, options: SessionOptions = {}): Promise<Session> {
    await this.agent.request("session/resume", { ...opening(cwd, options), sessionId });
    return this.#session(sessionId, options);
  }

  /** Lists sessions with messages, newest first; with `cwd`, only those of this directory. */
  async listSessions(cwd?: string): Promise<SessionInfo[]> {
    const sessions: SessionInfo[] = [];
    let cursor: string | null | undefined;
    do {
      const page = await this.agent.request("session/list", { cwd: cwd ?? null, cursor: cursor ?? null });
      sessions.push(...page.sessions);
      cursor = page.nextCursor;
    } while (cursor);
    return sessions;
  }

  /** Connects to the control API of the daemon. */
  control(): Promise<Control> {
    return Control.connect(this.#options);
  }

  /** Ends the connection and the program; the daemon goes on. */
  async close(): Promise<void> {
    const { exitCode, signalCode, pid } = this.#process;
    const ended = exitCode === null && signalCode === null && pid !== undefined;
    const exit = ended ? new Promise<void>((resolve) => this.#process.once("exit", () => resolve())) : undefined;
    this.#process.stdin?.end();
    await exit;
    this.#connection.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  async #session(id: string, { mode, model }: SessionOptions): Promise<Session> {
    const session = new Session(id, this.agent, this.#turns);
    if (model !== undefined) await session.setModel(model);
    if (mode !== undefined) await session.setMode(mode);
    return session;
  }
}

/** One conversation. */
export class Session {
  readonly id: string;
  readonly #agent: ClientContext;
  readonly #turns: Map<string, Turn>;

  constructor(id: string, agent: ClientContext, turns: Map<string, Turn>) {
    this.id = id;
    this.#agent = agent;
    this.#turns = turns;
  }

  /** Sends a prompt. Iterate over the turn for its updates, and await its `result`. One turn at a time. */
  prompt(prompt: string | ContentBlock[]): Turn {
    if (this.#turns.has(this.id)) throw new Error(`a turn is already running in session ${this.id}`);
    const blocks: ContentBlock[] = typeof prompt === "string" ? [{ type: "text", text: prompt }] : prompt;
    const turn = new Turn();
    this.#turns.set(this.id, turn);
    this.#agent
      .request("session/prompt", { sessionId: this.id, prompt: blocks })
      .finally(() => this.#turns.delete(this.id))
      .then((response) => turn.end(response), (error: unknown) => turn.fail(error));
    return turn;
  }

  /** Summarizes the older part of the conversation; `focus` is what the summary must keep. */
  async compact(focus = ""): Promise<unknown> {
    return (await this.prompt(`/compact ${focus}`.trim()).result).outcome["compaction"];
  }

  /** Undoes the last compaction or other change of the history, or the one in `entry` (such as "e12"). */
  async undo(entry = ""): Promise<unknown> {
    return (await this.prompt(`/undo ${entry}`.trim()).result).outcome["undo"];
  }

  /** Redoes what was undone last, or the change in `entry`. */
  async redo(entry = ""): Promise<unknown> {
    return (await this.prompt(`/redo ${entry}`.trim()).result).outcome["redo"];
  }

  async setMode(modeId: Mode): Promise<void> {
    await this.#agent.request("session/set_mode", { sessionId: this.id, modeId });
  }

  async setModel(value: string): Promise<void> {
    await this.#agent.request("session/set_config_option", { sessionId: this.id, configId: "model", value });
  }

  /** Cancels the running turn. Its result has the stop reason `cancelled`. */
  async cancel(): Promise<void> {
    await this.#agent.notify("session/cancel", { sessionId: this.id });
  }

  /** Detaches from the session. Its log stays. */
  async close(): Promise<void> {
    await this.#agent.request("session/close", { sessionId: this.id });
  }
}

/** A prompt that is being answered: an iterable of updates, with a result. */
export class Turn implements AsyncIterable<SessionUpdate> {
  readonly result: Promise<PromptResult>;
  #resolve!: (result: PromptResult) => void;
  #reject!: (error: unknown) => void;
  #text = "";
  #updates: SessionUpdate[] = [];
  #isOver = false;
  #wake: () => void = () => {};

  constructor() {
    this.result = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
    // A caller that only iterates gets the error there.
    this.result.catch(() => {});
  }

  async *[Symbol.asyncIterator](): AsyncIterator<SessionUpdate> {
    for (;;) {
      const update = this.#updates.shift();
      if (update !== undefined) {
        yield update;
      } else if (this.#isOver) {
        await this.result;
        return;
      } else {
        await new Promise<void>((resolve) => (this.#wake = resolve));
      }
    }
  }

  /** @internal */
  push(update: SessionUpdate): void {
    if (update.sessionUpdate === "agent_message_chunk" && update.content.type === "text") {
      this.#text += update.content.text;
    }
    this.#updates.push(update);
    this.#wake();
  }

  /** @internal */
  end({ stopReason, _meta }: PromptResponse): void {
    const outcome = (_meta?.["epitome"] ?? {}) as Record<string, unknown>;
    const usage = _meta?.["usage"] as Record<string, number> | undefined;
    this.#isOver = true;
    this.#resolve({ text: this.#text, stopReason, usage, outcome });
    this.#wake();
  }

  /** @internal */
  fail(error: unknown): void {
    this.#isOver = true;
    this.#reject(error);
    this.#wake();
  }
}

function opening(cwd: string, { additionalDirectories }: SessionOptions): NewSessionRequest {
  return { cwd, mcpServers: [], ...(additionalDirectories ? { additionalDirectories } : {}) };
}

async function decide(
  request: RequestPermissionRequest,
  ask: StartOptions["onPermission"],
): Promise<RequestPermissionResponse> {
  let answer: PermissionAnswer = "reject_once";
  try {
    answer = (await ask?.(request)) ?? answer;
  } catch {
    // A program that could not decide has not agreed.
  }
  const of = (wanted: string) => request.options.find(({ kind }) => kind === wanted);
  // Some calls are only allowed or rejected once.
  const option = of(answer) ?? of(answer.replace("always", "once"));
  const outcome = option ? { outcome: "selected" as const, optionId: option.optionId } : { outcome: "cancelled" as const };
  return { outcome };
}
