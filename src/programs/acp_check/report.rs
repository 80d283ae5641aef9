//! Reports as text, JSON and JUnit XML.

use std::fmt::Write;

use serde_json::json;

use super::outcome::{FixtureFailure, FixtureOutcome, RuleLevel, cut};

/// The result of one rule or fixture.
pub struct ReportItem {
    pub name: String,
    pub title: String,
    /// The source of the rule; empty for a user's own fixture.
    pub cites: String,
    pub level: RuleLevel,
    pub outcome: FixtureOutcome,
}

/// The number of results of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResultCounts {
    pub passed: usize,
    pub failed: usize,
    /// Recommendations that are not followed.
    pub recommended: usize,
    pub not_run: usize,
}

impl ResultCounts {
    pub fn of<'a>(items: impl IntoIterator<Item = &'a ReportItem>) -> ResultCounts {
        let mut counts = ResultCounts::default();
        for item in items {
            *match (&item.outcome, item.level) {
                (FixtureOutcome::Passed, _) => &mut counts.passed,
                (FixtureOutcome::Failed(_), RuleLevel::Required) => &mut counts.failed,
                (FixtureOutcome::Failed(_), RuleLevel::Recommended) => &mut counts.recommended,
                (FixtureOutcome::NotOffered(_) | FixtureOutcome::NotMeant(_), _) => &mut counts.not_run,
            } += 1;
        }
        counts
    }
}

/// Groups of rules, with the parts of addresses that belong to them. The first that fits is used.
const GROUPS: [(&str, &[&str]); 6] = [
    ("cancelling", &["cancellation"]),
    ("login", &["auth", "AUTHENTICATION"]),
    ("connection", &["initialization", "transports", "jsonrpc"]),
    ("sessions", &["session"]),
    ("prompts", &["prompt"]),
    ("tools", &["tool-calls"]),
];

fn group_of(item: &ReportItem) -> Option<&'static str> {
    let fits = |parts: &[&str]| parts.iter().any(|part| item.cites.contains(part));
    GROUPS.iter().find(|(_, parts)| fits(parts)).map(|(group, _)| *group)
}

/// Formats all results as a page: a row of a table over all agents, and what failed with the last messages before it.
pub fn as_page(name: &str, version: &str, items: &[ReportItem]) -> String {
    let groups = || GROUPS.iter().map(|(group, _)| *group);
    let mut page = format!("# {name} {version}\n\n| agent |");
    groups().chain(["all"]).for_each(|group| page.push_str(&format!(" {group} |")));
    page.push_str(&format!(
        "\n|{}\n| [{name}](conformance/{name}.md) {version} |",
        " --- |".repeat(GROUPS.len() + 2)
    ));
    for group in groups().map(Some).chain([None]) {
        // Fixtures about Epitome are in no group.
        let is_counted =
            |item: &&ReportItem| group_of(item).is_some_and(|of| group.is_none_or(|group| of == group));
        let of_group = items.iter().filter(is_counted);
        let ResultCounts { passed, failed, recommended, not_run } = ResultCounts::of(of_group);
        let failed = if failed > 0 { format!("**{failed}**") } else { "0".to_owned() };
        page.push_str(&format!(" {passed} / {failed} / {recommended} / {not_run} |"));
    }
    page.push('\n');
    for (level, heading) in
        [(RuleLevel::Required, "Failed"), (RuleLevel::Recommended, "Recommendations not followed")]
    {
        let failures =
            items.iter().filter(|item| item.level == level).filter_map(|item| match &item.outcome {
                FixtureOutcome::Failed(failure) => Some((item, failure)),
                _ => None,
            });
        for (at, (item, failure)) in failures.enumerate() {
            let heading = if at == 0 { format!("\n## {heading}\n") } else { String::new() };
            page.push_str(&format!("{heading}\n{}", failure_on_page(item, failure)));
        }
    }
    let reasons = items.iter().filter_map(|item| match &item.outcome {
        FixtureOutcome::NotOffered(what) => Some((item, format!("not offered: {what}"))),
        FixtureOutcome::NotMeant(why) => Some((item, why.clone())),
        FixtureOutcome::Passed | FixtureOutcome::Failed(_) => None,
    });
    for (at, (item, why)) in reasons.enumerate() {
        let heading = if at == 0 { "\n## Not run\n\n" } else { "" };
        page.push_str(&format!("{heading}- `{}`: {}\n", item.name, cut(&why)));
    }
    page
}

fn failure_on_page(item: &ReportItem, failure: &FixtureFailure) -> String {
    let ReportItem { name, title, cites, .. } = item;
    let messages = failure.transcript.join("\n");
    let on_one_line = |text: &str| cut(&text.lines().map(str::trim).collect::<Vec<_>>().join(" "));
    let (expected, got) = (on_one_line(&failure.expected), on_one_line(&failure.got));
    format!("`{name}`: {title} ({cites})\n\n```text\n{messages}\nexpected: {expected}\ngot: {got}\n```\n")
}

/// Formats a result as text: one line, and for a failure also the rule and the difference.
pub fn as_text(item: &ReportItem) -> String {
    let ReportItem { name, title, cites, level, outcome } = item;
    match outcome {
        FixtureOutcome::Passed => format!("pass         {name}\n"),
        FixtureOutcome::NotOffered(what) => format!("not offered  {name}: {what}\n"),
        FixtureOutcome::NotMeant(why) => format!("not run      {name}: {why}\n"),
        FixtureOutcome::Failed(failure) => {
            let label = if *level == RuleLevel::Required { "FAIL" } else { "recommended" };
            let mut text = format!("{label:<12} {name}: {title}\n");
            if failure.line > 0 {
                text.push_str(&format!("  line {}\n", failure.line));
            }
            if !cites.is_empty() {
                text.push_str(&format!("    rule      {cites}\n"));
            }
            for (label, what) in [("expected", &failure.expected), ("got", &failure.got)] {
                for (at, line) in what.lines().enumerate() {
                    text.push_str(&format!("    {:<9} {line}\n", if at == 0 { label } else { "" }));
                }
            }
            for note in &failure.notes {
                text.push_str(&format!("    note      {note}\n"));
            }
            for message in &failure.transcript {
                text.push_str(&format!("      {message}\n"));
            }
            text
        }
    }
}

/// Formats a result as one line of JSON.
pub fn as_json(item: &ReportItem) -> String {
    let mut report = json!({ "name": item.name, "title": item.title, "rule": item.cites });
    report["required"] = json!(item.level == RuleLevel::Required);
    match &item.outcome {
        FixtureOutcome::Passed => report["outcome"] = json!("passed"),
        FixtureOutcome::NotOffered(what) => {
            report["outcome"] = json!("not_offered");
            report["capability"] = json!(what);
        }
        FixtureOutcome::NotMeant(why) => {
            report["outcome"] = json!("not_run");
            report["reason"] = json!(why);
        }
        FixtureOutcome::Failed(failure) => {
            report["outcome"] = json!("failed");
            report["line"] = json!(failure.line);
            report["expected"] = json!(failure.expected);
            report["got"] = json!(failure.got);
            report["notes"] = json!(failure.notes);
            report["transcript"] = json!(failure.transcript);
        }
    }
    format!("{report}\n")
}

/// Formats all results as JUnit XML.
pub fn junit(items: &[ReportItem]) -> String {
    let failures = ResultCounts::of(items).failed;
    let mut xml = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"acp-check\" tests=\"{}\" failures=\"{failures}\">\n",
        items.len()
    );
    for item in items {
        let (name, title) = (escaped(&item.name), escaped(&item.title));
        let inner = match &item.outcome {
            FixtureOutcome::Passed => String::new(),
            FixtureOutcome::NotOffered(what) => {
                format!("<skipped message=\"not offered: {}\"/>", escaped(what))
            }
            FixtureOutcome::NotMeant(why) => format!("<skipped message=\"{}\"/>", escaped(why)),
            FixtureOutcome::Failed(_) if item.level == RuleLevel::Recommended => {
                format!("<skipped message=\"recommended: {title}\"/>")
            }
            FixtureOutcome::Failed(failure) => format!(
                "<failure message=\"{title}\">rule: {}\nexpected: {}\ngot: {}</failure>",
                escaped(&item.cites),
                escaped(&failure.expected),
                escaped(&failure.got)
            ),
        };
        let _ = writeln!(xml, "  <testcase classname=\"acp\" name=\"{name}\">{inner}</testcase>");
    }
    xml.push_str("</testsuite>\n");
    xml
}

/// Escapes text for XML and replaces control characters, which XML can't contain.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\n' | '\t' => safe.push(c),
            c if c.is_control() => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_agent_says_cannot_break_the_report() {
        let failed = FixtureFailure::new(0, "<x> & \"y\"", "\u{1b}[31mred</failure>");
        let item = |outcome| ReportItem {
            name: "a".into(),
            title: "T".into(),
            cites: "page".into(),
            level: RuleLevel::Required,
            outcome,
        };
        let xml = junit(&[item(FixtureOutcome::Passed), item(FixtureOutcome::Failed(failed))]);
        assert!(xml.contains("tests=\"2\" failures=\"1\""));
        assert!(xml.contains(
            "expected: &lt;x&gt; &amp; &quot;y&quot;\ngot: \u{fffd}[31mred&lt;/failure&gt;</failure>"
        ));
        let text = as_text(&item(FixtureOutcome::NotOffered("loadSession".into())));
        assert_eq!(text, "not offered  a: loadSession\n");
    }

    /// Regression: an agent was blamed for not following what the protocol only recommends.
    #[test]
    fn recommendations_are_counted_apart() {
        let failed = || FixtureFailure {
            transcript: vec!["editor> session/cancel $S1".to_owned()],
            ..FixtureFailure::new(0, "silence", "noise")
        };
        let item = |level, cites: &str, outcome| {
            let (name, title) = ("a".to_owned(), "T".to_owned());
            ReportItem { name, title, cites: cites.to_owned(), level, outcome }
        };
        let items = [
            item(RuleLevel::Required, "v1/prompt-turn", FixtureOutcome::Passed),
            item(RuleLevel::Required, "v1/prompt-turn#cancellation", FixtureOutcome::Failed(failed())),
            item(RuleLevel::Recommended, "v1/transports", FixtureOutcome::Failed(failed())),
            item(RuleLevel::Required, "", FixtureOutcome::Passed),
        ];
        let counts = ResultCounts { passed: 2, failed: 1, recommended: 1, not_run: 0 };
        assert_eq!(ResultCounts::of(&items), counts);
        let page = as_page("agent", "1.0", &items);
        let row = "| [agent](conformance/agent.md) 1.0 | 0 / **1** / 0 / 0 | 0 / 0 / 0 / 0 | 0 / 0 / 1 / 0 |";
        assert!(page.contains(row) && page.contains("| 1 / **1** / 1 / 0 |\n"), "{page}");
        let failure = "editor> session/cancel $S1\nexpected: silence\ngot: noise\n";
        assert_eq!(page.matches(failure).count(), 2, "{page}");
        assert!(as_text(&items[2]).starts_with("recommended  a: T"));
    }
}
