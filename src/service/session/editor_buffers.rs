//! Requests of file tools to the editor of the client that sent the prompt; no other client gets them. An editor that
//! does not answer a request for a text in time, or answers with an error, is not asked again in this session. The
//! texts themselves are interpreted elsewhere.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::{mpsc, oneshot};

use super::client_list::ClientList;
use super::{AskId, ClientId, SessionEvent};
use epitome_config::EditorWrites;
use epitome_thread::Thread;
use epitome_tools::buffers::{
    BufferQuery, Buffers, EditorLink, EditorRequest, EditorResponse, EditorSupport, PendingEditorRequest,
};
use epitome_tools::{Access, Needs, Tool, ToolContext, Workspace};

/// Time limit for returning the unsaved text of a file. Every read of a file waits for it.
const TEXT_TIME_MAX: Duration = Duration::from_secs(1);

/// Time limit for applying an edit; the editor may format and save the file.
const PUT_TIME_MAX: Duration = Duration::from_secs(10);

/// The unsaved texts of editors, and the open requests to them.
pub(super) struct EditorBuffers {
    buffers: Arc<Buffers>,
    requests: mpsc::Receiver<PendingEditorRequest>,
    open: Vec<OpenEditorRequest>,
    /// Clients that are no longer asked for unsaved texts.
    unresponsive: HashSet<ClientId>,
}

/// The state that is kept while the session is suspended.
pub(super) struct SuspendedBuffers {
    buffers: Arc<Buffers>,
    unresponsive: HashSet<ClientId>,
}

/// A request that its client has not answered.
struct OpenEditorRequest {
    ask: AskId,
    client: ClientId,
    /// Whether a failure shows that this client should not be asked again. Not for an edit: the client still has the
    /// unsaved text, and without further requests the next edit would bypass it.
    proves_unresponsive: bool,
    answer: oneshot::Sender<EditorResponse>,
}

/// How the wait for an editor's answer ended.
pub(super) struct Waited {
    ask: AskId,
    in_time: bool,
}

impl EditorBuffers {
    pub fn new(thread: &Thread) -> EditorBuffers {
        let (buffers, requests) = Buffers::new(at_work_since(thread));
        EditorBuffers { buffers: Arc::new(buffers), requests, open: Vec::new(), unresponsive: HashSet::new() }
    }

    pub fn suspend(self) -> SuspendedBuffers {
        SuspendedBuffers { buffers: self.buffers, unresponsive: self.unresponsive }
    }

    /// Restores the state from before the suspension.
    pub fn resume(SuspendedBuffers { buffers, unresponsive }: SuspendedBuffers) -> EditorBuffers {
        let (buffers, requests) = buffers.with_new_channel();
        EditorBuffers { buffers: Arc::new(buffers), requests, open: Vec::new(), unresponsive }
    }

    pub async fn next(&mut self) -> Option<PendingEditorRequest> {
        self.requests.recv().await
    }

    /// Sets whether the session may be changing files.
    pub fn set_busy(&self, is_busy: bool) {
        self.buffers.set_busy(is_busy);
    }

    /// The abilities of this client's editor; `None` if it can't be asked.
    fn offers(&self, client: ClientId, clients: &ClientList) -> Option<EditorSupport> {
        let offers = clients.attachment(client)?.outlet.offers();
        (offers.reads && !self.unresponsive.contains(&client)).then_some(offers)
    }

    /// The query to a client's editor that precedes a call's access to files; `None` if not needed or not possible.
    pub fn look(
        &self,
        (tool, access): (&Arc<dyn Tool>, &Access),
        client: Option<ClientId>,
        clients: &ClientList,
        (setting, workspace): (EditorWrites, &Arc<Workspace>),
    ) -> Option<BufferQuery> {
        let (Access::Read(paths) | Access::Write(paths)) = access else { return None };
        if tool.needs() != Needs::EditorBuffers {
            return None;
        }
        let offers = self.offers(client?, clients)?;
        let (buffers, workspace) = (self.buffers.clone(), workspace.clone());
        let link = EditorLink { buffers, offers, setting, workspace };
        Some(BufferQuery { link, paths: paths.clone() })
    }

    /// Sends a request to a client's editor. Returns the future that waits for its answer.
    pub fn request(
        &mut self,
        PendingEditorRequest { request, mut answer }: PendingEditorRequest,
        client: Option<ClientId>,
        clients: &ClientList,
    ) -> Option<impl Future<Output = Waited> + use<>> {
        let Some(client) = client.filter(|client| self.offers(*client, clients).is_some()) else {
            // The caller may be gone.
            let _ = answer.send(EditorResponse::Failed("it is not there any more".to_owned()));
            return None;
        };
        let (within, proves_unresponsive) = match &request {
            EditorRequest::Text { .. } => (TEXT_TIME_MAX, true),
            EditorRequest::Put { .. } => (PUT_TIME_MAX, false),
        };
        let ask = AskId::fresh();
        let (sender, receiver) = oneshot::channel();
        self.open.push(OpenEditorRequest { ask, client, proves_unresponsive, answer: sender });
        clients.send(client, SessionEvent::EditorRequest { ask, request: Arc::new(request) });
        Some(async move {
            let in_time = tokio::select! {
                came = receiver => {
                    let _ = answer.send(came.unwrap_or_else(|_| EditorResponse::Failed("the session ended".to_owned())));
                    true
                }
                // A cancelled call is not the editor's fault.
                () = answer.closed() => true,
                () = tokio::time::sleep(within) => {
                    let _ = answer.send(EditorResponse::Failed("it did not answer in time".to_owned()));
                    false
                }
            };
            Waited { ask, in_time }
        })
    }

    /// Handles a client's answer. Late and unknown ones are ignored.
    pub fn answered(&mut self, ask: AskId, answer: EditorResponse) {
        let Some(open) = self.take(ask) else { return };
        if let EditorResponse::Failed(why) = &answer {
            self.failed(&open, why);
        }
        // The caller may be gone.
        let _ = open.answer.send(answer);
    }

    /// Withdraws a request without an answer.
    pub fn waited(&mut self, Waited { ask, in_time }: Waited, clients: &ClientList) {
        let Some(open) = self.take(ask) else { return };
        clients.send(open.client, SessionEvent::Withdrawn { ask });
        if !in_time {
            self.failed(&open, "it did not answer in time");
        }
    }

    /// Withdraws all open requests, because the turn was cancelled.
    pub fn cancel(&mut self, clients: &ClientList) {
        for open in std::mem::take(&mut self.open) {
            clients.send(open.client, SessionEvent::Withdrawn { ask: open.ask });
            // The caller may be gone.
            let _ = open.answer.send(EditorResponse::Failed("the turn was cancelled".to_owned()));
        }
    }

    fn take(&mut self, ask: AskId) -> Option<OpenEditorRequest> {
        let at = self.open.iter().position(|open| open.ask == ask)?;
        Some(self.open.remove(at))
    }

    fn failed(&mut self, open: &OpenEditorRequest, why: &str) {
        if open.proves_unresponsive && self.unresponsive.insert(open.client) {
            tracing::debug!(
                client = open.client.0,
                why,
                "the editor is not asked for unsaved texts any more"
            );
        }
    }
}

/// The time since when a loaded session may have changed files; `None` if it never completed a turn.
fn at_work_since(thread: &Thread) -> Option<SystemTime> {
    Some(SystemTime::UNIX_EPOCH + Duration::from_millis(thread.worked_since()?))
}

/// Adds the editor's unsaved texts to the context of a call.
pub(super) async fn looked(look: Option<BufferQuery>, context: ToolContext) -> ToolContext {
    match look {
        Some(look) => ToolContext { unsaved: Arc::new(look.take().await), ..context },
        None => context,
    }
}
