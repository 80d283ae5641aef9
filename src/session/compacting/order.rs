//! How a compaction is asked for: by a user, a hook or a recipe.

use std::sync::Arc;

use epitome_hooks::handlers::{self, DeclaredHandler, HandlerTable};
use epitome_hooks::output::{CallbackRequest, HistoryTail};
use epitome_recipe::command::RecipeArguments;
use epitome_recipe::parse::Recipe;
use epitome_thread::Seq;

/// How a compaction is to be made; what is not said is as the `compact` recipe has it.
#[derive(Clone, Debug, Default)]
pub struct CompactionOrder {
    /// The recipe whose text tells the model what to write.
    pub recipe: Option<Arc<Recipe>>,
    pub arguments: RecipeArguments,
    /// What the summary is to look at above all.
    pub focus: Option<String>,
    /// The recipe's text, where it is rendered already.
    pub instruction: Option<String>,
    /// What stays verbatim; `None` is the configured share for the threshold, and else nothing.
    pub keep: Option<HistoryTail>,
    /// Only what is older than this entry goes.
    pub above: Option<Seq>,
    /// Tokens that the summary may have; `None` is what is configured.
    pub summary_tokens_max: Option<u32>,
    /// What the hook that asked wants its callback to know.
    pub callback: Option<CallbackRequest>,
    /// A recipe's own handler asked for it, not a script.
    pub by_recipe: bool,
    /// What hooks want kept word for word.
    pub context: Vec<(String, String)>,
    /// A summary that a hook wrote.
    pub summary: Option<String>,
}

/// What a `swap_context` of a recipe says about the summary.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SummaryOverrides {
    pub keep: Option<HistoryTail>,
    pub summary_tokens_max: Option<u32>,
}

/// What a `swap_context` of a recipe's table says, and the table without it: its work is done by the
/// compaction itself.
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
