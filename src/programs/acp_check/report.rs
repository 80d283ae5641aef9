//! Reports as text, JSON and JUnit XML.

use std::fmt::Write;

use serde_json::json;

use super::story::FixtureOutcome;

/// The result of one rule or fixture.
pub struct ReportItem {
    pub name: String,
    pub title: String,
    /// The source of the rule; empty for a user's own fixture.
    pub cites: &'static str,
    pub outcome: FixtureOutcome,
}

/// Formats a result as text: one line, and for a failure also the rule and the difference.
pub fn as_text(item: &ReportItem) -> String {
    let ReportItem { name, title, cites, outcome } = item;
    match outcome {
        FixtureOutcome::Passed => format!("pass         {name}\n"),
        FixtureOutcome::NotOffered(what) => format!("not offered  {name}: {what}\n"),
        FixtureOutcome::NotMeant(why) => format!("not run      {name}: {why}\n"),
        FixtureOutcome::Failed(failure) => {
            let mut text = format!("FAIL         {name}: {title}\n");
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
            text
        }
    }
}

/// Formats a result as one line of JSON.
pub fn as_json(item: &ReportItem) -> String {
    let mut report = json!({ "name": item.name, "title": item.title, "rule": item.cites });
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
        }
    }
    format!("{report}\n")
}

/// Formats all results as JUnit XML.
pub fn junit(items: &[ReportItem]) -> String {
    let is_failure = |item: &&ReportItem| matches!(item.outcome, FixtureOutcome::Failed(_));
    let failures = items.iter().filter(is_failure).count();
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
            FixtureOutcome::Failed(failure) => format!(
                "<failure message=\"{title}\">rule: {}\nexpected: {}\ngot: {}</failure>",
                escaped(item.cites),
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
    use super::super::story::FixtureFailure;
    use super::*;

    #[test]
    fn what_an_agent_says_cannot_break_the_report() {
        let failed = FixtureFailure::new(0, "<x> & \"y\"", "\u{1b}[31mred</failure>");
        let item = |outcome| ReportItem { name: "a".into(), title: "T".into(), cites: "page", outcome };
        let xml = junit(&[item(FixtureOutcome::Passed), item(FixtureOutcome::Failed(failed))]);
        assert!(xml.contains("tests=\"2\" failures=\"1\""));
        assert!(xml.contains(
            "expected: &lt;x&gt; &amp; &quot;y&quot;\ngot: \u{fffd}[31mred&lt;/failure&gt;</failure>"
        ));
        let text = as_text(&item(FixtureOutcome::NotOffered("loadSession".into())));
        assert_eq!(text, "not offered  a: loadSession\n");
    }
}
