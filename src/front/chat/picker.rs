//! A list to choose from: sessions, or the values of an option. Pure.

use std::path::{Path, PathBuf};

use agent_client_protocol::v2::schema as wire;
use epitome_thread::visible::visible_line;

use crate::client::ChatRequest;

/// Letters from which the sessions of all directories are searched.
const SEARCHED_CHARS_MIN: usize = 2;

/// A stored session to choose from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChatSession {
    pub id: String,
    pub cwd: PathBuf,
    pub title: Option<String>,
    /// How long ago it was used, in words.
    pub age: String,
    /// A line in which the searched words occur.
    pub excerpt: String,
}

/// See the module's documentation.
pub struct Picker {
    pub title: String,
    pub entries: Vec<PickerEntry>,
    /// Among the entries that match the filter.
    pub selected: usize,
    /// Whether it lists sessions, which are also searched.
    has_sessions: bool,
    /// The words that were searched for, and the sessions of all directories that have them.
    found: Option<(String, Vec<PickerEntry>)>,
    /// What was typed to find an entry.
    pub filter: String,
    /// The cursor of the next page, if the list is not complete.
    pub cursor: Option<wire::SessionListCursor>,
    /// Whether the next part has been requested.
    pub is_loading: bool,
}

#[derive(Debug, PartialEq)]
pub struct PickerEntry {
    pub label: String,
    pub detail: String,
    pub choice: PickerChoice,
}

/// What choosing an entry does.
#[derive(Clone, Debug, PartialEq)]
pub enum PickerChoice {
    Request(ChatRequest),
    /// Sets the mode in which everything runs, after the question about it.
    FullAccess(ChatRequest),
    Nothing,
    /// Puts a text into the draft.
    Draft(String),
    Prompt(String),
}

impl Picker {
    /// The sessions of a directory, newest first as the agent lists them.
    pub fn of_sessions(
        sessions: Vec<ChatSession>,
        cursor: Option<wire::SessionListCursor>,
        cwd: &Path,
    ) -> Picker {
        let title = match sessions.is_empty() {
            true => "No sessions of this directory · type to search all",
            false => "Sessions of this directory · type to search all",
        };
        let entries = sessions.into_iter().map(|session| session_entry(session, cwd)).collect();
        Picker { cursor, has_sessions: true, ..Picker::new(title, entries) }
    }

    /// The words to search sessions for, if it lists sessions and the result is not known.
    pub fn wanted(&self) -> Option<&str> {
        let words = self.filter.trim();
        let is_known = self.found.as_ref().is_some_and(|(known, _)| known == words);
        let is_wanted = self.has_sessions && !is_known && words.chars().count() >= SEARCHED_CHARS_MIN;
        is_wanted.then_some(words)
    }

    /// Adds the sessions that have these words.
    pub fn add_found(&mut self, words: String, sessions: Vec<ChatSession>, cwd: &Path) {
        let entries = sessions.into_iter().map(|session| session_entry(session, cwd));
        self.found = self.has_sessions.then(|| (words, entries.collect()));
    }

    fn new(title: impl Into<String>, entries: Vec<PickerEntry>) -> Picker {
        let (title, filter) = (title.into(), String::new());
        let (has_sessions, found) = (false, None);
        Picker { title, entries, selected: 0, has_sessions, found, filter, cursor: None, is_loading: false }
    }

    /// Texts to choose from, each with what choosing it does; the newest comes last, and is shown first.
    pub fn of_texts<'a>(
        title: &str,
        texts: impl DoubleEndedIterator<Item = (&'a str, PickerChoice)>,
    ) -> Picker {
        let entry = |(text, choice): (&str, PickerChoice)| PickerEntry {
            label: visible_line(text).into_owned(),
            detail: String::new(),
            choice,
        };
        Picker::new(title, texts.rev().map(entry).collect())
    }

    /// The question before everything may run without one.
    pub fn of_full_access(no: PickerChoice, yes: ChatRequest) -> Picker {
        let entry = |label: &str, detail: &str, choice| PickerEntry {
            label: label.to_owned(),
            detail: detail.to_owned(),
            choice,
        };
        let kept = if no == PickerChoice::Nothing { "keep the mode" } else { "go on to the next mode" };
        let access = "commands and edits run without questions and without a sandbox";
        let entries = vec![entry("No", kept, no), entry("Yes", access, PickerChoice::FullAccess(yes))];
        Picker::new("Give the agent full access?", entries)
    }

    /// The entries that contain all words of the filter, and then other sessions that were found for them.
    pub fn matching(&self) -> Vec<&PickerEntry> {
        let filter = self.filter.to_lowercase();
        let is_match = |entry: &&PickerEntry| {
            let text = format!("{} {}", entry.label, entry.detail).to_lowercase();
            filter.split_whitespace().all(|word| text.contains(word))
        };
        let mut shown: Vec<&PickerEntry> = self.entries.iter().filter(is_match).collect();
        if let Some((_, found)) = self.found.as_ref().filter(|(words, _)| words == self.filter.trim()) {
            let is_new = |entry: &&PickerEntry| shown.iter().all(|known| known.choice != entry.choice);
            shown.extend(found.iter().filter(is_new).collect::<Vec<_>>());
        }
        shown
    }

    /// Changes the filter by a letter, or removes the last one.
    pub fn filter_by(&mut self, letter: Option<char>) {
        match letter {
            Some(letter) => self.filter.push(letter),
            None => drop(self.filter.pop()),
        }
        self.selected = 0;
    }

    /// What the selected entry does.
    pub fn chosen(&self) -> Option<PickerChoice> {
        self.matching().get(self.selected).map(|entry| entry.choice.clone())
    }

    /// Adds the next part of a list.
    pub fn extend(&mut self, next: Picker) {
        self.entries.extend(next.entries);
        self.cursor = next.cursor;
        self.is_loading = false;
    }

    /// The values of an option.
    pub fn of_option(session: &wire::SessionId, option: &wire::SessionConfigOption) -> Picker {
        let values = values(option);
        let current = current(option);
        let selected = values.iter().position(|value| Some(&value.value) == current).unwrap_or(0);
        let entry = |value: &wire::SessionConfigSelectOption| PickerEntry {
            label: visible_line(&value.name).into_owned(),
            detail: value.description.as_deref().map(visible_line).unwrap_or_default().into_owned(),
            choice: PickerChoice::Request(set(session, option, value)),
        };
        Picker { selected, ..Picker::new(option.name.clone(), values.iter().map(entry).collect()) }
    }

    /// Selects another entry. At the end of a part of a list, returns where it continues instead.
    pub fn select(&mut self, forward: bool) -> Option<wire::SessionListCursor> {
        let count = self.matching().len();
        if forward && self.selected + 1 >= count && self.cursor.is_some() && self.filter.is_empty() {
            let is_first = !std::mem::replace(&mut self.is_loading, true);
            return self.cursor.clone().filter(|_| is_first);
        }
        let count = count.max(1);
        self.selected = if forward { self.selected + 1 } else { self.selected + count - 1 } % count;
        None
    }
}

fn session_entry(session: ChatSession, cwd: &Path) -> PickerEntry {
    let title = session.title.as_deref().map(visible_line).filter(|title| !title.trim().is_empty());
    let directory = if session.cwd == cwd { String::new() } else { session.cwd.display().to_string() };
    let details = [session.age, directory, session.excerpt];
    let details: Vec<String> = details.into_iter().filter(|detail| !detail.is_empty()).collect();
    PickerEntry {
        label: title.unwrap_or("(no title)".into()).into_owned(),
        detail: details.join(" · "),
        choice: PickerChoice::Request(ChatRequest::Resume { session: session.id.into(), cwd: session.cwd }),
    }
}

/// The value of an option this many places after the current one, and the request that sets it.
pub fn later_value(
    session: &wire::SessionId,
    option: &wire::SessionConfigOption,
    places: usize,
) -> Option<(String, ChatRequest)> {
    let values = values(option);
    let at = values.iter().position(|value| Some(&value.value) == current(option))?;
    let value = values.get((at + places) % values.len())?;
    Some((value.value.to_string(), set(session, option, value)))
}

/// The request that sets an option to the value with this name or id, or to the only one that contains it; or the values.
pub fn named_value(
    session: &wire::SessionId,
    option: &wire::SessionConfigOption,
    named: &str,
) -> Result<ChatRequest, Vec<String>> {
    let values = values(option);
    let is_it = |value: &&wire::SessionConfigSelectOption| {
        value.name.eq_ignore_ascii_case(named) || value.value.to_string().eq_ignore_ascii_case(named)
    };
    let contains =
        |value: &&wire::SessionConfigSelectOption| value.value.to_string().contains(&named.to_lowercase());
    let mut partly = values.iter().filter(contains);
    let only = partly.next().filter(|_| partly.next().is_none());
    match values.iter().find(is_it).or(only) {
        Some(value) => Ok(set(session, option, value)),
        None => Err(values.iter().map(|value| value.value.to_string()).collect()),
    }
}

/// The name of an option's value.
pub fn shown_value(option: &wire::SessionConfigOption) -> Option<String> {
    let value = current(option)?;
    let values = values(option);
    let named = values.iter().find(|known| known.value == *value).map(|known| known.name.clone());
    Some(named.unwrap_or_else(|| value.to_string()))
}

fn set(
    session: &wire::SessionId,
    option: &wire::SessionConfigOption,
    value: &wire::SessionConfigSelectOption,
) -> ChatRequest {
    ChatRequest::SetOption {
        session: session.clone(),
        option: option.config_id.clone(),
        value: wire::SessionConfigOptionValue::Id { value: value.value.clone() },
    }
}

fn current(option: &wire::SessionConfigOption) -> Option<&wire::SessionConfigValueId> {
    match &option.kind {
        wire::SessionConfigKind::Select(select) => Some(&select.current_value),
        _ => None,
    }
}

fn values(option: &wire::SessionConfigOption) -> Vec<wire::SessionConfigSelectOption> {
    let wire::SessionConfigKind::Select(select) = &option.kind else { return Vec::new() };
    match &select.options {
        wire::SessionConfigSelectOptions::Ungrouped(options) => options.clone(),
        wire::SessionConfigSelectOptions::Grouped(groups) => {
            groups.iter().flat_map(|group| group.options.clone()).collect()
        }
        _ => Vec::new(),
    }
}
