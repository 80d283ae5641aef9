//! The requests of users, hooks and recipes for a compaction.

use std::collections::BTreeMap;
use std::sync::Arc;

use epitome_compaction::KeptTail;
use epitome_hooks::handlers::{self, DeclaredHandler, HandlerTable};
use epitome_recipe::command::RecipeArguments;
use epitome_recipe::parse::Recipe;

/// How the summary of the next compaction is to be written, and what stays besides it. Defaults come from the settings
/// and the `compact` recipe.
#[derive(Clone, Debug, Default)]
pub struct SummaryRequest {
    /// The recipe whose text instructs the model that writes the summary.
    pub recipe: Option<Arc<Recipe>>,
    pub arguments: RecipeArguments,
    /// The topic that the summary should focus on.
    pub focus: Option<String>,
    /// The recipe's text, if it is already rendered.
    pub instruction: Option<String>,
    /// The part that stays verbatim; `None` is the configured share for a threshold compaction, otherwise nothing.
    pub keep: Option<KeptTail>,
    /// Maximum tokens of the summary; `None` uses the configured limit.
    pub tokens_max: Option<u32>,
    /// The arguments that the requesting hook passes to its callback.
    pub callback_args: BTreeMap<String, String>,
    /// Whether a recipe's built-in handler requested it, rather than a script.
    pub by_recipe: bool,
}

/// Splits off a handler table's `swap_context`: the limits that it sets, and the table without it, since the compaction
/// itself does its work.
pub(crate) fn without_swap(mut handlers: HandlerTable) -> (SummaryRequest, HandlerTable) {
    let mut swap = SummaryRequest::default();
    for declared in handlers.values_mut() {
        declared.retain(|place| match place {
            DeclaredHandler::Handler(handler) if handler.name == "swap_context" => {
                let recent = handler.params.get("preserve_recent").and_then(serde_json::Value::as_u64);
                swap.keep =
                    recent.filter(|recent| *recent > 0).map(|recent| KeptTail::Messages(recent as usize));
                let tokens = handler.params.contains_key("max_summary_tokens");
                let tokens = tokens.then(|| handlers::max_summary_tokens(handler));
                swap.tokens_max = tokens.and_then(|tokens| u32::try_from(tokens).ok());
                false
            }
            DeclaredHandler::Handler(_)
            | DeclaredHandler::External { .. }
            | DeclaredHandler::Script { .. } => true,
        });
    }
    handlers.retain(|_, declared| !declared.is_empty());
    (swap, handlers)
}
