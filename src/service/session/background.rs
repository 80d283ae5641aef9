//! Work of a session outside of turns, by its result. The actor goes on with each of them in `actor::finished`.

use super::refusal::HookRefusal;
use std::sync::Arc;

use serde_json::Value;
use tokio::task::JoinError;

use super::called::Called;
use super::commands::on_disk::DiskResult;
use super::editor_buffers::Waited;
use super::hook_host::calls::ServiceReply;
use super::model_link::ModelListQuery;
use super::responder::QueuedPrompt;
use super::summary::SummaryAttempt;
use super::{AskId, Ticket};
use epitome_checkpoint::{CheckpointError, RewindReport};
use epitome_compaction::{Budget, CompactionDecision, CompactionPlan, Preview};
use epitome_hooks::discover::FoundHooks;
use epitome_hooks::event::HookEvent;
use epitome_hooks::output::Resolution;
use epitome_hooks::trust::TrustStore;
use epitome_provider::endpoint::LocalServer;
use epitome_recipe::catalog::RecipeCatalog;
use epitome_recipe::render::ShellOutputs;
use epitome_recipe::watch::Registration;
use epitome_store::StoreError;
use epitome_thread::{Content, Seq};
use epitome_tools::ToolError;

/// The result of work outside of turns.
pub(super) enum BackgroundResult {
    /// Nothing follows.
    Done,
    /// Time to check whether the session can be suspended.
    Idle,
    /// Time to sync the log.
    SyncDue,
    /// The log was synced, or an error prevented it.
    Synced(Result<(), Arc<StoreError>>),
    /// Time to save the streamed part of the running reply.
    DraftDue,
    DraftSaved(std::io::Result<()>),
    /// Nobody has continued the conversation since this entry; its encoded form need not be kept.
    EncodingUnused {
        at: Seq,
    },
    /// Checkpoints that an earlier process left unfinished were completed.
    CheckpointsResumed(Result<Result<Vec<RewindReport>, CheckpointError>, JoinError>),
    /// A question to the user was open for too long.
    QuestionExpired(AskId),
    /// An editor has answered, or the wait for it is over.
    EditorWaited(Waited),
    ModelsListed(ModelListQuery),
    ModelsFound(Option<LocalServer>),
    HooksFound(Box<HookDiscovery>),
    RecipesRead(RecipeCatalog, Option<Arc<Registration>>),
    /// MCP servers had their time to connect.
    ServersWaited,
    /// A prompt of an MCP server was fetched.
    PromptFetched {
        ticket: Ticket,
        fetched: Result<Vec<Content>, ToolError>,
    },
    /// The resources that a prompt names were fetched.
    ResourcesFetched {
        ticket: Ticket,
        content: Vec<Content>,
    },
    /// The shell calls of a recipe have run.
    ShellCallsRan {
        ticket: Ticket,
        outputs: ShellOutputs,
    },
    CompactionPreviewed(Box<PreviewedCompaction>),
    /// The provider will soon forget the conversation, unless it has been continued since this entry.
    CacheExpires {
        at: Seq,
    },
    /// It is known what a compaction would do before the provider forgets the conversation.
    BreakPreviewed {
        at: Seq,
        budget: Budget,
        preview: Preview,
    },
    /// The disk work of a built-in command has ended.
    CommandOnDisk(QueuedPrompt, Option<DiskResult>),
    /// Hooks of an event that nothing waits for have ended; `ask` is the permission request that they may answer.
    HooksEnded {
        event: HookEvent,
        ask: Option<AskId>,
        resolution: Box<Resolution>,
    },
    /// The answer to a resident hook that has asked what a compaction would do; `None` after a panic.
    ServicePlanned {
        hook: String,
        plan: Option<Value>,
        answer: ServiceReply,
    },
    CallbackEnded(Result<Called, HookRefusal>),
    /// It is decided what a compaction would do whose summary is to be written in advance.
    SummaryPlanned(Option<(Seq, CompactionDecision)>),
    /// A summary was written in advance.
    SummaryPrepared(Box<CompactionPlan>, SummaryAttempt),
}

/// The result of a search for hooks.
pub(super) struct HookDiscovery {
    /// The number of the search.
    pub look: u64,
    pub found: FoundHooks,
    pub trust: TrustStore,
    pub watch: Option<Arc<Registration>>,
}

/// The preview of a compaction, for the prompt that waits for it.
pub(super) struct PreviewedCompaction {
    pub ticket: Ticket,
    /// The text as the user typed it.
    pub typed: String,
    /// The command that makes the compaction.
    pub command: String,
    /// The revision of the view that was previewed.
    pub revision: Seq,
    pub budget: Budget,
    /// `None` after a panic.
    pub preview: Option<Preview>,
}
