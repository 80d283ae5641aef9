//! A session's recipes, and the prompt whose recipe is being rendered.

use std::sync::Arc;

use super::recipes::Rendering;
use super::{CommandInfo, Ticket};
use epitome_recipe::catalog::RecipeCatalog;
use epitome_recipe::watch::Registration;

/// A session's recipes; see the module.
#[derive(Default)]
pub(super) struct SessionRecipes {
    catalog: Arc<RecipeCatalog>,
    /// Whether the recipes have been read. They are read when the session starts, in the background.
    is_read: bool,
    watch: Option<Arc<Registration>>,
    rendering: Option<Rendering>,
    /// The prompts of MCP servers.
    prompts: Vec<CommandInfo>,
}

impl SessionRecipes {
    pub fn catalog(&self) -> &RecipeCatalog {
        &self.catalog
    }

    pub fn are_read(&self) -> bool {
        self.is_read
    }

    /// Stops waiting for the recipes: the session needs none, or they can't be read.
    pub fn give_up_reading(&mut self) {
        self.is_read = true;
    }

    pub fn watch(&self) -> Option<Arc<Registration>> {
        self.watch.clone()
    }

    /// Stores the recipes that were read; returns whether this is the first time.
    pub fn read(&mut self, catalog: RecipeCatalog, watch: Option<Arc<Registration>>) -> bool {
        (self.catalog, self.watch) = (Arc::new(catalog), watch);
        !std::mem::replace(&mut self.is_read, true)
    }

    /// Replaces the prompts of MCP servers; returns whether they have changed.
    pub fn set_prompts(&mut self, prompts: Vec<CommandInfo>) -> bool {
        std::mem::replace(&mut self.prompts, prompts) != self.prompts
    }

    pub fn prompts(&self) -> &[CommandInfo] {
        &self.prompts
    }

    // ── Rendering ──────────────────────────────────────────────────────────────────────────────

    pub fn render(&mut self, rendering: Rendering) {
        self.rendering = Some(rendering);
    }

    /// Whether a prompt waits for its recipe to be rendered; other prompts wait for it.
    pub fn are_rendering(&self) -> bool {
        self.rendering.is_some()
    }

    pub fn are_rendering_for(&self, ticket: Ticket) -> bool {
        self.rendering.as_ref().is_some_and(|rendering| rendering.is_for(ticket))
    }

    /// Takes the prompt with this ticket, whose rendering has finished.
    pub fn take_rendered(&mut self, ticket: Ticket) -> Option<Rendering> {
        self.rendering.take_if(|rendering| rendering.is_for(ticket))
    }

    /// Takes the prompt whose rendering has panicked, if there is one.
    pub fn take_failed(&mut self) -> Option<Rendering> {
        self.rendering.take_if(|rendering| rendering.job.is_finished())
    }

    /// Takes the prompt whose rendering is cancelled.
    pub fn cancel_rendering(&mut self) -> Option<Rendering> {
        self.rendering.take()
    }
}
