// The control API of the daemon: JSON-RPC over a local socket, one message per line. docs/builders/control.md has all methods.
import { execFile } from "node:child_process";
import { once } from "node:events";
import { readFile } from "node:fs/promises";
import { type Socket, connect } from "node:net";
import { dirname, join } from "node:path";
import { Readable, Writable } from "node:stream";
import { promisify } from "node:util";
import { type ClientConnection, client, ndJsonStream } from "@agentclientprotocol/sdk";

/** A session as `sessions.list` describes it. */
export interface ControlSession {
  session: string;
  cwd: string;
  title: string | null;
  model: string | null;
  created_at: number;
  updated_at: number;
  entries: number;
  turns: number;
  live: boolean;
  running: boolean;
}

/** A connection to the daemon's control API. */
export class Control {
  readonly #connection: ClientConnection;
  readonly #socket: Socket;

  private constructor(connection: ClientConnection, socket: Socket) {
    this.#connection = connection;
    this.#socket = socket;
  }

  /** Connects to the running daemon; fails if there is none. */
  static async connect({ command = "epitome", env }: { command?: string; env?: NodeJS.ProcessEnv } = {}): Promise<Control> {
    const { stdout } = await promisify(execFile)(command, ["daemon", "status", "--json"], env ? { env } : {});
    const path: unknown = JSON.parse(stdout)?.sockets?.control;
    if (typeof path !== "string") throw new Error("no daemon is running: start one with Epitome.start()");
    const token = await readFile(join(dirname(path), "token"), "utf8");
    const socket = connect(path);
    await once(socket, "connect");
    const input = Readable.toWeb(socket) as unknown as ReadableStream<Uint8Array>;
    const connection = client().connect(ndJsonStream(Writable.toWeb(socket), input));
    const control = new Control(connection, socket);
    await control.call("authenticate", { token });
    return control;
  }

  /** Calls a method. */
  call<Result = unknown>(method: string, params: Record<string, unknown> = {}): Promise<Result> {
    return this.#connection.agent.request<Result, Record<string, unknown>>(method, params);
  }

  /** Lists sessions of the daemon and those on the disk, newest first. */
  async listSessions(cwd?: string): Promise<ControlSession[]> {
    const { sessions } = await this.call<{ sessions: ControlSession[] }>("sessions.list", cwd ? { cwd } : {});
    return sessions;
  }

  close(): void {
    this.#connection.close();
    this.#socket.destroy();
  }

  [Symbol.dispose](): void {
    this.close();
  }
}
