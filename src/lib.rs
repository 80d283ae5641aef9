//! Epitome: a coding-agent daemon for editors, with compaction that you can trust.
//!
//! This page is for builders; `README.md` is for users, `CONTRIBUTING.md` has worked examples.
//!
//! # Five decisions
//!
//! 1. **A thread is a log; the context is a view of it.** Everything that happens to a conversation is
//!    one [`thread::Change`], appended and never rewritten. What the model sees, what the editor
//!    replays and what the command line prints are functions of the log. A compaction and its undo are
//!    entries like any other.
//! 2. **One writer.** A session is one task that owns its [`thread::Thread`] and at most one
//!    [`turn::Turn`]. `Session::commit` is the only place that journals, applies and announces.
//! 3. **Deciders ask, the session does.** The agent loop, permission rules, compaction, recipe
//!    rendering, retry and the stream decoders are pure: data in, decision out.
//! 4. **One translator each way, one stream out.** Live updates and replay are the same code
//!    (`acp::to_wire`). The session never waits for a client. The answer to a prompt is an item of the
//!    same stream, behind its turn's last entry.
//! 5. **What happened on the wire is a text file.** One readable format is the test fixture, the
//!    recording of a live session and the conformance suite ([`transcript`]).
//!
//! # The way of a prompt
//!
//! ```text
//!  stdin ─ acp::connection ─ acp::server ─► SessionCommand ─► session task
//!    loop { turn.next(&thread) {
//!        Commit(change) → 1 journal  2 thread.apply  3 announce      store follows behind
//!        Ask(ask)       → hooks · model call · permission · tool · compaction
//!        Wait           → command | model's stream | finished job
//!        End(reason)    → sync the journal, then the answer } }
//!  stdout ◄ acp::post ◄ acp::outlet (merges while the pipe is busy) ◄ Out
//! ```
//!
//! Between an editor's pipes and `acp::connection` there may be two processes, a front end and the daemon
//! ([`daemon`]); what crosses between them is the same lines, in frames.
//!
//! Hooks run where the turn asks for them (a prompt, a call, a round's end, the stop): [`hooks`] has their
//! own picture. What they want is a `Resolution`, which the session commits like anything else: a prompt
//! kept out, a call changed, a history replaced are entries of the log, with the trail of who asked.
//! `/undo` takes a layer back.
//!
//! Start reading at `turn/lib.rs` (the loop), then `session/actor.rs` (who performs it), then
//! `thread/view.rs` (what the model sees).
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
//! An [`provider::endpoint::Endpoint`] says where: address, headers, format, limits and what the model takes. It is
//! made of settings and an editor's environment, then `provider::learned` puts in what the provider's own list and
//! earlier refusals tell. Providers that speak a known format are data, not code. `tokens` counts what a view takes,
//! fitted to each model by what its replies report, so that a session knows how full its window is without asking.
//!
//! # The way of a compaction
//!
//! ```text
//!  a round ended │ a call is due │ it was refused │ /compact │ a hook       /compact dry ─► compaction::preview
//!                      └─► session::compacting ─► compaction::decide ◄── the same ────────────┘
//!                             Nothing(why) │ Prune(masks) │ Summarise(plan)
//!                                               │               ├─► hooks of pre_compact
//!                                               │               └─► session::summary: the provider's own · another
//!                                               │                   model · the cached prefix · flat text · none
//!                                               │                        │ is the view still the plan's?
//!                                               ▼                        ▼
//!                                        one `Pruned`      one `Compacted`: tables, the user's words, summary,
//!                                                          as far as they fit (compaction::compacted)
//!  /undo, /redo: an entry each ─► thread::view folds what holds          recall reads the log, not the view
//! ```
//!
//! A layer (`Compacted`, `Pruned`, `Mutated`, `Edited`) holds the texts that it puts into the view, so that an old
//! view never changes with a setting or a build. The tables of `compaction::carryover` are computed from the
//! log without a model, each behind a guard, and so a compaction always comes to an end.
//!
//! What is decided and put together here takes milliseconds: `session::thinking` does it on one thread behind
//! everything else, over a snapshot, and what comes back is used only for the revision of the view that it was made
//! from. A long log that was not read yet has a few readers beside that thread, as long as that takes.
//!
//! # The workspace
//!
//! Each directory below `src/` is a crate named `epitome-NAME`, except `cli`, which is a module of this package. The
//! manifest of a crate lists its dependencies, so Cargo rejects any other import. The drawing has the dependent crates
//! at the top: a crate may depend on crates of lower layers, never on one of its own layer.
//!
//! ```text
//!            ┌ cli             commands and composition root (this package)
//!     8      ├ daemon          one process for all windows, with control API and inspector
//!     7      ├ acp             the Agent Client Protocol
//!     6      ├ session         the only writer of a thread
//!     5      ├ hooks           programs that run at events of a session
//!            │ mcp             tools of MCP servers
//!     4      ├ tools           tools of the model, and permissions
//!            │ scripted_model  simulates a model service and validates requests
//!     3      ├ provider        model services: wire formats, HTTP, properties of models
//!            │ shelf           stored sessions: list, show, search, fork, export, import
//!     2      ├ compaction      decides and composes compactions, pure
//!            │ config          reads the layered settings
//!            │ transfer        imports and exports conversations, pure
//!     1      ├ tokens          counts tokens, calibrated per model; model families
//!            │ turn            the agent loop as a state machine, pure
//!            │ recall          searches what is no longer in the view, pure
//!            │ rules           permission rules as written, pure
//!            │ checkpoint      files as they were before a turn changed them
//!            │ store           journals, blobs, index
//!            │ recipe          Markdown files as slash commands and agents
//!     0      ├ thread          data: messages, changes, views
//!            │ problem         errors in files written by the user
//!            │ files           paths of the user's files; atomic writes
//!            │ platform        Linux specifics: process groups, sandbox, signals, memory
//!            │ settings        settings of providers and compaction, as plain data
//!            │ spans           durations in the log
//!            │ secrets         finds and masks keys, pure
//!            └ transcript      format of fixtures and recordings, pure
//! ```
//!
//! `tests/tidy.rs` compares the drawing with the manifests, and checks that some external crates have one user only:
//! `sled` is used by `store`, `agent-client-protocol` by `acp`, `reqwest` by `provider`, `jsonrpsee` by `daemon`,
//! `rmcp` by `mcp`.
//!
//! # Invariants
//!
//! - An update on the wire implies an entry in the log, streamed text excepted; an answer to a prompt
//!   implies that its turn is on disk.
//! - Streamed pieces of a message together are the message.
//! - Every tool call has exactly one outcome, also after a cancel or a crash; every request has exactly
//!   one answer.
//! - A live thread equals the replay of its log; its view equals a cold fold.
//! - Nothing that a repository brings runs before the person has allowed that very version of it.
//! - Behind a compaction the view fits the window beside frame and reply, and is smaller than it was; where there is
//!   no such view, nothing is changed. A model that fails, hangs or writes nonsense changes the summary alone.
//! - A summary takes the place of the very view that it was made for, or is thrown away.
//! - A call is in the view with its outcome, or neither is.
//! - No compaction, shortening, undo or redo takes what is pinned out of the view, or changes a byte of it.
//! - Undo of a layer gives the view that there would be without it, whatever came later; redo gives it back.
//! - A rewind gives the view before its turn, and puts back every file that a turn changed as it was, or says which
//!   it left and why; it writes over nothing that somebody else has changed, and what it writes over is kept first.
//! - A dry run shows the bytes that are committed when nothing comes between, the model's summary excepted.
//! - What a hook asked for is done, or its refusal is in the trail with the reason; a hook that fails,
//!   hangs or prints nonsense costs its own result alone.
//! - System text and tool list are frozen at a thread's first model call. Behind them requests only grow: as long as
//!   the view is appended to, each one begins with the bytes of the one before, cache marks left out, and nothing
//!   that changes by itself (a date, a list of files) is in them.
//! - What a model thought in a signed or sealed form goes back byte for byte, to that provider and model, behind the
//!   very prefix that it was made behind; in every other place it is left out, and the request is valid without.
//! - What is sent is valid for its format, whatever the log holds: no call without its answer, nothing empty.
//! - Nothing that is sent counts as no tokens.
//! - When a daemon dies, each request has its one answer all the same, and a late answer to one of its questions
//!   approves nothing: their numbers never repeat, and the front end passes on answers to open ones alone.
//! - An agent that the model started may do what its session may and nothing more, and ends with its turn. What it
//!   spends is in the log as it is spent.
//! - What a client is shown of an agent as of a session stands between the update that announces it and the one that
//!   tells its end, and so do its cards; what is allowed at one who works for a session holds for all, in the same words.
//! - A server of MCP is nobody's: what it names, says, asks and sends is bounded before anybody sees it, nothing
//!   waits for it but a call of its own tools, and its process ends with its session.
//! - A file that the model has not read, or that changed since, is changed by no tool of ours but a command.
//! - What an editor holds of a file counts before the disk only where it can't be an older state of the disk, and an edit
//!   of it goes through that editor or is refused.
//! - A key is in an environment, in memory and on the wire to its provider, and nowhere else.
//! - What the model runs outside of full mode is held by what the system has to hold it, or the person is told what is
//!   missing; it leaves the sandbox only by their word. What it starts ends with its session, if it keeps its mark.
//! - What a rule denies is refused in every mode, whatever else allows it; what is allowed by rule, mode or person is
//!   never wider than the words that they saw, and each decision is in the log with who made it.
//! - What looks like a key is masked before an outcome is stored, so that log, view and client agree.
//! - Every queue, loop, wait and output has a named bound.

pub mod cli;

pub use epitome_acp as acp;
pub use epitome_checkpoint as checkpoint;
pub use epitome_compaction as compaction;
pub use epitome_config as config;
pub use epitome_daemon as daemon;
pub use epitome_files::{paths, whole};
pub use epitome_hooks as hooks;
pub use epitome_mcp as mcp;
pub use epitome_problem as problem;
pub use epitome_recall as recall;
pub use epitome_recipe as recipe;
pub use epitome_rules as rules;
pub use epitome_secrets as secrets;
pub use epitome_session as session;
pub use epitome_shelf as shelf;
pub use epitome_spans as spans;
pub use epitome_store as store;
pub use epitome_thread as thread;
pub use epitome_tokens as tokens;
pub use epitome_tokens::family;
pub use epitome_tools as tools;
pub use epitome_transcript as transcript;
pub use epitome_transfer as transfer;
pub use epitome_turn as turn;

/// Model services, and the scripted one.
pub mod provider {
    pub use epitome_provider::*;
    pub use epitome_scripted_model as scripted;

    /// The wire formats, and the validation rules of the services.
    pub mod wire {
        pub use epitome_provider::wire::*;
        pub use epitome_scripted_model::valid;
    }
}
