//! The baseline that a compaction has to beat: a few functions that only use structure. They keep user messages, the
//! newest plan, the files, the commands with their latest exit status, commits, and the end of the agent's messages.

use std::collections::HashMap;

use regex::Regex;
use serde_json::Value;

use super::corpus::{Block, Message, path_of};

/// Percentage of the size that a section may take; the agent's messages take the rest.
const USER: usize = 40;
const FILES: usize = 14;
const OTHERS: usize = 8;

/// A call with its result: the text and whether it failed.
pub struct Call<'a> {
    pub name: &'a str,
    pub input: &'a Value,
    pub result: Option<(&'a str, bool)>,
}

pub fn calls(messages: &[Message]) -> Vec<Call<'_>> {
    let results = messages.iter().filter_map(|message| match message {
        Message::Result { call, text, failed } => Some((call.as_str(), (text.as_str(), *failed))),
        Message::User(_) | Message::Agent(_) => None,
    });
    let results: HashMap<&str, (&str, bool)> = results.collect();
    let calls = messages.iter().flat_map(Message::calls);
    calls.map(|(id, name, input)| Call { name, input, result: results.get(id).copied() }).collect()
}

pub fn compact(messages: &[Message], chars: usize) -> String {
    let calls = calls(messages);
    let part = |percent: usize| chars * percent / 100;
    let (failed, worked) = commands(&calls);
    let plan = plan(&calls).into_iter().map(|(status, step)| format!("- [{status}] {step}")).collect();
    let mut parts = vec![
        section("The user said, oldest first", user(messages, part(USER))),
        section("Plan", fit(plan, part(OTHERS))),
        section("Commands that failed when last run, newest first", fit(failed, part(OTHERS))),
        section("Files, newest first", fit(files(&calls), part(FILES))),
        section("Commands that worked, most frequent first", fit(worked, part(OTHERS))),
        section("Commits, newest first", fit(commits(&calls), part(OTHERS))),
    ];
    let left = chars.saturating_sub(parts.iter().map(|part| length(part) + 2).sum::<usize>() + 60);
    parts.push(section("The agent said last, oldest first", agent(messages, left)));
    parts.retain(|part| !part.is_empty());
    parts.join("\n\n")
}

fn section(heading: &str, text: String) -> String {
    if text.is_empty() { text } else { format!("## {heading}\n{text}") }
}

/// The leading lines that fit.
fn fit(lines: Vec<String>, chars: usize) -> String {
    let mut left = chars;
    let fits = lines.into_iter().filter(|line| match left.checked_sub(length(line) + 1) {
        Some(rest) => {
            left = rest;
            true
        }
        None => false,
    });
    fits.collect::<Vec<_>>().join("\n")
}

/// The beginning and the end of a text.
fn clip(text: &str, chars: usize) -> String {
    let (text, all) = (text.trim(), length(text.trim()));
    if all <= chars {
        return text.to_owned();
    }
    let head = chars * 3 / 5;
    let tail = chars.saturating_sub(head + 5);
    let end: String = text.chars().skip(all - tail).collect();
    format!("{} […] {end}", text.chars().take(head).collect::<String>())
}

fn length(text: &str) -> usize {
    text.chars().count()
}

fn user(messages: &[Message], chars: usize) -> String {
    let said = messages.iter().rev().filter_map(|message| match message {
        Message::User(text) => Some(text.as_str()),
        // The user's message in the result of a refused call.
        Message::Result { text, .. } => text.split_once("the user said:").map(|(_, said)| said),
        Message::Agent(_) => None,
    });
    newest_first(said.map(|said| format!("- {}", clip(said, (chars / 3).max(600)))).collect(), chars)
}

fn agent(messages: &[Message], chars: usize) -> String {
    let texts = messages.iter().rev().filter_map(|message| {
        let Message::Agent(blocks) = message else { return None };
        let texts = blocks.iter().filter_map(|block| match block {
            Block::Text(text) => Some(text.as_str()),
            Block::Call { .. } => None,
        });
        Some(texts.collect::<Vec<_>>().join("\n")).filter(|text| !text.trim().is_empty())
    });
    let texts =
        texts.enumerate().map(|(nth, text)| format!("- {}", clip(&text, if nth == 0 { 2_500 } else { 700 })));
    newest_first(texts.collect(), chars)
}

/// As many of the newest texts as fit, in chronological order.
fn newest_first(texts: Vec<String>, chars: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut left = chars;
    for text in texts {
        let text = if length(&text) < left { text } else { clip(&text, 190) };
        if let Some(rest) = left.checked_sub(length(&text) + 1) {
            left = rest;
            lines.push(text);
        }
    }
    lines.reverse();
    lines.join("\n")
}

/// Status and text of each step of the newest plan; completed steps come last.
pub fn plan(calls: &[Call<'_>]) -> Vec<(String, String)> {
    let mut steps: Vec<(String, String, String)> = Vec::new();
    let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    for call in calls {
        match (call.name, call.input["todos"].as_array()) {
            ("TodoWrite", Some(todos)) => {
                steps = todos
                    .iter()
                    .map(|step| (String::new(), text(step, "status"), text(step, "content")))
                    .collect();
            }
            ("TaskCreate", _) => {
                let number = call.result.and_then(|(result, _)| result.split_once('#')).map(|(_, rest)| rest);
                let digits = number.map(|rest| rest.chars().take_while(char::is_ascii_digit).collect());
                let id = digits.unwrap_or_else(|| (steps.len() + 1).to_string());
                steps.push((id, "pending".to_owned(), text(call.input, "subject")));
            }
            ("TaskUpdate", _) => {
                let (id, status) = (text(call.input, "taskId"), text(call.input, "status"));
                if let Some(step) = steps.iter_mut().find(|step| step.0 == id && !status.is_empty()) {
                    step.1 = status;
                }
            }
            _ => {}
        }
    }
    steps.retain(|(_, status, _)| status != "deleted");
    steps.sort_by_key(|(_, status, _)| status == "completed");
    steps.into_iter().map(|(_, status, step)| (status, step)).collect()
}

fn files(calls: &[Call<'_>]) -> Vec<String> {
    let mut seen: Vec<(&str, usize, usize)> = Vec::new();
    for call in calls {
        let Some(path) = path_of(call.input).filter(|_| !call.result.is_some_and(|(_, failed)| failed))
        else {
            continue;
        };
        let changes = ["edit", "write"].iter().any(|kind| call.name.to_lowercase().contains(kind));
        let known = seen.iter().position(|(known, ..)| *known == path).map(|at| seen.remove(at));
        let (_, changed, read) = known.unwrap_or((path, 0, 0));
        seen.push((path, changed + usize::from(changes), read + usize::from(!changes)));
    }
    seen.reverse();
    seen.sort_by_key(|(_, changed, _)| *changed == 0);
    let shared = shared_folder(&seen.iter().map(|(path, ..)| *path).collect::<Vec<_>>());
    let lines = seen.iter().map(|(path, changed, _)| match changed {
        0 => format!("- {}", &path[shared.len()..]),
        times => format!("- {}: changed {times}x", &path[shared.len()..]),
    });
    let below = (!shared.is_empty()).then(|| format!("below {shared}"));
    below.into_iter().chain(lines).collect()
}

/// The common folder of all paths, with a trailing slash.
fn shared_folder(paths: &[&str]) -> String {
    let mut shared = paths.first().copied().unwrap_or_default();
    for path in paths {
        let same = shared.bytes().zip(path.bytes()).take_while(|(a, b)| a == b).count();
        shared = &shared[..shared.floor_char_boundary(same)];
    }
    shared.rsplit_once('/').map_or(String::new(), |(folder, _)| format!("{folder}/"))
}

/// Commands whose last run failed, and the others.
fn commands(calls: &[Call<'_>]) -> (Vec<String>, Vec<String>) {
    let mut runs: Vec<(String, usize, (&str, bool))> = Vec::new();
    for call in calls {
        let (Some(line), Some(result)) = (call.input["command"].as_str(), call.result) else { continue };
        let line =
            line.split("<<").next().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
        let known = runs.iter().position(|(known, ..)| *known == line).map(|at| runs.remove(at));
        runs.push((line, known.map_or(1, |(_, count, _)| count + 1), result));
    }
    runs.reverse();
    let (failed, mut worked): (Vec<_>, Vec<_>) = runs.into_iter().partition(|(.., (_, failed))| *failed);
    worked.sort_by_key(|(_, count, _)| std::cmp::Reverse(*count));
    let failed =
        failed.iter().map(|(line, _, (output, _))| format!("- `{}`: {}", clip(line, 120), clip(output, 500)));
    let worked = worked.iter().map(|(line, count, _)| format!("- `{}` ({count}x)", clip(line, 120)));
    (failed.collect(), worked.collect())
}

/// Lines printed by `git commit`.
fn commits(calls: &[Call<'_>]) -> Vec<String> {
    let commit =
        Regex::new(r"(?m)^\[([\w./-]+) (?:\(root-commit\) )?([0-9a-f]{7,})\] (.*)$").expect("a pattern");
    let outputs =
        calls.iter().filter(|call| call.input["command"].is_string()).filter_map(|call| call.result);
    let found = outputs.flat_map(|(output, _)| commit.captures_iter(output));
    let mut commits: Vec<String> =
        found.map(|found| format!("- {} on {}: {}", &found[2], &found[1], &found[3])).collect();
    commits.reverse();
    commits
}
