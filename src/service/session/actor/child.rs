//! A session that becomes the child of another one.

use std::sync::Arc;

use super::Session;
use crate::child::ChildSpec;
use crate::draft::ReplyDraft;
use crate::hook_host::HookHost;
use crate::lineage::{Handover, Lineage, RunningCost};
use crate::{Opening, SessionError};
use epitome_provider::endpoint::Endpoint;
use epitome_thread::{Content, Seq};
use epitome_tools::Toolbox;

impl Session {
    /// Makes a new session a child, and prepares its first model call. Its own entries begin at `own_from`.
    pub(crate) async fn become_child(
        &mut self,
        spec: &ChildSpec,
        toolbox: &Toolbox,
        endpoint: &Endpoint,
        own_from: Seq,
        running: RunningCost,
    ) -> Result<(), SessionError> {
        // Exactly the given tools: a new session offers some on its own, which the child may not be allowed.
        self.core.services.toolbox = toolbox.clone();
        self.core.log.draft = ReplyDraft::default();
        self.end_interrupted_turn().await;
        self.core.settings.change(|settings| {
            settings.max_rounds = spec.max_rounds.unwrap_or(settings.max_rounds);
            settings.enforce_policy();
            settings.compaction.auto &= spec.agent.is_some();
        });
        // A child's prompt is never a command, so it needs no recipes.
        self.recipes.give_up_reading();
        self.hooks = HookHost::new_for_child(spec.hooks.clone());
        if let Some(exports) = spec.workspace.exports() {
            self.core.workspace = Arc::new(self.core.workspace.exporting(exports.clone()));
        }
        self.core.model.inherit(endpoint.clone());
        self.core.permissions.share(spec.session_permissions.clone());
        if let Some(parent) = &spec.lineage.parent {
            self.core.trace.session().record("parent", tracing::field::display(parent));
        }
        self.core.lineage = Lineage {
            wraps_up: Arc::default(),
            own_from,
            handed: Handover::default(),
            running,
            ..spec.lineage.clone()
        };
        if self.core.thread.frame().is_none() {
            self.scan_before_turn().await;
        }
        self.ensure_frame()
    }

    /// Adds its parent, its only client.
    pub(crate) fn join(&mut self, opening: Opening) {
        self.core.clients.join(opening);
    }

    /// Estimated tokens of the request that a prompt makes.
    pub(crate) fn tokens_with(&self, prompt: &[Content]) -> u64 {
        let ruler = self.core.ruler();
        let text = prompt.iter().filter_map(Content::as_text).map(|text| ruler.text(text));
        ruler.in_context(&self.core.thread) + text.sum::<u64>()
    }

    pub(crate) fn lineage(&self) -> &Lineage {
        &self.core.lineage
    }
}
