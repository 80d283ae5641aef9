//! What file tools want of the editor of whoever sent the prompt: brought to that one client, and its answer back. Who
//! does not say in time what it holds, or answers with an error, is not asked again in this session. It decides nothing
//! about texts.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::oneshot;

use super::actor::Session;
use super::work::Background;
use super::{AskId, ClientId, Out};
use epitome_thread::{Change, Thread};
use epitome_tools::buffers::{Answer, Look, Offers, Wish, Wished};
use epitome_tools::{Access, Tool, ToolContext};

/// How long an editor may take to say what it holds of a file. Each read of a file waits for it.
const TEXT_TIME_MAX: Duration = Duration::from_secs(1);

/// How long it may take to take an edit; it may format and save the file on the way.
const PUT_TIME_MAX: Duration = Duration::from_secs(10);

/// A wish that its client has not answered.
pub(super) struct OpenWish {
    ask: AskId,
    client: ClientId,
    /// Whether a failure says that it is no use to ask this client. One that refuses an edit still holds what it
    /// holds: were it not asked any more, the next edit would go past it.
    proves_deaf: bool,
    answer: oneshot::Sender<Answer>,
}

impl Session {
    /// Whose editor counts, and what it offers: that of the client whose prompt began the turn.
    fn editor(&self) -> Option<(ClientId, Offers)> {
        let (responder, _) = self.work.as_ref()?.responders.first()?;
        let client = responder.client();
        let offers = self.audience.seat(client)?.attachment.outlet.offers();
        (offers.reads && !self.deaf.contains(&client)).then_some((client, offers))
    }

    /// The look at the editor that a call takes before it touches files; `None` where there is none to take.
    pub(super) fn editor_look(&self, tool: &Arc<dyn Tool>, access: &Access) -> Option<Look> {
        let (Access::Read(paths) | Access::Write(paths)) = access else { return None };
        if !tool.minds_editors() {
            return None;
        }
        let (_, offers) = self.editor()?;
        let (buffers, workspace) = (self.buffers.clone(), self.workspace.clone());
        Some(Look { buffers, offers, paths: paths.clone(), workspace })
    }

    pub(super) fn wished(&mut self, wished: Wished) {
        let Wished { wish, answer } = wished;
        let Some((client, outlet)) = self
            .editor()
            .and_then(|(client, _)| Some((client, self.audience.seat(client)?.attachment.outlet.clone())))
        else {
            // Who asked may have gone meanwhile.
            let _ = answer.send(Answer::Failed("it is not there any more".to_owned()));
            return;
        };
        let (within, proves_deaf) = match &wish {
            Wish::Text { .. } => (TEXT_TIME_MAX, true),
            Wish::Put { .. } => (PUT_TIME_MAX, false),
        };
        let ask = AskId::fresh();
        let (tell, told) = oneshot::channel();
        self.wishes_open.push(OpenWish { ask, client, proves_deaf, answer: tell });
        outlet.put(&self.id, Out::Wish { ask, wish: Arc::new(wish) });
        let mut answer = answer;
        self.background.spawn(async move {
            let in_time = tokio::select! {
                came = told => {
                    let _ = answer.send(came.unwrap_or_else(|_| Answer::Failed("the session ended".to_owned())));
                    true
                }
                // A call that was cancelled is no fault of the editor.
                () = answer.closed() => true,
                () = tokio::time::sleep(within) => {
                    let _ = answer.send(Answer::Failed("it did not answer in time".to_owned()));
                    false
                }
            };
            Background::WishOver { ask, in_time }
        });
    }

    /// Takes the answer of a client in. A late or unknown one is ignored.
    pub(super) fn wish_answered(&mut self, ask: AskId, answer: Answer) {
        let Some(at) = self.wishes_open.iter().position(|open| open.ask == ask) else { return };
        let open = self.wishes_open.remove(at);
        if let Answer::Failed(why) = &answer {
            self.failed(&open, why);
        }
        // Who asked may have gone meanwhile.
        let _ = open.answer.send(answer);
    }

    /// What was not answered is taken back.
    pub(super) fn wish_over(&mut self, ask: AskId, in_time: bool) {
        let Some(at) = self.wishes_open.iter().position(|open| open.ask == ask) else { return };
        let open = self.wishes_open.remove(at);
        self.withdraw_wish(&open);
        if !in_time {
            self.failed(&open, "it did not answer in time");
        }
    }

    /// Takes all open ones back: the turn was cancelled.
    pub(super) fn close_wishes(&mut self) {
        for open in std::mem::take(&mut self.wishes_open) {
            self.withdraw_wish(&open);
            // Who asked may have gone meanwhile.
            let _ = open.answer.send(Answer::Failed("the turn was cancelled".to_owned()));
        }
    }

    fn withdraw_wish(&self, open: &OpenWish) {
        if let Some(seat) = self.audience.seat(open.client) {
            seat.attachment.outlet.put(&self.id, Out::Withdrawn { ask: open.ask });
        }
    }

    fn failed(&mut self, open: &OpenWish, why: &str) {
        if open.proves_deaf && self.deaf.insert(open.client) {
            tracing::debug!(session = %self.id, why, "the editor is not asked for unsaved texts any more");
        }
    }
}

/// Since when a session that goes on may have changed files; `None` for one that never did anything.
pub(super) fn at_work_since(thread: &Thread) -> Option<SystemTime> {
    let worked = thread.entries().iter().any(|entry| matches!(entry.change, Change::TurnEnded { .. }));
    let first = thread.entries().iter().map(|entry| entry.at).min().filter(|_| worked)?;
    Some(SystemTime::UNIX_EPOCH + Duration::from_millis(first))
}

/// The context of a call with what the editor holds unsaved of its files.
pub(super) async fn looked(look: Option<Look>, context: ToolContext) -> ToolContext {
    match look {
        Some(look) => ToolContext { unsaved: Arc::new(look.take().await), ..context },
        None => context,
    }
}
