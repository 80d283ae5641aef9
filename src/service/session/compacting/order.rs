//! Parameters of a compaction that a user, a hook or a recipe requests.

use std::sync::Arc;

use epitome_hooks::handlers::{self, DeclaredHandler, HandlerTable};
use epitome_hooks::output::{CallbackRequest, HistoryTail};
use epitome_recipe::command::RecipeArguments;
use epitome_recipe::parse::Recipe;
use epitome_thread::Seq;

/// Parameters of a requested compaction; defaults come from the `compact` recipe.
#[derive(Clone, Debug, Default)]
pub struct CompactionOrder {
    /// The recipe whose text instructs the model that writes the summary.
    pub recipe: Option<Arc<Recipe>>,
    pub arguments: RecipeArguments,
    /// The topic that the summary should focus on.
    pub focus: Option<String>,
    /// The recipe's text, if it is already rendered.
    pub instruction: Option<String>,
    /// The part that stays verbatim; `None` is the configured share for a threshold compaction, otherwise nothing.
    pub keep: Option<HistoryTail>,
    /// Compacts only what is older than this entry.
    pub above: Option<Seq>,
    /// Maximum tokens of the summary; `None` uses the configured limit.
    pub summary_tokens_max: Option<u32>,
    /// The data that the requesting hook passes to its callback.
    pub callback: Option<CallbackRequest>,
    /// Whether a recipe's built-in handler requested it, rather than a script.
    pub by_recipe: bool,
    /// Texts that hooks want kept verbatim, each with its hook.
    pub context: Vec<(String, String)>,
    /// A summary that a hook wrote.
    pub summary: Option<String>,
}

/// Limits that a recipe's `swap_context` handler sets for the summary.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SummaryOverrides {
    pub keep: Option<HistoryTail>,
    pub summary_tokens_max: Option<u32>,
}

/// Splits off a handler table's `swap_context`: its parameters, and the table without it, since the compaction
/// itself does its work.
pub(crate) fn without_swap(mut handlers: HandlerTable) -> (SummaryOverrides, HandlerTable) {
    let mut swap = SummaryOverrides::default();
    for declared in handlers.values_mut() {
        declared.retain(|place| match place {
            DeclaredHandler::Handler(handler) if handler.name == "swap_context" => {
                let recent = handler.params.get("preserve_recent").and_then(serde_json::Value::as_u64);
                swap.keep =
                    recent.filter(|recent| *recent > 0).map(|recent| HistoryTail::Messages(recent as usize));
                let tokens = handler.params.contains_key("max_summary_tokens");
                let tokens = tokens.then(|| handlers::max_summary_tokens(handler));
                swap.summary_tokens_max = tokens.and_then(|tokens| u32::try_from(tokens).ok());
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
