//! What the tool calls of a session share: what the model knows of files, the commands that run in the background, live
//! output on its way to the clients, and what masks keys.

use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{Notify, mpsc};

use super::core::Core;
use super::output_truncation::StoredOutputs;
use super::permissions::HookDecision;
use epitome_secrets::Masker;
use epitome_thread::{CallId, CallOutput, RecordedDecision, Thread};
use epitome_tools::background::BackgroundCommands;
use epitome_tools::read_state::{QueuedAccess, ReadState};
use epitome_tools::{Access, Workspace};

/// How many pieces of live output may wait for the session. What a command prints beyond that is not
/// shown live; its outcome has the whole.
const OUTPUT_MAX: usize = 64;

/// New output of a running call.
type OutputOfCall = (CallId, CallOutput);

/// What running commands have to tell.
pub(super) enum ToolNews {
    Output(CallId, CallOutput),
    CommandEnded,
}

/// The names and values that a client's editor has.
type EnvironmentVariables = Vec<(OsString, OsString)>;

/// What masks keys, with the environment and the logins that it was made for.
struct KnownMasker {
    environment: Arc<EnvironmentVariables>,
    keys: Vec<(String, String)>,
    masker: Arc<Masker>,
}

/// See the module.
pub(super) struct ToolHost {
    files: Arc<ReadState>,
    /// The model's commands in the background; with the session they end.
    background: Arc<BackgroundCommands>,
    output: (mpsc::Sender<OutputOfCall>, mpsc::Receiver<OutputOfCall>),
    masker: Option<KnownMasker>,
    /// What the log holds of outcomes that were too long for the view.
    stored: StoredOutputs,
    calls: HashMap<CallId, CallNotes>,
}

/// What is known of a call of the running turn beside what the log has.
#[derive(Default)]
pub(super) struct CallNotes {
    /// What a hook decided about it.
    pub by_hook: Option<HookDecision>,
    /// What the decision about it was about; the call may touch nothing else.
    pub access: Option<Arc<Access>>,
    /// Who let it run or refused it, until it stands in its outcome.
    pub decided: Option<RecordedDecision>,
    /// What hooks had to say to the model before it ran: by whom. It stands behind the outcome.
    pub notes: Vec<(String, String)>,
    /// When it began to run.
    pub started: Option<Instant>,
    /// Ends it, alone.
    pub stop: Option<Arc<Notify>>,
}

impl ToolHost {
    pub fn new() -> ToolHost {
        ToolHost {
            files: Arc::default(),
            background: Arc::default(),
            output: mpsc::channel(OUTPUT_MAX),
            masker: None,
            stored: StoredOutputs::default(),
            calls: HashMap::new(),
        }
    }

    /// Goes on with the commands that were there before the session rested. They have ended, and what they printed
    /// last may not have been read.
    pub fn resume(&mut self, background: Arc<BackgroundCommands>) {
        self.background = background;
    }

    pub fn background(&self) -> &Arc<BackgroundCommands> {
        &self.background
    }

    /// What the model knows of files by now.
    pub fn files(&self, thread: &Thread, workspace: &Workspace) -> Arc<ReadState> {
        self.files.follow(thread, workspace);
        self.files.clone()
    }

    pub fn call(&mut self, id: &CallId) -> &mut CallNotes {
        self.calls.entry(id.clone()).or_default()
    }

    /// What a hook decided about a call.
    pub fn decided_by_hook(&self, id: &CallId) -> Option<&HookDecision> {
        self.calls.get(id)?.by_hook.as_ref()
    }

    pub fn end_turn(&mut self) {
        self.calls.clear();
    }

    /// Where a call waits for its turn to touch files.
    pub fn enter(&self, access: &Access) -> QueuedAccess {
        self.files.enter(access)
    }

    /// What knows the keys of whoever sent the prompt; `None` where they want no masks. It is made once for an
    /// environment and the logins.
    pub fn masker(&mut self, core: &Core) -> Option<Arc<Masker>> {
        if !core.settings.mask_secrets {
            return None;
        }
        let environment = &core.workspace.environment;
        let logins = core.settings.logins.secrets();
        let keys: Vec<(String, String)> =
            logins.into_iter().map(|(provider, key)| (format!("the login for {provider}"), key)).collect();
        let is_current =
            |known: &KnownMasker| Arc::ptr_eq(&known.environment, environment) && known.keys == keys;
        let known = self.masker.take().filter(is_current).unwrap_or_else(|| KnownMasker {
            environment: environment.clone(),
            masker: Arc::new(Masker::with_keys(environment, &keys)),
            keys,
        });
        Some(self.masker.insert(known).masker.clone())
    }

    /// Takes the live output of a call; where a hook will see the outcome first, none is shown.
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
            // A full channel drops the piece: the outcome has the whole.
            let _ = sender.try_send((call.clone(), output));
        })
    }

    /// The next piece of live output, or the end of a command in the background.
    pub async fn next_news(&mut self) -> ToolNews {
        tokio::select! {
            Some((call, output)) = self.output.1.recv() => ToolNews::Output(call, output),
            () = self.background.next_end() => ToolNews::CommandEnded,
        }
    }

    /// What running calls had printed so far; no more than may wait.
    pub fn output_by_now(&mut self) -> Vec<OutputOfCall> {
        std::iter::from_fn(|| self.output.1.try_recv().ok()).take(OUTPUT_MAX).collect()
    }

    /// Bytes of the outcomes that the log holds as a whole.
    pub fn stored_bytes(&mut self, thread: &Thread) -> usize {
        self.stored.total_bytes(thread)
    }
}
