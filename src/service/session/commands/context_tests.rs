//! Each part of a window is counted once, and the bars are aligned.

use super::super::why::tests::{long_story, thread};
use super::*;
use epitome_compaction::USER_HEAD;
use epitome_thread::{
    CallDisplay, Content, MessageId, Origin, OutcomeStatus, ToolCall, ToolOutcome, ToolSpec,
};

fn message(content: Vec<Content>) -> Message {
    Message { id: MessageId(0), content, author: None }
}

fn text_of(text: &str) -> Content {
    Content::Text { text: text.to_owned() }
}

fn call(id: &str, name: &str) -> Content {
    let input = serde_json::json!({});
    Content::Call(ToolCall { id: CallId(id.into()), name: name.into(), input, card: CallDisplay::default() })
}

fn window(size: u64, reserve: u64) -> Option<ModelWindow> {
    Some(ModelWindow { model: ModelName("anthropic/claude".into()), size, reserve })
}

/// A conversation with something of each kind.
fn full() -> Thread {
    let model = || ModelName("a/b".into());
    let schema = serde_json::json!({"type": "object"});
    let tool = ToolSpec { name: "bash".into(), description: "Runs.".into(), schema };
    let system = format!(
        "You are an agent. {}\n<instructions path=\"/w/AGENTS.md\">\n{}\n</instructions>\n",
        "walnut ".repeat(50),
        "fig ".repeat(30)
    );
    let image = Content::Image { mime_type: "image/png".into(), data: "aGk=".into(), uri: None };
    let calls = ["bash", "grep", "file_read", "a", "b", "c"];
    let mut reply: Vec<Content> = calls.iter().map(|name| call(name, name)).collect();
    reply.insert(0, text_of(&"reply ".repeat(20)));
    let mut changes = vec![
        Change::Framed { system, tools: vec![tool] },
        Change::Said { message: message(vec![text_of(&"said ".repeat(40)), image]), origin: Origin::Person },
        Change::Said { message: message(vec![text_of("noted")]), origin: Origin::Hook { hook: "h".into() } },
        Change::Replied { message: message(reply), model: model(), usage: None, cut: None },
    ];
    for (count, name) in (1..).zip(calls) {
        let outcome =
            ToolOutcome::text(CallId(name.into()), OutcomeStatus::Completed, "out ".repeat(count * 30));
        changes.push(Change::ToolFinished { outcome });
    }
    thread(changes)
}

#[test]
fn each_part_is_counted_once() {
    for thread in [long_story(), full()] {
        let ruler = Ruler::for_model(None);
        let parts = RequestParts::measure(&ruler, &thread);
        let sum: u64 = parts.rows(&thread).iter().map(|(_, tokens)| tokens).sum();
        assert_eq!(sum, ruler.view(thread.view()) + ruler.frame_of(&thread), "{parts:?}");
    }
}

#[test]
fn a_compactions_quotes_are_counted_apart_from_its_summary() {
    let Change::Compacted { through, trigger, tokens_before, tokens_after, .. } =
        &long_story().entries()[7].change.clone()
    else {
        panic!("e7 is a compaction")
    };
    let long = |head: &str| text_of(&format!("{head}{}", "walnut ".repeat(50)));
    let content =
        vec![long("<summary>"), long("<ledger>"), long("<instructions path=\"a\">"), long(USER_HEAD)];
    let compacted = Change::Compacted {
        through: *through,
        summary: message(content),
        trigger: *trigger,
        focus: None,
        tokens_before: *tokens_before,
        tokens_after: *tokens_after,
        window: None,
        model: None,
        usage: None,
        masks: Vec::new(),
        account: Default::default(),
    };
    let parts = RequestParts::measure(&Ruler::for_model(None), &thread(vec![compacted]));
    let kinds = parts.kinds;
    for tokens in [kinds.summaries, kinds.facts, kinds.instructions, kinds.person] {
        assert!(tokens >= 50, "{parts:?}");
    }
}

#[test]
fn the_plot_is_aligned_and_as_long_as_the_shares() {
    let rows =
        [("what you said".to_owned(), 25_000), ("outcomes of grep".to_owned(), 1_500), ("é".to_owned(), 90)];
    let facts = ContextFigures {
        used: 26_590,
        model: window(100_000, 10_000),
        next: NextCompaction::Never,
        spent: Spent::default(),
        memory: "/m".into(),
    };
    assert_eq!(
        plot(&rows, &facts),
        "\x20   what you said       25.0k   25 %  ██████████\n\
             \x20   outcomes of grep     1.5k    1 %  █\n\
             \x20   é                      90  < 1 %  ▏\n\
             \x20   kept for the reply  10.0k   10 %  ▒▒▒▒\n\
             \x20   free                63.4k   63 %  ░░░░░░░░░░░░░░░░░░░░░░░░░\n"
    );
}

#[test]
fn the_largest_tools_have_a_row_each() {
    let thread = full();
    let rows = RequestParts::measure(&Ruler::for_model(None), &thread).rows(&thread);
    let labels: Vec<&str> = rows.iter().map(|(label, _)| label.as_str()).collect();
    assert_eq!(
        labels,
        [
            "system text",
            "1 tool",
            "instructions",
            "your messages",
            "replies",
            "tool calls",
            "results of c",
            "results of b",
            "results of a",
            "results of file_read",
            "results of grep",
            "results of other tools",
            "added context",
            "images and documents",
        ]
    );
}

#[test]
fn a_new_session_has_an_empty_window() {
    let facts = ContextFigures {
        used: 0,
        model: None,
        next: NextCompaction::Never,
        spent: Spent::default(),
        memory: "/m".into(),
    };
    assert_eq!(
        text(&Ruler::for_model(None), &thread(Vec::new()), &facts),
        "Context 0 tokens; no model is chosen, so its window is not known. By part, as an estimate:\n\
         \n\
         \n\
         System text and tools come with the first reply.\n\
         \n\
         - entries in view: 0; in the log: 1\n\
         - compactions: 0\n\
         - pinned: nothing\n\
         - next automatic compaction: never"
    );
}

#[test]
fn the_window_and_the_next_compaction_are_shown() {
    let facts = |next| ContextFigures {
        used: 50_000,
        model: window(200_000, 16_000),
        next,
        spent: Spent::default(),
        memory: "/m".into(),
    };
    let shown = text(&Ruler::for_model(None), &long_story(), &facts(NextCompaction::At(160_000)));
    for part in [
        "Context 50.0k of 200k tokens of anthropic/claude (25 %)",
        "compactions: 1, and 1 undone",
        "pinned: e2",
        "at about 160.0k tokens",
    ] {
        assert!(shown.contains(part), "{part} in:\n{shown}");
    }
    assert!(text(&Ruler::for_model(None), &long_story(), &facts(NextCompaction::Paused)).contains("paused"));
}
