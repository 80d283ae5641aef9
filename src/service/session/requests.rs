//! The requests that a session makes to its model, and the replies and usage that come of them.

use super::core::Core;
use super::effects::{self, RequestSnapshot};
use super::{SessionEvent, UsageNow};
use epitome_provider::collect::ModelReply;
use epitome_provider::endpoint::Endpoint;
use epitome_provider::wire::Purpose;
use epitome_provider::wire::encoding::Encoded;
use epitome_thread::{Change, Content, Message, MessageId, ModelName, ReplyCut, SessionId, Thread, Usage};

impl Core {
    pub(super) fn snapshot(&self, max_output: u32) -> RequestSnapshot {
        RequestSnapshot {
            frame: self.thread.frame_entry().expect("the frame is there before the first model call").clone(),
            view: self.thread.view().clone(),
            thought: self.thread.thought(),
            max_output,
            cache_key: self.cache_key().0.clone(),
            ruler: self.ruler(),
            encoding: self.model.encoding(),
        }
    }

    /// Encodes the next request; only what is new since the last one is serialized.
    pub(super) fn encode(&mut self, endpoint: &Endpoint, purpose: Purpose<'_>) -> Encoded {
        let frame = self.thread.frame_entry().expect("the frame is there before the first model call");
        let cache_key = self.lineage.parent.as_ref().unwrap_or(self.thread.session());
        let thought = self.thread.thought();
        let request = effects::request(frame, self.thread.view(), thought, endpoint.max_output, &cache_key.0);
        self.model.encode(endpoint, &request, purpose)
    }

    /// Key by which a provider finds its cached prefix. A child uses its parent's, because its requests begin the
    /// same way.
    fn cache_key(&self) -> &SessionId {
        self.lineage.parent.as_ref().unwrap_or(self.id())
    }

    pub(super) fn replied(
        &self,
        reply: ModelReply,
        id: MessageId,
        model: ModelName,
        cut: Option<ReplyCut>,
    ) -> Change {
        let mut content = reply.content;
        effects::name_calls(&mut content, |id| self.thread.knows_call(id), id);
        for content in &mut content {
            if let Content::Call(call) = content
                && let Some(tool) = self.services.toolbox.get(&call.name)
            {
                call.card = tool.display(&call.input, &self.workspace);
            } else if let Content::Call(call) = content {
                call.card.title = call.name.clone();
            }
        }
        Change::Replied { message: Message { id, content, author: None }, model, usage: reply.usage, cut }
    }

    pub(super) fn announce_usage(&mut self) {
        if let Some(usage) = self.usage_now() {
            self.announce(&SessionEvent::Usage(usage));
        }
    }

    pub(super) fn usage_now(&mut self) -> Option<UsageNow> {
        let last = last_usage(&self.thread).copied();
        let size = self.model.known_window()?;
        Some(UsageNow {
            used: self.tokens_in_context(),
            size,
            cost: self.model.cost(),
            last: last.unwrap_or_default(),
        })
    }
}

/// Usage of the newest reply that reports it.
pub(super) fn last_usage(thread: &Thread) -> Option<&Usage> {
    thread.entries().iter().rev().find_map(|entry| match &entry.change {
        Change::Replied { usage, .. } => usage.as_ref(),
        _ => None,
    })
}
