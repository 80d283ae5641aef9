//! The state that the tool calls of a session share: the model's knowledge of files, background commands, live output
//! for the clients, and the masker of secrets.

use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{Notify, mpsc};

use super::core::Core;
use super::permissions::HookDecision;
use epitome_diagnostics::EditWatch;
use epitome_secrets::Masker;
use epitome_thread::{CallId, CallOutput, Change, RecordedDecision, Thread};
use epitome_tools::background::BackgroundCommands;
use epitome_tools::read_state::{QueuedAccess, ReadState};
use epitome_tools::{Access, PartialResult, Workspace};

/// Pieces of live output that may wait for the session. Further output is not shown live; the outcome contains all of
/// it.
const OUTPUT_MAX: usize = 64;

/// New output of a running call.
type OutputOfCall = (CallId, CallOutput);

/// An event of a running command.
pub(super) enum ToolNews {
    Output(CallId, CallOutput),
    CommandEnded,
}

/// The environment of a client's editor.
type EnvironmentVariables = Vec<(OsString, OsString)>;

/// A masker, with the environment, the keys of logins and the names of keys' variables that it was made from.
struct KnownMasker {
    environment: Arc<EnvironmentVariables>,
    keys: Vec<(String, String)>,
    variables: Vec<String>,
    masker: Arc<Masker>,
}

/// Tracks the full texts stored in one thread's log. A log only grows, so each entry is examined once.
#[derive(Debug, Default)]
struct StoredOutputs {
    bytes: usize,
    /// Number of entries already examined.
    entries: usize,
}

impl StoredOutputs {
    /// Bytes of all stored full texts.
    fn total_bytes(&mut self, thread: &Thread) -> usize {
        for entry in thread.entries().iter().skip(self.entries) {
            if let Change::ToolFinished { outcome } = &entry.change {
                self.bytes += outcome.whole.as_ref().map_or(0, String::len);
            }
        }
        self.entries = thread.entries().len();
        self.bytes
    }
}

/// The state that tool calls share; see the module.
pub(super) struct ToolHost {
    files: Arc<ReadState>,
    /// The model's background commands; they end with the session.
    background: Arc<BackgroundCommands>,
    /// Checks edited files.
    edits: EditWatch,
    output: (mpsc::Sender<OutputOfCall>, mpsc::Receiver<OutputOfCall>),
    masker: Option<KnownMasker>,
    /// Size of the stored full texts of outcomes that were too long for the view.
    stored: StoredOutputs,
    calls: HashMap<CallId, CallNotes>,
}

/// State of a call of the running turn that is not in the log.
#[derive(Default)]
pub(super) struct CallNotes {
    /// A hook's decision about it.
    pub by_hook: Option<HookDecision>,
    /// The access that was decided about; the call may touch nothing else.
    pub access: Option<Arc<Access>>,
    /// The author of its permission or denial, until the outcome records it.
    pub decided: Option<RecordedDecision>,
    /// Notes of hooks to the model from before it ran, each with the hook's name. They follow the outcome.
    pub notes: Vec<(String, String)>,
    /// When it started to run.
    pub started: Option<Instant>,
    /// Stops only this call.
    pub stop: Option<Arc<Notify>>,
    /// What it has put out so far.
    pub partial: PartialResult,
}

impl ToolHost {
    pub fn new(edits: EditWatch) -> ToolHost {
        ToolHost {
            files: Arc::default(),
            background: Arc::default(),
            edits,
            output: mpsc::channel(OUTPUT_MAX),
            masker: None,
            stored: StoredOutputs::default(),
            calls: HashMap::new(),
        }
    }

    /// Continues with the commands from before the session was suspended. They have ended, but their last output may
    /// not have been read.
    pub fn resume(&mut self, background: Arc<BackgroundCommands>) {
        self.background = background;
    }

    /// Forgets what was read of the log, which was opened again.
    pub fn log_reopened(&mut self) {
        (self.files, self.stored) = (Arc::default(), StoredOutputs::default());
    }

    pub fn edits(&self) -> &EditWatch {
        &self.edits
    }

    pub fn background(&self) -> &Arc<BackgroundCommands> {
        &self.background
    }

    /// The model's current knowledge of files.
    pub fn files(&self, thread: &Thread, workspace: &Workspace) -> Arc<ReadState> {
        self.files.follow(thread, workspace);
        self.files.clone()
    }

    pub fn call(&mut self, id: &CallId) -> &mut CallNotes {
        self.calls.entry(id.clone()).or_default()
    }

    /// A hook's decision about a call.
    pub fn decided_by_hook(&self, id: &CallId) -> Option<&HookDecision> {
        self.calls.get(id)?.by_hook.as_ref()
    }

    pub fn end_turn(&mut self) {
        self.calls.clear();
    }

    /// Queues a call for its turn to access files.
    pub fn enter(&self, access: &Access) -> QueuedAccess {
        self.files.enter(access)
    }

    /// The masker for the keys in the client's environment and the logins; `None` if masking is off. It is cached
    /// until these change.
    pub fn masker(&mut self, core: &Core) -> Option<Arc<Masker>> {
        if !core.settings.mask_secrets {
            return None;
        }
        let environment = &core.workspace.environment;
        let keys = core.settings.logins.secrets();
        let variables = &core.workspace.exposure().provider_keys;
        let is_current = |known: &KnownMasker| {
            Arc::ptr_eq(&known.environment, environment)
                && known.keys == keys
                && known.variables == *variables
        };
        let known = self.masker.take().filter(is_current).unwrap_or_else(|| KnownMasker {
            environment: environment.clone(),
            masker: Arc::new(Masker::with_keys(environment, &keys, variables)),
            variables: variables.clone(),
            keys,
        });
        Some(self.masker.insert(known).masker.clone())
    }

    /// Returns the sink for a call's live output. If a hook will see the outcome first, the output is hidden.
    pub fn output_of(
        &self,
        call: CallId,
        masker: Option<Arc<Masker>>,
        is_hidden: bool,
    ) -> Arc<dyn Fn(CallOutput) + Send + Sync> {
        let sender = self.output.0.clone();
        Arc::new(move |mut output: CallOutput| {
            if is_hidden {
                return;
            }
            if masker.as_ref().is_some_and(|masker| masker.mask_in(&mut output.text)) {
                output.written = None;
            }
            // A full channel drops the piece: the outcome contains all of it.
            let _ = sender.try_send((call.clone(), output));
        })
    }

    /// The next piece of live output, or the end of a background command.
    pub async fn next_news(&mut self) -> ToolNews {
        tokio::select! {
            Some((call, output)) = self.output.1.recv() => ToolNews::Output(call, output),
            () = self.background.next_end() => ToolNews::CommandEnded,
        }
    }

    /// The waiting live output, at most `OUTPUT_MAX` pieces.
    pub fn output_by_now(&mut self) -> Vec<OutputOfCall> {
        std::iter::from_fn(|| self.output.1.try_recv().ok()).take(OUTPUT_MAX).collect()
    }

    /// Bytes of the full outcome texts stored in the log.
    pub fn stored_bytes(&mut self, thread: &Thread) -> usize {
        self.stored.total_bytes(thread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use epitome_thread::{Entry, FORMAT_VERSION, OutcomeStatus, Seq, SessionId, ToolOutcome};

    #[test]
    fn what_is_kept_is_summed_as_it_comes() {
        let session = SessionId("s_00000000000000000000".to_owned());
        let opened = Change::Opened { format: FORMAT_VERSION, session, cwd: "/w".into() };
        let entry = |seq, change| Arc::new(Entry { seq: Seq(seq), at: 0, change });
        let mut thread = Thread::replay([entry(0, opened)]).expect("the log begins with its opening entry");
        let mut wholes = StoredOutputs::default();
        for (seq, (whole, bytes)) in (1..).zip([(None, 0), (Some("12345"), 5), (None, 5), (Some("67"), 7)]) {
            let outcome = ToolOutcome {
                whole: whole.map(str::to_owned),
                ..ToolOutcome::text(CallId("c".to_owned()), OutcomeStatus::Completed, "shown")
            };
            thread.apply(entry(seq, Change::ToolFinished { outcome }));
            assert_eq!(wholes.total_bytes(&thread), bytes);
            assert_eq!(wholes.total_bytes(&thread), bytes, "nothing is summed twice");
        }
    }
}
