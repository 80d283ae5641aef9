//! What a compaction says word for word, gathered from the log. Pure.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use super::scene::{Rewritten, Scene};
use super::text::{attached, said, said_with_attached};
use crate::thread::{Change, Content, Entry, Message, Origin, Part, Seq};

/// What leaves the view, or left it before, and is to be said beside the summary.
pub(super) struct Material {
    /// The entries that stay.
    pub kept: HashSet<Seq>,
    /// What the person last asked.
    pub request: Option<Request>,
    /// What else they said, newest first.
    pub person: Vec<(Seq, String)>,
    /// The newest text of each file of instructions, in the order in which they were told.
    pub instructions: Vec<Instructions>,
    /// What is pinned.
    pub pins: Vec<(Part, String)>,
    pub goal: Option<String>,
    /// The summary that the view begins with, and that a model wrote.
    pub earlier: Option<String>,
}

pub(super) struct Request {
    pub entry: Seq,
    /// Its text, with what is attached named.
    pub text: String,
    /// The same where what is attached comes along.
    pub text_with_attached: String,
    pub attached: Vec<Content>,
}

pub(super) struct Instructions {
    pub entry: Seq,
    pub path: String,
    pub text: String,
}

impl Material {
    /// For a layer that keeps the view from the entry `cut` on.
    pub fn of(scene: &Scene<'_>, cut: usize) -> Material {
        let thread = scene.thread;
        let shown = scene.entries();
        let kept: HashSet<Seq> = shown[cut..].iter().map(|entry| entry.seq).collect();
        let rewritten = Rewritten::of(thread);
        let pins: Vec<(Part, String)> =
            thread.pins().into_iter().filter(|(part, _)| !kept.contains(&part.entry)).collect();
        let quoted: HashSet<Seq> =
            pins.iter().filter(|(part, _)| part.part.is_none()).map(|(part, _)| part.entry).collect();

        let replaced: HashMap<Seq, &Arc<Entry>> =
            shown[..cut].iter().map(|entry| (entry.seq, entry)).collect();

        let mut request = None;
        let mut person = Vec::new();
        let mut told: BTreeMap<&Path, Option<Instructions>> = BTreeMap::new();
        for entry in thread.entries().iter().rev() {
            let Change::Said { origin, .. } = &entry.change else { continue };
            // A quote from the log must not bring back what a hook took out of the history.
            let current = match rewritten.contains(entry.seq) {
                true => replaced.get(&entry.seq).copied(),
                false => Some(entry),
            };
            let message = current.and_then(message_of);
            match origin {
                Origin::Person | Origin::Recipe { .. } | Origin::Queue { .. } => {
                    let is_last = request.is_none();
                    if is_last {
                        let is_quoted = !kept.contains(&entry.seq);
                        request =
                            Some(message.filter(|_| is_quoted).map(|message| Request::of(entry, message)));
                    } else if let Some(message) = message
                        && !kept.contains(&entry.seq)
                        && !quoted.contains(&entry.seq)
                    {
                        let text = match origin {
                            Origin::Recipe { typed, .. } if !rewritten.contains(entry.seq) => typed.clone(),
                            _ => said(message),
                        };
                        if !text.trim().is_empty() {
                            person.push((entry.seq, text));
                        }
                    }
                }
                Origin::Instructions { path } if !told.contains_key(path.as_path()) => {
                    let text = message.map(said).filter(|text| !text.trim().is_empty());
                    let text = text.filter(|_| !kept.contains(&entry.seq) && !quoted.contains(&entry.seq));
                    let newest = text.map(|text| Instructions {
                        entry: entry.seq,
                        path: path.display().to_string(),
                        text,
                    });
                    told.insert(path, newest);
                }
                Origin::Instructions { .. } | Origin::Hook { .. } | Origin::Context { .. } => {}
            }
        }
        let mut instructions: Vec<Instructions> = told.into_values().flatten().collect();
        instructions.sort_by_key(|file| file.entry);
        let goal = thread.goal().map(str::to_owned);
        let earlier = shown[..cut].first().and_then(|entry| earlier_summary(entry));
        Material { kept, request: request.flatten(), person, instructions, pins, goal, earlier }
    }
}

impl Request {
    fn of(entry: &Entry, message: &Message) -> Request {
        Request {
            entry: entry.seq,
            text: said(message),
            text_with_attached: said_with_attached(message),
            attached: attached(message),
        }
    }
}

fn message_of(entry: &Arc<Entry>) -> Option<&Message> {
    match &entry.change {
        Change::Said { message, .. } => Some(message),
        _ => None,
    }
}

/// What a model wrote of what was before an earlier compaction: the log has it in no other form.
fn earlier_summary(entry: &Entry) -> Option<String> {
    let Change::Compacted { summary, .. } = &entry.change else { return None };
    // A provider's own form of it may stand in front.
    let text = summary.content.iter().find_map(|content| match content {
        Content::Text { text } => Some(text),
        _ => None,
    });
    let (_, rest) = text?.split_once(SUMMARY_OPEN)?;
    let text =
        rest.strip_suffix(SUMMARY_CLOSE).or_else(|| rest.split_once(SUMMARY_CLOSE).map(|(text, _)| text))?;
    (!text.trim().is_empty()).then(|| text.to_owned())
}

pub(super) const SUMMARY_OPEN: &str = "<summary>\n";
pub(super) const SUMMARY_CLOSE: &str = "\n</summary>";
