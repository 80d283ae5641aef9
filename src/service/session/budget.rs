//! The budget of a session: its questions go to the session's clients. Children have their parent's.

use futures_util::FutureExt as _;
use serde_json::json;

use super::core::Core;
use epitome_provider::budget::{AskToGoOn, CostBudget};
use epitome_tools::question::{QuestionKind, QuestionReply, QuestionSender, UserQuestion};

/// Limits what a session's model calls cost from now on, if the settings do.
pub(super) fn limit_costs(core: &mut Core, questions: QuestionSender) {
    let data = &core.services.paths.data;
    let ask: AskToGoOn = Box::new(move |text| {
        let questions = questions.clone();
        async move { agrees(&questions, text).await }.boxed()
    });
    let budget = || CostBudget::of_session(&core.settings, &core.thread, data, ask);
    core.services.http = core.services.http.with_budget(budget);
}

/// Whether the user wants to go on. If no client can show the question, the answer is no.
async fn agrees(questions: &QuestionSender, message: String) -> bool {
    let schema = json!({
        "type": "object",
        "properties": {"go_on": {"type": "string", "title": "Go on?", "enum": ["yes", "no"]}},
        "required": ["go_on"],
    });
    let question = UserQuestion { message, wants: QuestionKind::Form { schema }, call: None };
    match questions.ask(question).await {
        QuestionReply::Accepted(fields) => fields.get("go_on").is_some_and(|answer| answer == "yes"),
        QuestionReply::Declined
        | QuestionReply::Cancelled
        | QuestionReply::Unable
        | QuestionReply::TimedOut => false,
    }
}
