//! A pause in which the provider forgets the conversation: the first request after it reads everything anew. While the
//! cache is warm, a summary is cheap, so a compaction is offered or made then (`compaction.before_break`).

use std::sync::Arc;
use std::time::Duration;

use super::Compactor;
use crate::background::BackgroundResult;
use crate::core::Core;
use crate::responder::{QueuedPrompt, Responder};
use crate::{Attachment, EventSink, NoticeSeverity, SessionEvent, Ticket, commands, cpu_worker};
use epitome_compaction::{self as compaction, Budget, CompactionRequest, KeptTail, Preview};
use epitome_config::BeforeBreak;
use epitome_thread::{Content, Seq, SessionId, Trigger};

/// How long before the provider forgets the conversation the session acts. A summary may take that long.
const MARGIN: Duration = Duration::from_secs(60);

/// The command that the session gives itself.
const COMMAND: &str = "/compact";

/// Receives the answer to that command.
struct NobodyWaits;

impl EventSink for NobodyWaits {
    fn put(&self, _: &SessionId, _: SessionEvent) {}
}

impl Compactor {
    /// A turn ended with this entry as the next one: waits until the provider is about to forget the conversation.
    pub(crate) fn watch_cache(&self, core: &mut Core, at: Seq) {
        let is_off = core.settings.compaction.before_break == BeforeBreak::Nothing;
        let kept = core.model.endpoint().and_then(|endpoint| endpoint.cache_lifetime());
        let Some(kept) = kept.filter(|_| !is_off && !core.lineage.is_child()) else { return };
        let pause = kept.saturating_sub(MARGIN).min(core.services.suspend_after);
        core.start(tokio::time::sleep(pause), move |()| BackgroundResult::CacheExpires { at });
    }

    /// Finds out what a compaction would do, if nothing has happened since.
    pub(crate) fn preview_before_break(&self, core: &mut Core, at: Seq) {
        if core.thread.next_seq() != at {
            return;
        }
        let keep = KeptTail::Nothing;
        let request = CompactionRequest { trigger: Trigger::Manual, keep, focus: None, summary: true };
        let (ruler, thread, budget) = (core.ruler(), core.thread.clone(), self.budget_now(core));
        let previewing = move || (compaction::preview(&ruler, &thread, &budget, &request), budget);
        core.start(cpu_worker::run(previewing), move |previewed| match previewed {
            Some((preview, budget)) => BackgroundResult::BreakPreviewed { at, budget, preview },
            None => BackgroundResult::Done,
        });
    }

    /// Offers the compaction if it pays, or returns the command that makes it.
    pub(crate) fn before_break(
        &self,
        core: &mut Core,
        at: Seq,
        budget: &Budget,
        preview: &Preview,
    ) -> Option<QueuedPrompt> {
        let client = core.clients.ids().next().filter(|_| core.thread.next_seq() == at)?;
        let offer = commands::offer_before_break(core, preview, budget)?;
        if core.settings.compaction.before_break == BeforeBreak::Offer {
            core.notify(NoticeSeverity::Info, format!("{offer} {COMMAND} does that."));
            return None;
        }
        core.notify(NoticeSeverity::Info, format!("{offer} It is compacted now; /undo takes it back."));
        let attachment = Attachment { client, outlet: Arc::new(NobodyWaits) };
        let content = vec![Content::Text { text: COMMAND.to_owned() }];
        let responder = Responder::new(Ticket(0), core.id().clone(), attachment);
        Some(QueuedPrompt { responder, client, content })
    }
}
