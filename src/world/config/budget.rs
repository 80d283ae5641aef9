//! Limits on cost: the `[budget]` table. Only the user's own file may set them.

use serde_json::json;

use super::FileOwner;
use super::file::{ConfigReader, TomlValue, fields};
use super::kind::{Kind, real};
use super::values::tokens;

/// Limits on what model calls may cost. Money is US dollars; tokens are uncached input and output.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BudgetSettings {
    /// The limit of one session, with its subagents and summaries.
    pub session_usd: Option<f64>,
    /// The limit of all sessions of a day, by local time.
    pub day_usd: Option<f64>,
    /// The limit of all sessions of a calendar month.
    pub month_usd: Option<f64>,
    pub session_tokens: Option<u64>,
    pub day_tokens: Option<u64>,
    pub month_tokens: Option<u64>,
    /// Whether the user can't extend a limit that is reached, because a policy sets some.
    pub is_final: bool,
    /// The mistake that leaves a limit unknown. No model is called with it.
    pub fault: Option<String>,
}

impl ConfigReader<'_> {
    pub(super) fn budget(&mut self, value: &TomlValue<'_>, budget: &mut BudgetSettings) {
        let before = self.problem_count();
        self.budget_table(value, budget);
        self.spend_nothing_until_corrected(before);
    }

    fn budget_table(&mut self, value: &TomlValue<'_>, budget: &mut BudgetSettings) {
        let Some(table) = self.table(value, "budget") else { return };
        budget.is_final |= matches!(self.owner, FileOwner::Policy { .. });
        fields!(self, table, key, value, {
            "session_usd" => self.limit(value, &mut budget.session_usd, dollars()),
            "day_usd" => self.limit(value, &mut budget.day_usd, dollars()),
            "month_usd" => self.limit(value, &mut budget.month_usd, dollars()),
            "session_tokens" => self.limit(value, &mut budget.session_tokens, tokens()),
            "day_tokens" => self.limit(value, &mut budget.day_tokens, tokens()),
            "month_tokens" => self.limit(value, &mut budget.month_tokens, tokens()),
        });
    }
}

fn dollars() -> Kind<f64> {
    real(json!({ "type": "number", "exclusiveMinimum": 0 }), "dollars, above 0", |dollars| *dollars > 0.0)
}
