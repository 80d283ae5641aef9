//! Rewrites a fixture's `agent<`, `agent~` and `model?` lines with the agent's current behaviour.
//!
//! Review the diff before you keep it: it records the actual behavior, right or wrong.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use epitome_acp_check::outcome::{FixtureFailure, Halt};
use epitome_acp_check::story::{NextMessage, Setting, Story, could_not, join_chunk, not_meant, split_chunk};
use epitome_transcript::agent::{Comparison, Expected, WriteDetail, update_of, words_of};
use epitome_transcript::setup::Setup;
use epitome_transcript::update::is_free;
use epitome_transcript::{Fixture, FixtureLine, LineContent};
use serde_json::Value;

/// Time without a message after which the agent is considered to wait for the editor. Only rewriting depends on it; a
/// comparison knows which message it waits for.
const QUIET: Duration = Duration::from_millis(400);

/// Runs a fixture and returns its rewritten text; `None` if the fixture does not apply to this setting.
pub fn update_fixture(fixture: &Fixture, setting: &Setting<'_>) -> Result<Option<Fixture>, FixtureFailure> {
    if not_meant(fixture, setting).is_some() {
        return Ok(None);
    }
    let mut story = Story::begin(fixture, setting).map_err(|error| could_not(&error))?;
    match rewrite(fixture, &mut story) {
        Ok(lines) => Ok(Some(Fixture { lines })),
        Err(Halt::Failed(failure)) => Err(*failure),
        Err(Halt::NotOffered(_) | Halt::NeedsLogin) => Ok(None),
    }
}

/// A message, and the number of model calls before it.
struct Received {
    message: Value,
    calls: usize,
}

fn rewrite(fixture: &Fixture, story: &mut Story<'_>) -> Result<Vec<FixtureLine>, Halt> {
    let text = fixture.to_string();
    let detail = WriteDetail { ids: text.contains("$M") || text.contains("$C"), calls: false };
    let mut out = Vec::new();
    let mut segment: Vec<FixtureLine> = Vec::new();
    for line in &fixture.lines {
        match &line.what {
            LineContent::Editor(_, act) => {
                settle(&mut segment, story, detail, &mut out);
                story.send(line.number, act)?;
                out.push(line.clone());
            }
            LineContent::Setup(Setup::Restart) => {
                settle(&mut segment, story, detail, &mut out);
                story.end_of_input(line.number)?;
                story.perform(line, &Setup::Restart)?;
                out.push(line.clone());
            }
            LineContent::Setup(setup @ (Setup::Kill | Setup::ThenFile { .. } | Setup::ThenNoFile { .. })) => {
                settle(&mut segment, story, detail, &mut out);
                // File contents are not rewritten; a difference shows in the next run.
                let _ = story.perform(line, setup);
                out.push(line.clone());
            }
            LineContent::Setup(setup) => {
                story.perform(line, setup)?;
                segment.push(line.clone());
            }
            LineContent::Says(_) => {
                if let Some(model) = &story.model {
                    model.reached(line.number);
                }
                segment.push(line.clone());
            }
            LineContent::Blank
            | LineContent::Comment
            | LineContent::Agent(..)
            | LineContent::AgentFree(..)
            | LineContent::Sees(_) => {
                segment.push(line.clone());
            }
        }
    }
    settle(&mut segment, story, detail, &mut out);
    Ok(out)
}

/// Receives the agent's messages, then rewrites the lines of a segment.
fn settle(
    segment: &mut Vec<FixtureLine>,
    story: &mut Story<'_>,
    detail: WriteDetail,
    out: &mut Vec<FixtureLine>,
) {
    let mut received = receive_all(segment, story);
    let mut trivia: Vec<FixtureLine> = Vec::new();
    let lines = std::mem::take(segment);
    let mut seen_of = None;
    for (at, line) in lines.iter().enumerate() {
        match &line.what {
            LineContent::Blank | LineContent::Comment | LineContent::Setup(_) => trivia.push(line.clone()),
            LineContent::Agent(_, expected) | LineContent::AgentFree(_, expected) => {
                let Some(mut found) = position(expected, &received, story) else { continue };
                if matches!(line.what, LineContent::Agent(..)) {
                    // Earlier messages without a line are written before this one; unordered ones keep their line.
                    let mut before = 0;
                    while before < found {
                        if has_line(&lines[at + 1..], Free::Only, &received[before].message, story) {
                            before += 1;
                        } else {
                            write_at(before, &mut received, story, detail, out);
                            found -= 1;
                        }
                    }
                }
                out.append(&mut trivia);
                take(expected, found, &mut received, story);
                out.push(line.clone());
            }
            LineContent::Sees(_) | LineContent::Says(_) => {
                let exchange = story.model.as_ref().and_then(|model| {
                    model.exchanges.iter().position(|exchange| {
                        exchange.sees.iter().any(|(number, _)| *number == line.number)
                            || exchange.first_step == line.number
                    })
                });
                if let Some(number) = exchange {
                    // Messages before this call that have no old line further down are written here.
                    while received.front().is_some_and(|received| {
                        received.calls <= number
                            && !has_line(&lines[at..], Free::OrNot, &received.message, story)
                    }) {
                        write_at(0, &mut received, story, detail, out);
                    }
                }
                out.append(&mut trivia);
                match (&line.what, exchange) {
                    (LineContent::Sees(_), Some(number)) => {
                        if seen_of == Some(number) {
                            continue;
                        }
                        seen_of = Some(number);
                        write_news(number, &lines, story, out);
                    }
                    (_, _) => out.push(line.clone()),
                }
            }
            LineContent::Editor(..) => unreachable!("a segment ends before the editor's line"),
        }
    }
    // Blank lines and comments at the end belong to the next segment.
    while !received.is_empty() {
        write_at(0, &mut received, story, detail, out);
    }
    out.append(&mut trivia);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Free {
    Only,
    OrNot,
}

/// Whether one of the lines matches this message.
fn has_line(lines: &[FixtureLine], free: Free, message: &Value, story: &Story<'_>) -> bool {
    lines.iter().any(|line| match &line.what {
        LineContent::Agent(..) if free == Free::Only => false,
        LineContent::Agent(_, expected) | LineContent::AgentFree(_, expected) => {
            expected.compare(message, &mut story.book.clone()) != Comparison::Different
        }
        LineContent::Blank
        | LineContent::Comment
        | LineContent::Setup(_)
        | LineContent::Editor(..)
        | LineContent::Sees(_)
        | LineContent::Says(_) => false,
    })
}

/// The position of the first message that an old line matches.
fn position(expected: &Expected, received: &VecDeque<Received>, story: &Story<'_>) -> Option<usize> {
    received.iter().position(|received| {
        let verdict = expected.compare(&received.message, &mut story.book.clone());
        matches!(verdict, Comparison::Same | Comparison::Part(_))
    })
}

/// Removes a message that a line of the fixture matches; the unmatched rest of a text stays in the queue.
fn take(expected: &Expected, at: usize, received: &mut VecDeque<Received>, story: &mut Story<'_>) {
    let Some(mut taken) = received.remove(at) else { return };
    if let Comparison::Part(length) = expected.compare(&taken.message, &mut story.book) {
        let rest = split_chunk(&mut taken.message, length);
        received.insert(at, Received { message: rest, calls: taken.calls });
    }
    story.book.record_agent_message(&taken.message);
}

/// Writes a message as a new line.
fn write_at(
    at: usize,
    received: &mut VecDeque<Received>,
    story: &mut Story<'_>,
    detail: WriteDetail,
    out: &mut Vec<FixtureLine>,
) {
    let Some(first) = received.remove(at) else { return };
    let words = words_of(&first.message, &mut story.book, detail);
    story.book.record_agent_message(&first.message);
    let free = update_of(&first.message).is_some_and(is_free);
    let Ok(expected) = Expected::read(&words) else { return };
    let what =
        if free { LineContent::AgentFree(words, expected) } else { LineContent::Agent(words, expected) };
    out.push(FixtureLine { number: 0, what, comment: None });
}

/// Writes the content of a call; old lines that still match are kept.
fn write_news(number: usize, lines: &[FixtureLine], story: &mut Story<'_>, out: &mut Vec<FixtureLine>) {
    let Some(model) = &mut story.model else { return };
    let old = model.exchanges[number].sees.clone();
    let old_lines = old.iter().filter_map(|(number, _)| lines.iter().find(|line| line.number == *number));
    let old_lines: Vec<FixtureLine> = old_lines.cloned().collect();
    let Some(news) = model.news(number, QUIET) else {
        out.extend(old_lines);
        return;
    };
    for (at, seen) in news.iter().enumerate() {
        let same = old.get(at).is_some_and(|(_, old)| old.matches(seen, &mut story.book.names));
        match old_lines.get(at).filter(|_| same) {
            Some(line) => out.push(line.clone()),
            None => {
                let what = LineContent::Sees(seen.with_names(&mut story.book.names));
                out.push(FixtureLine { number: 0, what, comment: None });
            }
        }
    }
}

/// Reads messages until the agent is quiet and has sent the answers of the segment.
fn receive_all(segment: &[FixtureLine], story: &mut Story<'_>) -> VecDeque<Received> {
    let answers_expected = segment
        .iter()
        .filter(|line| {
            matches!(
                &line.what,
                LineContent::Agent(
                    _,
                    Expected::Result { .. } | Expected::Error { .. } | Expected::Permission { .. }
                )
            )
        })
        .count();
    let limit = Instant::now() + story.setting.line_within;
    let mut received: VecDeque<Received> = VecDeque::new();
    loop {
        let answers = received.iter().filter(|received| received.message.get("id").is_some()).count();
        let now = Instant::now();
        let deadline = if answers < answers_expected { limit } else { limit.min(now + QUIET) };
        let message = match story.next(deadline) {
            NextMessage::Message(message) => message,
            NextMessage::NoMessage(_) => continue,
            NextMessage::Nothing | NextMessage::End => return received,
        };
        story.book.learn(&message);
        let calls = story.model.as_ref().map_or(0, |model| model.count());
        let joined = received.back_mut().is_some_and(|last| join_chunk(&mut last.message, &message));
        if !joined {
            received.push_back(Received { message, calls });
        }
    }
}
