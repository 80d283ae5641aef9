//! Epitome: a coding-agent daemon for editors, with compaction that you can trust.
//!
//! This page is for builders; `README.md` is for users, `CONTRIBUTING.md` has worked examples.
//!
//! # Five decisions
//!
//! 1. **A thread is a log; the context is a view of it.** Everything that happens in a conversation is a
//!    [`thread::Change`], appended and never rewritten. What the model sees, what the editor replays and what the
//!    command line prints are functions of the log. Compactions and their undo are ordinary entries.
//! 2. **One writer.** A session is one task that owns its [`thread::Thread`] and at most one [`turn::Turn`].
//!    `Core::commit` is the only place that numbers a change, applies and announces it. Its writer journals entries in
//!    their order; clients see an entry, and a model or a tool is called behind it, once it is in the journal.
//! 3. **Pure deciders.** The agent loop, permission rules, compaction, recipe rendering, retries and stream decoders
//!    take data and return a decision. The session carries it out.
//! 4. **One translator per direction, one output stream.** Live updates and replay use the same code
//!    (`acp::to_wire`), for every version of the protocol. The session never waits for a client. The response to a prompt
//!    is an item of the same stream and follows the last entry of its turn, or, in version 2, the prompt's own entry.
//! 5. **Traffic is a text file.** One readable format serves as test fixture, as recording of a live session and as
//!    conformance suite (`tests/transcript`).
//!
//! # Glossary
//!
//! | term | meaning |
//! | --- | --- |
//! | thread | the log of one conversation, stored as a journal |
//! | entry, change | a numbered record of the log (`e12`), and what it records |
//! | view | the messages that the model sees: a fold over the log |
//! | layer | an entry that replaces or shortens a part of the view; it can be undone |
//! | frame | system prompt and tool definitions, fixed at the first model call |
//! | session | the task that owns a thread, and its clients |
//! | turn | everything from a prompt to its stop reason |
//! | round | a model call and the tool calls of its reply |
//! | outcome | the result of a tool call |
//! | client | an attached editor, command line or parent session |
//! | front end, daemon | the process that an editor starts, and the one that serves them all |
//! | compaction | replaces the older part of the view by one message |
//! | tail | the newest part of the view, which a compaction keeps verbatim |
//! | carry-over | the tables in that message, computed from the log without a model |
//! | pin, goal, instructions | texts that every compaction keeps |
//! | prune | shorten old tool results in the view |
//! | recall | the tool that reads what is no longer in the view |
//! | recipe | a Markdown file that defines a slash command or a subagent |
//! | hook | a program that runs at an event of a session; its resolution is what it asks for |
//! | subagent | a child session that works for a tool call |
//! | endpoint | a model with its address, credentials, limits and abilities |
//! | mode, rule | how much runs without a permission request, and its exceptions |
//! | checkpoint | the files as they were before a turn |
//!
//! # The way of a prompt
//!
//! ```text
//!  stdin ─ acp::connection ─ acp::server ─► SessionCommand ─► session task
//!    loop { turn.next(&thread) {
//!        Commit(change) → 1 number  2 thread.apply  3 announce      a writer journals, then clients see it
//!        Run(effect)    → hooks · model call · permission · tool · compaction
//!        Wait           → command | model's stream | finished job
//!        End(reason)    → sync the journal, then the answer } }
//!  stdout ◄ acp::writer ◄ acp::outbox (merges while the pipe is busy) ◄ SessionEvent
//! ```
//!
//! Two processes may sit between an editor and `acp::connection`: a front end and the daemon ([`daemon`]). They exchange
//! the same lines.
//!
//! Hooks run where the turn asks for them: after a prompt, around a tool call, at the end of a round and before the turn
//! stops; see the drawing in [`hooks`]. The session commits what they ask for like any other change: a rejected prompt,
//! a modified call or a replaced history is an entry of the log that names the hook, and `/undo` reverts a layer.
//!
//! Start reading at `turn/lib.rs` (the loop), then `session/actor.rs` (what carries it out), then `thread/view.rs` (what
//! the model sees).
//!
//! # The way of a model call
//!
//! ```text
//!  view ─ wire::turns ─► Format (one of four) ─► wire::encoding ─► provider::http ─► the service
//!         alternating,    writes each turn         keeps what it      proxies, limits,     │
//!         calls answered  once                     has written        tries it again       │
//!  Reply ◄ collect ◄──── ProviderEvents ◄──────── Decode (one of four) ◄ wire::sse ◄───────┘
//! ```
//!
//! A [`provider::endpoint::Endpoint`] has the address, headers, credential, format and limits of a model. It is resolved
//! from the settings, the editor's environment and the stored logins; its credential is read, and a token renewed, when
//! a request is sent; `provider::learned` adds what the provider's model list and earlier refusals
//! reveal. A provider that uses a known format is data, not code. `tokens` counts a view, calibrated per model by the
//! usage that its replies report, so a session knows how full its window is without asking.
//!
//! # The way of a compaction
//!
//! ```text
//!  a round ended │ a call is due │ it was refused │ /compact │ a hook      /compact dry ─► compaction::preview
//!                      └─► turn: Compacting                                              │
//!   Planning     compaction::decide ◄────────────────── the same ────────────────────────┘
//!                  Nothing(why) │ Prune(masks) │ Summarise(plan)
//!   Hooks        pre_compact hooks: another instruction, or a refusal
//!   Summarising  session::summary: the provider's own compaction · another model · the cached prefix · flat text · none
//!   Composing    compaction::compacted: tables, the user's words, summary, as far as they fit
//!   Composed     is the view still the one that was planned for?
//!   Committed    one `Pruned` or `Compacted`, then post_compact hooks
//!
//!  /undo, /redo: an entry each ─► thread::view folds the layers that are in force      recall reads the log, not the view
//! ```
//!
//! The stages are states of the turn ([`turn`]); nothing is restarted from its top, and the plan is made again only if the
//! view changed.
//!
//! A layer (`Compacted`, `Pruned`, `Mutated`, `Edited`) contains the texts that it puts into the view, so an old view
//! never changes with a setting or a release. The tables of `compaction::carryover` are computed without a model, each
//! behind a guard, so a compaction always succeeds.
//!
//! Deciding and composing takes milliseconds. `session::cpu_worker` does it on a thread of its own with a snapshot of the
//! thread; the result is used only if the view has not changed since.
//!
//! # The workspace
//!
//! Each directory below `src/` is a crate named `epitome-NAME`, except `cli`, which is a module of this package. The
//! manifest of a crate lists its dependencies, so Cargo rejects any other import. The drawing has the dependent crates
//! at the top: a crate may depend on crates of lower layers, never on one of its own layer. Those marked as programs are not
//! linked into `epitome`, which starts them (`epitome NAME` runs the `epitome-NAME` beside it).
//!
//! ```text
//!            ┌ cli             commands and composition root (this package)
//!    10      ├ ahp             program: the Agent Host Protocol, as a client of the daemon
//!     9      ├ daemon          one process for all windows, with control API and inspector
//!     8      ├ acp             the Agent Client Protocol
//!     7      ├ session         the only writer of a thread
//!     6      ├ hooks           programs that run at events of a session
//!            │ mcp             tools of MCP servers
//!            │ diagnostics     language servers
//!     5      ├ tools           tools of the model, and permissions
//!            │ acp_check       program: checks any ACP agent with rules and protocol fixtures
//!     4      ├ provider        model services: wire formats, HTTP, properties of models
//!            │ session_library stored sessions: list, show, search, fork, export, import
//!     3      ├ compaction      decides and composes compactions, pure
//!            │ config          reads the layered settings; permission rules as they are written
//!            │ import          program: reads the sessions of other agents
//!            │ store_postgres  the logs of sessions in PostgreSQL
//!     2      ├ chat            the chat in the terminal: an ACP client, pure but for its shell
//!            │ tokens          counts tokens, calibrated per model; model families
//!            │ turn            the agent loop as a state machine, pure
//!            │ transfer        conversations as files: exports, and what an import consists of, pure
//!            │ recall          searches what is no longer in the view, pure
//!            │ checkpoint      files as they were before a turn changed them
//!            │ store           journals, blobs, index
//!            │ recipe          Markdown files as slash commands and agents
//!     1      ├ thread          data: messages, changes, views; problems of the user's files
//!            │ files           paths of the user's files; atomic writes
//!            │ secrets         finds and masks keys, pure
//!     0      └ platform        what depends on the system: process groups, sandbox, files, signals, memory
//! ```
//!
//! `tests/pure/tidy.rs` compares the drawing with the manifests, and checks that some external crates have few users:
//! `sled` is used by `store`, `agent-client-protocol` by `acp`, `acp_check` and `chat`, `reqwest` by `provider`, `jsonrpsee`
//! by `daemon`, `rmcp` by `mcp`, `ahp` (types and reducers of the Agent Host Protocol) by the crate `ahp`, `ratatui` by
//! `chat`.
//!
//! # Invariants
//!
//! Log and view:
//! - An update on the wire implies an entry in the log, except for streamed text. The response to a prompt implies that
//!   its turn is on disk.
//! - The streamed pieces of a message add up to the message.
//! - Every tool call has exactly one outcome, also after a cancel or a crash. Every request has exactly one response.
//! - A live thread equals the replay of its log, and its view equals a cold fold.
//! - The view contains a call and its outcome, or neither.
//! - Undoing a layer gives the view as if the layer had never been made, whatever was added later. Redo restores it.
//! - A rewind restores the view before a turn and every file that the turn changed, or says which files it left alone and
//!   why. It never overwrites somebody else's change, and saves what it overwrites.
//!
//! Compaction:
//! - After a compaction the view fits the window together with the frame and the reserve for the reply, and is smaller
//!   than before. If there is no such view, nothing changes. A model that fails, hangs or writes nonsense affects only
//!   the summary.
//! - A summary replaces exactly the view that it was written for, or is discarded.
//! - Compaction, pruning, undo and redo never remove or alter what is pinned.
//! - A dry run shows the bytes that would be committed, except for the model's summary.
//!
//! Requests:
//! - The frame is fixed at the first model call. What changes of MCP servers joins it only after a compaction or a
//!   pause that no cache survives. As long as the view is only appended to, each request begins with the
//!   bytes of the previous one, apart from cache marks, and contains nothing that changes on its own, such as a date or a
//!   directory listing.
//! - Signed or encrypted reasoning is sent back unchanged, to the same provider and model and after the same prefix. It is
//!   left out everywhere else, and the request is valid without it.
//! - Every request is valid for its format, whatever the log contains: no call without a result, nothing empty.
//! - Nothing that is sent counts as zero tokens.
//!
//! Trust:
//! - Nothing that a repository brings runs before the user has allowed that exact version of it.
//! - A hook's request is carried out, or its refusal is recorded with the reason. A hook that fails, hangs or prints
//!   nonsense affects only its own result.
//! - The daemon serves clients that know its token, which no sandboxed command can read, and that are no more confined than
//!   itself. No sandboxed command of a session can answer its session's permission prompt. One outside of the sandbox is
//!   refused as long as its mark, or an ancestor, gives it away.
//! - A permission prompt shows all that it asks about, with invisible characters escaped and the model's words quoted.
//! - A denied action is refused in every mode. Nothing is allowed beyond the words that the user saw, and each decision is
//!   recorded with its author.
//! - A subagent may do what its session may do and nothing more, and ends with its turn. Its usage is recorded as it
//!   occurs.
//! - A client sees a subagent's updates and permission requests between its announcement and its end. What is allowed in
//!   a subagent is allowed in the session, in the same words.
//! - MCP servers are untrusted: everything they send is bounded before use, only calls of their own tools wait for them,
//!   and their processes end with the session. A first start, which may be an installation, is completed before.
//! - Commands run in a sandbox outside of full mode, or the user is told what the system cannot enforce. Only the user can
//!   let a command leave the sandbox. Processes that keep their mark end with the session.
//! - No tool but a command changes a file that the model has not read or that has changed since.
//! - An editor's unsaved buffer takes precedence over the disk only if it cannot be an older state of the file. Edits of
//!   such a file go through that editor or are refused.
//! - A key exists in an environment or in the private file of a login, in memory and on the wire to its provider, and
//!   nowhere else. A stored key is sent to no other service than the one that it was stored for.
//! - Text that looks like a key is masked before an outcome is stored, so log, view and client agree.
//! - The version of the protocol belongs to a connection. Windows of one session may speak different ones.
//! - A prompt with a key is inserted at most once, whatever crashes.
//! - When a daemon dies, each request still gets its one response: that of its finished turn, or of the next daemon. A
//!   window gets everything that it was not shown, and nothing twice.
//! - A late answer to a question of a dead daemon approves nothing: question ids are never reused, and the front end
//!   forwards answers to open questions only.
//! - Every queue, loop, wait and output has a named bound.

pub mod cli;

pub use epitome_acp as acp;
pub use epitome_chat as chat;
pub use epitome_checkpoint as checkpoint;
pub use epitome_compaction as compaction;
pub use epitome_config as config;
pub use epitome_config::rules;
pub use epitome_daemon as daemon;
pub use epitome_diagnostics as diagnostics;
pub use epitome_files::{atomic_file, memory, paths};
pub use epitome_hooks as hooks;
pub use epitome_mcp as mcp;
pub use epitome_provider as provider;
pub use epitome_recall as recall;
pub use epitome_recipe as recipe;
pub use epitome_secrets as secrets;
pub use epitome_session as session;
pub use epitome_session_library as session_library;
pub use epitome_store as store;
pub use epitome_thread as thread;
pub use epitome_thread::problem;
pub use epitome_tokens as tokens;
pub use epitome_tokens::model_name;
pub use epitome_tools as tools;
pub use epitome_transfer as transfer;
pub use epitome_turn as turn;
